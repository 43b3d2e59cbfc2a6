"""The clock of a run: what its steps take, and when its next report and checkpoint are due."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from dcray.config.sections import RuntimeConfig

REPORT_SPACING = 150  # reports lie so many times their own cost apart: they take under 1 %


class ReportClock:
    """Times the steps since the last report, without what is no training (`aside`).

    Times are seconds of the host's `perf_counter`.
    """

    def __init__(self, runtime: RuntimeConfig) -> None:
        self.runtime = runtime
        self.next_report, self._every, self._report_cost = 1, 1, 0.0
        self._reported_at = self._drained_at = self._saved_at = time.perf_counter()
        self._reported_step, self._idle, self._now = 0, 0.0, self._reported_at

    def resume(self, step: int) -> None:
        """Begin at a step that a checkpoint holds."""
        self._reported_step, self.next_report = step, step + 1

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Count the time of the block as no training; steps still under way must be waited for."""
        began = time.perf_counter()
        yield
        self._idle += time.perf_counter() - began

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Count the time of the block as the cost of a report, which may wait for its reader."""
        began = time.perf_counter()
        yield
        self._report_cost = time.perf_counter() - began
        self._idle += self._report_cost

    def look(self, step: int) -> tuple[float, float, float]:
        """Return steps until the next report, seconds since the last, and 1.0 if a save is due."""
        self._now = time.perf_counter()
        elapsed = self._now - self._reported_at
        step_seconds = (elapsed - self._idle) / max(1, step - self._reported_step)
        spacing = max(self.runtime.report_seconds, REPORT_SPACING * self._report_cost)
        every = max(1, math.floor(spacing / max(step_seconds, 1e-9)))
        due = self._now - self._saved_at >= self.runtime.checkpoint_seconds
        return float(every), elapsed, float(due)

    def close(self, step: int, every: int) -> float:
        """Close the interval that `look` saw, the device having drained; return steps a second.

        The rate counts from when the device had done the steps before: it works behind the clock
        of the host. The next report is `every` steps away, at most about twice as far as the last.
        """
        drained, steps = time.perf_counter(), step - self._reported_step
        rate = steps / max(drained - self._drained_at - self._idle, 1e-9)
        self._drained_at, self._idle = drained, 0.0
        self._reported_at, self._reported_step = self._now, step
        self._every = min(every, 2 * self._every + 1)
        self.next_report = step + self._every
        return rate

    def saved(self) -> None:
        """Count the time to the next checkpoint from now."""
        self._saved_at = time.perf_counter()
