"""The progress of a run; all of it is kept in the checkpoint."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from dcray.reports import Point


@dataclass
class Progress:
    """The state of a run beside its model and optimizer."""

    step: int = 0
    first_step: int = 0  # 0, or the step at which it forked from its trunk
    seconds: float = 0.0  # since then
    points: list[Point] = field(default_factory=list)
    best_loss: float = math.inf
    best_epoch: int | None = None
    last: tuple[int, float, float | None] | None = None  # step, val_loss, val_bpb

    @property
    def raw_loss(self) -> float | None:
        """Return the last loss of the raw weights; None if no average is kept beside them."""
        found = [point.values.get("val/raw_loss") for point in self.points]
        return next((loss for loss in reversed(found) if loss is not None), None)
