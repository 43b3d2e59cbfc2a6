"""The sentences of a comparison: the worth first, then the reasons to doubt it."""

from __future__ import annotations

from collections.abc import Sequence

from dcray.config.counts import count_label
from dcray.fit.compare import Comparison
from dcray.fit.efficiency import Equivalence
from dcray.fit.fit import FAILS

EVERYWHERE, NOWHERE = "each budget", "no budget"  # at which a worth lies outside of its null
NO_INTERVAL = "No interval is drawn: --bootstrap 1000 gives one."


def short(count: float, digits: int = 3) -> str:
    """Format a count for people: 1439273984 as "1.44b"."""
    for unit, factor in (("b", 1e9), ("m", 1e6), ("k", 1e3)):
        if count >= factor * 0.9995:  # 999.7m is 1b, not 1e+03m
            return f"{count / factor:.{digits}g}{unit}"
    return f"{count:.{digits}g}"


def reach(values: Sequence[float]) -> str:
    """Format the range of values: "1.05 to 1.14", or "1.05" if both ends read the same."""
    ends = dict.fromkeys(f"{value:.2f}" for value in (min(values), max(values)))
    return " to ".join(ends)


def headline(one: Comparison) -> str:
    """State the answer: the worth, like for like, under the leading law; and whether it is any.

    The interval and the null stand in parentheses; they are of the budgets that have a worth.
    """
    base, recipe = one.baseline.recipe, one.recipe.recipe
    if why := refused(one):
        return why
    each = one.leading
    told = [a for a in each if a.ratio_or_bound is not None]
    sure = [a for a in told if not a.beyond] or told  # a bound has neither interval nor verdict
    times = _times(told, every=len(told) == len(each), drawn=one.drawn)
    text = f"{recipe} is worth {times} {base}'s unique data{_between(sure, one.drawn)}"
    if one.floor is not None:
        described = f" ({one.floor.described})" if one.floor.described else ""
        subject = one.floor.subject or recipe
        text = f"{subject} is worth {times} the unique data{_between(sure, one.drawn)}"
        text += f", {recipe} against {base}{described}"
    text = f"{text}, like for like under {one.lead} ({_why_leads(one)}), {_where(one)}."
    return text + _verdict(sure, one.drawn) + _without(one, each) + bound_note(one)


def refused(one: Comparison) -> str:
    """Say why no worth is stated; "" if one is."""
    base, recipe = one.baseline.recipe, one.recipe.recipe
    doubts = {
        name: flag
        for name, fit in zip((base, recipe), one.fits[one.lead], strict=True)
        for flag in fit.flags
        if flag.startswith(FAILS)
    }
    if doubts:
        where = f"{' and '.join(doubts)} ({next(iter(doubts.values()))})"
        return f"No law leads: even {one.lead} (lowest AICc) fails on the grid of {where}."
    if not one.leading:
        return (
            f"What {recipe} is worth cannot be told under {one.lead}: the limit of infinite models "
            f"is not identified here, and no size of {recipe} is one of {base}'s."
        )
    if all(answer.ratio_or_bound is None for answer in one.leading):
        return f"No amount of {base}'s data is worth {recipe} under {one.lead}."
    return ""


def _times(each: Sequence[Equivalence], *, every: bool, drawn: bool) -> str:
    """Format the worth as "1.12 to 1.14 times".

    Each end has its budget if no interval stands beside it, or if a bound is among the ratios.
    """
    ratios = [float(one.ratio_or_bound or 0.0) for one in each]
    if drawn and every and not any(one.beyond for one in each):
        return f"{reach(ratios)} times"
    low, high = (end(range(len(each)), key=ratios.__getitem__) for end in (min, max))
    texts = [f"{one.beyond} {ratio:.2f}" if one.beyond else f"{ratio:.2f}"
             for one, ratio in zip(each, ratios, strict=True)]  # fmt: skip
    labels = [count_label(round(one.unique_tokens)) for one in each]
    if texts[low] == texts[high]:
        where = "each budget" if every and len(each) > 1 else ", ".join(labels)
        return f"{texts[low]} times (at {where})"
    return " to ".join(f"{texts[i]} times (at {labels[i]})" for i in (low, high))


def _between(each: Sequence[Equivalence], drawn: bool) -> str:
    """Format " (95 % intervals 1.03 to 1.20; null 0.95 to 1.06)"; "" if none were drawn."""
    if not drawn:
        return ""
    lows = [one.low for one in each if one.low is not None]
    highs = [one.high for one in each if one.high is not None]
    low = _end(min(lows), each) if len(lows) == len(each) else "no lower end"
    high = _end(max(highs), each) if len(highs) == len(each) else "no upper end"
    intervals = f"95 % interval{'s' * (len(each) > 1)} {low} to {high}"
    null = null_ends(each)
    return f" ({intervals}; null {null})" if null else f" ({intervals})"


