"""The state of what a command has to run: the searches of many cells. Pure.

The state is built from results alone: those on record at the start, and each one as it comes in. So
a search that was killed goes on as if it had never stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from dcray.config.run import RunConfig
from dcray.cost import smaller_microbatch
from dcray.search.cell import CellState, Known
from dcray.types import Cell, Chain, Event, RunKey, RunResult, RunSpec

LOST_LIMIT = 3  # how often a run may lose its process without having got further


class CellPlan(Protocol):
    """The plan of one cell: its search, or the runs that a person named."""

    @property
    def needs(self) -> Sequence[Cell]: ...
    @property
    def axes(self) -> tuple[str, ...]: ...
    @property
    def bound(self) -> str: ...
    @property
    def member_cell(self) -> Cell | None: ...
    def state(self, known: Known, winners: Mapping[Cell, RunConfig]) -> CellState: ...
    def best(self, known: Known) -> RunResult | None: ...


class OtherWinners(Protocol):
    """The winners of cells that this command does not search, as the record has them."""

    def winner(self, cell: Cell) -> RunConfig | None:
        """Return the configuration of a searched cell's winner, None if there is none."""
        ...

    def coming(self, cell: Cell) -> bool:
        """Tell whether another command is searching the cell now."""
        ...

    def refresh(self) -> bool:
        """Forget what was read if a new look is due; tell whether it was."""
        ...


@dataclass(frozen=True)
class GivenWinners:
    """Winners that do not change; none, if a command needs none."""

    winners: Mapping[Cell, RunConfig] = field(default_factory=dict)

    def winner(self, cell: Cell) -> RunConfig | None:
        """Return the configuration that was given, None if there is none."""
        return self.winners.get(cell)

    def coming(self, cell: Cell) -> bool:
        """Return False: all winners are there."""
        return False

    def refresh(self) -> bool:
        """Return False: no look is ever due."""
        return False


@dataclass
class StudyState:
    """The state of a study's cells; `next` says what to run, `apply` takes what came of it.

    afford: whether a run's device time may still be spent beside those under way. only: the cells
    whose runs may start; None: all.
    """

    study: str
    searches: Mapping[Cell, CellPlan]
    others: OtherWinners = field(default_factory=GivenWinners)
    afford: Callable[[RunSpec, Iterable[RunSpec]], bool] = lambda spec, running: True
    only: frozenset[Cell] | None = None
    known: dict[Cell, dict[RunKey, RunResult]] = field(default_factory=dict)
    running: dict[RunKey, RunSpec] = field(default_factory=dict)
    ended: dict[RunKey, RunResult] = field(default_factory=dict)  # by this command
    unaffordable: bool = False
    # fields of the runtime of runs that are tried again elsewhere, or in smaller pieces
    _changes: dict[RunKey, dict[str, Any]] = field(default_factory=dict)
    _lost: dict[RunKey, tuple[int, int]] = field(default_factory=dict)  # how often, at which step
    _states: dict[Cell, CellState] = field(default_factory=dict)

    def next(self, has_room: Callable[[Chain], bool]) -> Chain | None:
        """Take the costliest runs that are ready, None if there are none or they have no room.

        A smaller one never goes before them: what needs all GPUs would else wait for ever.
        """
        ready = self.ready()
        if not ready or not has_room(ready[0]):
            return None
        return self.start(ready[0])

    def start(self, chain: Chain) -> Chain:
        """Mark these runs as under way until each has ended; those on record carry their loss."""
        known = self.known.get(chain[0].key.cell, {})
        self.running |= {spec.key: spec for spec in chain if spec.key not in known}
        return tuple(
            replace(spec, answered=known[spec.key].val_loss) if spec.key in known else spec
            for spec in chain
        )

    def apply(self, event: Event) -> None:
        """Take a result: the states of its cell, and of those that wait, are decided anew."""
        if not isinstance(event, RunResult):
            return
        self.running.pop(event.key, None)
        if event.spec is not None:
            if event.state == "lost" and self._try_again(event):
                return
            self.ended[event.key] = event
        if event.state == "stopped":
            return
        here = self.known.setdefault(event.key.cell, {})
        if event.key not in here or here[event.key].confirms:
            here[event.key] = event
        self._states.clear()

    def ready(self) -> list[Chain]:
        """List the runs of all cells that may start now and are not under way, costliest first."""
        if self.others.refresh():
            self._states.clear()
        found = [
            tuple(map(self._changed, chain))
            for cell in self._cells()
            for chain in self.cell_state(cell).ready
            if not any(spec.key in self.running for spec in chain)
        ]
        able = [chain for chain in found if self.afford(chain[0], self.running.values())]
        self.unaffordable = len(able) < len(found)
        return sorted(able, key=lambda chain: (-sum(r.flops for r in chain), chain[0].name))

    def finished(self) -> bool:
        """Tell whether all cells are done, or wait for what will not come."""
        return not self.running and not self.ready() and not self.awaited()

    def awaited(self) -> list[Cell]:
        """List the cells that another command searches now and that one of ours waits for."""
        needed = [
            other
            for cell in self._cells()
            for other in self.cell_state(cell).waits_for
            if other not in self.searches
        ]
        return [cell for cell in dict.fromkeys(needed) if self.others.coming(cell)]

    def hopeless(self, cell: Cell) -> bool:
        """Tell whether a cell of this command was searched without a winner, or waits for such."""
        if cell not in self.searches:
            return False
        state = self.cell_state(cell)
        waits = any(self.hopeless(other) for other in state.waits_for)
        return waits or (state.searched and state.winner is None)

    def cell_state(self, cell: Cell) -> CellState:
        """Compute where the search of a cell stands, by what is known now."""
        if cell not in self._states:
            search = self.searches[cell]
            winners = {one: config for one in search.needs if (config := self.winner(one))}
            known = self.known.get(cell, {})
            if search.member_cell is not None:
                known = {**self.known.get(search.member_cell, {}), **known}
            self._states[cell] = search.state(known, winners)
        return self._states[cell]

    def winner(self, cell: Cell) -> RunConfig | None:
        """Return the configuration of a searched cell's winner, of this command or of another."""
        if cell not in self.searches:
            return self.others.winner(cell)
        found = self.cell_state(cell).winner
        return found.config if found else None

    def _cells(self) -> list[Cell]:
        return [cell for cell in self.searches if self.only is None or cell in self.only]

    def _changed(self, spec: RunSpec) -> RunSpec:
        """Give a run that is tried again its changed runtime: that changes rounding at most."""
        if spec.key not in self._changes:
            return spec
        runtime = spec.config.runtime.model_copy(update=self._changes[spec.key])
        return replace(spec, config=spec.config.model_copy(update={"runtime": runtime}))

    def _try_again(self, lost: RunResult) -> bool:
        """Tell whether a lost run has tries left: three if the run never got further.

        One that was lost beside others on a GPU has the whole of it next. One that ran out of
        memory alone has a smaller micro-batch, as long as there is one.
        """
        changes = self._changes.setdefault(lost.key, {})
        if lost.num_devices < 1:
            changes["gpu_share"] = 1.0
        elif lost.out_of_memory:
            assert lost.spec is not None
            changes["microbatch_size"] = smaller_microbatch(lost.spec.run)
            return changes["microbatch_size"] is not None
        times, before = self._lost.get(lost.key, (0, -1))
        times = 1 if lost.step > before else times + 1
        self._lost[lost.key] = (times, max(lost.step, before))
        return times <= LOST_LIMIT
