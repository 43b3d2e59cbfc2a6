"""A study's analysis among its artifacts: one run of the experiment, "analysis", holds the latest.

Files that the latest analysis no longer has are deleted.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from dcray.track import runs
from dcray.track.locks.owner import this_process
from dcray.track.points import FORMAT
from dcray.track.provenance import provenance
from dcray.track.store import PATIENCE_SECONDS, Store

ROLE = "analysis"
FOLDER = "analysis"  # among the run's artifacts


def keep(store: Store, folder: Path) -> str:
    """Keep the files of `folder` as artifacts of the study's analysis run; return that run's id.

    Raises RecordAwayError if the record does not answer.
    """
    with store.connection.lock():
        run_id = store.connection.patiently(lambda: _run_of(store), seconds=PATIENCE_SECONDS)
        store.connection.patiently(
            lambda: _replace(store, run_id, folder), seconds=PATIENCE_SECONDS
        )
    return run_id


def _run_of(store: Store) -> str:
    """Find the newest analysis run of the study, or make one; set it RUNNING."""
    client = store.connection.client
    tags = {
        **provenance(),
        "study": store.study,
        "dcray.role": ROLE,
        "dcray.format": str(FORMAT),
        "dcray.owner": this_process().to_json(),
        "dcray.attempt": store.attempt,
        "dcray.heartbeat": str(time.time()),
    }
    wanted = f"tags.`dcray.role` = '{ROLE}'"
    found = list(runs.search(store.connection, store.experiment_id, wanted))
    if not found:
        run = client.create_run(store.experiment_id, run_name=ROLE, tags=tags)
        return str(run.info.run_id)
    run_id = str(found[-1].info.run_id)
    for key, value in tags.items():
        client.set_tag(run_id, key, value)
    client.update_run(run_id, status="RUNNING")
    return run_id


def _replace(store: Store, run_id: str, folder: Path) -> None:
    client = store.connection.client
    names = {path.name for path in folder.iterdir() if path.is_file()}
    client.log_artifacts(run_id, str(folder), FOLDER)
    old = {Path(item.path).name for item in client.list_artifacts(run_id, FOLDER)}
    repository = _repository(store, run_id)
    for name in sorted(old - names):
        repository.delete_artifacts(f"{FOLDER}/{name}")
    client.set_terminated(run_id, "FINISHED")


def _repository(store: Store, run_id: str) -> Any:
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    uri = store.connection.client.get_run(run_id).info.artifact_uri
    return get_artifact_repository(uri, tracking_uri=store.connection.uri)
