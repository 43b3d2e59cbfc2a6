"""`dcray search`: the cells of a study, searched on Ray and recorded until all are done.

Every start is fresh and goes by the record: what exists is answered, what is partial goes on from
its checkpoint, what failed is tried again. A cell that another job holds is left to it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from dcray import plugins
from dcray.config import RunConfig
from dcray.errors import ConfigError
from dcray.search.budget import Budget
from dcray.search.cells import CellSearch, Found, Slot
from dcray.search.elsewhere import RecordElsewhere
from dcray.search.execute import Site, train_queue
from dcray.search.place import place_run
from dcray.search.queue import Ended, StudyQueue
from dcray.search.recorded import refuse_other_models
from dcray.search.request import Reading
from dcray.search.runner import asha
from dcray.search.standing import CellLine, cell_line
from dcray.search.tidy import Tidy
from dcray.search.wish import CellWish
from dcray.track.hold import check_corpus, hold_corpus
from dcray.track.lease import CellHeldError, Lease
from dcray.track.points import Cell
from dcray.track.rows import Row, source_of

FAILURES = ("failed", "refused", "lost")
TAG_CHARACTERS = 8000  # MLflow cuts off what is longer, without a word


@dataclass
class Search:
    """One `dcray search`: made, run once, and asked where each cell stands."""

    wishes: Sequence[CellWish]
    readings: Mapping[Cell, Reading]  # of the wishes, by request.readings
    site: Site
    budget: Budget
    watch: Callable[[Callable[[], list[CellLine]]], None]  # is told how to ask for the lines
    keep_all: bool = False  # the weights of every run, not the winner's alone
    queue: StudyQueue = field(init=False)
    held: dict[Cell, str] = field(default_factory=dict)  # by whom
    _searches: dict[Cell, CellSearch] = field(init=False)
    _leases: dict[Cell, Lease] = field(default_factory=dict)
    _theirs: set[Cell] = field(default_factory=set)  # cells that others hold, as last read
    _said: dict[Cell, dict[str, str]] = field(default_factory=dict)
    _chosen: dict[Cell, str] = field(default_factory=dict)  # the result that is marked as winner

    def __post_init__(self) -> None:
        """The searches last as long as this one: what a sampler proposed is not asked for again."""
        self._searches = {
            wish.cell: CellSearch(wish, self.readings[wish.cell], self._load)
            for wish in self.wishes
        }

    def lines(self) -> list[CellLine]:
        """Where each cell stands, in the study's order."""
        return [
            cell_line(self.queue, wish.cell)
            if wish.cell in self.queue.searches
            else CellLine(wish.cell, "held", note=f"held by {self.held.get(wish.cell, 'a job')}")
            for wish in self.wishes
        ]

    @property
    def stopped_by(self) -> str:
        """What ended the search before its end, "" where nothing did."""
        if self.site.stop.event.is_set():
            return "stopped"
        if self.queue.unaffordable:
            hours = self.budget.max_device_hours
            return f"stopped before what will not fit into --max-device-hours {hours:g}"
        return ""

    @property
    def first_failure(self) -> Ended | None:
        """The first run that failed for good in this command."""
        failed = (one for one in self.queue.trained.values() if one.state in FAILURES)
        return next(failed, None)

    def run(self) -> None:
        """Search until all is done, nothing more can be afforded, or somebody stops it.

        Raises ConfigError where the corpus does not fit or is not the study's, or no node could
        ever hold a trial; the record is then as it was.
        """
        reads = {cell.unique_tokens: found.reads for cell, found in self.readings.items()}
        check_corpus(self.site.store, self.site.corpus, reads)
        self._read()
        self.watch(self.lines)
        if self._done(but=self._theirs):
            with self._claimed():
                self._read()
                self._tag()
            if self._done():  # else somebody has left a cell of theirs since it was read
                return
        self.site.corpus.verify(max(wish.cell.unique_tokens for wish in self.wishes))
        on_gpu = any(wish.base().runtime.device == "cuda" for wish in self.wishes)
        with self.site.open(needs_gpu=on_gpu):
            self.budget.machine = self.site.machine
            self._check_places()
            hold_corpus(self.site.store, self.site.corpus, reads)
            with self._claimed():
                self._read()
                self._tag()
                if not self._done():
                    self._train()

    def _done(self, *, but: Collection[Cell] = ()) -> bool:
        """Whether no cell is left to search, but those."""
        cells = (cell for cell in self.queue.searches if cell not in but)
        return all(self.queue.state(cell).done for cell in cells)

    def _read(self) -> None:
        """What the record knows: of cells that are ours it stays so."""
        store, rows = self.site.store, self.site.store.every()
        refuse_other_models(self.wishes, rows)
        self.budget.learn(rows)
        self._chosen = {row.cell: row.run_id for row in rows if row.tags.get("is_winner") == "true"}
        self.queue = StudyQueue(
            store.study,
            {cell: search for cell, search in self._searches.items() if cell not in self.held},
            _known(rows),
            RecordElsewhere(store),
            lambda one: self.budget.allows(one, self.queue.flying.values()),
        )
        cells = store.cells()
        self._theirs = {row.cell for row in cells if row.held and row.cell not in self._leases}
        for row in cells:
            known = self.queue.known.setdefault(row.cell, {})
            for text in filter(None, row.tags.get("dropped", "").split(",")):
                config_hash, seed = text.split("/")
                known.setdefault((config_hash, int(seed)), Found("dropped", None, 0))

    def _train(self) -> None:
        tidy = Tidy(self.queue, self.site.home / "checkpoints", keep_all=self.keep_all)
        tidy.all()

        def heard(ended: Ended) -> None:
            self.budget.spend(ended)
            tidy.cell(ended.request.key.cell)
            self._tag()

        configs = [wish.base() for wish in self.wishes]
        for cells, scheduler in self._rounds():
            self.queue.only = cells
            train_queue(self.queue, self.site, configs, heard, scheduler=scheduler)
        self.queue.only = None

    def _rounds(self) -> Iterator[tuple[frozenset[Cell], Any]]:
        """All cells side by side; one that ASHA judges alone, for it compares whatever comes in."""
        judged = [
            wish.cell
            for wish in self.wishes
            if wish.search.stopping == "asha" and wish.cell not in self.held
        ]
        together = frozenset(self.queue.searches) - frozenset(judged)
        while not self.site.stop.event.is_set():
            self.queue.only = together
            if not self.queue.finished():
                yield together, None
                continue
            for cell in judged:
                self.queue.only = frozenset({cell})
                if self.queue.ready():
                    chain = self.queue.ready()[0]
                    rungs = [one.config.num_epochs for one in chain]
                    yield self.queue.only, asha(rungs[0], rungs[-1])
                    break
            else:
                return

    @contextmanager
    def _claimed(self) -> Iterator[None]:
        """The leases of all cells that nobody else holds; given back as each cell stands."""
        held: dict[Cell, str] = {}
        try:
            for wish in self.wishes:
                try:
                    self._leases[wish.cell] = self.site.store.claim(wish.cell)
                except CellHeldError as error:
                    held[wish.cell] = str(error.owner)
            for cell, owner in held.items():
                if self.held.get(cell) != owner:
                    self.site.view.note(f"{cell.label} is skipped: it is held by {owner}")
            self.held = held
            yield
        finally:
            for cell, lease in self._leases.items():
                done = cell in self.queue.searches and self.queue.state(cell).searched
                lease.release("FINISHED" if done else "KILLED", seconds=None)
            self._leases, self._said = {}, {}
            self.site.store.writer.settle(None, seconds=60.0)

    def _check_places(self) -> None:
        """Refuse what no node could ever hold, before anything is trained."""
        problems, notes = list[str](), dict[str, None]()
        for wish in self.wishes:
            config = wish.base().resolved(vocab_size=self.readings[wish.cell].vocab_size)
            longest = config.model_copy(update={"num_epochs": wish.longest})
            try:
                place_run(longest, self.site.machine, lambda text: notes.update({text: None}))
            except ConfigError as error:
                problems += [f"{wish.cell.label}: {problem}" for problem in error.problems]
        if problems:
            raise ConfigError(problems)
        for text in notes:
            self.site.view.note(text)

    def _tag(self) -> None:
        """Note on each cell's parent run where its search stands."""
        for cell, lease in self._leases.items():
            line, wish = cell_line(self.queue, cell), self.queue.searches[cell].wish
            tags = {
                "search_seed": str(wish.file.seed),
                "search_state": line.state,
                "planned": str(line.planned),
                "stopped": str(line.counts["stopped"]),
                "answered": str(line.counts["answered"]),
                "winner": line.winner_run_id,
                "best": line.best,
                "edges": ",".join(line.edges),
                "inherit": wish.recipe.inherit or "",
                "waits_for": line.note,
                "dropped": dropped_tag(self.queue.known.get(cell, {})),
            }
            if self._said.get(cell) != tags:
                self._said[cell] = tags
                lease.tag(tags, val_loss=line.val_loss)
            self._choose(cell, line.winner_run_id)

    def _choose(self, cell: Cell, run_id: str) -> None:
        """Mark the winner's own run, so that people find it among the others."""
        before = self._chosen.get(cell, "")
        if run_id == before:
            return
        for one in filter(None, (before, run_id)):
            self.site.store.choose(one, winner=one == run_id)
        self._chosen[cell] = run_id

    def _load(self, run_id: str) -> RunConfig:
        return RunConfig.model_validate(self.site.store.config(run_id))


