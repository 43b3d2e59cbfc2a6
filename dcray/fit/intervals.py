"""Intervals of every efficiency figure, from resamples of both laws and of the curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from dcray.fit.bootstrap import LEVEL, Resamples, fit_batch
from dcray.fit.curve import ParameterCurve, curves
from dcray.fit.efficiency import Equivalence, by_limit, by_size, epochs_at
from dcray.fit.fit import Fit
from dcray.laws._law import Array, Points


def with_intervals(
    answers: Sequence[Equivalence],
    baseline: Resamples,
    recipe: Resamples,
    asymptotes: tuple[Mapping[float, Array], Mapping[float, Array]] | None = None,
) -> list[Equivalence]:
    """The answers with intervals; `asymptotes`: draws {U: (P,)} of the recipe's and baseline's E_U.

    Both the baseline's law and the recipe's own curve vary, draw by draw.
    """
    found = []
    for answer in answers:
        U = answer.unique_tokens / 1e9
        if answer.method == "joint":
            worth, null = _joint(baseline, recipe, U)
        elif answer.method == "finite":
            worth, null = _finite(baseline, recipe, U, (answer.num_params or 0.0) / 1e9)
        elif asymptotes is not None and U in asymptotes[0] and U in asymptotes[1]:
            worth, null = (by_limit(baseline.fit, draws[U], baseline.theta) for draws in asymptotes)
        else:
            found.append(answer)
            continue
        found.append(_interval(answer, worth / U, null / U))
    return found


def _joint(baseline: Resamples, recipe: Resamples, U: float) -> tuple[Array, Array]:
    loss = recipe.fit.law.limit(recipe.theta, U)
    return by_limit(baseline.fit, loss, baseline.theta), np.full(baseline.theta.shape[1], U)


def _finite(baseline: Resamples, recipe: Resamples, U: float, N: float) -> tuple[Array, Array]:
    loss = recipe.fit.law(recipe.theta, N, U, **epochs_at(recipe.fit.points, N, U))
    worth = by_size(baseline.fit, loss, N, U, baseline.theta)
    return worth, np.full(baseline.theta.shape[1], U)


def _interval(answer: Equivalence, worth: Array, null: Array) -> Equivalence:
    low, high = _ends(worth)
    null_low, null_high = _ends(null)
    with np.errstate(all="ignore"):
        ratio_low, ratio_high = _ends(worth / null)
    answered = float(np.mean(np.isfinite(worth) & (worth > 0)))
    return replace(
        answer, low=low, high=high, null_low=null_low, null_high=null_high,
        ratio_low=ratio_low, ratio_high=ratio_high, answered_frac=answered,
    )  # fmt: skip


def _ends(draws: Array) -> tuple[float | None, float | None]:
    """The central interval; None for an end at which there is no answer (0 or infinity)."""
    kept = draws[~np.isnan(draws)]
    if not len(kept):
        return None, None
    tails = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    low, high = np.quantile(kept, tails, method="inverted_cdf")
    return float(low) if 0 < low < np.inf else None, float(high) if high < np.inf else None


def asymptote_draws(
    baseline: Points, recipe: Points, num_resamples: int, seed: int = 0
) -> tuple[dict[float, Array], dict[float, Array]]:
    """Draws of E_U of the recipe's and of the baseline's curves, {U: (P,)} each.

    A budget has some five cells for three parameters, too few to draw cells from. So the log
    residuals of all budgets' curves are drawn instead, enlarged by sqrt(n / (n - k)), with the same
    draws for both recipes where they have the same cells.
    """
    return (
        _draws(curves(recipe), num_resamples, seed),
        _draws(curves(baseline), num_resamples, seed),
    )


def _draws(fitted: Mapping[float, Fit], num_resamples: int, seed: int) -> dict[float, Array]:
    usable = {U: one for U, one in fitted.items() if len(one.points.L) > len(one.theta)}
    if not usable:
        return {}
    logs = [
        np.log(one.predict(one.points.N, one.points.U) / one.points.L) for one in usable.values()
    ]
    pooled = np.concatenate(logs)
    left = sum(len(one.points.L) - len(one.theta) for one in usable.values())
    pooled = pooled * np.sqrt(len(pooled) / left)
    random = np.random.default_rng((seed, 2))
    found = {}
    for U, one in usable.items():
        drawn = pooled[random.integers(len(pooled), size=(num_resamples, len(one.points.L)))]
        found[U] = _refit(one, drawn)
    return found


def _refit(one: Fit, noise: Array) -> Array:
    """E_U of the curve with each row of log noise (P, n) on it."""
    law, points = ParameterCurve(), one.points
    logs = np.log(np.asarray(one.predict(points.N, points.U))) + noise
    starts = np.array([law.to_free(t, points) for t in (one.theta, law.starts(points)[2])])
    return np.asarray(fit_batch(law, points, logs, np.ones_like(logs), starts)[0])
