"""The analysis of a large study: python -m tests.bench.bench_analyze [--runs 5000]

A real record: 32 cells are planted through the store; then each candidate is copied in the database
itself, as other trials of its cell (its own key, configuration, lr and a worse loss), with all its
parameters, tags and metrics, until there are enough. What is timed is the command's own work: read,
choose, fit with intervals, draw, write, and log the artifacts.
"""

from __future__ import annotations

import argparse
import sqlite3
import time
import uuid
from pathlib import Path
from tempfile import TemporaryDirectory

from dcray.report import study
from dcray.report.analysis import BOOTSTRAP, Asked
from tests.bench.common import machine
from tests.report.planted import STUDY, plant_study

TABLES = ("params", "tags", "latest_metrics", "metrics")


def multiply(database: Path, wanted: int) -> int:
    """Copy results until the study has `wanted` runs of ours; how many it has then."""
    with sqlite3.connect(database) as db:
        ours = "select run_uuid from tags where key = 'kind' and value = 'branch'"
        originals = [run for (run,) in db.execute(ours)]
        (count,) = db.execute("select count(*) from tags where key = 'dcray.role'").fetchone()
        at = 0
        while count + at < wanted:
            copy(db, originals[at % len(originals)], at)
            at += 1
    return count + at


def copy(db: sqlite3.Connection, run: str, number: int) -> None:
    """One more trial of a run's cell."""
    fresh = uuid.uuid4().hex
    for table in ("runs", *TABLES):
        names = [row[1] for row in db.execute(f"pragma table_info({table})")]
        taken = ", ".join("?" if name == "run_uuid" else name for name in names)
        db.execute(
            f"insert into {table} ({', '.join(names)}) select {taken} from {table} "
            "where run_uuid = ?", (fresh, run),
        )  # fmt: skip
    suffix, worse = f"x{number}", 0.2 + number * 1e-4
    db.execute(
        "update tags set value = value || ? where run_uuid = ? and key in "
        "('config_hash', 'dcray.key')", (suffix, fresh),
    )  # fmt: skip
    for table in ("metrics", "latest_metrics"):
        db.execute(
            f"update {table} set value = value + ? where run_uuid = ? and key = 'val_loss'",
            (worse, fresh),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5000)
    parser.add_argument("--bootstrap", type=int, default=BOOTSTRAP)
    args = parser.parse_args()
    with TemporaryDirectory(prefix="bench-") as place:
        directory = Path(place)
        plant_study(directory)
        count = multiply(directory / "mlflow.db", args.runs)
        started, spent = time.perf_counter(), time.process_time()
        found = study.read(directory, STUDY, Asked(bootstrap=args.bootstrap))
        read = time.perf_counter()
        written = study.write(found, directory)
        ended = time.perf_counter()
        spent = time.process_time() - spent
        assert written.unlogged is None
        print(
            f"{machine('cpu')}: {count} runs, {len(found.cells)} cells, {args.bootstrap} resamples"
        )
        print(f"{ended - started:.1f} s, {spent:.1f} CPU-seconds of this process")
        print(
            f"{read - started:.1f} s to read and fit, {ended - read:.1f} s to draw, write and log "
            f"{len(written.pictures)} figures"
        )


if __name__ == "__main__":
    main()
