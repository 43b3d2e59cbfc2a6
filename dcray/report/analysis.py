"""A study's analysis as one value: cells, fits, pairs, and what is missing for more.

found = analyze("dclm", rows, exclusions, Asked(baseline="ar"))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dcray.errors import ConfigError, did_you_mean
from dcray.fit.answer import Answer, Question, answer, check_compared
from dcray.fit.paired import Paired, paired
from dcray.report.cells import Cell, Choice, Left, Place, choose
from dcray.track.rows import Row

BOOTSTRAP = 200  # resamples where nothing else is asked: ends to about 0.02 of their width
FRESH, SEARCHED = "fresh seeds", "search seed"


@dataclass(frozen=True)
class Asked:
    """The options of `dcray analyze`."""

    baseline: str | None = None
    recipes: tuple[str, ...] = ()
    source: str | None = None
    bootstrap: int = BOOTSTRAP


@dataclass(frozen=True)
class Pairs:
    """A recipe minus the baseline on equal seeds: fresh ones, or the search's (selected minima)."""

    recipe: str
    seeds: str  # FRESH or SEARCHED
    found: tuple[Paired, ...]  # the first over all cells, then each cell


@dataclass(frozen=True)
class Beside:
    """One cell of this study and of another; losses in nats, by the same source."""

    size: str
    num_params: int
    unique_tokens: int
    recipe: str
    loss: float
    other: float


@dataclass
class Analysis:
    """Everything that the analysis folder says. curves: {run id: [(epoch, val_loss)]} of winners.

    answer is None where the cells carry no fit; why_no_fit then says what is missing.
    """

    study: str
    asked: Asked
    choice: Choice
    rows: tuple[Row, ...]
    left: tuple[Left, ...]
    baseline: str | None
    answer: Answer | None = None
    why_no_fit: tuple[str, ...] = ()
    pairs: tuple[Pairs, ...] = ()
    curves: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    other: Analysis | None = None

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The cells, by recipe, budget and size."""
        return self.choice.cells

    @property
    def source(self) -> str:
        """ "confirmed" or "search"."""
        return self.choice.source

    @property
    def no_law(self) -> str:
        """The sentence that says why no law is fitted; "" where one is."""
        return f"No law is fitted: {'; '.join(self.why_no_fit)}." if self.why_no_fit else ""

    @property
    def read_other_data(self) -> bool:
        """Whether a cell of both studies was trained or validated on other tokens there."""
        here = {cell.place: cell.winner.tags.get("corpus_hash") for cell in self.cells}
        there = self.other.cells if self.other else ()
        theirs = {cell.place: cell.winner.tags.get("corpus_hash") for cell in there}
        return any(
            theirs[place] not in (None, read) for place, read in here.items() if place in theirs
        )

    def beside(self) -> list[Beside]:
        """The cells that this study and the other both have."""
        if self.other is None:
            return []
        theirs = {cell.place: cell for cell in self.other.cells}
        return [
            Beside(
                c.size, c.num_params, c.unique_tokens, c.recipe,
                c.loss(self.source), theirs[c.place].loss(self.other.source),
            )
            for c in self.cells
            if c.place in theirs
        ]  # fmt: skip


def analyze(
    study: str,
    rows: Sequence[Row],
    left: Sequence[Left],
    asked: Asked,
    *,
    tags: Mapping[Place, Mapping[str, str]] | None = None,
) -> Analysis:
    """Cells, pairs and fits of complete results; `left` are the runs that were no such result.

    Raises ConfigError for a recipe that the study has not, a source that it cannot give, and where
    there is no complete result at all.
    """
    if not rows:
        reasons = sorted({one.reason for one in left})[:3]
        out = f"{len(left)} runs are" if len(left) > 1 else "1 run is"
        because = f": {out} left out ({'; '.join(reasons)})" if left else ""
        raise ConfigError(f'study "{study}" has no completed run{because}; train or search first')
    choice = choose(rows, source=asked.source, tags=tags)
    if not choice.cells:
        reasons = sorted({one.reason for one in choice.left})[:3]
        raise ConfigError(f'study "{study}" has no cell with a winner: {"; ".join(reasons)}')
    baseline, missing = _baseline(choice, asked)
    found = Analysis(
        study, asked, choice, tuple(rows), (*left, *choice.left), baseline, why_no_fit=missing
    )
    if baseline is not None:
        found.pairs = _pairs(choice, baseline, asked)
        found.answer, found.why_no_fit = _answer(choice, baseline, asked)
    return found


def _baseline(choice: Choice, asked: Asked) -> tuple[str | None, tuple[str, ...]]:
    known = choice.recipes
    for option, name in (("--baseline", asked.baseline), *(("--recipe", r) for r in asked.recipes)):
        if name is not None and name not in known:
            raise ConfigError(
                f'{option}: no cell has the recipe "{name}"{did_you_mean(name, known)}'
            )
    check_compared(asked.baseline or "ar", asked.recipes)
    if asked.baseline is not None:
        return asked.baseline, ()
    if "ar" in known or len(known) == 1:
        return "ar" if "ar" in known else known[0], ()
    return None, (f"no recipe is called ar, so say --baseline RECIPE (one of: {', '.join(known)})",)


def _pairs(choice: Choice, baseline: str, asked: Asked) -> tuple[Pairs, ...]:
    """Rule 5, for every recipe that shares a cell and a seed with the baseline."""
    fresh, searched = choice.fresh_losses(), choice.losses() if choice.source == "search" else []
    others = asked.recipes or tuple(name for name in choice.recipes if name != baseline)
    each = (
        Pairs(recipe, seeds, tuple(paired(losses, baseline, recipe)))
        for recipe in others
        for seeds, losses in ((FRESH, fresh), (SEARCHED, searched))
    )
    return tuple(one for one in each if one.found)


def _answer(choice: Choice, baseline: str, asked: Asked) -> tuple[Answer | None, tuple[str, ...]]:
    """The fits; or None and why there are none. Without intervals where none can be drawn."""
    losses = choice.losses()
    for bootstrap in dict.fromkeys((asked.bootstrap, 0)):
        question = Question(baseline=baseline, recipes=asked.recipes, bootstrap=bootstrap)
        try:
            found = answer(losses, question)
        except ConfigError as error:
            problems = error.problems
            continue
        if bootstrap != asked.bootstrap:
            found.no_intervals = tuple(problems)
            found.excluded += [f"no intervals: {problem}" for problem in problems]
        return found, ()
    return None, problems
