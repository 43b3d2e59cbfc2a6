"""The one thread that writes to MLflow: it buffers, retries, and saves to disk what is left.

A write can be repeated without harm: the rows of a history are unique by (key, timestamp, step,
value), and everything else is overwritten. So a write that failed half-way is simply done again.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from dcray.errors import RecordAwayError, first_line
from dcray.track.locks.heartbeat import Heart
from dcray.track.locks.owner import Owner, this_process
from dcray.track.mlflow.connection import Connection
from dcray.track.mlflow.retry import waiting_helps
from dcray.track.points import Metric

LINGER_SECONDS = 1.0  # points wait for others of their run: a batch costs 7 ms at any size
METRICS_PER_BATCH = 1000  # the limits of log_batch
PARAMS_PER_BATCH = 100
_log = logging.getLogger(__name__)


@dataclass
class Write:
    """The values to write to one run, applied from top to bottom: the status comes last."""

    run_id: str
    attempt: str
    metrics: list[Metric] = field(default_factory=list)
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)  # artifact: its text
    files: dict[str, str] = field(default_factory=dict)  # local file: folder among the artifacts
    status: str | None = None

    @property
    def plain(self) -> bool:
        """Tell whether more metrics may be added to this write."""
        return not (self.texts or self.files or self.status)


def apply(client: Any, write: Write) -> None:
    """Write `write` to its run; MLflow's errors pass through."""
    from mlflow.entities import Metric as Row
    from mlflow.entities import Param, RunTag

    rows = [Row(key, value, at, step) for key, value, at, step in write.metrics]
    for start in range(0, len(rows), METRICS_PER_BATCH):
        client.log_batch(write.run_id, metrics=rows[start : start + METRICS_PER_BATCH])
    params = [Param(key, value) for key, value in write.params.items()]
    for start in range(0, len(params), PARAMS_PER_BATCH):
        client.log_batch(write.run_id, params=params[start : start + PARAMS_PER_BATCH])
    for name, text in write.texts.items():
        client.log_text(write.run_id, text, name)
    for path, folder in write.files.items():
        client.log_artifact(write.run_id, path, folder or None)
    if write.tags:
        client.log_batch(write.run_id, tags=[RunTag(k, v) for k, v in write.tags.items()])
    if write.status:
        client.set_terminated(write.run_id, write.status)


def still_ours(client: Any, write: Write) -> Write:
    """Return the write, without status and tags if another attempt has the run by now."""
    owner = client.get_run(write.run_id).data.tags.get("dcray.attempt")
    return write if owner == write.attempt else replace(write, status=None, tags={})


