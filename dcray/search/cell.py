"""The search of one cell: from what is known to what is wanted next. Pure: no Ray, no record.

A search is a ladder of trunks (or of separate runs), then the winner again with fresh seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dcray.config.run import RunConfig
from dcray.search.candidates import Candidates
from dcray.search.ladder import Decision, cohort, generation
from dcray.search.sampler import propose, seed_of, trunk_value
from dcray.search.specs import Fingerprint, confirmation
from dcray.study.space import Trunk, Values
from dcray.study.spec import CellSpec
from dcray.track.rows import competes, winning_order
from dcray.types import Cell, Chain, RunKey, RunResult, RunSpec

Known = Mapping[RunKey, RunResult]  # of one cell


@dataclass(frozen=True)
class Winner:
    """The best configuration of a cell and the loss that chose it."""

    config: RunConfig
    result: RunResult
    edges: tuple[str, ...] = ()


@dataclass(frozen=True)
class CellState:
    """The state of a cell's search."""

    ready: tuple[Chain, ...] = ()  # without a result; those under way are among them
    planned: tuple[RunSpec, ...] = ()  # every result that was asked for so far
    num_planned: int = 0  # with those that are not proposed yet
    dropped: frozenset[RunKey] = frozenset()  # that the ladder will not run
    searched: bool = False  # the winner is known
    done: bool = False  # and confirmed
    winner: Winner | None = None
    waits_for: tuple[Cell, ...] = ()
    kept: frozenset[RunKey] = frozenset()  # whose weights stay: members of ensembles
    note: str = ""  # why there will be no winner

    @property
    def num_dropped(self) -> int:
        return len(self.dropped)


@dataclass
class CellSearch:
    """The search of one cell. `load` reads the configuration of a result that is not wished for."""

    cell_spec: CellSpec
    fingerprint: Fingerprint
    load: Callable[[str], RunConfig] | None = None
    sampler: str = ""  # in place of the recipe's own
    _proposals: dict[Any, list[Values]] = field(default_factory=dict)
    _trunks: Candidates | None = None
    _loaded: dict[str, RunConfig] = field(default_factory=dict)  # by run id
    member_cell: None = None  # its results are its own

    @property
    def cell(self) -> Cell:
        return self.cell_spec.cell

    @property
    def needs(self) -> Sequence[Cell]:
        """Return the cells whose winners must be known before this one can start."""
        return self.cell_spec.needs

    @property
    def axes(self) -> tuple[str, ...]:
        """Return the settings that the cell searches besides epochs, weight decay and lr."""
        return self.cell_spec.axes

    @property
    def bound(self) -> str:
        """Return "upper bound" if the losses of the cell's objective are such, else ""."""
        return self.cell_spec.bound

    def state(self, known: Known, winners: Mapping[Cell, RunConfig]) -> CellState:
        """Derive the state from the results of this cell and the winners of the cells it needs."""
        missing = tuple(cell for cell in self.needs if cell not in winners)
        if missing:
            return CellState(waits_for=missing)
        plan = _Ladder(self, self._candidates_of(winners), known)
        decision = plan.decide()
        planned = [spec for chain in plan.specs for spec in chain]
        ready = plan.ready(decision)
        searched = decision.done and plan.complete
        winner = self._winner(known, plan) if searched else None
        confirmations = self._confirmations(winner) if winner else []
        left = [(one,) for one in confirmations if one.key not in known]
        return CellState(
            ready=(*ready, *left),
            planned=(*planned, *confirmations),
            num_planned=plan.num_planned
            + (0 if searched and not winner else len(self.cell_spec.confirm_seeds)),
            dropped=frozenset(plan.spec(*rung).key for rung in plan.dropped),
            searched=searched,
            done=searched and not left,
            winner=winner,
            kept=frozenset(
                one.key for one in confirmations if one.key.seed in self.cell_spec.kept_seeds
            ),
        )

    def apart(self) -> CellSearch:
        """Return a copy to be played to its end, in which points are drawn instead of modelled."""
        return replace(
            self,
            sampler="random",
            _proposals=dict(self._proposals),
            _loaded=dict(self._loaded),
        )

    def proposals(
        self, trunks: Candidates, history: Sequence[tuple[Values, float]]
    ) -> list[Values]:
        """Propose the next generation; the sampler is asked once for each history."""
        search = self.cell_spec.search
        asked = tuple(history)
        if asked not in self._proposals:
            self._proposals[asked] = propose(
                trunks.space,
                self.sampler or search.sampler,
                history,
                min(search.generation, trunks.number - len(history)),
                seed=seed_of(self.cell.name, self.cell_spec.file.seed),
                first=trunks.warm(),
            )
        return self._proposals[asked]

    def _candidates_of(self, winners: Mapping[Cell, RunConfig]) -> Candidates:
        """Build the trunks, once for the winners that they come from."""
        needed = {cell: winners[cell] for cell in self.needs}
        if self._trunks is None or self._trunks.winners != needed:
            self._trunks, self._proposals = Candidates(self.cell_spec, self.fingerprint, needed), {}
        return self._trunks

    def best(self, known: Known) -> RunResult | None:
        """Find the winner by the rule of `track.rows`, at the search seed, whoever trained it."""
        candidates = [
            result
            for result in known.values()
            if result.key.seed == self.cell_spec.file.seed
            and result.key.kind != "ensemble"  # of when a recipe of this name was one
            and competes(result.state, result.val_loss, confirmation=result.confirms)
        ]
        return min(
            candidates,
            key=lambda one: winning_order(one.val_loss or 0.0, one.num_epochs, one.key.config_hash),
            default=None,
        )

    def _winner(self, known: Known, plan: _Ladder) -> Winner | None:
        best = self.best(known)
        if best is None:
            return None
        ours = {one.key: (one, trunk) for one, trunk in plan.owners()}
        if best.key in ours:
            spec, trunk = ours[best.key]
            edges = plan.all.space.edges(trunk.values, spec.config.num_epochs)
            return Winner(spec.config, best, tuple(edges))
        if best.run_id not in self._loaded:
            assert self.load is not None, "a result that is not wished for needs the record"
            self._loaded[best.run_id] = self.load(best.run_id)
        return Winner(self._loaded[best.run_id], best)

    def _confirmations(self, winner: Winner) -> list[RunSpec]:
        """Build the runs that train the winner from the start with fresh seeds."""
        return [
            confirmation(winner.config, seed, self.cell, self.fingerprint, self.cell_spec.axes)
            for seed in self.cell_spec.confirm_seeds
        ]


