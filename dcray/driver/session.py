"""A command's connection to Ray: its resources, its running trials, and how they are stopped."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from dcray.cluster.named import named_address
from dcray.cluster.start import ray_cluster
from dcray.config.run import RunConfig
from dcray.corpus.manifest import Corpus
from dcray.corpus.stream import StreamRefs, publish
from dcray.driver.resources import (
    LEAST_SHARE,
    Machine,
    cpus_of,
    gpus_of,
    place_run,
    this_machine,
)
from dcray.driver.stop import StopRequest, stop_on_signals
from dcray.driver.tune import TuneLoop
from dcray.errors import ConfigError
from dcray.evals.ensemble import ensemble_result
from dcray.plan.prices import Prices
from dcray.reports import Report
from dcray.track.locks.owner import Owner
from dcray.track.store import Store
from dcray.types import Cell, Chain, Event, RunReport, RunSpec

GPU_SECONDS = 1_200.0  # for a cloud to start a node
IDLE_SECONDS = 1.0  # between two looks while no run is under way
TAKEN = (
    "{cell} was taken over by {owner}, which saw no sign of life from here for two minutes. "
    "Stopping; what is saved is kept"
)
STOPPING = "stopping: saving a checkpoint; press Ctrl-C again to end at once"


class View(Protocol):
    """The display of a search, such as the live table of the command line."""

    def note(self, text: str) -> None: ...
    def show(self, event: Event) -> None: ...


@dataclass
class Session:
    """The surroundings of a command that trains: record, corpus, folder and display."""

    corpus: Corpus
    store: Store
    directory: Path
    view: View
    num_cpus: int | None = None
    max_concurrent: int | None = None  # None: what the cluster holds now
    prices: Prices = field(default_factory=Prices)  # of runs, by which short ones share a GPU
    machine: Machine = field(init=False)
    stop: StopRequest = field(default_factory=StopRequest)
    _tune: TuneLoop = field(init=False)
    _events: list[Event] = field(default_factory=list)
    _awaited: Sequence[Cell] = ()  # the cells last noted as awaited

    @property
    def home(self) -> Path:
        """Return the study's folder."""
        return (self.directory / self.store.study).absolute()

    @property
    def checkpoints(self) -> Path:
        """Return the folder of all runs' checkpoints."""
        return self.home / "checkpoints"

    @contextmanager
    def open(self, *, needs_gpu: bool = False) -> Iterator[None]:
        """Keep a connection to Ray, with `machine` set and signals caught.

        needs_gpu: wait for a GPU; a cluster that the user named may have to start a node first.
        """
        if "ray" not in sys.modules:
            self.view.note("Ray starts, in some seconds")
        logs, note = self.home / "logs", self.view.note
        with ray_cluster(num_cpus=self.num_cpus, logs=logs, note=note):
            import ray

            num_gpus = ray.cluster_resources().get("GPU", 0)
            wait = needs_gpu and named_address() and not num_gpus
            if wait:
                self.view.note("no GPU in this cluster yet: one is asked for, for up to 20 minutes")
            elif num_gpus and ray.available_resources().get("GPU", 0) < LEAST_SHARE:
                self.view.note("every GPU of this cluster is in use: waiting for one")
            self.machine = this_machine(gpu_seconds=GPU_SECONDS if wait else 0.0)
            self.prices.num_gpus = self.machine.num_gpus
            with stop_on_signals(lambda: self.view.note(STOPPING)) as self.stop:
                self.store.watch(self._taken)
                yield

    @contextmanager
    def trials(self, configs: Collection[RunConfig], scheduler: Any = None) -> Iterator[None]:
        """Keep a TuneLoop ready for trials of these configurations, whose data are published.

        scheduler: Tune's, for whole trunks; None: FIFO.
        """
        (self.home / "logs").mkdir(parents=True, exist_ok=True)
        self._tune = TuneLoop(
            published(self.corpus, configs, self.view.note),
            checkpoints=self.checkpoints,
            logs=self.home / "logs",
            stop=self.stop,
            on_silence=self._silent,
            scheduler=scheduler,
            num_pending=self.max_concurrent or 1,
        )
        try:
            yield
            self._tune.close()
        except BaseException as error:
            self._tune.abort(error)
            raise

    def has_room(self, chain: Chain) -> bool:
        """Tell whether a trial can start now, or never can, so that `submit` refuses it at once."""
        running = self._tune.running
        if self.stop.event.is_set() or self._tune.waiting is not None:
            return False
        if chain[0].members:
            return True
        names = {spec.name for other in running for spec in other}
        if any(spec.name in names for spec in chain):
            return False  # it is tried again: its trial before has not left yet
        if self.max_concurrent is not None:
            return len(running) < self.max_concurrent
        try:
            run = self._place(chain)
        except ConfigError:
            return True
        together = [*(other[0].run for other in running), run]
        cpus, gpus = sum(map(cpus_of, together)), sum(map(gpus_of, together))
        return cpus <= self.machine.num_cpus and gpus <= self.machine.num_gpus

    def submit(self, chain: Chain) -> None:
        """Start a trial; all runs of a chain are computed in the first one's place.

        An ensemble is computed here and now.
        """
        if chain[0].members:
            store, spec = self.store, chain[0]
            self._events.append(ensemble_result(spec, self.corpus, self.home, store.find))
            return
        to_train = [spec for spec in chain if spec.answered is None]
        try:
            run = self._place(chain)
        except ConfigError as error:
            self._events += [spec.ended("refused", reason=str(error)) for spec in to_train]
            return
        placed = tuple(replace(spec, place=run.runtime) for spec in chain)
        self._events += [RunReport(spec) for spec in placed if spec.answered is None][:1]
        self._tune.submit(placed, data_key(run))

    def _place(self, chain: Chain) -> RunConfig:
        """Place the first run of a trial, in whose place all of them are computed."""
        seconds = sum(map(self.prices.device_seconds, chain))
        return place_run(chain[0].config, self.machine, seconds=seconds)

    def busy(self) -> bool:
        """Tell whether a run is under way, or an event not yet taken."""
        return bool(self._tune.running or self._events)

    def waits_for(self, cells: Sequence[Cell]) -> bool:
        """Tell whether this command waits for cells that others search; note it once."""
        if self.stop.event.is_set() or not cells:
            return False
        if cells != self._awaited:
            labels = ", ".join(cell.label for cell in cells)
            self.view.note(f"waiting for {labels}, which another command searches")
        self._awaited = cells
        return True

    def events(self) -> list[Event]:
        """Take the events of the runs since the last call; wait for a moment if there are none."""
        if self._events:
            events, self._events = self._events, []
            return events
        if self._tune.running:
            return self._tune.step()
        self.stop.event.wait(IDLE_SECONDS)
        return []

    def _silent(self, spec: RunSpec, last: Report | None, seconds: float) -> None:
        """Note which run has sent no report, since when, and what can be done."""
        where = f"since step {last.step:,}" if last else "since it began"
        self.view.note(
            f"{spec.key.label}: no report for {seconds:.0f} s, {where}; Ctrl-C twice ends this "
            "command, and the same command goes on from the last checkpoint"
        )

    def _taken(self, cell: Cell, owner: Owner) -> None:
        """Stop, since another driver thought this one dead and took over the cell."""
        if not self.stop.event.is_set():
            self.view.note(TAKEN.format(cell=cell.label, owner=owner))
        self.stop.set()


def data_key(config: RunConfig) -> str:
    """Return the key of the stream that a run reads; budgets are prefixes of the same stream."""
    return f"{config.data.val_tokens}/{config.runtime.stream}"


def published(
    corpus: Corpus, configs: Collection[RunConfig], note: Callable[[str], None]
) -> dict[str, StreamRefs]:
    """Publish one stream for each data key, long enough for its largest budget."""
    groups: dict[str, list[RunConfig]] = {}
    for config in configs:
        groups.setdefault(data_key(config), []).append(config)
    found = {}
    for key, members in groups.items():
        data, mode = members[0].data, members[0].runtime.stream
        largest = max(member.data.unique_tokens for member in members)
        found[key] = publish(corpus, largest, data.val_tokens, mode, note)
    return found
