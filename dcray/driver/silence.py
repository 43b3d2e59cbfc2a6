"""Trials without a report for long: a person is told which one, and since when."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Silence:
    """When each run was last heard; `tell` is called once for each silence that is too long.

    It ends nothing: a single step, or a validation, may take as long as it likes.
    """

    tell: Callable[[str, float], None]  # name, seconds
    now: Callable[[], float] = time.monotonic
    _heard: dict[str, float] = field(default_factory=dict)
    _told: set[str] = field(default_factory=set)

    def hear(self, name: str) -> None:
        """Record that a run has begun, or has sent a report."""
        self._heard[name] = self.now()
        self._told.discard(name)

    def leave(self, name: str) -> None:
        """Forget a run that has ended."""
        self._heard.pop(name, None)
        self._told.discard(name)

    def look(self, name: str, limit: float) -> None:
        """Call `tell` if a run was silent for `limit` seconds; the first look starts the clock."""
        if name not in self._heard:
            self.hear(name)
        silent = self.now() - self._heard[name]
        if silent >= limit and name not in self._told:
            self._told.add(name)
            self.tell(name, silent)