@dataclass(frozen=True)
class ListedRuns:
    """A cell of which a person named the runs: each is wanted once, nothing is compared."""

    specs: tuple[RunSpec, ...]
    needs: Sequence[Cell] = ()
    axes: tuple[str, ...] = ()
    bound: str = ""
    member_cell: None = None

    def state(self, known: Known, winners: Mapping[Cell, RunConfig]) -> CellState:
        """Return the state: the runs without a result are ready."""
        left = tuple((spec,) for spec in self.specs if spec.key not in known)
        return CellState(left, self.specs, len(self.specs), searched=not left, done=not left)

    def best(self, known: Known) -> RunResult | None:
        """Return None: a winner is chosen by a search alone."""
        return None


class _Ladder:
    """The trunks of a cell so far, and what the ladder says of them."""

    def __init__(self, search: CellSearch, trunks: Candidates, known: Known) -> None:
        self.search, self.all, self.known = search, trunks, known
        self.config = search.cell_spec.search
        self.trunks: list[Trunk] = []
        self.specs: list[list[RunSpec]] = []
        self.twins: list[tuple[Values, int]] = []  # points whose configuration a trunk already has
        self.dropped: set[tuple[int, int]] = set()
        self.complete = True  # no trunk is still to be proposed
        self.num_planned = 0

    @property
    def rungs(self) -> list[tuple[int, ...]]:
        return [trunk.rungs for trunk in self.trunks]

    def decide(self) -> Decision:
        """Add every trunk that is known of, and return the ladder's decision about them."""
        config = self.config
        if config.sampler == "grid":
            self._add(self.all.grid())
            self.num_planned = sum(map(len, self.rungs))
            keep = (1.0,) if config.stopping in ("none", "asha") else config.keep
            decision = cohort(self.rungs, keep, self.losses())
            self.dropped |= decision.dropped
            return decision
        return self._generations(1.0 if config.stopping in ("none", "asha") else config.share)

    def ready(self, decision: Decision) -> list[Chain]:
        """List what may run now: segments, or whole trunks if ASHA decides."""
        if self.config.stopping != "asha":
            return [(self.spec(trunk, epochs),) for trunk, epochs in decision.due]
        trunks = dict.fromkeys(trunk for trunk, _ in decision.due)
        return [tuple(self.specs[trunk]) for trunk in trunks]

    def losses(self) -> dict[tuple[int, int], float]:
        """Collect the losses that the ladder reads: inf for what diverged or failed."""
        found = {}
        for trunk, specs in enumerate(self.specs):
            for epochs, spec in zip(self.trunks[trunk].rungs, specs, strict=True):
                result = self.known.get(spec.key)
                if result is not None:
                    loss = result.val_loss if result.state == "complete" else None
                    found[trunk, epochs] = math.inf if loss is None else loss
        return found

    def owners(self) -> list[tuple[RunSpec, Trunk]]:
        """Pair each run with its trunk."""
        pairs = zip(self.trunks, self.specs, strict=True)
        return [(one, trunk) for trunk, specs in pairs for one in specs]

    def spec(self, trunk: int, epochs: int) -> RunSpec:
        """Return the run of a trunk's rung."""
        return self.specs[trunk][self.trunks[trunk].rungs.index(epochs)]

    def _generations(self, share: float) -> Decision:
        space = self.all.space
        while True:
            first = len(self.trunks)
            history = self._history()
            new = self.search.proposals(self.all, history)
            self._add([Trunk(values, space.rungs_of(values)) for values in new])
            decision = generation(self.rungs, first, share, self.losses())
            self.dropped |= decision.dropped
            left = self.all.number - len(self.trunks) - len(self.twins)
            if not new or left <= 0 or not decision.done:
                self.complete = not new or left <= 0
                unknown = max(left, 0) if new else 0
                longest = max((box.rungs for box in space.boxes), key=len)
                self.num_planned = sum(map(len, self.rungs)) + unknown * len(longest)
                return decision

    def _history(self) -> list[tuple[Values, float]]:
        losses = self.losses()
        values = [trunk_value(self.rungs, losses, number) for number in range(len(self.trunks))]
        found = [(trunk.values, values[number]) for number, trunk in enumerate(self.trunks)]
        return found + [(point, values[number]) for point, number in self.twins]

    def _add(self, trunks: Sequence[Trunk]) -> None:
        """Add trunks with their runs; one whose configuration is there already is its twin."""
        seen = {specs[-1].key: number for number, specs in enumerate(self.specs)}
        for trunk in trunks:
            specs = self.all.specs(trunk)
            number = seen.setdefault(specs[-1].key, len(self.trunks))
            if number < len(self.trunks):
                self.twins.append((trunk.values, number))
            else:
                self.trunks.append(trunk)
                self.specs.append(specs)
