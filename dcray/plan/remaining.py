"""The time that a search may still take: cells played to their end as in a plan, at measured rates.

What is left are device-seconds of runs, by the median FLOP/s of the runs of this command that had
the same size, objective and optimizer; besides, each run costs what the starts and ends of runs
took so far.
"""

from __future__ import annotations

import heapq
import itertools
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from dcray.config.run import RunConfig
from dcray.config.sections import rows_in
from dcray.config.sizes import num_non_embedding_params
from dcray.cost import validation_epochs, validation_flops
from dcray.plan.forecast import played
from dcray.reports import Report
from dcray.search.cell import CellSearch, Known
from dcray.search.ensemble import EnsembleSearch
from dcray.search.state import StudyState
from dcray.types import Cell, Event, RunKey, RunResult, RunSpec

ROUNDING = 1e-6  # of shares of a GPU that are added up
RECENT = 7  # last runs of a kind whose median rate counts: a machine's load changes


@dataclass(frozen=True)
class Rest:
    """The runs left of a cell: waves, each of which waits for the one before."""

    waves: tuple[tuple[RunSpec, ...], ...]
    num_planned: int  # at its end
    winner: RunConfig | None


@dataclass
class Outlook:
    """The rest of a search: its runs, and the time that they take.

    state: called anew each time. price: a run's device-seconds while none has been measured.
    val_tokens: of the corpus, scored at a run's end. clock: seconds.
    """

    state: Callable[[], StudyState]
    price: Callable[[RunSpec], float]
    val_tokens: int = 0
    clock: Callable[[], float] = time.monotonic
    _rates: dict[tuple[str, str], list[float]] = field(default_factory=dict)  # FLOP/s of a device
    _params: dict[str, int] = field(default_factory=dict)  # of a size that was measured
    # the runs under way, with their devices and the share that is trained
    _running: dict[RunKey, tuple[RunSpec, float, float]] = field(default_factory=dict)
    _devices: dict[tuple[str, str], float] = field(default_factory=dict)  # that a kind's last held
    _began: float | None = None
    _trained: float = 0.0  # device-seconds of what has ended
    _num_ended: int = 0
    _capacity: float = 1.0  # devices at work at once, at most
    _rests: dict[Cell, tuple[Any, Rest]] = field(default_factory=dict)

    def hear(self, event: Event) -> None:
        """Take an event of a run: it has started, goes on, or has ended."""
        if isinstance(event, RunResult):
            self._end(event)
        elif event.report is None or event.spec.key not in self._running:
            self._began = self.clock() if self._began is None else self._began
            devices = event.spec.run.runtime.num_devices
            self._running[event.spec.key] = event.spec, devices, 0.0
            self._devices[_kind(event.spec)] = devices
            self._capacity = max(self._capacity, sum(one[1] for one in self._running.values()))
        else:
            self._report(event.spec, event.report)

    def _report(self, spec: RunSpec, report: Report) -> None:
        own = max(1, report.num_steps - report.first_step)
        share = min(1.0, max(0.0, (report.step - report.first_step) / own))
        self._running[spec.key] = spec, self._running[spec.key][1], share

    def _end(self, ended: RunResult) -> None:
        """Record the time that a run took, by which others are estimated."""
        self._running.pop(ended.key, None)
        seconds = (ended.device_seconds - ended.earlier_seconds) * ended.num_devices
        if seconds <= 0 or ended.spec is None:
            return
        self._trained += seconds
        self._num_ended += 1
        if ended.state == "complete" and not ended.earlier_seconds:
            config = ended.spec.config
            self._params[config.size_name] = num_non_embedding_params(config.shape)
            rate = run_flops(ended.spec, self.val_tokens) / seconds
            self._rates.setdefault(_kind(ended.spec), []).append(rate)

    def num_trials(self) -> int:
        """Count the results that the search asks for in all, those of cells that still wait too."""
        return sum(self._rest(cell).num_planned for cell in self.state().searches)

    def seconds(self) -> float | None:
        """Estimate the seconds until the last cell is done; None before a run has ended.

        As long as there are devices, the costliest run that may start does; runs of a wave and
        cells wait for each other as they will.
        """
        if not self._num_ended:
            return None
        state, overhead = self.state(), self._overhead()
        needs = {cell: search.needs for cell, search in state.searches.items()}
        line = _Line(self._capacity, needs, self._num_devices)
        for one, devices, share in self._running.values():
            left = self._device_seconds(one) * (1 - share) + overhead / 2
            line.start(one.key.cell, left / devices, devices)
        for cell in state.searches:
            line.waves[cell] = [
                [one for one in wave if one.key not in state.running]
                for wave in self._rest(cell).waves
            ]
        return line.run(lambda one: self._device_seconds(one) + overhead)

    def _num_devices(self, one: RunSpec) -> float:
        """Return the devices that a run will hold: as the last of its kind, else as configured."""
        return self._devices.get(_kind(one), one.config.runtime.num_devices)

    def _overhead(self) -> float:
        """Estimate the device-seconds of a run besides its training: the mean of those so far."""
        if self._began is None:
            return 0.0
        running = sum(self._device_seconds(one) * share for one, _, share in self._running.values())
        spent = (self.clock() - self._began) * self._capacity
        return max(0.0, spent - self._trained - running) / (self._num_ended + len(self._running))

    def _device_seconds(self, one: RunSpec) -> float:
        """Estimate what a run trains itself, by its kind's median rate, else the nearest size's."""
        seen = self._rates.get(_kind(one))
        if seen is None and self._rates:
            plugged = one.config.recipe_name
            params = num_non_embedding_params(one.config.shape)

            def distance(kind: tuple[str, str]) -> tuple[float, bool]:
                return abs(math.log(self._params[kind[0]] / params)), kind[1] != plugged

            seen = self._rates[min(self._rates, key=distance)]
        if seen is None:
            return self.price(one)
        return run_flops(one, self.val_tokens) / statistics.median(seen[-RECENT:])

    def _rest(self, cell: Cell) -> Rest:
        """Play a cell to its end; play it again if something is known that was not."""
        state = self.state()
        search, known = state.searches[cell], state.known.get(cell, {})
        if isinstance(search, EnsembleSearch):
            return Rest((), 1, None)  # its members are runs of the cell that it needs
        assert isinstance(search, CellSearch), "listed runs have no ladder to play"
        needs = {one: config for one in search.needs if (config := self._winner(one))}
        now = (len(known), needs)
        if cell not in self._rests or self._rests[cell][0] != now:
            self._rests[cell] = now, _played(search, known, needs)
        return self._rests[cell][1]

    def _winner(self, cell: Cell) -> RunConfig | None:
        """Return the configuration of a cell's winner; while unknown, the one it is played with."""
        state = self.state()
        return state.winner(cell) or (self._rest(cell).winner if cell in state.searches else None)


