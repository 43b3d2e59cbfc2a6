"""The laws' predictions of losses that they were not fitted to: held-out cells and new points."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dcray.config.counts import count_label, parse_count
from dcray.errors import ConfigError
from dcray.fit.efficiency import epochs_at
from dcray.fit.fit import Fit, log_squares
from dcray.fit.grid import Grid
from dcray.fit.uncertainty.bootstrap import Resamples, interval, noise_sizes
from dcray.fit.uncertainty.diagnose import HeldOut, hold_out
from dcray.laws._law import Array, Points

AXES = ("num_params", "unique_tokens")
CLOSE = 0.03  # relative distance up to which a written value is a grid's: 1.4b for 1,439,273,984


@dataclass(frozen=True)
class Prediction:
    """A law's loss of a recipe at a point, with 95 % intervals, None without resampling.

    mean_low and mean_high enclose the law's mean, to which many runs there would average; run_low
    and run_high enclose the loss of one new run, whose own noise is added.
    """

    recipe: str
    law: str
    num_params: int
    unique_tokens: int
    val_loss: float
    mean_low: float | None = None
    mean_high: float | None = None
    run_low: float | None = None
    run_high: float | None = None


def predictions(
    grid: Grid,
    fits: Mapping[str, Fit],
    resamples: Mapping[str, Resamples] | None,
    asked: str,
    seed: int = 0,
) -> list[Prediction]:
    """Predict the loss by every law at num_params=...,unique_tokens=...[,num_epochs=...].

    Raises ConfigError if `asked` has another form.
    """
    N, U, more = _point(asked)
    found = []
    for law, fitted in fits.items():
        given = more or epochs_at(fitted.points, N / 1e9, U / 1e9)
        loss = float(fitted.predict(N / 1e9, U / 1e9, **given))
        ends: tuple[float, ...] = ()
        if resamples:
            means = resamples[law].predict(N / 1e9, U / 1e9, **given)
            ends = (
                *interval(means),
                *interval(new_runs(grid.read_by(fitted.law), fitted, means, seed)),
            )
        found.append(Prediction(grid.recipe, law, N, U, loss, *ends))
    return found


def new_runs(grid: Grid, fit: Fit, means: Array, seed: int = 0) -> Array:
    """Draw the losses (P,) of one run each around the drawn means (P,), in nats.

    The noise is that of the cells' residuals. A cell that is a mean over seeds varies less than a
    run does, by an amount that is estimated from the seeds.
    """
    random = np.random.default_rng((seed, 5))
    freedom = len(fit.points.L) - len(fit.theta)
    sizes = noise_sizes(log_squares(fit), freedom, len(means), random)
    if grid.seed_noise is not None:
        several = 1 - 1 / np.mean([len(seeds) for seeds in grid.losses])
        seeds = grid.seed_noise / fit.points.center[2]
        sizes = np.sqrt(sizes**2 + several * seeds**2)
    return np.asarray(means * np.exp(sizes * random.standard_normal(len(means))))


def held_out(points: Points, laws: Mapping[str, Fit], asked: str) -> list[HeldOut]:
    """Fit each law without the cells of unique_tokens=VALUE or num_params=VALUE.

    Raises ConfigError if `asked` has another form or the grid has no such value.
    """
    axis, _, text = asked.partition("=")
    if axis not in AXES or not text:
        raise ConfigError(
            f"--hold-out must be unique_tokens=VALUE, num_params=VALUE or each, got {asked!r}"
        )
    values = points.U if axis == "unique_tokens" else points.N
    value = _nearest(axis, text, values)
    found = []
    for law, one in laws.items():
        out = (one.points.U if axis == "unique_tokens" else one.points.N) == value
        found.append(hold_out(law, one.points, out, f"{axis}={text}"))
    return found


def _nearest(axis: str, text: str, values: Any) -> float:
    """Find the grid's value (billions) that `text` means."""
    wanted = _count(f"--hold-out {axis}", text) / 1e9
    near = min(np.unique(values), key=lambda value: abs(math.log(value / wanted)))
    if abs(near / wanted - 1) > CLOSE:
        there = ", ".join(count_label(round(value * 1e9)) for value in np.unique(values))
        raise ConfigError(f"--hold-out {axis}={text}: the grid has no such value, it has {there}")
    return float(near)


def _point(asked: str) -> tuple[int, int, dict[str, float] | None]:
    pairs = dict(part.strip().partition("=")[::2] for part in asked.split(","))
    unknown = sorted(set(pairs) - {*AXES, "num_epochs"})
    missing = [axis for axis in AXES if axis not in pairs]
    if unknown or missing:
        raise ConfigError(
            "--predict must be num_params=VALUE,unique_tokens=VALUE[,num_epochs=VALUE], "
            f"got {asked!r}"
        )
    N, U = (_count(f"--predict {axis}", pairs[axis]) for axis in AXES)
    epochs = pairs.get("num_epochs")
    more = {"num_epochs": float(_count("--predict num_epochs", epochs))} if epochs else None
    return N, U, more


def _count(name: str, text: str) -> int:
    try:
        count = parse_count(text.strip())
    except ValueError as error:
        raise ConfigError(f"{name} {error}, got {text!r}") from None
    if not isinstance(count, int) or count <= 0:
        raise ConfigError(f"{name} must be a positive count, got {text!r}")
    return count
