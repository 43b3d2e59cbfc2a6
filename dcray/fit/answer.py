"""From checked rows to the answer: laws, equivalences, held-out tests and predictions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dcray import plugins
from dcray.errors import ConfigError, did_you_mean
from dcray.fit import efficiency, intervals
from dcray.fit.bootstrap import Resamples, cell_weights, interval, resample, seed_draws
from dcray.fit.diagnose import HeldOut, hold_out, leave_one_out
from dcray.fit.efficiency import Equivalence
from dcray.fit.fit import Fit, fit
from dcray.fit.grid import Grid, Row, check_rows, grid_of
from dcray.fit.paired import Paired, paired
from dcray.progress import counted
from dcray.sections import count_label, parse_count

AXES = ("num_params", "unique_tokens")
CLOSE = 0.03  # how near a written value must be to a grid's: 1.4b for 1,439,273,984
MIN_CELLS = 6  # below, only laws whose constants come from elsewhere could be fitted
EACH = "each"  # --hold-out each: leave one cell out, one after the other


@dataclass(frozen=True)
class Question:
    """What is asked of the rows; each field is an option of `dcray fit`."""

    baseline: str | None = None
    recipes: tuple[str, ...] = ()
    laws: tuple[str, ...] = ()
    hold_out: tuple[str, ...] = ()
    bootstrap: int = 0
    predict: tuple[str, ...] = ()
    seed: int = 0


@dataclass(frozen=True)
class Prediction:
    """A law's loss at a point; low and high: its 95 % band, None without resampling."""

    law: str
    num_params: int
    unique_tokens: int
    val_loss: float
    low: float | None = None
    high: float | None = None


@dataclass
class Answer:
    """Everything that `dcray fit` says. fits: {recipe: {law: Fit}}, the baseline's first."""

    baseline: str
    grids: dict[str, Grid]
    fits: dict[str, dict[str, Fit]]
    resamples: dict[str, dict[str, Resamples]] = field(default_factory=dict)
    equivalences: dict[str, list[Equivalence]] = field(default_factory=dict)
    pairs: dict[str, list[Paired]] = field(default_factory=dict)
    held_out: list[HeldOut] = field(default_factory=list)
    left_out_rmse: dict[str, float] = field(default_factory=dict)
    predictions: list[Prediction] = field(default_factory=list)
    excluded: list[str] = field(default_factory=list)
    no_intervals: tuple[str, ...] = ()  # why none can be drawn, where they were asked for


def answer(rows: Sequence[Row], question: Question) -> Answer:
    """Fit, compare, hold out and predict as asked.

    Raises ConfigError for rows or questions that no fit can answer.
    """
    check_rows(rows)
    baseline, recipes, excluded = _recipes(rows, question)
    grids = {recipe: grid_of(rows, recipe) for recipe in (baseline, *recipes)}
    laws, left_out = _laws(question, grids)
    fits, without = _fits(question, grids, laws)
    found = Answer(baseline, grids, fits, excluded=excluded + left_out + without)
    if question.bootstrap:
        found.resamples = {r: _resamples(grids[r], fits[r], question) for r in grids}
    for recipe in recipes:
        found.equivalences[recipe] = _equivalences(found, recipe, question)
        found.pairs[recipe] = paired(rows, baseline, recipe)
    for asked in question.hold_out:
        _held_out(found, asked)
    for asked in question.predict:
        found.predictions += _predictions(found, asked)
    return found


