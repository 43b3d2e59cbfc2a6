"""The reports of a run while it trains and at its end: points of its curve, its outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Point(NamedTuple):
    """One point of a curve, in plain numbers."""

    step: int  # optimizer steps done
    epoch: float  # passes over the unique tokens so far
    tokens_seen: int
    values: dict[str, float]
    at: float  # the time, Unix seconds


@dataclass(frozen=True)
class Report:
    """The report that the loop gives every few seconds; the same on every rank."""

    step: int
    num_steps: int
    epoch: float
    tokens_seen: int
    seconds: float  # spent training, over all attempts; without the trunk that it forked from
    first_step: int  # at which it forked from its trunk, else 0
    tokens_per_second: float
    points: list[Point]
    earlier_seconds: float = 0.0  # of them, before this attempt
    notes: tuple[str, ...] = ()  # what a person should know of this run: a damaged checkpoint


@dataclass(frozen=True)
class Outcome:
    """The end of a run: "complete", "stopped" (run it again to go on) or "diverged"."""

    state: str
    step: int
    seconds: float
    earlier_seconds: float = 0.0  # of them, before this attempt
    val_loss: float | None = None
    val_loss_stderr: float | None = None  # by the draws of an objective that draws
    val_loss_raw: float | None = None  # of the raw weights, if val_loss is their average's
    val_bpb: float | None = None
    best_epoch: int | None = None
    reason: str = ""
    out_of_memory: bool = False  # with state "lost"
    trained_tokens: int = 0  # by this run itself, over all attempts; the trunk's are not its own
    peak_bytes: int | None = None  # of device memory, this attempt, rank 0
