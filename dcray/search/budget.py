"""How many device-hours a command may still spend."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dcray.search.place import Machine, device_of, workers_of
from dcray.search.plan import expected_seconds, typical
from dcray.search.queue import Ended
from dcray.search.request import Request
from dcray.track.rows import Row


@dataclass
class Budget:
    """Device-hours that this command may spend; None: as many as it takes."""

    max_device_hours: float | None = None
    measured: Sequence[Row] = ()
    machine: Machine | None = None
    spent: float = 0.0  # device-seconds
    rates: dict[tuple[str, str], list[float]] = field(default_factory=dict)  # FLOP/s seen, rising
    _typical: dict[tuple[Any, ...], Sequence[Row]] = field(default_factory=dict)

    def learn(self, measured: Sequence[Row]) -> None:
        """These are the results on record."""
        self.measured, self._typical = measured, {}

    def allows(self, one: Request, flying: Iterable[Request]) -> bool:
        """Whether a request probably fits into what is left beside those under way."""
        if self.max_device_hours is None:
            return True
        expected = sum(map(self.device_seconds, flying)) + self.device_seconds(one)
        return self.spent + expected <= 3600 * self.max_device_hours

    def device_seconds(self, one: Request) -> float:
        """The expected device-seconds of what a request trains itself: as measured, else a table's.

        Measured in this command first, then by earlier results of the record.
        """
        seen = self.rates.get(_kind(one))
        if seen:
            return one.flops / seen[len(seen) // 2]
        device = device_of(one.config, self.num_gpus)
        devices = workers_of(one.config, self.num_gpus)
        kind = (*_kind(one), device, devices, one.config.runtime.threads)
        if kind not in self._typical:  # whoever asks, asks of every run that is ready
            self._typical[kind] = typical(one.config, device, devices, self.measured)
        seconds, _ = expected_seconds(one.config, device, devices, self._typical[kind])
        return seconds * devices * (1 - one.forked_from / one.config.num_steps)

    def spend(self, ended: Ended) -> None:
        """A run has taken its time; what it took in an earlier attempt is spent already."""
        self.spent += (ended.device_seconds - ended.earlier_seconds) * ended.num_devices
        seconds = ended.device_seconds * ended.num_devices
        if ended.state == "complete" and seconds > 0:
            seen = self.rates.setdefault(_kind(ended.request), [])
            bisect.insort(seen, ended.request.flops / seconds)

    @property
    def num_gpus(self) -> int:
        """Of the connected Ray; 0 where none is connected yet."""
        return self.machine.num_gpus if self.machine is not None else 0


def _kind(one: Request) -> tuple[str, str]:
    return one.config.size_name, one.config.objective.name
