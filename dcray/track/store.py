"""The driver's only writer: experiment = study, parent run = cell, child run = result.

    with Store.open(Path("dcray-runs"), study="dclm") as store:
        with store.claim(cell):                                   # nobody else trains this cell
            if store.find(key) is None:
                with store.begin(key, config=..., params=...) as result:
                    result.log(points)                            # microseconds: a thread writes
                    result.finish({"val_loss": 3.1, "val_bpb": 1.0})

A block that ends without finish() or diverge() leaves its run FAILED (an exception, with its
traceback) or KILLED (to be continued); only finish() makes it FINISHED.
"""

from __future__ import annotations

import atexit
import json
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from dcray.errors import ConfigError
from dcray.track import runs
from dcray.track.locks.lease import Lease, adopt, settle, take
from dcray.track.locks.owner import Owner, this_process
from dcray.track.mlflow.connection import Connection, connect
from dcray.track.mlflow.dataset import log_dataset
from dcray.track.mlflow.experiment import Experiment
from dcray.track.mlflow.write_queue import Write, Writer, replay
from dcray.track.points import run_name
from dcray.track.provenance import provenance
from dcray.track.rows import Row, newest_complete, row_of
from dcray.track.run import Result
from dcray.track.tags import columns_of, identity_marks, texts_of
from dcray.types import Cell, RunKey

T = TypeVar("T")

PATIENCE_SECONDS = 150.0  # how long a call waits for a record that is locked or away
CLOSE_SECONDS = 20.0  # how long close() waits before it leaves the rest on disk


