"""A study's analysis as one value: cells, fits, pairs, and what is missing for more.

found = analyze("dclm", rows, exclusions, Asked(baseline="ar"))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from dcray.config.settings import recorded_settings, varied
from dcray.errors import ConfigError, did_you_mean
from dcray.fit.answer import Answer, Question, answer, check_compared
from dcray.fit.output.headline import headline
from dcray.fit.ranking import Standing
from dcray.fit.uncertainty.paired import Paired, paired
from dcray.report.basis import FRESH, SEARCHED, WORDS, Choice, choose, no_fresh_seeds
from dcray.report.cells import Cell, Left, Place
from dcray.report.floors import floors_of
from dcray.report.recipes.spending import ConfigOf, Spending
from dcray.report.recipes.standings import Told, standings
from dcray.track.rows import Row

BOOTSTRAP = 200  # default resamples: interval ends vary by about 0.02 of the width


@dataclass(frozen=True)
class Asked:
    """The options of `dcray analyze`."""

    baseline: str | None = None
    recipes: tuple[str, ...] = ()
    source: str | None = None
    bootstrap: int = BOOTSTRAP


@dataclass(frozen=True)
class Pairs:
    """The differences of a recipe from the baseline on equal seeds: fresh ones, or the search's.

    bias: a sentence if one of the two selected from more candidates at the search seed, else "".
    """

    recipe: str
    seeds: str  # FRESH or SEARCHED
    found: tuple[Paired, ...]  # the first is over all cells, then each cell
    bias: str = ""


@dataclass(frozen=True)
class Beside:
    """One cell that this study and another share; losses in nats, both of one source."""

    size: str
    num_params: int
    unique_tokens: int
    recipe: str
    loss: float
    other: float
    source: str  # confirmed or search


@dataclass
class Analysis:
    """Everything that the analysis folder says. curves: {run id: [(epoch, val_loss)]} of winners.

    answer is None if the cells carry no fit; why_no_fit then says what is missing. The answer's
    laws read losses of `source`; `second` is the same study with the comparisons that need the
    other source.
    """

    study: str
    asked: Asked
    choice: Choice
    rows: tuple[Row, ...]
    left: tuple[Left, ...]
    baseline: str | None
    source: str  # "confirmed" or "search"
    answer: Answer | None = None
    why_no_fit: tuple[str, ...] = ()
    pairs: tuple[Pairs, ...] = ()
    curves: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    other: Analysis | None = None
    second: Analysis | None = None
    mixed: bool = False  # whether there are comparisons on two sources, of which this is one
    corpus: str | None = None  # the paper's name of the corpus, if it is the paper's
    spending: Spending = field(default_factory=Spending)
    standings: tuple[Standing, ...] = ()  # every recipe beside the baseline, by worth

    @property
    def by_source(self) -> tuple[Analysis, ...]:
        """Return this analysis, then that of the comparisons on the other source, if any."""
        return (self, self.second) if self.second else (self,)

    @property
    def on_source(self) -> str:
        """Name the source as in "On fresh seeds: "; "" if all comparisons are on one source."""
        return (
            f"On {'the ' * (self.source == 'search')}{WORDS[self.source]}: " if self.mixed else ""
        )

    @property
    def headlines(self) -> list[str]:
        """Summarize each comparison in a sentence, those on the other source too."""
        return [
            one.on_source + headline(compared)
            for one in self.by_source
            for compared in (one.answer.comparisons if one.answer else ())
        ]

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Return the cells, sorted by recipe, budget and size."""
        return self.choice.cells

    def shown_loss(self, cell: Cell) -> float:
        """Return the cell's loss in figures (nats per token), on its recipe's source."""
        return cell.loss(self.choice.shown(cell.recipe))

    @cached_property
    def varied(self) -> tuple[str, ...]:
        """Find the settings besides epochs, weight decay and lr that differ between results."""
        return varied(recorded_settings(row.params) for row in self.rows)

    @property
    def no_law(self) -> str:
        """Say in a sentence why no law is fitted; "" if one is."""
        return f"No law is fitted: {'; '.join(self.why_no_fit)}." if self.why_no_fit else ""

    @property
    def read_other_data(self) -> bool:
        """Tell whether the other study read other tokens in a cell that both studies have."""
        here = {cell.place: cell.winner.tags.get("corpus_hash") for cell in self.cells}
        there = self.other.cells if self.other else ()
        theirs = {cell.place: cell.winner.tags.get("corpus_hash") for cell in there}
        return any(
            theirs[place] not in (None, read) for place, read in here.items() if place in theirs
        )

    def beside(self) -> list[Beside]:
        """List the cells that this study and the other have in common, with both losses."""
        if self.other is None:
            return []
        theirs = {cell.place: cell for cell in self.other.cells}
        found = []
        for cell in (one for one in self.cells if one.place in theirs):
            there = theirs[cell.place]
            both = "confirmed" if cell.fresh and there.fresh else "search"
            source = self.asked.source or both
            losses = cell.loss(source), there.loss(source)
            where = cell.size, cell.num_params, cell.unique_tokens, cell.recipe
            found.append(Beside(*where, *losses, source))
        return found


