"""The null of a worth: the baseline put through the whole method as if it were a recipe.

A fit compared with itself is worth 1 by construction, which shows nothing. So two grids are drawn
from the baseline's fitted curve, one at the baseline's cells and one at the recipe's, each with the
noise of its own residuals (drawn as for the intervals, so that noise in common stays in common),
and both go through the method: fits, limits or one size, and the ratio.
The recipe of these draws is the baseline, so that its expected worth is 1. A worth within the
spread of these ratios cannot be told from 1; a median away from 1 is the method's bias. The curve
is that of the leading law, whichever law is then fitted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from dcray.fit.efficiency import Equivalence, epochs_at
from dcray.fit.fit import Fit
from dcray.fit.uncertainty.bootstrap import Resamples, drawn_noise, fit_batch
from dcray.fit.uncertainty.intervals import ends, worth_draws
from dcray.laws._law import Array, Points

Pair = tuple[Fit, Fit]  # one law on the baseline's grid and on the recipe's


def with_nulls(
    answers: Sequence[Equivalence],
    fits: Mapping[str, Pair],
    lead: str,
    num_draws: int,
    seed: int = 0,
) -> list[Equivalence]:
    """Add nulls to the answers of the joint and the finite method, if `fits` has their law."""
    drawn = null_draws(fits, lead, num_draws, seed)
    found = []
    for answer in answers:
        if answer.method != "asymptote" and answer.law in drawn:
            ratios = worth_draws(answer, *drawn[answer.law])
            low, high = ends(ratios)
            middle = float(np.median(ratios))
            known = middle if 0 < middle < np.inf else None
            answer = replace(answer, null=known, null_low=low, null_high=high)
        found.append(answer)
    return found


def null_draws(
    fits: Mapping[str, Pair], lead: str, num_draws: int, seed: int = 0
) -> dict[str, tuple[Resamples, Resamples]]:
    """Fit {law: (the baseline, the baseline as if it were the recipe)}, each law on the same draws.

    The draws (num_draws grids) come from the baseline's curve under the law `lead`.
    """
    truth, its = fits[lead]
    grids = truth.points, _cells_of(its.points, truth)
    logs = [
        np.log(np.asarray(truth.predict(points.N, points.U, **points.more)))
        + drawn_noise(fit, num_draws, np.random.default_rng((seed, 3)))
        for points, fit in zip(grids, fits[lead], strict=True)
    ]
    return {
        law: (
            Resamples(fitted, _fit_all(fitted, grids[0], logs[0])),
            Resamples(replace(fitted, points=grids[1]), _fit_all(fitted, grids[1], logs[1])),
        )
        for law, (fitted, _) in fits.items()
    }


def _cells_of(points: Points, truth: Fit) -> Points:
    """Build the recipe's cells with losses from the baseline's curve and the baseline's epochs."""
    each = [epochs_at(truth.points, N, U) for N, U in zip(points.N, points.U, strict=True)]
    more = {name: np.array([one[name] for one in each]) for name in truth.points.more}
    losses = np.asarray(truth.predict(points.N, points.U, **more), float)
    return Points(points.N, points.U, losses, more, points.weight)


def _fit_all(fit: Fit, points: Points, logs: Array) -> Array:
    """Fit theta (k, P) of the fit's law to each row of log losses (P, n)."""
    own = fit.law.starts(points)
    starts = np.array([fit.law.to_free(t, points) for t in (fit.theta, own[0], own[-1])], float)
    weight = np.ones_like(points.L) if points.weight is None else points.weight
    return fit_batch(fit.law, points, logs, np.broadcast_to(weight, logs.shape), starts)
