"""The answer and the reproduction as text: plain columns, the like-for-like figure first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from dcray.fit.fit import FAILS
from dcray.sections import count_label

NO_INTERVAL = "No interval is drawn: --bootstrap 1000 gives one."

if TYPE_CHECKING:
    from dcray.fit.answer import Answer
    from dcray.fit.efficiency import Equivalence
    from dcray.fit.paired import Paired
    from dcray.fit.reproduce import Check


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Columns of equal width, numbers to the right."""
    cells = [list(header), *[[_cell(value) for value in row] for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    return "\n".join(
        "  ".join(
            text.ljust(width) if i == 0 else text.rjust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    )


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _short(count: float, digits: int = 3) -> str:
    """1439273984 -> "1.44b"."""
    for unit, factor in (("b", 1e9), ("m", 1e6), ("k", 1e3)):
        if count >= factor * 0.9995:  # 999.7m is 1b, not 1e+03m
            return f"{count / factor:.{digits}g}{unit}"
    return f"{count:.{digits}g}"


def answer_text(found: Answer) -> str:
    """What `dcray fit` prints."""
    grid = found.grids[found.baseline]
    parts = [f"{len(grid.losses)} cells of recipe {found.baseline}"]
    if grid.seed_noise is not None:
        parts.append(f"seeds differ by {grid.seed_noise:.4f} nats (pooled standard deviation)")
    parts += [f"left out: {reason}" for reason in found.excluded]
    for recipe in found.equivalences:
        parts += [headline(found, recipe), worth_text(found, recipe)]
        if pairs := found.pairs[recipe]:
            parts.append(_pairs(recipe, found.baseline, pairs) + bound_note(found, recipe))
    for recipe in found.fits:
        parts += [fits_text(found, recipe)]
    parts += _tests(found)
    return "\n\n".join(parts)


def reach(values: Sequence[float]) -> str:
    """ "1.05 to 1.14", or "1.05" where that is all."""
    ends = dict.fromkeys(f"{value:.2f}" for value in (min(values), max(values)))
    return " to ".join(ends)


def leading_law(found: Answer) -> str:
    """The law of the lowest AIC on the baseline's grid."""
    fits = found.fits[found.baseline]
    return min(fits, key=lambda law: fits[law].aic)


def leading_method(found: Answer, recipe: str) -> str:
    """ "joint" (infinite models) where the leading law identifies that limit, else "finite"."""
    law = leading_law(found)
    limits = [found.fits[name][law].has_limit for name in (found.baseline, recipe)]
    return "joint" if all(limits) else "finite"


def headline(found: Answer, recipe: str) -> str:
    """The answer in one sentence: like for like, under the leading law, with its interval."""
    law, method = leading_law(found), leading_method(found, recipe)
    each = [one for one in found.equivalences[recipe] if (one.law, one.method) == (law, method)]
    ratios = {
        one.unique_tokens: one.data_efficiency for one in each if one.data_efficiency is not None
    }
    both = {name: found.fits[name][law] for name in (found.baseline, recipe)}
    doubts = {n: f for n, one in both.items() for f in one.flags if f.startswith(FAILS)}
    if doubts:
        where = f"{' and '.join(doubts)} ({next(iter(doubts.values()))})"
        return f"No law leads: even {law} (lowest AIC) fails on the grid of {where}."
    if not each:
        return (
            f"What {recipe} is worth cannot be told under {law}: the limit of infinite models is "
            f"not identified here, and no size of {recipe} is one of {found.baseline}'s."
        )
    if not ratios:
        return f"No amount of {found.baseline}'s data is worth {recipe} under {law}."
    without = [count_label(round(one.unique_tokens)) for one in each if one.status == "none"]
    times, between = by_budget(ratios, every=not without), ""
    if found.resamples:
        between = f" (95 % intervals {_ends(each)})"
        times = times if without else f"{reach([*ratios.values()])} times"
    where = "infinite models"
    if method == "finite":
        size = max(one.num_params or 0 for one in each)
        where = f"at {_short(size)} parameters: the limit of infinite models is not identified here"
    text = f"{recipe} is worth {times} {found.baseline}'s unique data{between}"
    text = f"{text}, like for like under {law} (lowest AIC), {where}."
    text += f" At {', '.join(without)} no amount of it is." if without else ""
    text += bound_note(found, recipe)
    return text if found.resamples or found.no_intervals else f"{text} {NO_INTERVAL}"


def _ends(each: Sequence[Equivalence]) -> str:
    """From the lowest to the highest end of the intervals; one without an end has none."""
    lows = [one.low for one in each if one.low is not None]
    highs = [one.high for one in each if one.high is not None]
    low = f"{min(lows):.2f}" if len(lows) == len(each) else "no lower end"
    high = f"{max(highs):.2f}" if len(highs) == len(each) else "no upper end"
    return f"{low} to {high}"


def bound_note(found: Answer, recipe: str) -> str:
    """A sentence where the losses of one of the two are bounds, else ""."""
    names = [name for name in (recipe, found.baseline) if found.grids[name].bound]
    said = f"an {found.grids[names[0]].bound}, over other tokens" if names else ""
    return f" Each loss of {' and '.join(names)} is {said}." if names else ""


def by_budget(ratios: Mapping[float, float], *, every: bool = True) -> str:
    """ "1.05 times (at 300m) to 1.14 times (at 100m)": the ends of {budget in tokens: ratio}."""
    low, high = (end(ratios, key=lambda U: ratios[U]) for end in (min, max))
    if f"{ratios[low]:.2f}" == f"{ratios[high]:.2f}":
        labels = ", ".join(count_label(round(U)) for U in ratios)
        where = "each budget" if every and len(ratios) > 1 else labels
        return f"{ratios[low]:.2f} times (at {where})"
    ends = (f"{ratios[U]:.2f} times (at {count_label(round(U))})" for U in (low, high))
    return " to ".join(ends)


def worth_columns(found: Answer, recipe: str) -> tuple[list[str], list[list[Any]]]:
    """(header, rows) of what the recipe is worth: law, method and budget, beside its null.

    Laws that fail on one of the two grids have no row: `worth_notes` names them.
    """
    rows = []
    for one in found.equivalences[recipe]:
        if not _describes(found, recipe, one.law):
            continue
        ratio = [f"[{_cell(one.ratio_low)}, {_cell(one.ratio_high)}]"] if found.resamples else []
        how = one.method if one.num_params is None else f"{one.method} {_short(one.num_params)}"
        worth = None if one.equivalent_tokens is None else _short(one.equivalent_tokens, digits=4)
        rows.append(
            [
                one.law,
                how,
                count_label(round(one.unique_tokens)),
                worth,
                one.data_efficiency,
                one.null,
                one.like_for_like,
                *ratio,
                one.status,
            ]
        )
    header = ["law", "method", "U", "worth", "ratio", "null", "like for like"]
    header += ["95 %"] if found.resamples else []
    return [*header, "status"], rows


def worth_text(found: Answer, recipe: str) -> str:
    """What the recipe is worth as plain columns, with the notes that hold for them."""
    lines = [f"{recipe}:", table(*worth_columns(found, recipe)), *worth_notes(found, recipe)]
    return "\n".join(lines)


def worth_notes(found: Answer, recipe: str) -> list[str]:
    """What to know of these figures, and which laws have none."""
    notes = sorted({flag for one in found.equivalences[recipe] for flag in one.flags})
    failed = [law for law in found.fits[recipe] if not _describes(found, recipe, law)]
    return notes + [
        f"no ratio under {law}, which describes one of the two grids too badly" for law in failed
    ]


def _describes(found: Answer, recipe: str, law: str) -> bool:
    return all(found.fits[name][law].describes for name in (found.baseline, recipe))


def _pairs(recipe: str, baseline: str, pairs: Sequence[Paired]) -> str:
    whole = pairs[0]
    many = whole.num_pairs
    equal = f"{many} equal cells and seeds" if many > 1 else "1 equal cell and seed"
    text = (
        f"{recipe} minus {baseline} over {equal}: "
        f"{whole.mean:+.4f} nats, {whole.wins} of {whole.num_pairs} lower"
    )
    ends = "" if whole.low is None else f", 95 % interval [{whole.low:+.4f}, {whole.high:+.4f}]"
    return f"{text}{ends}."


def fit_columns(found: Answer, recipe: str) -> tuple[list[str], list[list[Any]]]:
    """(header, rows) of the recipe's fitted laws, the lowest AIC first."""
    rows = []
    for law, one in sorted(found.fits[recipe].items(), key=lambda item: item[1].aic):
        theta = " ".join(f"{n}={v:.4g}" for n, v in zip(one.law.names, one.theta, strict=True))
        starts = f"{one.agreeing_frac:.0%} of {one.num_starts}"
        rows.append([law, f"{one.rmse:.5f}", f"{one.mae:.5f}", f"{one.aic:.2f}", starts, theta])
    header = ["law", "RMSE", "MAE", "AIC", "starts agree", "theta (N and U in billions)"]
    return header, rows


def fit_notes(found: Answer, recipe: str) -> list[str]:
    """Why not to lean on a fit, law by law; of one that fails, that it does and no more."""
    fits = sorted(found.fits[recipe].items(), key=lambda item: item[1].aic)
    return [
        f"{law}: {flag}"
        for law, one in fits
        for flag in one.flags
        if one.describes or flag.startswith(FAILS)
    ]


def fits_text(found: Answer, recipe: str) -> str:
    """The recipe's fitted laws as plain columns, with their flags."""
    notes = [f"  {note}" for note in fit_notes(found, recipe)]
    return "\n".join([f"fits of {recipe}:", table(*fit_columns(found, recipe)), *notes])


def _tests(found: Answer) -> list[str]:
    parts = []
    if found.held_out:
        rows = [[h.fit.name, h.left_out, f"{h.rmse:.5f}", f"{h.mae:.5f}"] for h in found.held_out]
        parts.append(table(["held out", "what", "RMSE", "MAE"], rows))
    if found.left_out_rmse:
        rows = [[law, f"{rmse:.5f}"] for law, rmse in found.left_out_rmse.items()]
        parts.append(table(["leave one out", "RMSE"], rows))
    if found.predictions:
        rows = [
            [p.law, _short(p.num_params), _short(p.unique_tokens), f"{p.val_loss:.4f}",
             "-" if p.low is None else f"[{p.low:.4f}, {p.high:.4f}]",
             "" if found.fits[found.baseline][p.law].describes else "fails on this grid"]
            for p in found.predictions
        ]  # fmt: skip
        parts.append(table(["predicted by", "N", "U", "loss", "95 %", ""], rows))
    return parts


def reproduce_text(checks: Sequence[Check], lines: Sequence[dict[str, Any]]) -> str:
    """What `dcray reproduce` prints."""
    parts = []
    for name, group in groupby(checks, key=lambda check: check.table):
        each = list(group)
        rows = [
            [c.what, _figure(c.expected), _figure(c.ours), f"{c.tolerance:g}",
             "ok" if c.ok else "OUTSIDE"]
            for c in each
        ]  # fmt: skip
        notes = sorted({c.note for c in each if c.note})
        parts.append(
            "\n".join([f"{name}", table(["", "print", "ours", "tolerance", ""], rows), *notes])
        )
    worth = [
        [line["law"], f"{line['unique_tokens'] / 1e6:.0f}m"]
        + [f"{line[key]:.2f}" for key in ("paper", "null", "like_for_like", "joint", "finite")]
        for line in lines
    ]
    header = ["MIR under", "U", "paper", "its null", "ratio of the two", "joint law", "at 1.4B"]
    parts.append(table(header, worth))
    softq = [line for line in lines if line["law"] == "softq"]
    figures = np.array(
        [line[key] for line in softq for key in ("like_for_like", "joint", "finite")]
    )
    parts.append(
        f"Like for like MIR is worth {figures.min():.2f} to {figures.max():.2f} times the data "
        "under SoftQ; "
        "the paper's own ratios contain the null beside them."
    )
    outside = sum(not check.ok for check in checks)
    parts.append(f"{len(checks)} figures, {outside} outside their tolerance")
    return "\n\n".join(parts)


def _figure(value: float) -> str:
    return f"{value:.6f}" if abs(value) < 10 else f"{value:.2f}"
