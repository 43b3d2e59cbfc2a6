"""The learning rate as a pure function of the step."""

from __future__ import annotations

import math

from dcray.config.sections import ScheduleConfig


def fork_step(num_steps: int, schedule: ScheduleConfig) -> int:
    """Compute the step at which decay begins: round((1 - decay_frac) * steps)."""
    return round((1 - schedule.decay_frac) * num_steps)


def lr_factor(step: int, num_steps: int, schedule: ScheduleConfig) -> float:
    """Compute the learning rate of step `step` (from 0) as a share of the peak.

    Both schedules warm up linearly over `warmup_steps`. "wsd" then stays at 1 until the fork and
    falls linearly, reaching `min_lr_frac` at the last step; "cosine" falls along half a cosine to
    the same.
    """
    warmup = schedule.warmup_steps or max(1, round(schedule.warmup_frac * num_steps))
    low = schedule.min_lr_frac
    if step < warmup:
        return (step + 1) / warmup
    if schedule.kind == "cosine":
        progress = (step + 1 - warmup) / max(1, num_steps - warmup)
        return low + (1 - low) * 0.5 * (1 + math.cos(math.pi * progress))
    fork = fork_step(num_steps, schedule)
    if step < fork:
        return 1.0
    progress = (step + 1 - fork) / max(1, num_steps - fork)
    return 1 - (1 - low) * progress