class Writer:
    """A queue of writes and the daemon thread that empties it and writes the heartbeats."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._pending: deque[Write] = deque()
        self._changed = threading.Condition()
        self._applying: Write | None = None
        self._draining = 0  # how many callers wait: then nothing lingers
        self._stopped = False
        self._refused: dict[str, str] = {}  # run id: what MLflow said
        self.heart = Heart(connection)
        self._thread = threading.Thread(target=self._work, name="dcray-record", daemon=True)
        self._thread.start()

    def put(self, write: Write) -> None:
        """Queue a write: takes microseconds, never blocks on the record."""
        with self._changed:
            last = next((w for w in reversed(self._pending) if w.run_id == write.run_id), None)
            full = last is not None and len(last.metrics) + len(write.metrics) > METRICS_PER_BATCH
            if last is None or full or last is self._applying or not (last.plain and write.plain):
                self._pending.append(write)
            else:
                last.metrics += write.metrics
                last.params |= write.params
                last.tags |= write.tags
            self._changed.notify_all()

    def drain(self, run_id: str | None, *, seconds: float) -> bool:
        """Wait until nothing of this run (None: any) is pending; return False if time ran out."""
        with self._changed:
            self._draining += 1
            self._changed.notify_all()
            try:
                self._changed.wait_for(
                    lambda: self._stopped or not self._of(run_id), timeout=seconds
                )
                return not self._of(run_id)
            finally:
                self._draining -= 1

    def settle(self, run_id: str | None, *, seconds: float) -> bool:
        """Drain for `seconds`; save to disk what is still pending, and return whether none was."""
        if self.drain(run_id, seconds=seconds):
            return True
        self.spill(run_id)
        return False

    def spill(self, run_id: str | None) -> list[Path]:
        """Save what is pending for this run (None: each) to disk, for the next start to replay.

        The thread goes on trying; if it succeeds, it removes the file. Raises RecordAwayError if
        the disk cannot be written either.
        """
        with self._changed:
            writes = self._of(run_id)
            by_run: dict[str, list[Write]] = {}
            for write in writes:
                by_run.setdefault(write.run_id, []).append(write)
            try:
                return [
                    _spill(self._connection, f"{run}-{found[0].attempt}.json", found)
                    for run, found in by_run.items()
                ]
            except OSError as error:
                raise RecordAwayError(
                    f"the record does not answer, and {self._connection.directory / 'spill'} takes "
                    f"nothing ({error.strerror}); make room there, then run again: each run goes "
                    "on from its newest checkpoint"
                ) from error

    def refusal(self, run_id: str) -> str | None:
        """Return MLflow's message if it refused a write of this run for good, else None."""
        return self._refused.get(run_id)

    def stop(self) -> None:
        """End the thread after its current write."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _of(self, run_id: str | None) -> list[Write]:
        return [write for write in self._pending if run_id in (None, write.run_id)]

    def _work(self) -> None:
        pause = 0.0
        while not self._stopped:
            self.heart.beat_if_due()
            write = self._next(pause)
            if write is None:
                continue
            try:
                client = self._connection.client
                apply(client, still_ours(client, write) if write.status else write)
            except Exception as error:
                if waiting_helps(error):
                    pause = min(max(0.2, 2 * pause), 5.0)
                    _log.debug("the record is away, %d writes wait", len(self._pending))
                    with self._changed:
                        self._applying = None
                    continue
                self._refuse(write, error)
            pause = 0.0
            self._done(write)

    def _refuse(self, write: Write, error: Exception) -> None:
        """Keep on disk what MLflow will never accept, for a person to look at.

        Nothing is kept of a run that was deleted: the person who deleted it no longer wants it.
        """
        if self._is_deleted(write.run_id):
            if write.run_id not in self._refused:
                self._refused[write.run_id] = "it was deleted in MLflow while it was open"
                _log.error("run %s: %s", write.run_id, self._refused[write.run_id])
            return
        name = f"{write.run_id}-{write.attempt}-{time.time_ns()}.refused"
        try:
            where = f"kept in {_spill(self._connection, name, [write])}"
        except OSError as other:
            where = f"and lost: {other}"
        self._refused[write.run_id] = f"{first_line(error)} ({where})"
        _log.error("the record refused a write: %s", self._refused[write.run_id])

    def _is_deleted(self, run_id: str) -> bool:
        try:
            run = self._connection.client.get_run(run_id)
        except Exception:
            return False
        return bool(run.info.lifecycle_stage == "deleted")

    def _next(self, pause: float) -> Write | None:
        """Return the write to do now, after a pause if the last one failed, or None."""
        with self._changed:
            if pause:
                self._changed.wait_for(lambda: self._stopped, timeout=pause)
            elif not self._pending:
                self._changed.wait(timeout=self.heart.seconds / 4)
            if self._pending and self._pending[0].plain and not pause:
                self._changed.wait_for(
                    lambda: self._stopped or self._draining, timeout=LINGER_SECONDS
                )
            if self._stopped or not self._pending:
                return None
            self._applying = self._pending[0]
            return self._applying

    def _done(self, write: Write) -> None:
        with self._changed:
            self._pending.popleft()
            self._applying = None
            if not self._of(write.run_id):
                _spill_path(self._connection, f"{write.run_id}-{write.attempt}.json").unlink(
                    missing_ok=True
                )
            self._changed.notify_all()


def replay(connection: Connection) -> int:
    """Write what dead drivers of this directory left on disk; return how many files that was.

    Status and tags are left out if the run belongs to a later attempt. Called under the lock.
    """
    count = 0
    for path in sorted((connection.directory / "spill").glob("*.json")):
        spilled = json.loads(path.read_text(encoding="utf-8"))
        owner = Owner.from_json(json.dumps(spilled["owner"]))
        theirs = owner is not None and owner != this_process() and owner.alive(None)
        if spilled["uri"] != connection.address or theirs:
            continue
        try:
            for fields in spilled["writes"]:
                _redo(connection.client, fields)
        except Exception as error:
            if waiting_helps(error):
                raise
            _log.error("the record refused %s, which is kept: %s", path, first_line(error))
            path.replace(path.with_suffix(".refused"))
            continue
        path.unlink()
        count += 1
    return count


def _redo(client: Any, fields: dict[str, Any]) -> None:
    write = Write(**fields | {"metrics": [tuple(row) for row in fields["metrics"]]})
    apply(client, still_ours(client, write))


def _spill_path(connection: Connection, name: str) -> Path:
    return connection.directory / "spill" / name


def _spill(connection: Connection, name: str, writes: Iterable[Write]) -> Path:
    """Save the writes as one file, completely or not at all."""
    path = _spill_path(connection, name)
    path.parent.mkdir(exist_ok=True)
    content = {
        "uri": connection.address,
        "owner": asdict(this_process()),
        "writes": [asdict(write) for write in writes],
    }
    draft = path.with_suffix(".draft")
    try:
        with draft.open("w", encoding="utf-8") as stream:
            json.dump(content, stream)
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return path
