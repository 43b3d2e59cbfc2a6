"""The lease of a cell, which allows a driver to train it, and the runs of drivers that died.

The lease is in the tags of the cell's parent run: owner, attempt, heartbeat. On one machine it is
taken under a file lock; between machines that share a server the tags are read again after writing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from dcray.track import runs
from dcray.track.locks.owner import Owner, heartbeat_of, this_process
from dcray.track.mlflow.connection import Connection
from dcray.track.mlflow.write_queue import Write, Writer
from dcray.track.rows import row_of
from dcray.types import Cell

SETTLE_SECONDS = 0.5  # between machines: long enough for a rival's write to arrive
RELEASE_SECONDS = 20.0
_FINAL = {"complete": "FINISHED", "diverged": "FAILED", "failed": "FAILED"}


class CellHeldError(Exception):
    """Another living driver holds the cell: the caller skips it, and names the owner."""

    def __init__(self, cell: Cell, owner: Owner, heartbeat: float | None) -> None:
        self.cell, self.owner, self.advice = cell, owner, owner.advice(heartbeat)
        super().__init__(f"{cell.label} is held by {owner}")


class Lease:
    """A cell that this driver holds until the block ends: then FINISHED, FAILED or KILLED."""

    def __init__(
        self,
        writer: Writer,
        cell: Cell,
        run_id: str,
        attempt: str,
        registry: dict[str, Lease],
    ) -> None:
        self.cell = cell
        self.run_id = run_id
        self.attempt = attempt
        self._writer = writer
        self._registry = registry  # of what the store holds
        self._released = False
        registry[run_id] = self

    def tag(
        self,
        tags: Mapping[str, str],
        *,
        val_loss: float | None = None,
        more: Mapping[str, float] | None = None,
    ) -> None:
        """Record the state of the cell's search, its best loss and more metrics; never blocks."""
        now = round(time.time() * 1000)
        named = dict(more or {}) | ({} if val_loss is None else {"val_loss": val_loss})
        metrics = [(name, value, now, 0) for name, value in named.items()]
        self._writer.put(Write(self.run_id, self.attempt, metrics=metrics, tags=dict(tags)))

    def held(self) -> bool:
        """Tell whether the lease is still ours, as far as its last heartbeat could tell."""
        return self._writer.heart.beats(self.run_id)

    def release(self, status: str = "FINISHED", *, seconds: float | None = RELEASE_SECONDS) -> bool:
        """Give the lease back; `status` (FINISHED, KILLED, FAILED) becomes the parent run's.

        Waits `seconds` for the record; None only queues it, for a caller that drains all. Returns
        whether it is on record.
        """
        if self._released:
            return True
        self._released = True
        self._writer.heart.rest(self.run_id)
        self._registry.pop(self.run_id, None)
        self._writer.put(Write(self.run_id, self.attempt, status=status))
        return seconds is not None and self._writer.settle(self.run_id, seconds=seconds)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.release()
        else:
            self.release("FAILED" if isinstance(error, Exception) else "KILLED")


def take(connection: Connection, cell: Cell, run_id: str, attempt: str) -> None:
    """Write this driver as the owner of a cell's lease; called under the lock.

    Raises CellHeldError if another living driver holds it.
    """
    run = connection.client.get_run(run_id)
    _refuse_if_held(cell, run, attempt)
    _set_tags(
        connection,
        run_id,
        {
            "dcray.owner": this_process().to_json(),
            "dcray.attempt": attempt,
            "dcray.heartbeat": str(time.time()),
            "dcray.state": "",
            "dcray.reason": "",
        },
    )
    connection.client.update_run(run_id, status="RUNNING")
    if not connection.uri.startswith("sqlite"):  # another host has a lock of its own
        time.sleep(SETTLE_SECONDS)
        _refuse_if_held(cell, connection.client.get_run(run_id), attempt)


def settle(connection: Connection, experiment_id: str, *, attempt: str) -> list[str]:
    """End the RUNNING runs of an experiment whose owner is dead; return the ids of those it ended.

    Runs without a dcray owner are left alone. Called under the lock: none is taken over between
    the check and its end.
    """
    settled: list[str] = []
    for found in list(runs.search(connection, experiment_id, "attributes.status = 'RUNNING'")):
        run = connection.client.get_run(found.info.run_id)  # another host has a lock of its own
        tags = run.data.tags
        owner = Owner.from_json(tags.get("dcray.owner"))
        ended = run.info.status != "RUNNING"
        if owner is None or ended or tags.get("dcray.attempt") == attempt:
            continue
        if owner.alive(heartbeat_of(tags)):
            continue
        status = "FINISHED" if tags.get("dcray.complete") == "true" else None
        status = status or _FINAL.get(tags.get("dcray.state", ""), "KILLED")
        if status == "KILLED":
            reason = f"{owner.death()}; settled at the next start"
            _set_tags(
                connection,
                run.info.run_id,
                {"dcray.state": "interrupted", "dcray.reason": reason},
            )
        connection.client.set_terminated(run.info.run_id, status)
        settled.append(run.info.run_id)
    return settled


def adopt(connection: Connection, experiment_id: str, cell: Cell, parent: str) -> None:
    """Nest the results of a cell under a new `parent`, after the one before was deleted."""
    wanted = f"tags.`dcray.role` = 'result' and tags.recipe = '{cell.recipe}'"
    for run in list(runs.search(connection, experiment_id, wanted)):
        row = row_of(cell.study, run)
        if row.cell == cell and row.tags.get("mlflow.parentRunId") != parent:
            connection.client.set_tag(row.run_id, "mlflow.parentRunId", parent)


def _refuse_if_held(cell: Cell, run: Any, attempt: str) -> None:
    tags = run.data.tags
    owner = Owner.from_json(tags.get("dcray.owner"))
    heartbeat = heartbeat_of(tags)
    if owner is None or run.info.status != "RUNNING" or tags.get("dcray.attempt") == attempt:
        return
    if owner != this_process() and owner.alive(heartbeat):
        raise CellHeldError(cell, owner, heartbeat)


def _set_tags(connection: Connection, run_id: str, tags: Mapping[str, str]) -> None:
    from mlflow.entities import RunTag

    connection.client.log_batch(run_id, tags=[RunTag(name, text) for name, text in tags.items()])
