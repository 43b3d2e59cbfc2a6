"""The worth of a recipe in unique data of a baseline: three methods, each beside its null.

asymptote  the paper's: the recipe's own curve per budget, E_U, against the baseline's *joint*
           limit. By this method the baseline is worth 0.96 / 1.28 / 1.16 / 1.13 times itself on
           the paper's grid, so no figure is shown without that null, and the ratio of the two is
           the like-for-like figure of this method.
joint      one law fitted to each recipe's grid, limit against limit.
finite     the same two laws at one size that both recipes trained.

By the last two methods a fit is worth 1 of itself by construction, which is no evidence: their null
is drawn (dcray.fit.uncertainty.null).

An answer has a status: "within" the baseline's budgets, "beyond the grid" (a number, extrapolated),
"out of reach" (farther from the budgets than they support: a bound in place of a number), or "none"
(a bound, and by the law no amount of data between a millionth and a million times the grid's brings
the baseline to that loss). The status is "limit not identified" if a method uses a limit of
infinite models that one of the two grids does not identify: the number then only looks like an
answer.
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
AT_LEAST, AT_MOST = "at least", "at most"
REACH = 1e6  # times the grid's smallest and largest budget: how far an equivalent is searched
SUPPORT = 4.0  # times those budgets: how far a law may be extrapolated, if they span as much


@dataclass(frozen=True)
class Equivalence:
    """unique_tokens of the recipe are worth equivalent_tokens of the baseline, under one law.

    data_efficiency is equivalent_tokens / unique_tokens, None if there is no answer; beyond then
    says "at least" or "at most", and supported_low and supported_high are the ratios between which
    the baseline's budgets support a number. null is the baseline's own ratio: by its own curves
    (asymptote), or the median over grids drawn from its curve (joint, finite), None if none were
    drawn. like_for_like is data_efficiency over null for asymptote, else data_efficiency.
    num_params: the size of the finite method. low and high: the interval of data_efficiency,
    null_low and null_high that of null, ratio_low and ratio_high that of like_for_like;
    answered_frac: the share of resamples that had an answer.
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
    beyond: str | None = None
    supported_low: float = 0.0
    supported_high: float = float("inf")
    flags: tuple[str, ...] = ()

    @property
    def like_for_like(self) -> float | None:
        """Compute what the recipe adds to the method's own bias (data_efficiency over null)."""
        if self.data_efficiency is None or self.method != "asymptote":
            return self.data_efficiency
        return None if self.null is None else self.data_efficiency / self.null

    @property
    def ratio_or_bound(self) -> float | None:
        """Return data_efficiency, or the bound to which `beyond` refers."""
        bounds = {AT_LEAST: self.supported_high, AT_MOST: self.supported_low}
        return bounds[self.beyond] if self.beyond else self.data_efficiency


def invert(curve: Callable[[Array], Any], target: Any, low: float, high: float) -> Array:
    """Find the U at which the falling `curve` has the loss `target`, each of shape (P,).

    Bisects log U between low and high, to the last digit. U is infinite if not even `high` is
    enough, 0 if `low` is too much, NaN for a target that is NaN.
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
    """Compute the lowest and the highest U (billions) at which an equivalent is searched."""
    return float(points.U.min()) / REACH, float(points.U.max()) * REACH


def supported(budgets: Array) -> tuple[float, float]:
    """Compute the U between which budgets support a number: as far beyond them as they span."""
    low, high = float(budgets.min()), float(budgets.max())
    span = min(high / low, SUPPORT)
    return low / span, high * span


def by_limit(baseline: Fit, loss: Any, theta: Any = None) -> Array:
    """Find the U (billions) at which the baseline's limit has this loss, (P,) for theta (k, P)."""
    theta = baseline.theta if theta is None else theta
    return invert(lambda U: baseline.law.limit(theta, U), loss, *reach(baseline.points))


def by_size(baseline: Fit, loss: Any, N: float, U: float, theta: Any = None) -> Array:
    """Find the U (billions) at which the baseline with N billion parameters has this loss.

    A law that reads num_epochs gets those that the baseline's cell of size N and budget `U` has.
    theta (k, P) of resamples gives (P,).
    """
    theta = baseline.theta if theta is None else theta
    more = epochs_at(baseline.points, N, U)
    return invert(
        lambda tokens: baseline.law(theta, N, tokens, **more), loss, *reach(baseline.points)
    )


