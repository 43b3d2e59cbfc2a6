"""Keys, points and drivers for the tests of the record: real MLflow, real SQLite files."""

import os
import shutil
import sqlite3
import subprocess
import sys
import textwrap
from contextlib import contextmanager
from pathlib import Path

from dcray.track.points import Point
from dcray.track.store import Store
from dcray.types import Cell, RunKey

STUDY = "tests"
CELL = Cell(STUDY, "mini", 64_000, "ar")
PARAMS = {"num_epochs": 16, "weight_decay": 0.8, "lr": 3e-3, "tau": 1.25, "num_params": 226_000}


def key(config_hash="abc123", *, seed=42, kind="branch", cell=CELL):
    return RunKey(cell, config_hash, seed, kind)


def point(step, **values):
    return Point(step, step * 2048, step / 10, values or {"train/loss": 5.0 - step / 100})


def begin(store, which=None):
    return store.begin(which or key(), config={"num_epochs": 16}, params=PARAMS)


def open_store(directory):
    return Store.open(directory, study=STUDY)


def rows_in_database(directory, run_id):
    """(key, step, value) of every row of the history, as the file itself has them."""
    with sqlite3.connect(directory / "mlflow.db") as database:
        found = database.execute(
            "select key, step, value from metrics where run_uuid = ? order by key, step", [run_id]
        )
        return found.fetchall()


@contextmanager
def locked(directory):
    """Another process's exclusive transaction: nobody can read or write."""
    database = sqlite3.connect(directory / "mlflow.db", isolation_level=None)
    database.execute("BEGIN EXCLUSIVE")
    try:
        yield
    finally:
        database.execute("ROLLBACK")
        database.close()


def driver(code, directory, *arguments, **options):
    """A process that runs `code` with the names of this module; stdout and stderr are pipes.

    inside: a command that runs it, as `unshare` does.
    """
    header = f"""
        import os, sys, time
        from pathlib import Path
        from tests.track.support import *
        directory = Path({str(directory)!r})
    """
    root = Path(__file__).parents[2]
    environment = {k: v for k, v in os.environ.items() if k != "MLFLOW_TRACKING_URI"}
    environment["PYTHONPATH"] = str(root)
    command = [sys.executable, "-c", textwrap.dedent(header) + textwrap.dedent(code), *arguments]
    return subprocess.Popen(
        [*options.pop("inside", ()), *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=options.pop("cwd", directory),
        env=environment | options.pop("env", {}),
        **options,
    )


def copy_of(template, directory):
    shutil.copytree(template, directory)
    return directory
