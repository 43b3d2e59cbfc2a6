"""Where the record is, and what is refused before any work."""

import os
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import sqlalchemy

from dcray.errors import ConfigError
from dcray.track import runs
from dcray.track.connect import connect, is_local, redacted, resolve_uri, silence
from dcray.track.store import Store
from tests.track.support import STUDY

READ_ONLY = """
import os, sys
from pathlib import Path
from dcray.errors import ConfigError
from dcray.track.store import Store
if os.geteuid() == 0:
    os.setuid(65534)
try:
    Store.open(Path(sys.argv[1]), study="s")
except ConfigError as error:
    print(error)
"""


def test_an_argument_goes_before_the_environment_before_the_default(tmp_path, monkeypatch):
    default = f"sqlite:///{tmp_path}/mlflow.db"
    assert resolve_uri(tmp_path, None) == default
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://server:5000")
    assert resolve_uri(tmp_path, None) == "http://server:5000"
    assert resolve_uri(tmp_path, default) == default


@pytest.mark.parametrize("uri", ["file:/tmp/x", "file:///tmp/x", "./mlruns", "mlruns"])
def test_a_file_store_is_refused_with_what_to_write_instead(tmp_path, uri):
    with pytest.raises(ConfigError, match=r"write sqlite:///.*/mlflow\.db or http"):
        Store.open(tmp_path / "new", study=STUDY, tracking_uri=uri)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("uri", ["ftp://x/y", "databricks://x", "sqlite://", "sqlite:///:memory:"])
def test_other_addresses_are_refused(tmp_path, uri):
    with pytest.raises(ConfigError, match="tracking_uri must"):
        resolve_uri(tmp_path, uri)


def test_a_server_that_is_not_there_is_refused_before_any_work(tmp_path):
    with pytest.raises(ConfigError, match=r"http://me:\*\*\*@127.0.0.1:9 does not answer"):
        connect(tmp_path, "http://me:secret@127.0.0.1:9", create=True)


def test_a_directory_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="give --dir another"):
        Store.open(tmp_path / "file" / "runs", study=STUDY)


def test_a_read_only_directory_is_refused():
    """As another user where we are root, who may write everywhere."""
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o555)
        done = subprocess.run(
            [sys.executable, "-c", READ_ONLY, place],
            capture_output=True,
            text=True,
            cwd="/",
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            check=False,
        )
        assert "may only read" in done.stdout, done.stderr


def test_there_is_nothing_to_read_where_nothing_was_written(tmp_path):
    with pytest.raises(ConfigError, match="there is no record at"):
        runs.results(tmp_path, study=STUDY)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_study_is_told_with_the_nearest(store, directory):
    with pytest.raises(ConfigError, match=f'did you mean "{STUDY}"'):
        runs.results(directory, study="test")
    assert runs.studies(directory) == [STUDY]


def test_an_unknown_run_is_told(directory):
    with pytest.raises(ConfigError, match="RUN must be"):
        runs.curve(directory, "0" * 32)


def test_which_addresses_another_node_cannot_reach():
    assert is_local("sqlite:////a/mlflow.db")
    assert is_local("http://localhost:5000")
    assert is_local("http://127.0.0.1:5000/x")
    assert not is_local("http://tracking.example:5000")
    assert not is_local("postgresql://me@db/x")


def test_passwords_are_not_shown():
    assert redacted("postgresql://me:secret@db:1/x") == "postgresql://me:***@db:1/x"
    assert redacted("http://server:5000") == "http://server:5000"


def test_a_newer_mlflows_database_is_refused(directory):
    with sqlite3.connect(directory / "mlflow.db") as database:
        database.execute("update alembic_version set version_num = 'ffffffffffff'")
    with pytest.raises(ConfigError, match="install an MLflow at least as new"):
        connect(directory, None, create=True)
    with pytest.raises(ConfigError, match="another MLflow's schema"):
        connect(directory, None, create=False)


def test_an_older_mlflows_database_is_migrated(tmp_path):
    silence()
    from alembic import command
    from mlflow.store.db import utils
    from mlflow.store.tracking.dbmodels.initial_models import Base

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    engine = sqlalchemy.create_engine(uri)
    Base.metadata.create_all(engine)
    settings = utils._get_alembic_config(uri)
    with engine.begin() as settings.attributes["connection"]:
        command.upgrade(settings, "head")
        command.downgrade(settings, "-1")
    assert utils._get_schema_version(engine) != utils._get_latest_schema_revision()
    Store.open(tmp_path, study=STUDY).close()
    assert utils._get_schema_version(engine) == utils._get_latest_schema_revision()
