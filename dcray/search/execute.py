"""Ask the record first, train what is missing, write down what comes back.

One road for `dcray train`, the quickstart and every search: a request that has a result is answered
from the record; the others become trials, and this process alone writes what they say.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dcray.cluster import ray_cluster
from dcray.config import RunConfig
from dcray.corpus.manifest import Corpus
from dcray.corpus.stream import StreamRefs, publish
from dcray.errors import ConfigError
from dcray.named import named_address
from dcray.search.book import Book, View
from dcray.search.cells import Chain
from dcray.search.place import Machine, place_run, this_machine
from dcray.search.queue import Ended, FixedQueue, Queue
from dcray.search.request import Request
from dcray.search.runner import StopRequest, Trial, run_trials, stop_on_signals
from dcray.sections import RuntimeConfig
from dcray.track.hold import check_corpus, hold_corpus
from dcray.track.lease import CellHeldError
from dcray.track.owner import Owner
from dcray.track.points import Cell
from dcray.track.rows import Row
from dcray.track.store import Store
from dcray.train.worker import Leg

GPU_SECONDS = 1_200.0  # for a cloud to start a node
TAKEN = (
    "{cell} was taken over by {owner}: it saw no sign of life from here for two minutes (was this "
    "machine asleep, or cut off?). Stopping; what is saved is kept"
)
STOPPING = "stopping: saving a checkpoint; press Ctrl-C again to end at once"


@dataclass
class Site:
    """Where a command trains: its record, its corpus, its folder, and what a person watches."""

    corpus: Corpus
    store: Store
    directory: Path
    view: View
    num_cpus: int | None = None
    max_concurrent: int | None = None  # None: what the cluster holds now
    machine: Machine = field(init=False)
    stop: StopRequest = field(default_factory=StopRequest)

    @property
    def home(self) -> Path:
        """The study's folder."""
        return (self.directory / self.store.study).absolute()

    @contextmanager
    def open(self, *, needs_gpu: bool = False) -> Iterator[None]:
        """Connected to Ray, its machine known, signals caught.

        needs_gpu: a cluster that the user named may have to start a node first: wait for it.
        """
        if "ray" not in sys.modules:
            self.view.note("Ray starts, in some seconds")
        with ray_cluster(num_cpus=self.num_cpus, logs=self.home / "logs"):
            import ray

            num_gpus = ray.cluster_resources().get("GPU", 0)
            wait = needs_gpu and named_address() and not num_gpus
            if wait:
                self.view.note("no GPU in this cluster yet: one is asked for, for up to 20 minutes")
            elif num_gpus and ray.available_resources().get("GPU", 0) < 1:
                self.view.note("every GPU of this cluster is in use: waiting for one")
            self.machine = this_machine(gpu_seconds=GPU_SECONDS if wait else 0.0)
            with stop_on_signals(lambda: self.view.note(STOPPING)) as self.stop:
                self.store.watch(self._taken)
                yield

    def _taken(self, cell: Cell, owner: Owner) -> None:
        """Others thought us dead: what is left is for a new look at the record."""
        if not self.stop.event.is_set():
            self.view.note(TAKEN.format(cell=cell.label, owner=owner))
        self.stop.set()


def execute(
    requests: Sequence[Request],
    corpus: Corpus,
    store: Store,
    *,
    directory: Path,
    view: View,
    num_cpus: int | None = None,
) -> list[Ended]:
    """Every request answered, from the record or by training; in the order of `requests`.

    Raises ConfigError where the study on record has another corpus.
    """
    ended: dict[str, Ended] = {}
    reads = {one.config.data.unique_tokens: one.reads for one in requests}
    check_corpus(store, corpus, reads)
    for one in requests:
        row = store.find(one.key)
        if row is not None and row.state in ("complete", "diverged"):
            ended[one.name] = answered(one, row)
            view.end(ended[one.name])
    missing = [one for one in requests if one.name not in ended]
    if missing:
        corpus.verify(max(one.config.data.unique_tokens for one in missing))
        site = Site(corpus, store, directory, view, num_cpus)
        on_gpu = any(one.config.runtime.device == "cuda" for one in missing)
        with site.open(needs_gpu=on_gpu):
            for one in missing:  # all are refused before any is begun
                place_run(one.config, site.machine, view.note)
            hold_corpus(store, corpus, reads)
            with _claimed(store, missing):
                for one in missing:  # a stop may come before it is handed out
                    ended[one.name] = Ended(one, "stopped", reason="it was not started")
                train_queue(
                    FixedQueue(list(missing)),
                    site,
                    [one.config for one in missing],
                    lambda one: ended.update({one.request.name: one}),
                )
    return [ended[one.name] for one in requests]