def _recipes(rows: Sequence[Row], question: Question) -> tuple[str, tuple[str, ...], list[str]]:
    """The baseline, the recipes to compare, and what is left aside, with the reason."""
    known = sorted({row.recipe for row in rows})
    baseline = question.baseline
    if baseline is None:
        if len(known) > 1 and "ar" not in known:
            raise ConfigError(
                f"the rows hold the recipes {', '.join(known)}: say --baseline RECIPE"
            )
        baseline = known[0] if len(known) == 1 else "ar"
    for name in (baseline, *question.recipes):
        if name not in known:
            raise ConfigError(f'no row has the recipe "{name}"{did_you_mean(name, known)}')
    check_compared(baseline, question.recipes)
    others = [name for name in known if name != baseline]
    if question.recipes:
        aside = {name: "not asked for" for name in others if name not in question.recipes}
    else:
        reasons = {name: _why_aside(rows, name) for name in others}
        aside = {name: reason for name, reason in reasons.items() if reason}
    left_out = [
        f"{count} row{'s' * (count > 1)} of recipe {name}: {reason}"
        for name, reason in aside.items()
        if (count := sum(row.recipe == name for row in rows))
    ]
    return baseline, question.recipes or tuple(n for n in others if n not in aside), left_out


def check_compared(baseline: str | None, recipes: Sequence[str]) -> None:
    """Raise ConfigError where the baseline is to be compared with itself."""
    if baseline in recipes:
        raise ConfigError(
            f"--recipe {baseline} is the baseline itself, worth 1 of its own data by definition: "
            "name another recipe, or another --baseline"
        )


def _why_aside(rows: Sequence[Row], recipe: str) -> str | None:
    """Why a recipe that nobody asked for is not fitted, None where it can be."""
    bounds = {row.bound for row in rows if row.recipe == recipe} - {""}
    if bounds:
        return f"its losses are each an {bounds.pop()}, over other tokens; --recipe compares it"
    try:
        return _too_few([grid_of(rows, recipe)])
    except ConfigError as error:
        return "; ".join(error.problems)


def _too_few(grids: Iterable[Grid]) -> str | None:
    """What any law needs, and which of the grids have less; None where none has."""
    few = [
        f"{grid.recipe} has {len(grid.losses)} ({len(set(grid.points.N))} sizes, "
        f"{len(set(grid.points.U))} budgets)"
        for grid in grids
        if len(grid.losses) < MIN_CELLS
    ]
    least = f"each law needs at least {MIN_CELLS} cells, of two sizes and two budgets"
    return f"{least}; {', '.join(few)}" if few else None


def _laws(question: Question, grids: Mapping[str, Grid]) -> tuple[tuple[str, ...], list[str]]:
    """The laws to fit; those not asked for are left out, with the reason, where they cannot be."""
    if question.laws:
        for name in question.laws:
            plugins.plugin("laws", name)
        return question.laws, []
    if few := _too_few(grids.values()):
        raise ConfigError(few)
    from dcray.fit.fit import check_points

    usable, left_out = [], []
    for name in plugins.names("laws"):
        try:
            for grid in grids.values():
                check_points(name, plugins.load("laws", name), grid.points)
            usable.append(name)
        except ConfigError as error:
            left_out += [f"law {problem}" for problem in error.problems]
    if not usable:
        raise ConfigError(left_out)
    return tuple(usable), left_out


def _fits(
    question: Question, grids: Mapping[str, Grid], laws: Sequence[str]
) -> tuple[dict[str, dict[str, Fit]], list[str]]:
    """{recipe: {law: Fit}}, and why laws are left out that give no number on one of the grids."""
    fits: dict[str, dict[str, Fit]] = {recipe: {} for recipe in grids}
    left_out: list[str] = []
    for law in laws:
        try:
            each = {recipe: fit(law, grid.points) for recipe, grid in grids.items()}
        except ConfigError as error:
            if law in question.laws:
                raise
            left_out += [f"law {problem}" for problem in error.problems]
            continue
        for recipe, one in each.items():
            fits[recipe][law] = one
    if len(left_out) == len(laws):
        raise ConfigError(left_out)
    return fits, left_out


def _resamples(grid: Grid, fits: Mapping[str, Fit], question: Question) -> dict[str, Resamples]:
    """Each law on the same draws of cells and, where cells have several seeds, of seeds."""
    found = {}
    several = any(len(seeds) > 1 for seeds in grid.losses)
    losses = seed_draws(grid.losses, question.bootstrap, question.seed) if several else None
    for name, one in counted("laws resampled", list(fits.items())):
        counts = cell_weights(grid.points, question.bootstrap, len(one.theta) + 1, question.seed)
        found[name] = resample(one, counts, losses)
    return found