def epochs_at(points: Points, N: float, U: float) -> dict[str, float]:
    """Look up in the cell nearest to N and U (billions) what a law reads besides (num_epochs)."""
    nearest = int(np.argmin(np.abs(np.log(points.N / N)) * 100 + np.abs(np.log(points.U / U))))
    return {name: float(value[nearest]) for name, value in points.more.items()}


def asymptote(
    baseline: Fit, asymptotes: Mapping[float, float], null: Mapping[float, float]
) -> list[Equivalence]:
    """Apply the paper's method to {U: E_U} of the recipe and, as `null`, of the baseline itself."""
    found = []
    for U, E in asymptotes.items():
        own = float(by_limit(baseline, null[U])[0]) / U if U in null else None
        found.append(_answer("asymptote", baseline, U, float(by_limit(baseline, E)[0]), own))
    return found


def by_asymptote(
    baseline: Fit, recipe: Points, own_cells: Points | None = None
) -> list[Equivalence]:
    """Apply the paper's method to two grids; budgets with fewer than three sizes have no curve.

    own_cells: the baseline's cells, for its null, if the fit is to several epochs of each cell.
    """
    own = {U: curve.theta[0] for U, curve in curves(own_cells or baseline.points).items()}
    fitted = curves(recipe)
    answers = asymptote(baseline, {U: curve.theta[0] for U, curve in fitted.items()}, own)
    return [
        replace(answer, flags=curve.flags)
        for answer, curve in zip(answers, fitted.values(), strict=True)
    ]


def without_limit(answer: Equivalence) -> Equivalence:
    """Set the status NO_LIMIT of an answer, unless the ratio is at one size and needs no limit."""
    return answer if answer.method == "finite" else replace(answer, status=NO_LIMIT)


def joint(baseline: Fit, recipe: Fit) -> list[Equivalence]:
    """Compare the limits of one law on each grid, at each of the recipe's budgets."""
    found = []
    for U in np.unique(recipe.points.U):
        worth = float(by_limit(baseline, recipe.limit(U))[0])
        found.append(_answer("joint", baseline, float(U), worth))
    return found


def finite(baseline: Fit, recipe: Fit, num_params: float | None = None) -> list[Equivalence]:
    """Compare one law on each grid at one size (billions), by default the largest common one."""
    N = largest_common_size(baseline.points, recipe.points) if num_params is None else num_params
    if N is None:
        return []
    found = []
    for U in map(float, np.unique(recipe.points.U)):
        loss = recipe.predict(N, U, **epochs_at(recipe.points, N, U))
        worth = float(by_size(baseline, loss, N, U)[0])
        found.append(_answer("finite", baseline, float(U), worth, num_params=N))
    return found


def largest_common_size(first: Points, second: Points) -> float | None:
    """Find the largest N (billions) that both grids have; None if there is none."""
    common = np.intersect1d(first.N, second.N)
    return float(common.max()) if len(common) else None


def _answer(
    method: str,
    baseline: Fit,
    U: float,
    worth: float,
    null: float | None = None,
    num_params: float | None = None,
) -> Equivalence:
    """Build an Equivalence in tokens, with its status, from U, worth and num_params in billions."""
    low, high = supported(baseline.points.U)
    status = _status(baseline.points.U, worth)
    answered = status in ("within", "beyond the grid")
    beyond = None
    if not answered and not np.isnan(worth):
        beyond = AT_LEAST if worth > high else AT_MOST
    return Equivalence(
        method=method,
        law=baseline.name,
        unique_tokens=U * 1e9,
        status=status,
        equivalent_tokens=worth * 1e9 if answered else None,
        data_efficiency=worth / U if answered else None,
        null=float(null) if null is not None and 0 < null < np.inf else None,
        num_params=None if num_params is None else num_params * 1e9,
        beyond=beyond,
        supported_low=low / U,
        supported_high=high / U,
    )


def _status(budgets: Array, worth: float) -> str:
    """Classify an equivalent of `worth` billion tokens by the baseline's budgets (billions)."""
    if not (np.isfinite(worth) and worth > 0):
        return "none"
    slack = 1 + 1e-9
    if budgets.min() / slack <= worth <= budgets.max() * slack:
        return "within"
    low, high = supported(budgets)
    return "beyond the grid" if low / slack <= worth <= high * slack else "out of reach"
