"""A limit on the device-hours that a command spends."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from dcray.plan.prices import Prices
from dcray.types import RunResult, RunSpec


@dataclass
class ComputeLimit:
    """Device-hours that this command may spend (None: no limit), and what it has spent."""

    max_device_hours: float | None = None
    prices: Prices = field(default_factory=Prices)
    spent: float = 0.0  # device-seconds

    def allows(self, one: RunSpec, running: Iterable[RunSpec]) -> bool:
        """Tell whether a run probably fits into the rest of the limit beside the running ones."""
        if self.max_device_hours is None:
            return True
        expected = sum(map(self.prices.device_seconds, [*running, one]))
        return self.spent + expected <= 3600 * self.max_device_hours

    def spend(self, result: RunResult) -> None:
        """Count the device-seconds of a run, without those of earlier attempts."""
        self.spent += (result.device_seconds - result.earlier_seconds) * result.num_devices
        self.prices.observe(result)