def _equivalences(found: Answer, recipe: str, question: Question) -> list[Equivalence]:
    """Every law, method and budget, the methods in the order in which they lead."""
    answers, draws = [], None
    base, other = found.grids[found.baseline].points, found.grids[recipe].points
    if question.bootstrap:
        draws = intervals.asymptote_draws(base, other, question.bootstrap, question.seed)
    for law, fitted in found.fits[found.baseline].items():
        its = found.fits[recipe][law]
        each = [
            *efficiency.joint(fitted, its),
            *efficiency.finite(fitted, its),
            *efficiency.by_asymptote(fitted, other),
        ]
        if not (fitted.has_limit and its.has_limit):
            each = [efficiency.without_limit(one) for one in each]
        if question.bootstrap:
            pair = found.resamples[found.baseline][law], found.resamples[recipe][law]
            each = intervals.with_intervals(each, *pair, draws)
        answers += each
    return answers


def _held_out(found: Answer, asked: str) -> None:
    points = found.grids[found.baseline].points
    laws = found.fits[found.baseline]
    if asked == EACH:
        for law in laws:
            found.left_out_rmse[law] = float(np.sqrt(np.mean(leave_one_out(law, points) ** 2)))
        return
    axis, _, text = asked.partition("=")
    if axis not in AXES or not text:
        raise ConfigError(
            f"--hold-out must be unique_tokens=VALUE, num_params=VALUE or {EACH}, got {asked!r}"
        )
    values = points.U if axis == "unique_tokens" else points.N
    value = _nearest(axis, text, values)
    for law in laws:
        found.held_out.append(hold_out(law, points, values == value, f"{axis}={text}"))


def _nearest(axis: str, text: str, values: Any) -> float:
    """The grid's value that `text` means, in billions."""
    wanted = _count(f"--hold-out {axis}", text) / 1e9
    near = min(np.unique(values), key=lambda value: abs(math.log(value / wanted)))
    if abs(near / wanted - 1) > CLOSE:
        there = ", ".join(count_label(round(value * 1e9)) for value in np.unique(values))
        raise ConfigError(f"--hold-out {axis}={text}: the grid has no such value, it has {there}")
    return float(near)


def _count(name: str, text: str) -> int:
    try:
        count = parse_count(text.strip())
    except ValueError as error:
        raise ConfigError(f"{name} {error}, got {text!r}") from None
    if not isinstance(count, int) or count <= 0:
        raise ConfigError(f"{name} must be a positive count, got {text!r}")
    return count


def _predictions(found: Answer, asked: str) -> list[Prediction]:
    """Every law at num_params=...,unique_tokens=...[,num_epochs=...]."""
    pairs = dict(part.strip().partition("=")[::2] for part in asked.split(","))
    unknown = sorted(set(pairs) - {*AXES, "num_epochs"})
    missing = [axis for axis in AXES if axis not in pairs]
    if unknown or missing:
        raise ConfigError(
            "--predict must be num_params=VALUE,unique_tokens=VALUE[,num_epochs=VALUE], "
            f"got {asked!r}"
        )
    N, U = (_count(f"--predict {axis}", pairs[axis]) for axis in AXES)
    more = (
        {"num_epochs": float(_count("--predict num_epochs", pairs["num_epochs"]))}
        if "num_epochs" in pairs
        else None
    )
    answers = []
    for law, fitted in found.fits[found.baseline].items():
        given = more or efficiency.epochs_at(fitted.points, N / 1e9, U / 1e9)
        loss = float(fitted.predict(N / 1e9, U / 1e9, **given))
        low = high = None
        if found.resamples:
            low, high = interval(
                found.resamples[found.baseline][law].predict(N / 1e9, U / 1e9, **given)
            )
        answers.append(Prediction(law, N, U, loss, low, high))
    return answers
