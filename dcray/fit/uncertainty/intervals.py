"""Intervals of every efficiency figure, from resamples of both laws and of the curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from dcray.fit.curve import ParameterCurve, curves
from dcray.fit.efficiency import Equivalence, by_limit, by_size, epochs_at
from dcray.fit.fit import Fit
from dcray.fit.uncertainty.bootstrap import LEVEL, Resamples, fit_batch, normal_noise
from dcray.laws._law import Array, Points


def with_intervals(
    answers: Sequence[Equivalence],
    baseline: Resamples,
    recipe: Resamples,
    asymptotes: tuple[Mapping[float, Array], Mapping[float, Array]] | None = None,
) -> list[Equivalence]:
    """Add intervals to answers; `asymptotes`: draws {U: (P,)} of the recipe's and baseline's E_U.

    Both the baseline's law and the recipe's own curve vary, draw by draw.
    """
    found = []
    for answer in answers:
        U = answer.unique_tokens / 1e9
        if answer.method != "asymptote":
            worth = worth_draws(answer, baseline, recipe)
            found.append(_interval(answer, worth, np.ones_like(worth)))
            continue
        if asymptotes is not None and U in asymptotes[0] and U in asymptotes[1]:
            worth, null = (by_limit(baseline.fit, draws[U], baseline.theta) for draws in asymptotes)
            null_low, null_high = ends(null / U)
            answer = replace(answer, null_low=null_low, null_high=null_high)
            answer = _interval(answer, worth / U, null / U)
        found.append(answer)
    return found


def worth_draws(answer: Equivalence, baseline: Resamples, recipe: Resamples) -> Array:
    """Compute the ratio (P,) of an answer by the joint or the finite method, draw by draw."""
    U = answer.unique_tokens / 1e9
    if answer.num_params is None:
        loss = recipe.fit.law.limit(recipe.theta, U)
        return by_limit(baseline.fit, loss, baseline.theta) / U
    N = answer.num_params / 1e9
    loss = recipe.fit.law(recipe.theta, N, U, **epochs_at(recipe.fit.points, N, U))
    return by_size(baseline.fit, loss, N, U, baseline.theta) / U


def _interval(answer: Equivalence, worth: Array, null: Array) -> Equivalence:
    low, high = ends(worth)
    with np.errstate(all="ignore"):
        ratio_low, ratio_high = ends(worth / null)
    answered = float(np.mean(np.isfinite(worth) & (worth > 0)))
    return replace(
        answer, low=low, high=high,
        ratio_low=ratio_low, ratio_high=ratio_high, answered_frac=answered,
    )  # fmt: skip


def ends(draws: Array) -> tuple[float | None, float | None]:
    """Compute the central interval; None for an end at which there is no answer (0 or infinity)."""
    kept = draws[~np.isnan(draws)]
    if not len(kept):
        return None, None
    tails = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    low, high = np.quantile(kept, tails, method="inverted_cdf")
    return float(low) if 0 < low < np.inf else None, float(high) if high < np.inf else None


def asymptote_draws(
    baseline: Points, recipe: Points, num_resamples: int, seed: int = 0
) -> tuple[dict[float, Array], dict[float, Array]]:
    """Draw E_U of the recipe's and of the baseline's curves, {U: (P,)} each.

    A budget has about five cells for three parameters, too few to estimate its noise. So the size
    of the noise comes from the log residuals of all budgets' curves together.
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
    left = sum(len(one.points.L) - len(one.theta) for one in usable.values())
    noise = normal_noise(
        np.concatenate(logs), left, num_resamples, np.random.default_rng((seed, 2))
    )
    cuts = np.cumsum([len(each) for each in logs])[:-1]
    of_budgets = np.split(noise, cuts, axis=1)
    return {U: _refit(usable[U], its) for U, its in zip(usable, of_budgets, strict=True)}


def _refit(one: Fit, noise: Array) -> Array:
    """Fit E_U (P,) of the curve with each row of log noise (P, n) on the curve."""
    law, points = ParameterCurve(), one.points
    logs = np.log(np.asarray(one.predict(points.N, points.U))) + noise
    starts = np.array([law.to_free(t, points) for t in (one.theta, law.starts(points)[2])])
    return np.asarray(fit_batch(law, points, logs, np.ones_like(logs), starts)[0])
