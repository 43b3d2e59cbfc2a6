"""The search of a study: its cells are claimed, searched on Ray and recorded until all are done.

Every start is fresh and follows the record: recorded runs are answered, partial ones continue from
their checkpoint, failed ones are tried again. A cell that another job holds is left to that job.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from dcray.config.run import RunConfig
from dcray.driver.checkpoint_gc import CheckpointCollector
from dcray.driver.driver import drive
from dcray.driver.external import ExternalWinners
from dcray.driver.limits import ComputeLimit
from dcray.driver.recorder import RunRecorder, recorded_results
from dcray.driver.resources import place_run
from dcray.driver.session import Session
from dcray.driver.tune import asha
from dcray.errors import ConfigError
from dcray.evals.ensemble import refuse_lost_nats
from dcray.plan.history import refuse_other_models
from dcray.search.cell import CellSearch
from dcray.search.cell_summary import CellSummary, cell_line
from dcray.search.ensemble import EnsembleSearch, search_of
from dcray.search.specs import Fingerprint
from dcray.search.state import StudyState
from dcray.study.spec import CellSpec
from dcray.track.locks.corpus_binding import check_corpus, hold_corpus
from dcray.track.locks.lease import CellHeldError, Lease
from dcray.track.runs import CellRow
from dcray.types import FAILURES, Cell, RunKey, RunResult

TAG_CHARACTERS = 8000  # MLflow silently cuts off the rest


@dataclass
class StudyDriver:
    """One `dcray search`: made, run once, and asked where each cell stands."""

    cell_specs: Sequence[CellSpec]
    fingerprints: Mapping[Cell, Fingerprint]  # of the study's cells, by specs.fingerprints
    session: Session
    limit: ComputeLimit
    watch: Callable[[Callable[[], list[CellSummary]]], None]  # is told how to ask for the lines
    keep_all: bool = False  # the weights of every run, not the winner's alone
    state: StudyState = field(init=False)
    held: dict[Cell, str] = field(default_factory=dict)  # cell: the job that holds it
    _searches: dict[Cell, CellSearch | EnsembleSearch] = field(init=False)
    _leases: dict[Cell, Lease] = field(default_factory=dict)
    _theirs: set[Cell] = field(default_factory=set)  # cells that others hold, as last read
    _said: dict[Cell, dict[str, str]] = field(default_factory=dict)
    _chosen: dict[Cell, str] = field(default_factory=dict)  # the result that is marked as winner

    def __post_init__(self) -> None:
        """Make the searches once, so that a sampler is not asked again for what it has proposed."""
        self._searches = {
            cell_spec.cell: search_of(cell_spec, self.fingerprints[cell_spec.cell], self._load)
            for cell_spec in self.cell_specs
        }

    def lines(self) -> list[CellSummary]:
        """List where each cell stands, in the study's order."""
        return [
            cell_line(self.state, cell_spec.cell)
            if cell_spec.cell in self.state.searches
            else CellSummary(
                cell_spec.cell, "held", note=f"held by {self.held.get(cell_spec.cell, 'a job')}"
            )
            for cell_spec in self.cell_specs
        ]

    @property
    def stopped_by(self) -> str:
        """Tell what ended the search before all was done, "" if nothing did."""
        if self.session.stop.event.is_set():
            return "stopped"
        if self.state.unaffordable:
            hours = self.limit.max_device_hours
            return f"stopped before what will not fit into --max-device-hours {hours:g}"
        return ""

    @property
    def first_failure(self) -> RunResult | None:
        """Return the first run that failed for good in this command, if any."""
        failed = (one for one in self.state.ended.values() if one.state in FAILURES)
        return next(failed, None)

    def run(self) -> None:
        """Search until all is done, nothing more can be afforded, or a person stops it.

        Raises ConfigError if the corpus does not fit or is not the study's, or no node could
        ever hold a trial; the record is then as it was.
        """
        session = self.session
        reads = {cell.unique_tokens: one.reads for cell, one in self.fingerprints.items()}
        check_corpus(session.store, session.corpus, reads)
        self._read()
        self._check_members()
        self.watch(self.lines)
        if self._done(but=self._theirs):
            with self._claimed():
                self._read()
                self._tag()
            if self._done():  # else another job has left a cell since the record was read
                return
        session.corpus.verify(max(cell_spec.cell.unique_tokens for cell_spec in self.cell_specs))
        on_gpu = any(cell_spec.base().runtime.device == "cuda" for cell_spec in self.cell_specs)
        session.prices = self.limit.prices
        with session.open(needs_gpu=on_gpu):
            self._check_places()
            hold_corpus(session.store, session.corpus, reads)
            with self._claimed():
                self._read()
                self._tag()
                self._collect(self.state.searches)
                configs = [cell_spec.base() for cell_spec in self.cell_specs]
                recorder = RunRecorder(session.store, session.corpus, session.machine)
                for scheduler in self._rounds():
                    with session.trials(configs, scheduler):
                        drive(self.state, session, recorder, self._on_result)
                self.state.only = None

    def _check_members(self) -> None:
        """Raise ConfigError if members of an ensemble are on record without what it needs."""
        for search in self._searches.values():
            if isinstance(search, EnsembleSearch):
                known = self.state.known.get(search.member_cell, {})
                state = self.state.cell_state(search.cell_spec.cell)
                keys = (key for one in state.planned for key in one.members if not state.winner)
                there = (key for key in keys if key in known and known[key].state == "complete")
                refuse_lost_nats(there, self.session.home)

    def _done(self, *, but: Collection[Cell] = ()) -> bool:
        """Tell whether every cell is done, except those of `but`."""
        cells = (cell for cell in self.state.searches if cell not in but)
        return all(self.state.cell_state(cell).done for cell in cells)

    def _read(self) -> None:
        """Build the state from the record; no other job changes the record of cells held here."""
        store, rows = self.session.store, self.session.store.every()
        refuse_other_models(self.cell_specs, rows)
        self.limit.prices.learn(rows)
        self._chosen = {row.cell: row.run_id for row in rows if row.tags.get("is_winner") == "true"}
        self.state = StudyState(
            store.study,
            {cell: search for cell, search in self._searches.items() if cell not in self.held},
            ExternalWinners(store),
            self.limit.allows,
        )
        cells = store.cells()
        self._theirs = {row.cell for row in cells if row.held and row.cell not in self._leases}
        for result in (*recorded_results(rows), *dropped_results(cells)):
            self.state.apply(result)

    def _on_result(self, result: RunResult) -> None:
        """Count a recorded result's time, delete unneeded checkpoints and tag the cells."""
        self.limit.spend(result)
        self._collect([result.key.cell])
        self._tag()

    def _collect(self, cells: Iterable[Cell]) -> None:
        """Delete the checkpoints of these cells that are no longer needed."""
        collector = CheckpointCollector(self.state, self.session.checkpoints, self.keep_all)
        for cell in cells:
            collector.collect(cell)

    def _rounds(self) -> Iterator[Any]:
        """Choose the cells that run next, and yield their Tune scheduler (None: FIFO).

        All cells run side by side; one under ASHA runs alone, since ASHA compares what comes in.
        """
        state = self.state
        judged = [
            cell_spec.cell
            for cell_spec in self.cell_specs
            if cell_spec.search.stopping == "asha" and cell_spec.cell not in self.held
        ]
        together = frozenset(state.searches) - frozenset(judged)
        while not self.session.stop.event.is_set():
            state.only = together
            if not state.finished():
                yield None
                continue
            for cell in judged:
                state.only = frozenset({cell})
                if ready := state.ready():
                    yield asha([one.config.num_epochs for one in ready[0]])
                    break
            else:
                return

    @contextmanager
    def _claimed(self) -> Iterator[None]:
        """Hold the leases of all cells that no other job holds; release each as its cell stands."""
        store, held = self.session.store, dict[Cell, str]()
        try:
            for cell_spec in self.cell_specs:
                try:
                    self._leases[cell_spec.cell] = store.claim(cell_spec.cell)
                except CellHeldError as error:
                    held[cell_spec.cell] = str(error.owner)
            for cell, owner in held.items():
                if self.held.get(cell) != owner:
                    self.session.view.note(f"{cell.label} is skipped: it is held by {owner}")
            self.held = held
            yield
        finally:
            for cell, lease in self._leases.items():
                done = cell in self.state.searches and self.state.cell_state(cell).searched
                lease.release("FINISHED" if done else "KILLED", seconds=None)
            self._leases, self._said = {}, {}
            store.writer.settle(None, seconds=60.0)

    def _check_places(self) -> None:
        """Raise ConfigError for runs that no node could ever hold, before anything is trained."""
        problems, notes = list[str](), dict[str, None]()
        for cell_spec in self.cell_specs:
            config = cell_spec.base().resolved(
                vocab_size=self.fingerprints[cell_spec.cell].vocab_size
            )
            longest = config.model_copy(update={"num_epochs": cell_spec.longest})
            try:
                place_run(longest, self.session.machine, lambda text: notes.update({text: None}))
            except ConfigError as error:
                problems += [f"{cell_spec.cell.label}: {problem}" for problem in error.problems]
        if problems:
            raise ConfigError(problems)
        for text in notes:
            self.session.view.note(text)

    def _tag(self) -> None:
        """Tag each cell's parent run with the state of its search, and mark the winner's run."""
        for cell, lease in self._leases.items():
            line, cell_spec = cell_line(self.state, cell), self._searches[cell].cell_spec
            tags = {
                "search_seed": str(cell_spec.file.seed),
                "search_state": line.state,
                "planned": str(line.planned),
                "stopped": str(line.counts["stopped"]),
                "answered": str(line.counts["answered"]),
                "winner": line.winner_run_id,
                "best": line.best,
                "edges": ",".join(line.edges),
                "inherit": cell_spec.recipe.inherit or "",
                "waits_for": line.note,
                "dropped": dropped_tag(self.state.known.get(cell, {})),
            }
            if self._said.get(cell) != tags:
                self._said[cell] = tags
                more = line.ensemble.as_metrics() if line.ensemble else {}
                lease.tag(tags, val_loss=line.val_loss, more=more)
            self._choose(cell, line.winner_run_id)

    def _choose(self, cell: Cell, run_id: str) -> None:
        before = self._chosen.get(cell, "")
        if run_id == before:
            return
        for one in filter(None, (before, run_id)):
            self.session.store.choose(one, winner=one == run_id)
        self._chosen[cell] = run_id

    def _load(self, run_id: str) -> RunConfig:
        return RunConfig.model_validate(self.session.store.config(run_id))


def dropped_tag(known: Mapping[RunKey, RunResult]) -> str:
    """Format the runs that ASHA stopped, as many as a tag holds; others go on at the next start."""
    dropped = [one.key for one in known.values() if one.state == "dropped"]
    text = ",".join(f"{key.config_hash}/{key.seed}" for key in dropped)
    return text if len(text) <= TAG_CHARACTERS else text[:TAG_CHARACTERS].rpartition(",")[0]


def dropped_results(cells: Iterable[CellRow]) -> Iterator[RunResult]:
    """Yield the runs that ASHA stopped, read from the tags of the cells on record."""
    for row in cells:
        for text in filter(None, row.tags.get("dropped", "").split(",")):
            config_hash, seed = text.split("/")
            yield RunResult(RunKey(row.cell, config_hash, int(seed)), "dropped")
