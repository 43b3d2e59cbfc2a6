"""The answer of `dcray fit` from checked rows: laws, comparisons, held-out tests, predictions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from dcray import plugins
from dcray.errors import ConfigError, did_you_mean
from dcray.fit.compare import Comparison, Floor, equivalences
from dcray.fit.fit import Fit, fit
from dcray.fit.grid import Grid, Row, best_epochs, check_rows, epochs_note, grid_of
from dcray.fit.predictions import Prediction, held_out, predictions
from dcray.fit.table.parse import Table
from dcray.fit.uncertainty.bootstrap import Resamples, resample
from dcray.fit.uncertainty.diagnose import HeldOut, leave_one_out
from dcray.fit.uncertainty.paired import Paired, paired
from dcray.progress import counted

MIN_CELLS = 6  # with fewer, only laws whose constants come from elsewhere could be fitted
NOT_ASKED = "not asked for"
EACH = "each"  # --hold-out each: leave out one cell after the other


@dataclass(frozen=True)
class Question:
    """A question about the rows; each field is an option of `dcray fit`.

    Without `recipes` the comparisons are, in this order: the baseline against each floor, then each
    other recipe against the baseline. With `recipes`, only these and the floors are compared.
    """

    baseline: str | None = None
    recipes: tuple[str, ...] = ()
    floors: tuple[Floor, ...] = ()
    laws: tuple[str, ...] = ()
    hold_out: tuple[str, ...] = ()
    bootstrap: int = 0
    predict: tuple[str, ...] = ()
    seed: int = 0


@dataclass
class Answer:
    """Everything that `dcray fit` reports. fits: {recipe: {law: Fit}}, the baseline's first.

    untold: a sentence for each comparison that cannot be made, with the reason; aside: {recipe: the
    reason}. in_baseline: each floor as a recipe in the baseline's data. pairs: {recipe: its pairs
    with the baseline}, of the recipes in `aside` too.
    """

    baseline: str
    grids: dict[str, Grid]
    fits: dict[str, dict[str, Fit]]
    resamples: dict[str, dict[str, Resamples]] = field(default_factory=dict)
    comparisons: list[Comparison] = field(default_factory=list)
    held_out: list[HeldOut] = field(default_factory=list)
    left_out_rmse: dict[str, float] = field(default_factory=dict)
    predictions: list[Prediction] = field(default_factory=list)
    excluded: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # how the rows were read and chosen
    untold: list[str] = field(default_factory=list)
    aside: dict[str, str] = field(default_factory=dict)
    in_baseline: list[Comparison] = field(default_factory=list)
    pairs: dict[str, tuple[Paired, ...]] = field(default_factory=dict)


def answer(rows: Sequence[Row], question: Question) -> Answer:
    """Answer the question: fit laws, compare recipes, hold cells out and predict losses.

    Raises ConfigError for rows or questions that no fit can answer.
    """
    check_rows(rows)
    for law in question.laws:
        plugins.plugin("laws", law)
    baseline, recipes, aside = _recipes(rows, question)
    grids = {recipe: grid_of(rows, recipe) for recipe in (baseline, *recipes)}
    if not question.laws and (few := _too_few(grids.values())):
        raise ConfigError(few)
    fits, left_out = _fits(question, grids)
    found = Answer(baseline, grids, fits, excluded=[*_rows_aside(rows, aside), *left_out])
    laws_read = {name: one.law for name, one in fits[baseline].items()}
    found.notes = [*filter(None, (epochs_note(grid, laws_read) for grid in grids.values()))]
    if question.bootstrap:
        found.resamples = {r: _resamples(fits[r], question) for r in grids}
    floors = {floor.recipe: floor for floor in question.floors}
    found.aside = {recipe: reason for recipe, reason in aside.items() if reason != NOT_ASKED}
    for recipe, reason in found.aside.items():
        found.untold.append(_untold(baseline, recipe, reason, floor=recipe in floors))
    for recipe in (*recipes, *found.aside):
        found.pairs[recipe] = tuple(paired(best_epochs(rows), baseline, recipe))
    for floor in (floor for name, floor in floors.items() if name in recipes):
        _compare(found, rows, question, (floor.recipe, baseline), floor)
        if one := _compared(found, rows, question, (baseline, floor.recipe)):
            found.in_baseline.append(one)
    for recipe in (name for name in recipes if name not in floors):
        _compare(found, rows, question, (baseline, recipe))
    for asked in question.hold_out:
        _hold_out(found, asked)
    for asked in question.predict:
        for recipe, its in fits.items():
            drawn = found.resamples.get(recipe)
            found.predictions += predictions(grids[recipe], its, drawn, asked, question.seed)
    return found


def answer_table(table: Table, question: Question) -> Answer:
    """Answer from the rows of a table; the notes on its reading come before the answer's own."""
    found = answer(table.rows, question)
    found.notes[:0] = table.notes
    return found


