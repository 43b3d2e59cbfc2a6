"""Figures of an answer: the laws of a grid. They need no study, so `dcray fit` draws them too.

Each function gives (title, text alternative, figure), or raises AbsentError.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dcray.fit.answer import Answer
from dcray.fit.curve import at_bound, curves
from dcray.fit.fit import Fit, ranked
from dcray.fit.uncertainty.diagnose import model_gap
from dcray.laws._law import Points
from dcray.report.figures.style import (
    AbsentError,
    below,
    count_axis,
    marks,
    ordered,
    sheet,
    short,
    within,
)

BUDGETS = "unique tokens"
LOSS = "validation loss (nats per token)"
Drawn = tuple[str, str, Any]
GAP_LAWS = ("chinchilla", "softq")  # additive, so a constant gap; and coupled, so a fan


def gap(found: Answer) -> Drawn:
    """Draw the loss gap (nats) to the largest budget against size: flat under an additive law."""
    points = found.grids[found.baseline].points
    gaps = {U: by_size for U, by_size in model_gap(points).items() if len(by_size) > 1}
    if not gaps:
        raise AbsentError("a gap needs two sizes at two budgets, the largest among them")
    figure, axes = sheet()
    largest, laws = float(points.U.max()), [n for n in GAP_LAWS if n in _plain(found)]
    lowest = min(min(by_size.values()) for by_size in gaps.values())  # noise may make one negative
    sizes = np.geomspace(points.N.min(), points.N.max(), 60)
    for i, (U, by_size) in enumerate(sorted(gaps.items())):
        look = ordered(i, len(gaps))
        N = np.array(sorted(by_size))
        axes.plot(N * 1e9, [by_size[n] for n in N], linestyle="", label=short(U * 1e9), **look)
        for law in laws:
            one = found.fits[found.baseline][law]
            line = one.predict(sizes, U) - one.predict(sizes, largest)
            style = "-" if law == "softq" else ":"
            axes.plot(sizes * 1e9, line, color=look["color"], linestyle=style)
    for law in laws:
        axes.plot([], [], color="0.3", linestyle="-" if law == "softq" else ":", label=law)
    count_axis(axes.xaxis, points.N * 1e9)
    axes.set_xlabel("total parameters")
    axes.set_ylabel(f"loss minus loss at {short(largest * 1e9)} (nats)")
    if lowest >= 0:
        axes.set_ylim(bottom=0)
    below(figure, title=BUDGETS)
    title = f"{found.baseline}: what less data costs, by size"
    first = gaps[min(gaps)]
    alt = (
        f"The loss at {short(min(gaps) * 1e9)} tokens exceeds that at {short(largest * 1e9)} by "
        f"{first[min(first)]:.3f} nats for the smallest model and {first[max(first)]:.3f} for the "
        "largest. An additive law (Chinchilla) has a constant gap; SoftQ's depends on the size."
    )
    return title, alt, figure


def absolute(found: Answer) -> Drawn:
    """Draw losses against size with each law's curves, one panel per law."""
    points, fits = found.grids[found.baseline].points, found.fits[found.baseline]
    names = _shown(fits)
    rows = -(-len(names) // 2)
    figure, panels = sheet(
        rows, min(2, len(names)), height=1.1 + 1.7 * rows, sharex=True, sharey=True, squeeze=False
    )
    for axes, name in zip(panels.flat, names, strict=False):
        for i, U in enumerate(np.unique(points.U)):
            look, at = ordered(i, len(np.unique(points.U))), points.U == U
            axes.plot(points.N[at] * 1e9, points.L[at], linestyle="", **look)
            axes.plot(*_curve(fits[name], points, float(U)), color=look["color"])
        within(axes, list(points.L))
        axes.set_title(f"{name}\nRMSE {fits[name].rmse:.4f}")
        count_axis(axes.xaxis, points.N * 1e9, most=3)
    for axes in panels.flat[len(names) :]:
        axes.set_visible(False)
    below(figure, marks(np.unique(points.U) * 1e9), title=BUDGETS)
    for axes in panels[-1]:
        axes.set_xlabel("total parameters")
    figure.supylabel(LOSS, fontsize=8)
    title = f"{found.baseline}: losses and fitted laws"
    best = names[0]
    alt = (
        f"{len(points.L)} losses of {found.baseline} against size with the curves of "
        f"{len(names)} laws. The best by AICc is {best}, RMSE {fits[best].rmse:.4f} nats."
    )
    return title, alt, figure


def against_data(found: Answer) -> Drawn:
    """Draw the baseline against unique tokens: each size, and infinitely many parameters."""
    points, fits = found.grids[found.baseline].points, found.fits[found.baseline]
    law = _shown(fits)[0]
    one = fits[law]
    figure, axes = sheet()
    budgets = np.geomspace(points.U.min(), points.U.max() * 2, 60)
    sizes = np.unique(points.N)
    for i, N in enumerate(sizes):
        look, at = ordered(i, len(sizes)), points.N == N
        label = short(float(N) * 1e9)
        axes.plot(points.U[at] * 1e9, points.L[at], linestyle="", label=label, **look)
        if one.law.needs:
            axes.plot(points.U[at] * 1e9, (points.L + one.residuals)[at], color=look["color"])
        else:
            axes.plot(budgets * 1e9, one.predict(N, budgets), color=look["color"])
    if one.has_limit:
        axes.plot(budgets * 1e9, one.limit(budgets), "k--", label="infinite")
    count_axis(axes.xaxis, points.U * 1e9)
    axes.set_xlabel("unique tokens")
    axes.set_ylabel(LOSS)
    below(figure, title="total parameters")
    title = f"{found.baseline} against data ({law})"
    low, high = float(one.limit(points.U.max())), float(one.limit(points.U.min()))
    limit = (
        f"With infinitely many parameters {law} goes from {high:.3f} at "
        f"{short(points.U.min() * 1e9)} tokens to {low:.3f} at {short(points.U.max() * 1e9)}."
        if one.has_limit
        else "The limit of infinitely many parameters is not identified here."
    )
    alt = f"Losses of {found.baseline} against unique tokens at each of {len(sizes)} sizes. {limit}"
    return title, alt, figure


def asymptotes(found: Answer) -> Drawn:
    """Draw one curve per budget over size with its asymptote, for the baseline and each recipe."""
    fitted = {recipe: curves(grid.points) for recipe, grid in found.grids.items()}
    fitted = {recipe: by_budget for recipe, by_budget in fitted.items() if by_budget}
    if not fitted:
        raise AbsentError("a curve over size needs three sizes at one budget")
    budgets = sorted({U for by_budget in fitted.values() for U in by_budget})
    columns = min(2, len(fitted))
    rows = -(-len(fitted) // columns)
    figure, panels = sheet(rows, columns, height=0.9 + 2 * rows, sharey=True, squeeze=False)
    for axes in panels.flat[len(fitted) :]:
        axes.set_visible(False)
    for axes, (recipe, by_budget) in zip(panels.flat, fitted.items(), strict=False):
        for U, one in by_budget.items():
            look, N = ordered(budgets.index(U), len(budgets)), one.points.N
            sizes = np.geomspace(N.min(), N.max() * 8, 60)
            axes.plot(N * 1e9, one.points.L, linestyle="", **look)
            axes.plot(sizes * 1e9, one.predict(sizes, U), color=look["color"])
            if not at_bound(one):
                axes.axhline(one.theta[0], color=look["color"], linestyle=":", linewidth=1)
        count_axis(axes.xaxis, found.grids[recipe].points.N * 1e9, most=4 - columns)
        axes.set_title(found.grids[recipe].label)
        axes.set_xlabel("total parameters")
    below(figure, marks([U * 1e9 for U in budgets]), title=BUDGETS)
    figure.supylabel(LOSS, fontsize=8)
    title = "Each budget's curve over size, and its asymptote (dotted)"
    ends = "; ".join(
        f"{recipe} at {short(U * 1e9)}: "
        + ("at its bound 0" if at_bound(one) else f"{one.theta[0]:.3f}")
        for recipe, by_budget in fitted.items()
        for U, one in by_budget.items()
    )
    every = [one for by_budget in fitted.values() for one in by_budget.values()]
    exact = any(one.flags for one in every if not at_bound(one))
    alt = f"Asymptotes in nats: {ends}." + (
        " With three sizes a curve passes through every point, so it has no error bar."
        if exact
        else ""
    )
    return title, alt, figure


def residuals(found: Answer) -> Drawn:
    """Draw predicted minus observed losses (in 0.001 nats), law by law, cell by cell."""
    points, fits = found.grids[found.baseline].points, found.fits[found.baseline]
    names = _shown(fits)
    figure, panels = sheet(
        len(names), 1, height=1.1 + 0.8 * len(names), sharex=True, sharey=True, squeeze=False
    )
    budgets = np.unique(points.U)
    worst = max(float(np.abs(fits[name].residuals).max()) for name in names) * 1e3
    for axes, name in zip(panels.flat, names, strict=True):
        axes.axhline(0, color="0.3", linewidth=0.8)
        for i, U in enumerate(budgets):
            at = points.U == U
            axes.plot(
                points.N[at] * 1e9 * 1.03 ** (i - len(budgets) / 2),  # side by side, not on top
                fits[name].residuals[at] * 1e3,
                linestyle="",
                **ordered(i, len(budgets)),
            )
        axes.set_title(f"{name}, RMSE {fits[name].rmse:.4f}", loc="left")
        axes.set_ylim(-1.15 * worst, 1.15 * worst)
    count_axis(panels.flat[-1].xaxis, points.N * 1e9)
    panels.flat[-1].set_xlabel("total parameters")
    figure.supylabel("residual (0.001 nats)", fontsize=8)
    below(figure, marks(np.unique(points.U) * 1e9), title=BUDGETS)
    title = f"{found.baseline}: predicted minus observed loss"
    rmses = ", ".join(f"{name} {fits[name].rmse:.4f}" for name in names)
    return title, f"Residuals of each law by size and budget. RMSE in nats: {rmses}.", figure


def _shown(fits: Mapping[str, Fit]) -> list[str]:
    """Return the laws that describe their grid, the lowest AICc first, at most six."""
    names = [law for law in ranked(fits) if fits[law].describes]
    if not names:
        raise AbsentError("no law describes the baseline's grid")
    return names[:6]


def _plain(found: Answer) -> list[str]:
    """Return the baseline's laws that describe its grid and read nothing but N and U."""
    fits = found.fits[found.baseline]
    return [name for name, one in fits.items() if one.describes and not one.law.needs]


def _curve(one: Fit, points: Points, U: float) -> tuple[Any, Any]:
    """Compute a law's curve at one budget: smooth, or cell to cell if it also reads epochs."""
    if one.law.needs:
        at = points.U == U
        order = np.argsort(points.N[at])
        return points.N[at][order] * 1e9, (points.L + one.residuals)[at][order]
    sizes = np.geomspace(points.N.min(), points.N.max(), 60)
    return sizes * 1e9, one.predict(sizes, U)
