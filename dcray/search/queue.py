"""What a command has to run, in which order: a plain list, or the searches of many cells.

A queue decides what is wanted next and learns what came of it. It knows no Ray and no record: it
is told what is known at the start, and every result as it comes in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from dcray.config import RunConfig
from dcray.search.cells import CellSearch, Chain, Found, Slot, State
from dcray.search.request import Request, Spot
from dcray.track.points import Cell

LOST_LIMIT = 3  # how often a run may lose its process without having got further


@dataclass(frozen=True)
class Ended:
    """What became of a request: "complete", "answered" (it was on record), or why not."""

    request: Request
    state: str  # complete, answered, stopped, diverged, failed, refused, lost
    val_loss: float | None = None
    val_bpb: float | None = None
    run_id: str | None = None
    reason: str = ""
    traceback: str = ""
    step: int = 0
    device_seconds: float = 0.0  # of each of its devices, over all attempts
    earlier_seconds: float = 0.0  # of them, before this attempt
    num_devices: int = 1


class Queue(Protocol):
    """What the runner asks and tells."""

    def ready(self) -> list[Chain]:
        """What may start now, the dearest first."""
        ...

    def start(self, chain: Chain) -> None:
        """This one is under way."""
        ...

    def end(self, ended: Ended) -> None:
        """What came of a request that was under way."""
        ...

    def finished(self) -> bool:
        """Whether nothing will ever be ready again, whatever comes of what is under way."""
        ...

    def loss_of(self, request: Request) -> float | None:
        """The loss of a request that needs no training, None where it does."""
        ...

    def awaited(self) -> list[Cell]:
        """Cells of other commands for which all that is left waits."""
        ...


class Elsewhere(Protocol):
    """The winners of cells that this command does not search, as the record has them."""

    def winner(self, cell: Cell) -> RunConfig | None:
        """The configuration of a searched cell's winner, None where there is none."""
        ...

    def coming(self, cell: Cell) -> bool:
        """Whether somebody is searching it now."""
        ...

    def stale(self) -> bool:
        """Whether a new look is due."""
        ...

    def look_again(self) -> None:
        """Forget what was read."""
        ...


class Retries:
    """Lost processes are tried again; three times where the run never got further."""

    def __init__(self) -> None:
        self._lost: dict[Spot, tuple[int, int]] = {}  # how often, at which step

    def allow(self, ended: Ended) -> bool:
        """Whether a lost run is tried again; False for every other end."""
        if ended.state != "lost":
            return False
        times, before = self._lost.get(ended.request.spot, (0, -1))
        times = 1 if ended.step > before else times + 1
        self._lost[ended.request.spot] = (times, max(ended.step, before))
        return times <= LOST_LIMIT


@dataclass
class FixedQueue:
    """A list of requests, in the order given."""

    requests: list[Request]
    flying: list[Request] = field(default_factory=list)
    retries: Retries = field(default_factory=Retries)

    def ready(self) -> list[Chain]:
        """All that was not started."""
        return [(one,) for one in self.requests]

    def start(self, chain: Chain) -> None:
        """It is no longer ready."""
        self.requests = [one for one in self.requests if one is not chain[0]]
        self.flying.append(chain[0])

    def end(self, ended: Ended) -> None:
        """Nothing follows, unless its process was lost."""
        self.flying = [one for one in self.flying if one is not ended.request]
        if self.retries.allow(ended):
            self.requests.append(ended.request)

    def finished(self) -> bool:
        """Whether all have ended."""
        return not self.requests and not self.flying

    def loss_of(self, request: Request) -> float | None:
        """None: what is on record was answered before."""
        return None

    def awaited(self) -> list[Cell]:
        """None: a list waits for nobody."""
        return []


@dataclass
class StudyQueue:
    """The searches of a study's cells, under one order: the dearest ready segment first.

    known: the results on record at the start, by cell. elsewhere: knows the winners of cells that
    this command does not search. afford: whether a request's device time may still be spent.
    only: the cells whose chains are ready; None: all.
    """

    study: str
    searches: Mapping[Cell, CellSearch]
    known: dict[Cell, dict[Slot, Found]]
    elsewhere: Elsewhere
    afford: Callable[[Request], bool] = lambda request: True
    only: frozenset[Cell] | None = None
    flying: dict[Spot, Request] = field(default_factory=dict)
    trained: dict[Spot, Ended] = field(default_factory=dict)
    unaffordable: bool = False
    retries: Retries = field(default_factory=Retries)
    _states: dict[Cell, State] = field(default_factory=dict)

    def ready(self) -> list[Chain]:
        """Chains of every cell that are not under way, the dearest first."""
        if self.elsewhere.stale():
            self.elsewhere.look_again()
            self._states.clear()
        found = [
            chain
            for cell in self.searches
            if self.only is None or cell in self.only
            for chain in self.state(cell).ready
            if not any(one.spot in self.flying for one in chain)
        ]
        able = [chain for chain in found if self.afford(chain[0])]
        self.unaffordable = len(able) < len(found)
        return sorted(able, key=lambda chain: (-sum(r.flops for r in chain), chain[0].name))

    def start(self, chain: Chain) -> None:
        """It is under way until each of its requests has ended."""
        for one in chain:
            if one.slot not in self.known.get(one.key.cell, {}):
                self.flying[one.spot] = one

    def end(self, ended: Ended) -> None:
        """A result: what it means for its cell, and for those that wait for it, is decided anew."""
        request, slot = ended.request, ended.request.slot
        self.flying.pop(request.spot, None)
        if self.retries.allow(ended):
            return
        self.trained[request.spot] = ended
        if ended.state == "stopped":
            return
        self.known.setdefault(request.key.cell, {})[slot] = Found(
            ended.state if ended.state in ("complete", "diverged", "dropped") else "failed",
            ended.val_loss,
            request.config.num_epochs,
            ended.run_id or "",
            request.key.kind == "confirmation",
            request.config.optim.weight_decay,
            request.config.optim.lr,
        )
        self._states.clear()

    def finished(self) -> bool:
        """Whether all cells are done, or wait for what will not come."""
        return not self.flying and not self.ready() and not self.awaited()

    def loss_of(self, request: Request) -> float | None:
        """The loss that is known of it."""
        found = self.known.get(request.key.cell, {}).get(request.slot)
        return found.val_loss if found else None

    def awaited(self) -> list[Cell]:
        """The cells that somebody else searches now and that one of ours waits for."""
        needed = [
            other
            for cell in self.searches
            if self.only is None or cell in self.only
            for other in self.state(cell).waits_for
            if other not in self.searches
        ]
        return [cell for cell in dict.fromkeys(needed) if self.elsewhere.coming(cell)]

    def hopeless(self, cell: Cell) -> bool:
        """Whether a cell of this command was searched and has no winner."""
        if cell not in self.searches:
            return False
        state = self.state(cell)
        waits = any(self.hopeless(other) for other in state.waits_for)
        return waits or (state.searched and state.winner is None)

    def state(self, cell: Cell) -> State:
        """Where the search of a cell stands, by what is known now."""
        if cell not in self._states:
            search = self.searches[cell]
            winners = {one: config for one in search.wish.needs if (config := self.winner(one))}
            self._states[cell] = search.state(self.known.get(cell, {}), winners)
        return self._states[cell]

    def winner(self, cell: Cell) -> RunConfig | None:
        """The configuration of a searched cell's winner, here or elsewhere."""
        if cell not in self.searches:
            return self.elsewhere.winner(cell)
        found = self.state(cell).winner
        return found.config if found else None
