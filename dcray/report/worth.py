"""The figure of the answer: what each recipe is worth in unique data, like for like."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dcray.fit.answer import Answer
from dcray.fit.efficiency import NO_LIMIT, Equivalence
from dcray.fit.text import headline, leading_law, leading_method
from dcray.report.fit_figures import BUDGETS, Drawn
from dcray.report.style import AbsentError, below, marks, ordered, sheet, short


def worth(found: Answer) -> Drawn:
    """What each recipe is worth like for like, by law and budget, with intervals."""
    if not found.equivalences:
        raise AbsentError("worth needs a second recipe with a grid of its own")
    shown = {
        recipe: [a for a in answers if _says(found, recipe, a)]
        for recipe, answers in found.equivalences.items()
    }
    shown = {recipe: answers for recipe, answers in shown.items() if answers}
    if not shown:
        raise AbsentError(" ".join(headline(found, recipe) for recipe in found.equivalences))
    longest = max(len({a.law for a in answers}) for answers in shown.values())
    figure, panels = sheet(
        len(shown), 1, height=1.3 + (0.3 + 0.5 * longest) * len(shown), squeeze=False
    )
    for axes, (recipe, answers) in zip(panels.flat, shown.items(), strict=True):
        _worth_of(axes, found.grids[recipe].label, answers)
    panels.flat[-1].set_xlabel(f"times {found.baseline}'s unique data (1 = no gain)")
    _worth_legend(figure, next(iter(shown.values())))
    title = "What a recipe is worth in unique data, like for like"
    lead = leading_law(found)
    said = [
        f"{recipe} under {lead} at {short(a.unique_tokens)}: {a.data_efficiency:.2f}"
        + (f" ({a.low:.2f} to {a.high:.2f})" if a.low and a.high else "")
        for recipe, answers in shown.items()
        for a in answers
        if a.law == lead and a.method == leading_method(found, recipe)
    ]
    return title, f"Times {found.baseline}'s unique data. {'; '.join(said)}.", figure


def _says(found: Answer, recipe: str, a: Equivalence) -> bool:
    """Whether it is a like-for-like number of a law that describes both grids.

    The limit of infinite models is not among them where the grids do not identify it.
    """
    describes = all(found.fits[name][a.law].describes for name in (found.baseline, recipe))
    methods = ("joint", "finite") if leading_method(found, recipe) == "joint" else ("finite",)
    told = a.data_efficiency is not None and a.status != NO_LIMIT
    return a.method in methods and told and describes


def _worth_of(axes: Any, label: str, answers: Sequence[Equivalence]) -> None:
    laws = list(dict.fromkeys(a.law for a in answers))
    places = sorted({(a.unique_tokens, a.method != "joint") for a in answers})
    budgets = sorted({tokens for tokens, _ in places})
    for a in answers:
        place = places.index((a.unique_tokens, a.method != "joint"))
        y = laws.index(a.law) + 0.8 * ((place + 0.5) / len(places) - 0.5)
        look = ordered(budgets.index(a.unique_tokens), len(budgets))
        if a.low is not None and a.high is not None:
            axes.plot([a.low, a.high], [y, y], color=look["color"], linewidth=0.9)
        hollow = {"markerfacecolor": "white"} if a.method == "finite" else {}
        axes.plot([a.data_efficiency], [y], linestyle="", **{**look, **hollow, "markersize": 3.5})
    axes.axvline(1, color="0.3", linewidth=0.8)
    axes.set_yticks(range(len(laws)), laws)
    axes.set_ylim(len(laws) - 0.5, -0.5)
    axes.set_title(label)
    axes.grid(axis="y", visible=False)


def _worth_legend(figure: Any, answers: Any) -> None:
    from matplotlib.lines import Line2D

    handles = marks(sorted({a.unique_tokens for a in answers}))
    plain: dict[str, Any] = {"linestyle": "", "marker": "o", "color": "0.3"}
    if any(a.method == "joint" for a in answers):
        handles.append(Line2D([], [], label="infinite models", **plain))
    handles.append(Line2D([], [], label="largest size", markerfacecolor="white", **plain))
    below(figure, handles, title=BUDGETS)
