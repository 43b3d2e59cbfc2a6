"""The search of one cell: from what is known to what is wanted next. Pure: no Ray, no record.

A search is a ladder of trunks (or of separate runs), then the winner again with fresh seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dcray.config import RunConfig
from dcray.search.ladder import Decision, cohort, generation
from dcray.search.propose import propose, seed_of, trunk_value
from dcray.search.request import Reading, Request, plain_request
from dcray.search.space import Trunk, Values
from dcray.search.trunks import Trunks
from dcray.search.wish import CellWish
from dcray.track.points import Cell

Slot = tuple[str, int]  # Request.slot: the configuration's hash, the seed
Chain = tuple[Request, ...]  # what one trial trains, one after the other


@dataclass(frozen=True)
class Found:
    """A result on record, or one that has just come in."""

    state: str  # complete, diverged, failed
    val_loss: float | None
    num_epochs: int
    run_id: str = ""
    confirmation: bool = False
    weight_decay: float | None = None
    lr: float | None = None


Known = Mapping[Slot, Found]


@dataclass(frozen=True)
class Winner:
    """The best configuration of a cell and the loss that chose it."""

    config: RunConfig
    found: Found
    slot: Slot
    edges: tuple[str, ...] = ()


@dataclass(frozen=True)
class State:
    """Where the search of a cell stands."""

    ready: tuple[Chain, ...] = ()  # without a result; those under way are among them
    planned: tuple[Request, ...] = ()  # every result that was asked for so far
    num_planned: int = 0  # with those that are not proposed yet
    dropped: frozenset[Slot] = frozenset()  # that the ladder will not run
    searched: bool = False  # the winner is known
    done: bool = False  # and confirmed
    winner: Winner | None = None
    waits_for: tuple[Cell, ...] = ()

    @property
    def num_dropped(self) -> int:
        return len(self.dropped)


@dataclass
class CellSearch:
    """The search of one cell. `load` gives the configuration of a result that is not wished for."""

    wish: CellWish
    found: Reading
    load: Callable[[str], RunConfig] | None = None
    _proposals: dict[Any, list[Values]] = field(default_factory=dict)
    _trunks: Trunks | None = None
    _loaded: dict[str, RunConfig] = field(default_factory=dict)  # by run id

    @property
    def cell(self) -> Cell:
        return self.wish.cell

    def state(self, known: Known, winners: Mapping[Cell, RunConfig]) -> State:
        """What follows from the results of this cell and from the winners of those it needs."""
        missing = tuple(cell for cell in self.wish.needs if cell not in winners)
        if missing:
            return State(waits_for=missing)
        plan = _Ladder(self, self._trunks_of(winners), known)
        decision = plan.decide()
        planned = [request for chain in plan.requests for request in chain]
        ready = plan.ready(decision)
        searched = decision.done and plan.complete
        winner = self._winner(known, plan) if searched else None
        confirmations = self._confirmations(winner) if winner else []
        left = [(one,) for one in confirmations if one.slot not in known]
        return State(
            ready=(*ready, *left),
            planned=(*planned, *confirmations),
            num_planned=plan.num_planned
            + (0 if searched and not winner else len(self.wish.confirm_seeds)),
            dropped=frozenset(plan.request(*rung).slot for rung in plan.dropped),
            searched=searched,
            done=searched and not left,
            winner=winner,
        )

    def proposals(self, trunks: Trunks, history: Sequence[tuple[Values, float]]) -> list[Values]:
        """The next generation, asked of the sampler once for each history."""
        search = self.wish.search
        asked = tuple(history)
        if asked not in self._proposals:
            self._proposals[asked] = propose(
                trunks.space,
                search.sampler,
                history,
                min(search.generation, trunks.number - len(history)),
                seed=seed_of(self.cell.name, self.wish.file.seed),
                first=trunks.warm(),
            )
        return self._proposals[asked]

    def _trunks_of(self, winners: Mapping[Cell, RunConfig]) -> Trunks:
        """The trunks, built once for the winners that they come from."""
        needed = {cell: winners[cell] for cell in self.wish.needs}
        if self._trunks is None or self._trunks.winners != needed:
            self._trunks, self._proposals = Trunks(self.wish, self.found, needed), {}
        return self._trunks

    def best(self, known: Known) -> Slot | None:
        """The lowest complete loss at the search seed, ties to fewer epochs; whoever trained it."""
        candidates = [
            (found.val_loss, found.num_epochs, slot)
            for slot, found in known.items()
            if slot[1] == self.wish.file.seed and not found.confirmation
            if found.state == "complete" and found.val_loss is not None
        ]
        return min(candidates)[2] if candidates else None

    def _winner(self, known: Known, plan: _Ladder) -> Winner | None:
        slot = self.best(known)
        if slot is None:
            return None
        found = known[slot]
        ours = {one.slot: (one, trunk) for one, trunk in plan.owners()}
        if slot in ours:
            request, trunk = ours[slot]
            edges = plan.all.space.edges(trunk.values, request.config.num_epochs)
            return Winner(request.config, found, slot, tuple(edges))
        if found.run_id not in self._loaded:
            assert self.load is not None, "a result that is not wished for needs the record"
            self._loaded[found.run_id] = self.load(found.run_id)
        return Winner(self._loaded[found.run_id], found, slot)

    def _confirmations(self, winner: Winner) -> list[Request]:
        """The winner from the start with fresh seeds."""
        return [
            plain_request(
                winner.config.model_copy(update={"seed": seed}),
                self.cell,
                self.found,
                kind="confirmation",
            )
            for seed in self.wish.confirm_seeds
        ]


class _Ladder:
    """The trunks of a cell so far, and what the ladder says of them."""

    def __init__(self, search: CellSearch, trunks: Trunks, known: Known) -> None:
        self.search, self.all, self.known = search, trunks, known
        self.config = search.wish.search
        self.trunks: list[Trunk] = []
        self.requests: list[list[Request]] = []
        self.twins: list[tuple[Values, int]] = []  # points of the configuration of a trunk
        self.dropped: set[tuple[int, int]] = set()
        self.complete = True  # no trunk is still to be proposed
        self.num_planned = 0

    @property
    def rungs(self) -> list[tuple[int, ...]]:
        return [trunk.rungs for trunk in self.trunks]

    def decide(self) -> Decision:
        """Every trunk that is known of, and the ladder's decision about them."""
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
        """What may run now: segments, or whole trunks where ASHA decides."""
        if self.config.stopping != "asha":
            return [(self.request(trunk, epochs),) for trunk, epochs in decision.due]
        trunks = dict.fromkeys(trunk for trunk, _ in decision.due)
        return [tuple(self.requests[trunk]) for trunk in trunks]

    def losses(self) -> dict[tuple[int, int], float]:
        """What the ladder reads: inf for what diverged or failed."""
        found = {}
        for trunk, requests in enumerate(self.requests):
            for epochs, request in zip(self.trunks[trunk].rungs, requests, strict=True):
                result = self.known.get(request.slot)
                if result is not None:
                    loss = result.val_loss if result.state == "complete" else None
                    found[trunk, epochs] = math.inf if loss is None else loss
        return found

    def owners(self) -> list[tuple[Request, Trunk]]:
        """Each request with its trunk."""
        pairs = zip(self.trunks, self.requests, strict=True)
        return [(one, trunk) for trunk, requests in pairs for one in requests]

    def request(self, trunk: int, epochs: int) -> Request:
        """The request of a trunk's rung."""
        return self.requests[trunk][self.trunks[trunk].rungs.index(epochs)]

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
        """Trunks with their requests; one whose configuration is there already is its twin."""
        seen = {requests[-1].slot: number for number, requests in enumerate(self.requests)}
        for trunk in trunks:
            requests = self.all.requests(trunk)
            number = seen.setdefault(requests[-1].slot, len(self.trunks))
            if number < len(self.trunks):
                self.twins.append((trunk.values, number))
            else:
                self.trunks.append(trunk)
                self.requests.append(requests)
