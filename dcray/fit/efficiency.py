"""What a recipe is worth in unique data of a baseline: three methods, each beside its null.

asymptote  the paper's: the recipe's own curve per budget, E_U, against the baseline's *joint*
           limit. Put through it, the baseline is worth 0.96 / 1.28 / 1.16 / 1.13 times itself on
           the paper's grid, so it is never shown without that null, and the ratio of the two is the
           like-for-like figure of this method.
joint      one law fitted to each recipe's grid, limit against limit; null 1.
finite     the same two laws at one size that both recipes trained; null 1.

An answer has a status: "within" the baseline's budgets, "beyond the grid" (a number, extrapolated),
or "none" (no amount of data between a millionth and a million times the grid's brings the baseline
there). It is "limit not identified" where a method reads off a limit of infinite models that one of
the two grids does not identify: its number then only looks like an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dcray.fit.curve import curves
from dcray.fit.fit import Fit
from dcray.laws._law import Array, Points

METHODS = ("joint", "finite", "asymptote")  # in the order in which they lead
NO_LIMIT = "limit not identified"
REACH = 1e6  # times the grid's smallest and largest budget: how far an equivalent is looked for


@dataclass(frozen=True)
class Equivalence:
    """unique_tokens of the recipe are worth equivalent_tokens of the baseline, under one law.

    data_efficiency is their ratio, null the baseline's own by the same method, like_for_like their
    quotient. None where there is no answer. num_params: the size of the finite method. low and
    high: the interval of data_efficiency, null_low and null_high that of the null, ratio_low and
    ratio_high that of like_for_like; answered_frac: the share of resamples that had an answer.
    """

    method: str
    law: str
    unique_tokens: float
    status: str
    equivalent_tokens: float | None
    data_efficiency: float | None
    null: float | None
    num_params: float | None = None
    low: float | None = None
    high: float | None = None
    null_low: float | None = None
    null_high: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    answered_frac: float | None = None
    flags: tuple[str, ...] = ()

    @property
    def like_for_like(self) -> float | None:
        """data_efficiency over its null: what the recipe adds to the method's own bias."""
        if self.data_efficiency is None or self.null is None:
            return None
        return self.data_efficiency / self.null


def invert(curve: Callable[[Array], Any], target: Any, low: float, high: float) -> Array:
    """The U at which the falling `curve` has the loss `target`, each of shape (P,).

    Bisection on log U between low and high, to the last digit. Infinite where not even `high` is
    enough, 0 where `low` is too much, NaN for a target that is NaN.
    """
    target = np.atleast_1d(np.asarray(target, float))
    below, above = np.full_like(target, np.log(low)), np.full_like(target, np.log(high))
    with np.errstate(all="ignore"):
        too_good, too_bad = curve(np.exp(above)) > target, curve(np.exp(below)) < target
        for _ in range(80):
            middle = (below + above) / 2
            too_high = curve(np.exp(middle)) > target
            below, above = np.where(too_high, middle, below), np.where(too_high, above, middle)
    found = np.where(too_good, np.inf, np.where(too_bad, 0.0, np.exp((below + above) / 2)))
    return np.where(np.isnan(target), np.nan, found)


def reach(points: Points) -> tuple[float, float]:
    """Between which U (billions) an equivalent is looked for."""
    return float(points.U.min()) / REACH, float(points.U.max()) * REACH


def by_limit(baseline: Fit, loss: Any, theta: Any = None) -> Array:
    """U (billions) at which the baseline's limit has this loss, (P,); theta (k, P) of resamples."""
    theta = baseline.theta if theta is None else theta
    return invert(lambda U: baseline.law.limit(theta, U), loss, *reach(baseline.points))


def by_size(baseline: Fit, loss: Any, N: float, U: float, theta: Any = None) -> Array:
    """The U at which the baseline at N billion parameters has this loss.

    A law that reads num_epochs gets those that the baseline's cell of size N and budget `U` has.
    """
    theta = baseline.theta if theta is None else theta
    more = epochs_at(baseline.points, N, U)
    return invert(
        lambda tokens: baseline.law(theta, N, tokens, **more), loss, *reach(baseline.points)
    )


