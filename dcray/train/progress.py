"""What a run says while it trains, where it stands, and how it ended."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from dcray.train.meter import Point


@dataclass(frozen=True)
class Report:
    """What the loop says every few seconds; the same on every rank."""

    step: int
    num_steps: int
    epoch: float
    tokens_seen: int
    seconds: float  # spent training, over all attempts; without the trunk that it forked from
    first_step: int  # where it forked from its trunk, else 0
    tokens_per_second: float
    points: list[Point]
    earlier_seconds: float = 0.0  # of them, before this attempt
    notes: tuple[str, ...] = ()  # what a person should know of this run: a damaged checkpoint


@dataclass(frozen=True)
class Outcome:
    """How a run ended: "complete", "stopped" (run it again to go on) or "diverged"."""

    state: str
    step: int
    seconds: float
    earlier_seconds: float = 0.0  # of them, before this attempt
    val_loss: float | None = None
    val_loss_stderr: float | None = None  # by the draws of an objective that draws
    val_bpb: float | None = None
    best_epoch: int | None = None
    reason: str = ""
    trained_tokens: int = 0  # by this run itself, over all attempts; the trunk's are not its own
    peak_bytes: int | None = None  # of device memory, this attempt, rank 0


@dataclass
class Progress:
    """Where a run stands; all of it travels in the checkpoint."""

    step: int = 0
    first_step: int = 0  # 0, or where it forked from its trunk
    seconds: float = 0.0  # since then
    points: list[Point] = field(default_factory=list)
    best_loss: float = math.inf
    best_epoch: int | None = None
    last: tuple[int, float, float | None] | None = None  # step, val_loss, val_bpb