class _Line:
    """A simulated queue of the runs that are left, in the order of their start, with a clock."""

    def __init__(
        self,
        capacity: float,
        needs: Mapping[Cell, Collection[Cell]],
        devices: Callable[[RunSpec], float],
    ) -> None:
        self.free, self.now, self.devices = capacity, 0.0, devices
        self.flying: list[tuple[float, int, float, Cell]] = []  # its end, a number, devices, cell
        self.ready: list[tuple[float, int, RunSpec]] = []  # the costliest first
        self.waves = {cell: list[Sequence[RunSpec]]() for cell in needs}
        self.open: Counter[Cell] = Counter()  # runs of the wave that is under way
        self.before = {cell: {other for other in all_of if other in needs}
                       for cell, all_of in needs.items()}  # fmt: skip
        self.number = itertools.count()

    def start(self, cell: Cell, seconds: float, devices: float) -> None:
        """Begin a run, which holds its devices for so many seconds."""
        self.free -= devices
        heapq.heappush(self.flying, (self.now + seconds, next(self.number), devices, cell))

    def run(self, device_seconds: Callable[[RunSpec], float]) -> float:
        """Run the queue and return the time (seconds) when all have ended."""
        for *_, cell in self.flying:
            self.open[cell] += 1
        for cell in [cell for cell, before in self.before.items() if not before]:
            self._next_wave(cell)
            self._go_on(cell)
        while True:
            while self.ready and (
                self.free > self.devices(self.ready[0][2]) - ROUNDING or not self.flying
            ):
                one = heapq.heappop(self.ready)[2]
                devices = self.devices(one)
                self.start(one.key.cell, device_seconds(one) / devices, devices)
            if not self.flying:
                return self.now
            self.now, _, devices, cell = heapq.heappop(self.flying)
            self.free += devices
            self.open[cell] -= 1
            self._go_on(cell)

    def _next_wave(self, cell: Cell) -> None:
        """Make the next runs of a cell ready."""
        for one in self.waves[cell].pop(0) if self.waves[cell] else ():
            self.open[cell] += 1
            heapq.heappush(self.ready, (-one.flops, next(self.number), one))

    def _go_on(self, cell: Cell) -> None:
        """Start the next wave of a cell whose wave has ended; a cell that is done frees others."""
        while not self.open[cell] and self.waves[cell]:
            self._next_wave(cell)
        if self.open[cell]:
            return
        for other, before in self.before.items():
            if cell in before:
                before.remove(cell)
                if not before:
                    self._go_on(other)


@lru_cache(maxsize=100_000)
def run_flops(one: RunSpec, val_tokens: int) -> float:
    """Compute the FLOPs of what a run trains itself, and of the validations on the way."""
    config = one.config
    tokens = config.data.val_tokens or val_tokens
    rows = rows_in(tokens, config.data.seq_len, config.data.seq_len) if tokens else 0
    if not rows:
        return one.flops
    epochs = validation_epochs(config, num_rows=rows)
    steps_per_epoch = config.num_steps / config.num_epochs
    number = sum(epoch * steps_per_epoch > one.forked_from for epoch in epochs)
    return one.flops + number * validation_flops(config, rows)


def _kind(one: RunSpec) -> tuple[str, str]:
    return one.config.size_name, one.config.recipe_name


def _played(search: CellSearch, known: Known, needs: Mapping[Cell, RunConfig]) -> Rest:
    """Play a cell to its end with made-up losses, and keep its waves of runs."""
    apart, mine = search.apart(), dict(known)
    waves = [
        tuple(one for chain in state.ready for one in chain if one.key not in known)
        for state in played(apart, mine, needs)
    ]
    last = apart.state(mine, needs)
    return Rest(tuple(waves), last.num_planned, last.winner.config if last.winner else None)