def epochs_at(points: Points, N: float, U: float) -> dict[str, float]:
    """What the law reads besides N and U, as the nearest cell has it."""
    nearest = int(np.argmin(np.abs(np.log(points.N / N)) * 100 + np.abs(np.log(points.U / U))))
    return {name: float(value[nearest]) for name, value in points.more.items()}


def asymptote(
    baseline: Fit, asymptotes: Mapping[float, float], null: Mapping[float, float]
) -> list[Equivalence]:
    """The paper's method for given asymptotes {U: E_U} of the recipe and of the baseline itself."""
    found = []
    for U, E in asymptotes.items():
        own = float(by_limit(baseline, null[U])[0]) / U if U in null else None
        found.append(_answer("asymptote", baseline, U, float(by_limit(baseline, E)[0]), own))
    return found


def by_asymptote(baseline: Fit, recipe: Points) -> list[Equivalence]:
    """The paper's method on two grids; budgets with fewer than three sizes have no curve."""
    own = {U: curve.theta[0] for U, curve in curves(baseline.points).items()}
    fitted = curves(recipe)
    answers = asymptote(baseline, {U: curve.theta[0] for U, curve in fitted.items()}, own)
    return [
        replace(answer, flags=curve.flags)
        for answer, curve in zip(answers, fitted.values(), strict=True)
    ]


def without_limit(answer: Equivalence) -> Equivalence:
    """The answer where one of the grids identifies no limit: a ratio at one size needs none."""
    return answer if answer.method == "finite" else replace(answer, status=NO_LIMIT)


def joint(baseline: Fit, recipe: Fit) -> list[Equivalence]:
    """One law on each grid, limit against limit, at each of the recipe's budgets."""
    found = []
    for U in np.unique(recipe.points.U):
        worth = float(by_limit(baseline, recipe.limit(U))[0])
        null = float(by_limit(baseline, baseline.limit(U))[0]) / U
        found.append(_answer("joint", baseline, float(U), worth, null))
    return found


def finite(baseline: Fit, recipe: Fit, num_params: float | None = None) -> list[Equivalence]:
    """One law on each grid, at one size (billions): by default the largest that both trained."""
    N = largest_common_size(baseline.points, recipe.points) if num_params is None else num_params
    if N is None:
        return []
    found = []
    for U in map(float, np.unique(recipe.points.U)):
        loss = recipe.predict(N, U, **epochs_at(recipe.points, N, U))
        own = baseline.predict(N, U, **epochs_at(baseline.points, N, U))
        worth = float(by_size(baseline, loss, N, U)[0])
        null = float(by_size(baseline, own, N, U)[0]) / U
        found.append(_answer("finite", baseline, float(U), worth, null, N))
    return found


def largest_common_size(first: Points, second: Points) -> float | None:
    """The largest N of both grids, in billions."""
    common = np.intersect1d(first.N, second.N)
    return float(common.max()) if len(common) else None


def _answer(
    method: str, baseline: Fit, U: float, worth: float, null: float | None, N: float | None = None
) -> Equivalence:
    """An Equivalence in tokens, with its status. U and worth in billions."""
    budgets = baseline.points.U
    answered = np.isfinite(worth) and worth > 0
    if not answered:
        status = "none"
    elif budgets.min() * (1 - 1e-9) <= worth <= budgets.max() * (1 + 1e-9):
        status = "within"
    else:
        status = "beyond the grid"
    return Equivalence(
        method=method,
        law=baseline.name,
        unique_tokens=U * 1e9,
        status=status,
        equivalent_tokens=worth * 1e9 if answered else None,
        data_efficiency=worth / U if answered else None,
        null=float(null) if null is not None and 0 < null < np.inf else None,
        num_params=None if N is None else N * 1e9,
    )