def analyze(
    study: str,
    rows: Sequence[Row],
    left: Sequence[Left],
    asked: Asked,
    *,
    tags: Mapping[Place, Mapping[str, str]] | None = None,
    config_of: ConfigOf | None = None,
) -> Analysis:
    """Analyze complete results: cells, pairs and fits; `left` are the runs that were left out.

    config_of: reads the configuration of a run id, for FLOPs; None: they are not known.

    Raises ConfigError if the study lacks a recipe that is asked for, if it cannot give the source
    that is asked for, and if there is no complete result at all.
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
        study, asked, choice, tuple(rows), (*left, *choice.left), baseline,
        choice.source_of(*choice.recipes), why_no_fit=missing, spending=Spending(config_of),
    )  # fmt: skip
    if baseline is not None:
        found.pairs = _pairs(choice, baseline, asked)
        told = _fit(found, baseline)
        found.standings = standings(choice, baseline, told, found.spending, asked.bootstrap)
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


def _others(choice: Choice, baseline: str, asked: Asked) -> tuple[str, ...]:
    """Return the recipes to compare with the baseline."""
    return tuple(dict.fromkeys(asked.recipes)) or tuple(
        name for name in choice.recipes if name != baseline
    )


def _pairs(choice: Choice, baseline: str, asked: Asked) -> tuple[Pairs, ...]:
    """Compare every recipe that shares a cell and a seed with the baseline, pair by pair (rule 5).

    The pairs are on fresh seeds if both have any; on the search seed too if a cell that both have
    lacks fresh seeds.
    """
    found = []
    for recipe in _others(choice, baseline, asked):
        both = (baseline, recipe)
        fresh = paired(choice.losses(both, "confirmed"), baseline, recipe)
        found.append(Pairs(recipe, FRESH, tuple(fresh)))
        searched = paired(choice.losses(both, "search"), baseline, recipe)
        if asked.source == "search" or (not asked.source and len(searched) > len(fresh)):
            bias = choice.uneven(baseline, recipe)
            found.append(Pairs(recipe, SEARCHED, tuple(searched), bias))
    return tuple(one for one in found if one.found)


def _fit(found: Analysis, baseline: str) -> dict[str, Told]:
    """Fit each source and set the answers; the first that exists leads, fresh seeds before others.

    A source on which no second recipe can be compared only adds its reasons to the excluded ones.
    Returns what was found of each recipe.
    """
    others = _others(found.choice, baseline, found.asked)
    groups = found.choice.comparisons(baseline, others)
    answers = {source: _answer(found, baseline, source, its) for source, its in groups.items()}
    told = {
        recipe: _told(found, recipe, *answers[source])
        for source, its in groups.items()
        for recipe in its
    }
    found.source = next((source for source, (one, _) in answers.items() if one), next(iter(groups)))
    found.answer, found.why_no_fit = answers.pop(found.source)
    for source, (one, why) in answers.items():
        if one is not None and len(one.fits) > 1:
            found.mixed = True
            found.second = replace(found, source=source, answer=one, why_no_fit=(), second=None)
        elif found.answer is not None:
            said = one.excluded if one else [f"{', '.join(groups[source])}: {each}" for each in why]
            known = found.answer.excluded
            known += [reason for reason in said if reason not in known]
    return told


def _told(found: Analysis, recipe: str, answer: Answer | None, why: tuple[str, ...]) -> Told:
    """Collect what was found of one recipe; pairs on fresh seeds count before others."""
    pairs = next((one for one in found.pairs if one.recipe == recipe), None)
    bounds = any(cell.bound for cell in found.choice.of(recipe))
    apart = ""
    if bounds and recipe not in found.asked.recipes and found.baseline is not None:
        own = any(cell.bound for cell in found.choice.of(found.baseline))
        apart = "" if own else "its losses are bounds, over other tokens; --recipe compares it"
    if pairs is None:
        return Told(answer, why, apart=apart)
    return Told(answer, why, pairs.found, pairs.seeds, pairs.bias, apart)


def _answer(
    found: Analysis, baseline: str, source: str, recipes: Sequence[str]
) -> tuple[Answer | None, tuple[str, ...]]:
    """Fit the laws on one source; return None and the reasons if they cannot be fitted."""
    asked, choice, compared = found.asked, found.choice, (baseline, *recipes)
    chosen = tuple(recipe for recipe in asked.recipes if recipe in recipes)
    floors = () if asked.baseline or asked.recipes else floors_of(choice, baseline)
    question = Question(
        baseline=baseline, recipes=chosen, bootstrap=asked.bootstrap,
        floors=tuple(floor for floor in floors if floor.recipe in recipes),
    )  # fmt: skip
    try:
        fitted = answer(choice.losses(compared, source), question)
    except ConfigError as error:
        return None, tuple(error.problems)
    if cells := choice.without(compared, source):
        fitted.excluded.append(no_fresh_seeds(cells))
    return fitted, ()
