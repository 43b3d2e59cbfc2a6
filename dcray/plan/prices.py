"""The device time that a run will probably take: as measured, else by a table. Pure."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dcray.plan.estimate import device_of, expected_seconds, typical, workers_of
from dcray.track.rows import Row
from dcray.types import RunResult, RunSpec


@dataclass
class Prices:
    """The expected device-seconds of runs; `measured`: the results on record."""

    measured: Sequence[Row] = ()
    num_gpus: int = 0  # of the connected Ray
    rates: dict[tuple[str, str], list[float]] = field(default_factory=dict)  # FLOP/s seen, rising
    _typical: dict[tuple[Any, ...], Sequence[Row]] = field(default_factory=dict)

    def learn(self, measured: Sequence[Row]) -> None:
        """Replace the results on record by these."""
        self.measured, self._typical = measured, {}

    def device_seconds(self, one: RunSpec) -> float:
        """Estimate the device-seconds of what a run trains itself.

        The rate is as measured in this command, else by earlier results of the record, else by a
        table.
        """
        if one.members:  # an ensemble trains nothing itself
            return 0.0
        seen = self.rates.get(_kind(one))
        if seen:
            return one.flops / seen[len(seen) // 2]
        device = device_of(one.config, self.num_gpus)
        devices = workers_of(one.config, self.num_gpus)
        kind = (*_kind(one), device, devices, one.config.runtime.threads)
        if kind not in self._typical:  # the caller asks for every run that is ready
            self._typical[kind] = typical(one.config, device, devices, self.measured)
        seconds, _ = expected_seconds(one.config, device, devices, self._typical[kind])
        return seconds * devices * (1 - one.forked_from / one.config.num_steps)

    def observe(self, result: RunResult) -> None:
        """Add the rate (FLOP/s) of a run of this command, if it is complete."""
        seconds = result.device_seconds * result.num_devices
        if result.spec is not None and result.state == "complete" and seconds > 0:
            seen = self.rates.setdefault(_kind(result.spec), [])
            bisect.insort(seen, result.spec.flops / seconds)


def _kind(one: RunSpec) -> tuple[str, str]:
    return one.config.size_name, one.config.recipe_name
