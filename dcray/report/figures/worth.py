"""The figure of the answer: what each recipe is worth in unique data, like for like."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dcray.fit.answer import Answer
from dcray.fit.compare import Comparison
from dcray.fit.efficiency import NO_LIMIT, Equivalence
from dcray.fit.output.headline import headline
from dcray.report.figures.fits import BUDGETS, Drawn
from dcray.report.figures.style import AbsentError, below, marks, ordered, sheet, short


def worth(found: Answer) -> Drawn:
    """Draw what each recipe is worth like for like, by law and budget, with intervals and nulls.

    Returns (title, text alternative, figure). Raises AbsentError if there is nothing to draw.
    """
    if not found.comparisons:
        raise AbsentError("worth needs a second recipe with a grid of its own")
    each = [(one, [a for a in one.equivalences if _says(one, a)]) for one in found.comparisons]
    shown = [(one, answers) for one, answers in each if answers]
    if not shown:
        raise AbsentError(" ".join(headline(one) for one in found.comparisons))
    longest = max(len({a.law for a in answers}) for _, answers in shown)
    figure, panels = sheet(
        len(shown), 1, height=1.3 + (0.55 + 0.5 * longest) * len(shown), squeeze=False
    )
    budgets = sorted({a.unique_tokens for _, answers in shown for a in answers})
    for axes, (one, answers) in zip(panels.flat, shown, strict=True):
        _worth_of(axes, one, answers, budgets)
    panels.flat[-1].set_xlabel("times the other's unique data (1 = no gain)")
    _worth_legend(figure, [a for _, answers in shown for a in answers])
    title = "What a recipe is worth in unique data, like for like"
    said = [
        f"{one.recipe.recipe} in {one.baseline.recipe}'s data under {one.lead} at "
        f"{short(a.unique_tokens)}: {a.data_efficiency:.2f}"
        + (f" ({a.low:.2f} to {a.high:.2f})" if a.low and a.high else "")
        for one, answers in shown
        for a in answers
        if a.law == one.lead and a.method == one.method
    ]
    grey = " A grey bar is the null." if any(one.drawn for one, _ in shown) else ""
    return title, f"Times unique data. {'; '.join(said)}.{grey}", figure


def _says(one: Comparison, a: Equivalence) -> bool:
    """Tell whether `a` is a like-for-like number of a law that describes both grids.

    The limit of infinite models does not count if the grids do not identify it.
    """
    methods = ("joint", "finite") if one.method == "joint" else ("finite",)
    told = a.data_efficiency is not None and a.status != NO_LIMIT
    return a.method in methods and told and a.law in one.describing


def _worth_of(
    axes: Any, one: Comparison, answers: Sequence[Equivalence], budgets: Sequence[float]
) -> None:
    """Draw one comparison; budgets: of all panels, each in one color."""
    laws = list(dict.fromkeys(a.law for a in answers))
    places = sorted({(a.unique_tokens, a.method != "joint") for a in answers})
    for a in answers:
        place = places.index((a.unique_tokens, a.method != "joint"))
        y = laws.index(a.law) + 0.8 * ((place + 0.5) / len(places) - 0.5)
        look = ordered(budgets.index(a.unique_tokens), len(budgets))
        if a.null_low is not None and a.null_high is not None:
            axes.plot([a.null_low, a.null_high], [y, y], color="0.85", linewidth=4, zorder=0)
        if a.low is not None:
            open_end = a.high is None or a.high > a.supported_high
            high = a.supported_high if a.high is None else min(a.high, a.supported_high)
            axes.plot([a.low, high], [y, y], color=look["color"], linewidth=0.9)
            if open_end:
                axes.plot([high], [y], ">", color=look["color"], markersize=3)
        hollow = {"markerfacecolor": "white"} if a.method == "finite" else {}
        axes.plot([a.data_efficiency], [y], linestyle="", **{**look, **hollow, "markersize": 3.5})
    axes.axvline(1, color="0.3", linewidth=0.8)
    axes.set_yticks(range(len(laws)), laws)
    axes.set_ylim(len(laws) - 0.5, -0.5)
    axes.set_title(f"{one.recipe.label} in {one.baseline.label}'s data")
    axes.grid(axis="y", visible=False)


def _worth_legend(figure: Any, answers: Any) -> None:
    from matplotlib.lines import Line2D

    handles = marks(sorted({a.unique_tokens for a in answers}))
    plain: dict[str, Any] = {"linestyle": "", "marker": "o", "color": "0.3"}
    if any(a.method == "joint" for a in answers):
        handles.append(Line2D([], [], label="infinite models", **plain))
    handles.append(Line2D([], [], label="largest size", markerfacecolor="white", **plain))
    below(figure, handles, title=BUDGETS)
