"""The answer as text: plain columns, the like-for-like figure first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dcray.config.counts import count_label
from dcray.fit.fit import FAILS, Fit, ranked
from dcray.fit.output import ranking
from dcray.fit.output.headline import (
    NO_INTERVAL,
    bound_note,
    headline,
    null_note,
    sensitivity,
    short,
)
from dcray.fit.ranking import standings_of

if TYPE_CHECKING:
    from dcray.fit.answer import Answer
    from dcray.fit.compare import Comparison


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Format rows as columns of equal width, the first to the left, the others to the right."""
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


def answer_text(found: Answer) -> str:
    """Format the answer as `dcray fit` prints it."""
    grid = found.grids[found.baseline]
    parts = [f"{len(grid.losses)} cells of recipe {found.baseline}"]
    if grid.seed_noise is not None:
        parts.append(f"seeds differ by {grid.seed_noise:.4f} nats (pooled standard deviation)")
    parts += found.notes
    parts += [f"left out: {reason}" for reason in found.excluded]
    for one in found.comparisons:
        parts += [answer_sentences(found, one), worth_text(one)]
        if one.pairs:
            parts.append(_pairs(one) + bound_note(one))
    if len(found.pairs) > 1:
        parts.append(_by_worth(found))
    parts += [fits_text(recipe, fits) for recipe, fits in found.fits.items()]
    parts += _tests(found)
    return "\n\n".join(parts)


def _by_worth(found: Answer) -> str:
    """Format the recipes side by side, the one worth most first."""
    each = standings_of(found)
    shown = table(*ranking.columns(each))
    return "\n".join([ranking.above(found.baseline), shown, *ranking.notes(each)])


def answer_sentences(found: Answer, one: Comparison) -> str:
    """State the headline of a comparison, and below it the reasons to doubt it."""
    missing = "" if one.drawn else NO_INTERVAL
    said = headline(one) + (f" {missing}" if missing and one.leading else "")
    return "\n".join(filter(None, [said, sensitivity(one), null_note(one)]))


def worth_columns(one: Comparison) -> tuple[list[str], list[list[Any]]]:
    """Build (header, rows) of the recipe's worth by law, method and budget, beside its null.

    Laws that fail on one of the two grids have no row: `worth_notes` names them.
    """
    rows = []
    for answer in (a for law in one.describing for a in one.equivalences if a.law == law):
        size = None if answer.num_params is None else short(answer.num_params)
        worth = answer.equivalent_tokens
        drawn = [_interval(answer.low, answer.high)] if one.drawn else []
        drawn += [_interval(answer.null_low, answer.null_high)] if one.drawn else []
        bound = answer.ratio_or_bound
        rows.append(
            [
                answer.law,
                answer.method if size is None else f"{answer.method} {size}",
                count_label(round(answer.unique_tokens)),
                None if worth is None else short(worth, digits=4),
                f"{answer.beyond} {bound:.2g}" if answer.beyond else answer.data_efficiency,
                answer.null,
                answer.like_for_like,
                *drawn,
                answer.status,
            ]
        )
    header = ["law", "method", "U", "worth", "ratio", "null", "like for like"]
    header += ["95 %", "95 % of the null"] if one.drawn else []
    return [*header, "status"], rows


def _interval(low: float | None, high: float | None) -> str | None:
    return None if low is None and high is None else f"[{_cell(low)}, {_cell(high)}]"


def worth_text(one: Comparison) -> str:
    """Format the recipe's worth as plain columns, with the notes that hold for them."""
    title = f"{one.recipe.recipe} in {one.baseline.recipe}'s data:"
    return "\n".join([title, table(*worth_columns(one)), *worth_notes(one)])


def worth_notes(one: Comparison) -> list[str]:
    """Collect the flags of the worths, and name the laws that give none."""
    notes = sorted({flag for answer in one.equivalences for flag in answer.flags})
    failed = [law for law in one.fits if law not in one.describing]
    return notes + [
        f"no ratio under {law}, which describes one of the two grids too badly" for law in failed
    ]


def _pairs(one: Comparison) -> str:
    whole = one.pairs[0]
    many = whole.num_pairs
    equal = f"{many} equal cells and seeds" if many > 1 else "1 equal cell and seed"
    text = (
        f"{one.recipe.recipe} minus {one.baseline.recipe} over {equal}: "
        f"{whole.mean:+.4f} nats, {whole.wins} of {whole.num_pairs} lower"
    )
    ends = "" if whole.low is None else f", 95 % interval [{whole.low:+.4f}, {whole.high:+.4f}]"
    spoken = f" for {whole.population}" if whole.population else ""
    return f"{text}{ends}{spoken}."


def fit_columns(fits: Mapping[str, Fit]) -> tuple[list[str], list[list[Any]]]:
    """Build (header, rows) of one recipe's fitted laws, the lowest AICc first."""
    rows = []
    for law in ranked(fits):
        one = fits[law]
        theta = " ".join(f"{n}={v:.4g}" for n, v in zip(one.law.names, one.theta, strict=True))
        starts = f"{one.agreeing_frac:.0%} of {one.num_starts}"
        scores = [f"{one.rmse:.5f}", f"{one.mae:.5f}", f"{one.aic:.2f}", f"{one.aicc:.2f}"]
        rows.append([law, *scores, starts, theta])
    header = ["law", "RMSE", "MAE", "AIC", "AICc", "starts agree", "theta (N and U in billions)"]
    return header, rows


def fit_notes(fits: Mapping[str, Fit]) -> list[str]:
    """List why not to rely on a fit, law by law; of a law that fails, only that it does."""
    return [
        f"{law}: {flag}"
        for law in ranked(fits)
        for flag in fits[law].flags
        if fits[law].describes or flag.startswith(FAILS)
    ]


def fits_text(recipe: str, fits: Mapping[str, Fit]) -> str:
    """Format the recipe's fitted laws as plain columns, with their flags."""
    notes = [f"  {note}" for note in fit_notes(fits)]
    return "\n".join([f"fits of {recipe}:", table(*fit_columns(fits)), *notes])


def _tests(found: Answer) -> list[str]:
    parts = []
    if found.held_out:
        rows = [[h.fit.name, h.left_out, f"{h.rmse:.5f}", f"{h.mae:.5f}"] for h in found.held_out]
        parts.append(table(["held out", "what", "RMSE", "MAE"], rows))
    if found.left_out_rmse:
        rows = [[law, f"{rmse:.5f}"] for law, rmse in found.left_out_rmse.items()]
        parts.append(table(["leave one out", "RMSE"], rows))
    recipes = dict.fromkeys(one.recipe for one in found.predictions)
    return parts + [f"predictions for {name}:\n{_predictions(found, name)}" for name in recipes]


def _predictions(found: Answer, recipe: str) -> str:
    """Format one recipe's predictions as plain columns, the two intervals by name."""
    rows = [
        [p.law, short(p.num_params), short(p.unique_tokens), f"{p.val_loss:.4f}",
         "-" if p.mean_low is None else f"[{p.mean_low:.4f}, {p.mean_high:.4f}]",
         "-" if p.run_low is None else f"[{p.run_low:.4f}, {p.run_high:.4f}]",
         "" if found.fits[recipe][p.law].describes else "fails on this grid"]
        for p in found.predictions if p.recipe == recipe
    ]  # fmt: skip
    return table(["law", "N", "U", "loss", "95 % of the mean", "95 % of a new run", ""], rows)
