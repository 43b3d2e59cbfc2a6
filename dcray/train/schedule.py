"""The learning rate, and the share of a step in an average, as pure functions of the step."""

from __future__ import annotations

import math

from dcray.config.run import RunConfig
from dcray.config.sections import ScheduleConfig


def fork_step(num_steps: int, schedule: ScheduleConfig) -> int:
    """Compute the step at which decay begins: round((1 - decay_frac) * steps)."""
    return round((1 - schedule.decay_frac) * num_steps)


def mean_start(num_steps: int, last_frac: float) -> int:
    """Compute the step after which a mean of the last part begins: it is over at least one step."""
    return num_steps - max(1, round(last_frac * num_steps))


def last_shared_step(config: RunConfig) -> int:
    """Compute the last step at which a run may take over the state of another run of its trunk.

    That is its fork, or the start of its mean if that comes first: the states of a trunk hold the
    means of the runs that saved them, which begin elsewhere. An "ema" is the same in all of them.
    """
    fork, last_frac = fork_step(config.num_steps, config.schedule), config.average.last_frac
    return fork if last_frac is None else min(fork, mean_start(config.num_steps, last_frac))


def average_share(step: int, config: RunConfig) -> float:
    """Compute the share of the weights after `step` steps (from 1) in their average so far.

    "ema": (1 - d) / (1 - d**n) after n steps, d = exp(-1 / (tau_epochs * steps of an epoch)). So
    the average is sum(d**(n - i) * weights_i) / sum(d**(n - i)) over the steps i = 1 ... n, and the
    initial weights have no part in it. "mean": 1 / (n - start); 1 up to there, or without one.
    """
    average = config.average
    if average.tau_epochs is not None:
        steps = average.tau_epochs * config.usable_rows / config.batch_size
        return math.expm1(-1 / steps) / math.expm1(-step / steps)
    start = step if average.last_frac is None else mean_start(config.num_steps, average.last_frac)
    return 1 / max(1, step - start)


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