def dropped_tag(known: Mapping[Slot, Found]) -> str:
    """What ASHA has stopped, as many as a tag holds: the others go on at the next start."""
    slots = [slot for slot, found in known.items() if found.state == "dropped"]
    text = ",".join(f"{config_hash}/{seed}" for config_hash, seed in slots)
    return text if len(text) <= TAG_CHARACTERS else text[:TAG_CHARACTERS].rpartition(",")[0]


def _known(rows: Sequence[Row]) -> dict[Cell, dict[Slot, Found]]:
    """The results that need no training: complete ones, and divergences, which would repeat.

    Those of an objective whose plug-in was another then are of another objective: they are none.
    """
    sources: dict[str, str | None] = {}
    known: dict[Cell, dict[Slot, Found]] = {}
    for row in rows:
        name = row.tags.get("objective", "")
        if name not in sources:
            known_here = name in plugins.names("objectives")
            sources[name] = plugins.source_hash("objectives", name) if known_here else None
        if row.state not in ("complete", "diverged") or source_of(row) != sources[name]:
            continue
        loss = row.val_loss if row.state == "complete" else None
        slot = (row.config_hash, row.seed)
        kind = row.kind == "confirmation"
        found = Found(
            row.state, loss, row.num_epochs or 0, row.run_id, kind, row.weight_decay, row.lr
        )
        here = known.setdefault(row.cell, {})
        if slot not in here or here[slot].confirmation:
            here[slot] = found
    return known