class Store:
    """The record of one study, open for writing by this process."""

    def __init__(self, connection: Connection, study: str) -> None:
        self.connection = connection
        self.study = study
        self.experiment = Experiment(connection, study)
        self.attempt = uuid.uuid4().hex[:12]  # of this driver; what it writes carries it
        self.writer = Writer(connection)
        self._open: dict[str, Result] = {}
        self._leases: dict[str, Lease] = {}
        self._parents: dict[Cell, str] = {}
        self._with_dataset: set[str] = set()  # ids of runs
        self._provenance: dict[str, str] | None = None
        atexit.register(self.close)

    @classmethod
    def open(cls, directory: Path, *, study: str, tracking_uri: str | None = None) -> Store:
        """Open the record under `directory`, made if it does not exist.

        The study's experiment is made by what is first written into it. This first writes what a
        dead driver left on disk, then settles the runs that it left RUNNING. The record is at
        `tracking_uri`, else MLFLOW_TRACKING_URI, else DIR/mlflow.db with DIR/artifacts. Raises
        ConfigError, before any work, if that cannot be written.
        """
        Cell(study, "-", 1, "-")  # the name is checked before anything is made
        connection = connect(Path(directory), tracking_uri, create=True)
        connection.patiently(Experiment(connection, study).find, seconds=PATIENCE_SECONDS)
        with connection.lock():
            connection.patiently(lambda: replay(connection), seconds=PATIENCE_SECONDS)
        store = cls(connection, study)
        store.settle_orphans()
        return store

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def experiment_id(self) -> str:
        """Return the id of the study's experiment, made if it does not exist yet."""
        return self.experiment.make()

    @property
    def address(self) -> str:
        """Return the tracking URI without its password: for people, and for `mlflow ui`."""
        return self.connection.address

    def settle_orphans(self) -> list[str]:
        """Settle this study's runs that are RUNNING though their owner is dead; return their ids.

        They become KILLED, with a reason; what had finished becomes FINISHED.
        """
        with self.connection.lock():
            return self._wait(self._settle_orphans)

    def cell(self, cell: Cell, *, tags: Mapping[str, Any] | None = None) -> str:
        """Return the id of the cell's parent run, made with `tags` if it does not exist yet."""
        assert cell.study == self.study, (cell, self.study)
        if cell not in self._parents:
            with self.connection.lock():
                self._parents[cell] = self._wait(lambda: self._parent(cell, tags or {}))
        return self._parents[cell]

    def claim(self, cell: Cell, *, tags: Mapping[str, Any] | None = None) -> Lease:
        """Take a cell's lease, a dead owner's too; raises CellHeldError if another holds it."""
        run_id = self.cell(cell, tags=tags)
        with self.connection.lock():
            self._wait(lambda: take(self.connection, cell, run_id, self.attempt))
        self.writer.heart.begin(run_id, self.attempt)
        return Lease(self.writer, cell, run_id, self.attempt, self._leases)

    def find(self, key: RunKey) -> Row | None:
        """Find the result with this key in whatever state it is; a complete one before others."""
        found = self._wait(lambda: self._runs_of(key))
        return newest_complete([row_of(self.study, run) for run in found]) if found else None

    def every(self) -> list[Row]:
        """Read one row for each key of the study, in whatever state; none before it is made."""
        there = self._wait(self.experiment.find) is not None
        return self._wait(lambda: runs.latest(self.connection, self.study)[0]) if there else []

    def config(self, run_id: str) -> dict[str, Any]:
        """Load the configuration that a result kept as its artifact; ConfigError if it is away."""
        return self._wait(lambda: runs.artifact(self.connection, run_id, "config.json"))

    def cells(self, study: str | None = None) -> list[runs.CellRow]:
        """Read the cells on record of this study, or of another one; none if it does not exist."""
        name = study or self.study
        ours = self.experiment if name == self.study else Experiment(self.connection, name)
        if self._wait(ours.find) is None:
            return []
        return self._wait(lambda: runs.cells_of(self.connection, name))

    def begin(
        self,
        key: RunKey,
        *,
        config: Mapping[str, Any],
        params: Mapping[str, Any],
        axes: Mapping[str, Any] | None = None,
        tags: Mapping[str, Any] | None = None,
        manifest: Mapping[str, Any] | None = None,
    ) -> Result:
        """Open the result with this key: a new run, or the one that was interrupted or failed.

        `params` become flat columns (num_epochs, weight_decay, lr, tau, num_params, ...); size,
        unique_tokens, recipe and seed are added from the key. `axes`: further settings that its
        cell searches, by their full names; they become columns too, and part of its name. `tags`:
        device, threads, world_size, microbatch_size, corpus_hash; commit and versions are added.
        `config` and `manifest` become artifacts. Raises ConfigError if a living process has it
        open, ValueError if it is complete: ask find() first.
        """
        parent = self.cell(key.cell)
        axes = axes or {}
        columns = texts_of({**params, **axes, **columns_of(key)})
        marks = self._marks(key, parent, tags or {})
        with self.connection.lock():
            run_id, recorded, known = self._wait(
                lambda: self._child(key, run_name(key, params, axes), marks)
            )
            if not known and manifest and "corpus" in marks:
                ids = {run_id, parent} - self._with_dataset  # MLflow shows the cell's run first
                self._wait(lambda: log_dataset(self.connection, ids, key.cell, marks, manifest))
                self._with_dataset |= ids
        texts = {"config.json": json.dumps(config, indent=1, sort_keys=True)}
        if manifest is not None:
            texts["manifest.json"] = json.dumps(manifest, indent=1, sort_keys=True)
        new = {name: text for name, text in columns.items() if name not in known}
        self.writer.put(Write(run_id, self.attempt, params=new, texts=texts))
        self.writer.heart.begin(run_id, self.attempt)
        result = Result(self.writer, key, run_id, self.attempt, recorded, self._open)
        self._open[run_id] = result
        return result

    def choose(self, run_id: str, *, winner: bool) -> None:
        """Mark a result as its cell's winner, or as no longer the winner; never blocks."""
        tags = {"is_winner": str(winner).lower()}
        self.writer.put(Write(run_id, self.attempt, tags=tags))

    def watch(self, on_taken: Callable[[Cell, Owner], None]) -> None:
        """Call `on_taken`, from the writing thread, when another driver took over a cell of ours.

        That can happen if this driver's heartbeat was missing for two minutes. What this driver
        still writes about the state of that cell and its results is dropped.
        """

        def told(run_id: str, owner: Owner) -> None:
            lease = self._leases.get(run_id)
            if lease is not None:
                on_taken(lease.cell, owner)

        self.writer.heart.on_taken = told

    def close(self) -> None:
        """Interrupt what is open, write what is buffered, save to disk what cannot be written."""
        atexit.unregister(self.close)
        for result in list(self._open.values()):
            result.interrupt("the driver ended", seconds=None)
        for lease in list(self._leases.values()):
            lease.release("KILLED", seconds=None)
        try:
            self.writer.settle(None, seconds=CLOSE_SECONDS)
        finally:
            self.writer.stop()

    def _wait(self, call: Callable[[], T]) -> T:
        return self.connection.patiently(call, seconds=PATIENCE_SECONDS)

    def _settle_orphans(self) -> list[str]:
        found = self.experiment.find()
        return settle(self.connection, found, attempt=self.attempt) if found else []

    def _marks(self, key: RunKey, parent: str, tags: Mapping[str, Any]) -> dict[str, str]:
        if self._provenance is None:
            self._provenance = provenance()
        return {
            **self._provenance,
            **texts_of(tags),
            **texts_of(columns_of(key)),
            **identity_marks(key.cell, this_process(), self.attempt),
            "dcray.role": "result",
            "dcray.key": key.name,
            "dcray.state": "running",
            "kind": key.kind,
            "config_hash": key.config_hash,
            "mlflow.parentRunId": parent,
        }

    def _runs_of(self, key: RunKey) -> list[Any]:
        assert key.cell.study == self.study, (key, self.study)
        found = self.experiment.find()
        wanted = f"tags.`dcray.key` = '{key.name}'"
        return list(runs.search(self.connection, found, wanted)) if found else []

    def _child(
        self, key: RunKey, name: str, marks: dict[str, str]
    ) -> tuple[str, set[tuple[str, int]], set[str]]:
        """Open the run of a key as RUNNING and ours: (its id, its (key, step), its params)."""
        client = self.connection.client
        found = self._runs_of(key)
        if not found:
            run = client.create_run(self.experiment_id, run_name=name, tags=marks)
            found = self._runs_of(key)
            if found[0].info.run_id == run.info.run_id:
                return run.info.run_id, set(), set()
            client.delete_run(run.info.run_id)  # another host was first
        best = newest_complete([row_of(self.study, run) for run in found])
        if best.state == "complete":
            raise ValueError(f"{key.name} is already on record as run {best.run_id}")
        owner = Owner.from_json(best.tags.get("dcray.owner"))
        theirs = owner is not None and best.state == "running" and owner != this_process()
        if owner is not None and theirs and owner.alive(best.heartbeat_at):
            advice = owner.advice(best.heartbeat_at)
            raise ConfigError(f"{key.name} is being trained by {owner}; {advice}")
        return best.run_id, self._reopen(best, marks), set(best.params)

    def _reopen(self, row: Row, marks: dict[str, str]) -> set[tuple[str, int]]:
        """Make an ended run ours and RUNNING; return the (key, step) that it has recorded."""
        client = self.connection.client
        from mlflow.entities import RunTag

        marks = {**marks, "dcray.reason": "", "dcray.complete": "false"}
        client.log_batch(row.run_id, tags=[RunTag(k, v) for k, v in marks.items()])
        client.update_run(row.run_id, status="RUNNING")
        rows = runs.history(self.connection, row.run_id, list(row.metrics))
        return {(key, step) for key, by_step in rows.items() for step in by_step}

    def _parent(self, cell: Cell, tags: Mapping[str, Any]) -> str:
        client = self.connection.client
        wanted = f"tags.`dcray.role` = 'cell' and tags.`dcray.cell` = '{cell.name}'"
        found = list(runs.search(self.connection, self.experiment_id, wanted))
        if not found:
            marks = {
                **texts_of(tags),
                **identity_marks(cell, this_process(), self.attempt),
                "dcray.role": "cell",
                "dcray.cell": cell.name,
                "size": cell.size,
                "unique_tokens": str(cell.unique_tokens),
                "recipe": cell.recipe,
            }
            made = client.create_run(self.experiment_id, run_name=cell.name, tags=marks)
            client.update_run(made.info.run_id, status="SCHEDULED")  # until a driver claims it
            found = list(runs.search(self.connection, self.experiment_id, wanted))
            if found[0].info.run_id != made.info.run_id:
                client.delete_run(made.info.run_id)  # another host was first
            adopt(self.connection, self.experiment_id, cell, found[0].info.run_id)
        return str(found[0].info.run_id)