def _recipes(
    rows: Sequence[Row], question: Question
) -> tuple[str, tuple[str, ...], dict[str, str]]:
    """Find the baseline, the recipes to fit beside it, and {recipe left aside: the reason}.

    An asked recipe without a grid is left aside if another asked one has a grid.
    """
    known = sorted({row.recipe for row in rows})
    baseline = question.baseline
    if baseline is None:
        if len(known) > 1 and "ar" not in known:
            raise ConfigError(
                f"the rows hold the recipes {', '.join(known)}: say --baseline RECIPE"
            )
        baseline = known[0] if len(known) == 1 else "ar"
    asked = tuple(dict.fromkeys((*question.recipes, *(floor.recipe for floor in question.floors))))
    for name in (baseline, *asked):
        if name not in known:
            raise ConfigError(f'no row has the recipe "{name}"{did_you_mean(name, known)}')
    check_compared(baseline, asked)
    others = [name for name in known if name != baseline]
    if question.recipes:
        left = dict.fromkeys((name for name in others if name not in asked), NOT_ASKED)
        few = {name: _why_no_grid(rows, name, question) for name in question.recipes}
        if all(few.values()):  # none is left to compare: the reasons are the answer
            return baseline, asked, left
        kept = tuple(name for name in asked if not few.get(name))
        return baseline, kept, left | {name: why for name, why in few.items() if why}
    reasons = {name: _why_aside(rows, name) for name in others}
    aside = {name: reason for name, reason in reasons.items() if reason}
    return baseline, tuple(name for name in others if name not in aside), aside


def check_compared(baseline: str | None, recipes: Sequence[str]) -> None:
    """Raise ConfigError if the baseline is to be compared with itself."""
    if baseline in recipes:
        raise ConfigError(
            f"--recipe {baseline} is the baseline itself, worth 1 of its own data by definition: "
            "name another recipe, or another --baseline"
        )


def _why_aside(rows: Sequence[Row], recipe: str) -> str | None:
    """Tell why a recipe that was not asked for is not fitted; None if it can be fitted."""
    bounds = {row.bound for row in rows if row.recipe == recipe} - {""}
    if bounds:
        return f"its losses are each an {bounds.pop()}, over other tokens; --recipe compares it"
    return _why_no_grid(rows, recipe, Question())


def _why_no_grid(rows: Sequence[Row], recipe: str, question: Question) -> str | None:
    """Tell why no law can be fitted to a recipe; None if one can."""
    try:
        grid = grid_of(rows, recipe)
    except ConfigError as error:
        return "; ".join(error.problems)
    return None if question.laws else _too_few([grid])


def _rows_aside(rows: Sequence[Row], aside: Mapping[str, str]) -> list[str]:
    counts = {name: sum(row.recipe == name for row in rows) for name in aside}
    return [
        f"{counts[name]} row{'s' * (counts[name] > 1)} of recipe {name}: {reason}"
        for name, reason in aside.items()
    ]


