"""The figure of recipes side by side: worth with intervals and nulls, at equal what."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from dcray.fit.efficiency import Equivalence
from dcray.fit.output.headline import outside, span
from dcray.fit.ranking import EQUALS, Standing
from dcray.report.analysis import Analysis
from dcray.report.figures.fits import BUDGETS, Drawn
from dcray.report.figures.style import AbsentError, below, marks, ordered, sheet

NAME_CHARACTERS = 14  # of a recipe's name in a line of its own
STEP = 0.11  # inches from one budget to the next
LOG_FROM = 4.0  # times from the lowest to the highest worth: from there on the axis is logarithmic


def by_worth(found: Analysis) -> Drawn:
    """Draw each recipe's worth in the baseline's data, a panel for each thing that is equal.

    The recipe worth most stands at the top; a budget has a marker with its interval on a grey bar,
    its null. Returns (title, text alternative, figure). Raises AbsentError for fewer than two
    recipes with a worth.
    """
    shown = [one for one in found.standings if any(a.data_efficiency for a in one.worths)]
    recipes = list(dict.fromkeys(one.recipe for one in found.standings))
    recipes = [name for name in recipes if name in {one.recipe for one in shown}]
    if len(recipes) < 2:
        raise AbsentError("recipes side by side need two that have a worth in the baseline's data")
    panels = [[one for one in shown if one.at_equal == at_equal] for at_equal in EQUALS]
    panels = [its for its in panels if its]
    budgets = sorted({a.unique_tokens for one in shown for a in one.worths})
    ratios = [len(its) for its in panels]
    row = STEP * (len(budgets) + 1)
    height = 1.0 + 0.35 * len(panels) + max(row, 0.3) * sum(ratios)
    figure, axes = sheet(
        len(panels), 1, height=height, squeeze=False, sharex=True, height_ratios=ratios
    )
    limits = _limits([a for one in shown for a in one.worths])
    for panel, its in zip(axes.flat, panels, strict=True):
        _panel(panel, its, budgets, limits)
    axes.flat[-1].set_xlabel(f"times {found.baseline}'s unique data (1 = no gain)")
    below(figure, marks(budgets), title=BUDGETS)
    return "Recipes by worth in unique data", _said(found, shown, recipes), figure


def _panel(
    axes: Any, standings: Sequence[Standing], budgets: Sequence[float], limits: tuple[float, float]
) -> None:
    axes.set_xlim(*limits)
    if limits[1] / limits[0] > LOG_FROM:
        _logarithmic(axes, limits)
    for place, one in enumerate(standings):
        for a in one.worths:
            if a.data_efficiency is None:
                continue
            index = budgets.index(a.unique_tokens)
            y = place + 0.8 * ((index + 0.5) / len(budgets) - 0.5)
            look = ordered(index, len(budgets))
            if a.null_low is not None or a.null_high is not None:
                axes.plot(_ends(a.null_low, a.null_high, limits), [y, y], color="0.85",
                          linewidth=4, zorder=0, solid_capstyle="butt")  # fmt: skip
            if a.answered_frac is not None:
                _interval(axes, a, y, look["color"], limits)
            axes.plot([a.data_efficiency], [y], linestyle="", **look, markersize=3.5)
    axes.axvline(1, color="0.3", linewidth=0.8)
    names = [textwrap.fill(one.label, NAME_CHARACTERS) for one in standings]
    axes.set_yticks(range(len(standings)), names)
    axes.set_ylim(len(standings) - 0.5, -0.5)
    axes.set_title(f"at equal {standings[0].at_equal}")
    axes.grid(axis="y", visible=False)


def _interval(axes: Any, a: Equivalence, y: float, color: Any, limits: tuple[float, float]) -> None:
    """Draw the interval; an end that is not there, or beyond the axis, is an arrow at the edge."""
    ends = _ends(a.low, a.high, limits)
    axes.plot(ends, [y, y], color=color, linewidth=0.9)
    for end, edge, arrow in ((a.low, limits[0], "<"), (a.high, limits[1], ">")):
        if end is None or not limits[0] <= end <= limits[1]:
            axes.plot([edge], [y], arrow, color=color, markersize=3, clip_on=False)


def _ends(low: float | None, high: float | None, limits: tuple[float, float]) -> list[float]:
    """Return both ends, cut off at the axis."""
    return [
        limits[0] if low is None else max(low, limits[0]),
        limits[1] if high is None else min(high, limits[1]),
    ]


def _limits(worths: Sequence[Equivalence]) -> tuple[float, float]:
    """Choose the ends of the axis: all worths and 1, and ends of intervals that are not far out."""
    told = [a.data_efficiency for a in worths if a.data_efficiency is not None]
    low, high = min(*told, 1.0), max(*told, 1.0)
    far = (high / low) ** 0.5 * 1.25
    ends = [end for a in worths for end in (a.low, a.high, a.null_low, a.null_high) if end]
    near = [end for end in ends if low / far <= end <= high * far]
    room = 1.03 * (max(*near, high, 0.0) / min(*near, low, np.inf)) ** 0.03
    return min(*near, low, np.inf) / room, max(*near, high, 0.0) * room


def _logarithmic(axes: Any, limits: tuple[float, float]) -> None:
    from matplotlib.ticker import FixedFormatter, FixedLocator

    steps = [2.0**power for power in range(-8, 9) if limits[0] <= 2.0**power <= limits[1]]
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(steps))
    axes.xaxis.set_major_formatter(FixedFormatter([f"{step:g}" for step in steps]))
    axes.xaxis.set_minor_locator(FixedLocator([]))


def _said(found: Analysis, shown: Sequence[Standing], recipes: Sequence[str]) -> str:
    """Tell in words what the figure shows, and which recipes it does not."""
    told = [f"{one.label} {span(one.told)} at equal {one.at_equal}" for one in shown]
    drawn = [a for one in shown for a in one.worths if a.answered_frac is not None]
    said = f"Times {found.baseline}'s unique data: {'; '.join(told)}."
    if drawn:
        within = [one for one in shown if not any(map(outside, one.worths))]
        said += " A grey bar is the null, an arrow an end beyond the axis."
        if within:
            names = [f"{one.label} at equal {one.at_equal}" for one in within]
            said += f" Not told apart from no gain: {', '.join(names)}."
    left = [one.label for one in found.standings if one.recipe not in recipes]
    return said + (f" Without a worth: {', '.join(dict.fromkeys(left))}." if left else "")