def _verdict(told: Sequence[Equivalence], drawn: bool) -> str:
    """Say at which budgets the worth can be told from nothing; "" if no null was drawn."""
    if not drawn or not null_ends(told):
        return ""
    where = outside_at(told)
    if where == NOWHERE:
        return " It lies inside its null: it cannot be told from nothing."
    if where == EVERYWHERE:
        return " It lies outside of its null."
    return f" It lies outside of its null at {where}; elsewhere it cannot be told from nothing."


def _end(value: float, each: Sequence[Equivalence]) -> str:
    """Format an end of an interval, or the ratio beyond which no budget supports a number."""
    lowest, highest = min(a.supported_low for a in each), max(a.supported_high for a in each)
    if value > highest:
        return f"above {highest:.3g}"
    return f"below {lowest:.2g}" if value < lowest else f"{value:.2f}"


def null_ends(each: Sequence[Equivalence]) -> str:
    """Format the lowest to the highest end of the nulls; "" if none were drawn."""
    ends = [(one.null_low, one.null_high) for one in each if one.null is not None]
    lows = [low for low, _ in ends if low is not None]
    highs = [high for _, high in ends if high is not None]
    if not ends or not (lows or highs):
        return ""
    low = _end(min(lows), each) if len(lows) == len(ends) else "no lower end"
    high = _end(max(highs), each) if len(highs) == len(ends) else "no upper end"
    return f"{low} to {high}"


def _why_leads(one: Comparison) -> str:
    draws = f", a draw with {' and '.join(one.draws)}" if one.draws else ""
    return f"lowest AICc{draws}"


def _where(one: Comparison) -> str:
    if one.method == "joint":
        return "infinite models"
    size = max(answer.num_params or 0 for answer in one.leading)
    return f"at {short(size)} parameters: the limit of infinite models is not identified here"


def _without(one: Comparison, each: Sequence[Equivalence]) -> str:
    """Name the budgets at which the law finds no amount of the baseline's data that is enough."""
    none = [
        count_label(round(a.unique_tokens))
        for a in each
        if a.status == "none" and a.beyond != "at most"
    ]
    if not none:
        return ""
    base, recipe = one.baseline.recipe, one.recipe.recipe
    where = "any budget" if len(none) == len(each) > 1 else " and ".join(none)
    return f" At {where} no amount of {base}'s data reaches {recipe}'s loss, by {one.lead}."


def bound_note(one: Comparison) -> str:
    """Say in a sentence whose losses are bounds; "" if those of neither recipe are."""
    grids = [grid for grid in (one.recipe, one.baseline) if grid.bound]
    names = " and ".join(grid.recipe for grid in grids)
    return f" Each loss of {names} is an {grids[0].bound}, over other tokens." if grids else ""


def sensitivity(one: Comparison) -> str:
    """State the worth under every law that describes both grids; "" for fewer than two laws."""
    if len(one.describing) < 2 or refused(one):
        return ""
    spread, every = [], []
    for law in one.describing:
        method = one.method_of(law) if one.method == "joint" else "finite"
        told = [a for a in one.answers(law, method) if a.ratio_or_bound is not None]
        if told:
            spread.append(f"{law} {span(told)}")
            every += told
    if len(spread) < 2:
        return ""
    return (
        f"Under each law that describes both grids {one.recipe.recipe} is worth {span(every)} "
        f"times {one.baseline.recipe}'s data: {', '.join(spread)}."
    )


def span(told: Sequence[Equivalence]) -> str:
    """Format ratios as "1.05 to 1.14", "at least 2.00" or "1.20 to at least 4.00"."""
    ranked = sorted(told, key=lambda a: (a.ratio_or_bound or 0.0, a.beyond is not None))
    ends = dict.fromkeys(
        f"{a.beyond} {a.ratio_or_bound:.2f}" if a.beyond else f"{a.ratio_or_bound:.2f}"
        for a in (ranked[0], ranked[-1])
    )
    return " to ".join(ends)


def null_note(one: Comparison) -> str:
    """Explain the null of a comparison; "" if none was drawn."""
    each = [a for a in one.leading if a.null is not None and a.data_efficiency is not None]
    if not each or refused(one) or not (ends := null_ends(each)):
        return ""
    base = one.baseline.recipe
    middle = reach([a.null for a in each if a.null is not None])
    return (
        f"The null of {one.recipe.recipe}: two grids drawn from {base}'s own curve, with the noise "
        f"of both recipes, are worth {ends} times each other (95 %; median {middle}) by the same "
        "fits."
    )


def outside_at(each: Sequence[Equivalence]) -> str:
    """Name the budgets at which the worth lies outside of its null: "each budget", "16k, 32k"."""
    found = [one for one in each if outside(one)]
    if found and len(found) < len(each):
        return ", ".join(count_label(round(one.unique_tokens)) for one in found)
    return EVERYWHERE if found else NOWHERE


def outside(answer: Equivalence) -> bool:
    """Tell whether the worth, or its bound, lies outside of its null."""
    worth = answer.ratio_or_bound
    if worth is None:
        return False
    above = answer.null_high is not None and worth > answer.null_high
    return above or (answer.null_low is not None and worth < answer.null_low)