def train_queue(
    queue: Queue,
    site: Site,
    configs: Collection[RunConfig],
    on_end: Callable[[Ended], None],
    *,
    scheduler: Any = None,
) -> None:
    """Run what the queue makes ready until it is finished or stopped.

    configs: of all that may be trained; they say which data is published.
    """
    (site.home / "logs").mkdir(parents=True, exist_ok=True)
    refs = _published(site.corpus, configs)

    def heard(ended: Ended) -> None:
        queue.end(ended)
        on_end(ended)

    book = Book(site.store, site.corpus, site.machine, site.view, heard)
    hand_out = _HandOut(queue, site, book)
    run_trials(
        hand_out,
        refs,
        book.listener(),
        logs=site.home / "logs",
        stop=site.stop,
        scheduler=scheduler,
        num_pending=site.max_concurrent or 1,
    )


class _HandOut:
    """Turns what the queue makes ready into trials, as many at once as there is room for."""

    def __init__(self, queue: Queue, site: Site, book: Book) -> None:
        self.queue, self.site, self.book = queue, site, book
        self.running: list[Trial] = []
        self._said: list[Cell] = []  # what we were last said to wait for

    def finished(self) -> bool:
        return self.queue.finished()

    def next(self) -> Trial | None:
        """The first ready chain, where there is room for it now."""
        ready = self.queue.ready()
        if not ready:
            self._say_what_is_awaited()
            return None
        chain = ready[0]
        try:
            run = place_run(chain[0].config, self.site.machine, lambda _: None)
        except ConfigError as error:
            self.queue.start(chain)
            for one in chain:
                if self.queue.loss_of(one) is None:
                    self.book.heard(Ended(one, "refused", reason=str(error)))
            return None
        if not self._room_for(run):
            return None
        self.queue.start(chain)
        self.running.append(self._trial(chain, run.runtime))
        return self.running[-1]

    def left(self, trial: Trial) -> None:
        """Its place is free."""
        self.running.remove(trial)

    def _say_what_is_awaited(self) -> None:
        """Nothing can start; where nothing runs either, a person wonders why."""
        awaited = [] if self.running else self.queue.awaited()
        if awaited and awaited != self._said:
            labels = ", ".join(cell.label for cell in awaited)
            self.site.view.note(f"waiting for {labels}, which another command searches")
        self._said = awaited

    def _room_for(self, run: RunConfig) -> bool:
        if self.site.max_concurrent is not None:
            return len(self.running) < self.site.max_concurrent
        machine = self.site.machine
        together = [*(trial.run for trial in self.running), run]
        cpus, gpus = sum(map(cpus_of, together)), sum(map(gpus_of, together))
        return cpus <= machine.num_cpus and gpus <= machine.num_gpus

    def _trial(self, chain: Chain, place: RuntimeConfig) -> Trial:
        """All legs of a chain are computed in the first one's place."""
        home = self.site.home / "checkpoints"
        legs = []
        for one in chain:
            run = one.config.model_copy(update={"runtime": place})
            self.book.expect(one, run)
            trunk = home / one.trunk if one.trunk else None
            loss = self.queue.loss_of(one)
            legs.append(Leg(one.name, run, home / one.name, trunk, one.save_at_fork, loss))
        self.book.begin(next(leg.name for leg in legs if leg.answered is None))
        return Trial(tuple(legs), data_key(chain[0].config))


def cpus_of(run: RunConfig) -> float:
    """CPUs that a placed run holds: a GPU's process needs one beside it, asked for or not."""
    return float(run.runtime.threads * int(run.runtime.workers))


def gpus_of(run: RunConfig) -> int:
    """GPUs that a placed run holds."""
    return int(run.runtime.workers) if run.runtime.device == "cuda" else 0


def data_key(config: RunConfig) -> str:
    """Runs with the same key read the same published stream: budgets are its prefixes."""
    return f"{config.data.val_tokens}/{config.runtime.stream}"


REPEATS = (
    "(on record: the same run diverges again. Lower optim.lr or change another field; to train "
    "this one anew all the same, delete its run {run_id} in MLflow)"
)


def answered(one: Request, row: Row) -> Ended:
    """What the record says; a divergence is as final as a loss: the run is deterministic."""
    if row.state == "diverged":
        reason = f"{row.reason or 'it diverged'} {REPEATS.format(run_id=row.run_id)}"
        return Ended(one, "diverged", run_id=row.run_id, reason=reason)
    return Ended(one, "answered", row.val_loss, row.val_bpb, row.run_id)


def _published(corpus: Corpus, configs: Collection[RunConfig]) -> dict[str, StreamRefs]:
    """One stream for each way to read it, long enough for the largest budget."""
    groups: dict[str, list[RunConfig]] = {}
    for config in configs:
        groups.setdefault(data_key(config), []).append(config)
    found = {}
    for key, members in groups.items():
        data, mode = members[0].data, members[0].runtime.stream
        largest = max(member.data.unique_tokens for member in members)
        found[key] = publish(corpus, largest, data.val_tokens, mode)
    return found


@contextmanager
def _claimed(store: Store, requests: Sequence[Request]) -> Iterator[None]:
    with ExitStack() as stack:
        for cell in dict.fromkeys(one.key.cell for one in requests):
            try:
                stack.enter_context(store.claim(cell))
            except CellHeldError as error:
                raise ConfigError(f"{error}; wait for it, or end that process") from None
        yield