def _untold(baseline: str, recipe: str, reason: str, *, floor: bool = False) -> str:
    """Write the sentence that stands in the place of a comparison."""
    first, second = (baseline, recipe) if floor else (recipe, baseline)
    return f"What {first} is worth in {second}'s data is not told: {reason}."


def _too_few(grids: Iterable[Grid]) -> str | None:
    """Say how many cells any law needs and which grids have fewer; None if no grid has fewer."""
    few = [
        f"{grid.recipe} has {len(grid.losses)} ({len(set(grid.points.N))} sizes, "
        f"{len(set(grid.points.U))} budgets)"
        for grid in grids
        if len(grid.losses) < MIN_CELLS
    ]
    least = f"each law needs at least {MIN_CELLS} cells, of two sizes and two budgets"
    return f"{least}; {', '.join(few)}" if few else None


def _fits(
    question: Question, grids: Mapping[str, Grid]
) -> tuple[dict[str, dict[str, Fit]], list[str]]:
    """Fit each law to each grid, {recipe: {law: Fit}}, and say which laws are left out and why."""
    fits: dict[str, dict[str, Fit]] = {recipe: {} for recipe in grids}
    left_out: dict[str, list[str]] = {}  # sentence: recipes of which it is true
    for law in question.laws or plugins.names("laws"):
        reader = plugins.load("laws", law)
        for recipe, grid in grids.items():
            try:
                fits[recipe][law] = fit(law, grid.read_by(reader).points)
            except ConfigError as error:
                if law in question.laws:
                    raise
                for problem in error.problems:
                    left_out.setdefault(f"law {problem}", []).append(recipe)
    sentences = [
        sentence if len(of) == len(grids) else f"{sentence} (recipe {', '.join(of)})"
        for sentence, of in left_out.items()
    ]
    if not all(fits.values()):
        raise ConfigError(sentences)
    return fits, sentences


def _resamples(fits: Mapping[str, Fit], question: Question) -> dict[str, Resamples]:
    """Resample each law's fit, with the same draws for all: {law: Resamples}."""
    return {
        name: resample(one, question.bootstrap, question.seed)
        for name, one in counted("laws resampled", list(fits.items()))
    }


def _compare(
    found: Answer,
    rows: Sequence[Row],
    question: Question,
    names: tuple[str, str],
    floor: Floor | None = None,
) -> None:
    """Add the comparison of `names` (baseline, recipe) to `found`, or the reason for none."""
    if one := _compared(found, rows, question, names, floor):
        found.comparisons.append(one)
        return
    baseline, recipe = names
    reason = f"no law can be fitted to {baseline} and to {recipe}"
    found.untold.append(_untold(baseline, recipe, reason))


def _compared(
    found: Answer,
    rows: Sequence[Row],
    question: Question,
    names: tuple[str, str],
    floor: Floor | None = None,
) -> Comparison | None:
    """Compare `names` (baseline, recipe); None if no law is fitted to both."""
    baseline, recipe = names
    first, second = (found.fits[name] for name in names)
    fits = {law: (first[law], second[law]) for law in first if law in second}
    if not fits:
        return None
    compared = Comparison(
        found.grids[baseline], found.grids[recipe], fits, floor=floor,
        pairs=tuple(paired(best_epochs(rows), baseline, recipe)), drawn=bool(found.resamples),
    )  # fmt: skip
    drawn = (found.resamples[baseline], found.resamples[recipe]) if found.resamples else None
    each = equivalences(compared, drawn, question.bootstrap, question.seed)
    return replace(compared, equivalences=tuple(each))


def _hold_out(found: Answer, asked: str) -> None:
    points, laws = found.grids[found.baseline].points, found.fits[found.baseline]
    if asked != EACH:
        found.held_out += held_out(points, laws, asked)
        return
    for law, one in laws.items():
        found.left_out_rmse[law] = float(np.sqrt(np.mean(leave_one_out(law, one.points) ** 2)))
