"""Set a study's recipes side by side at equal parameters, training FLOPs and inference FLOPs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from dcray.errors import ConfigError, plural
from dcray.fit.answer import Answer
from dcray.fit.equal_cost import EqualCost, Noise, at_equal_cost, seed_noise
from dcray.fit.fit import log_squares, ranked
from dcray.fit.ranking import (
    INFERENCE,
    PARAMETERS,
    TRAINING,
    Standing,
    at_cost,
    at_parameters,
    by_worth,
    differences,
)
from dcray.fit.uncertainty.paired import LEVEL, Paired
from dcray.progress import counted
from dcray.report.basis import WORDS, Choice
from dcray.report.cells import loss_of
from dcray.report.recipes.spending import Spending


@dataclass(frozen=True)
class Told:
    """Hold what an analysis found of one recipe: its answer, else why it has none; its pairs.

    apart: why its losses are not comparable with the baseline's at equal FLOPs; "" if they are.
    """

    answer: Answer | None
    why: tuple[str, ...] = ()
    pairs: tuple[Paired, ...] = ()
    seeds: str = ""
    bias: str = ""
    apart: str = ""


def standings(
    choice: Choice,
    baseline: str,
    told: Mapping[str, Told],
    spending: Spending,
    num_draws: int,
) -> tuple[Standing, ...]:
    """Place each recipe of `told` beside the baseline, the one worth most first.

    num_draws: of the intervals and nulls at equal FLOPs. A cost that is not on record is a sentence
    in the standing's `why`.
    """
    found: list[Standing] = []
    for recipe, its in counted("recipes side by side", list(told.items())):
        noise, of = _noise(choice, its.answer)
        each = [_at_parameters(recipe, its)]
        if each[0].difference is None and not its.apart:
            drawn = noise if num_draws else None
            each = [_unpaired(each[0], choice, (baseline, recipe), drawn)]
        for at_equal in (TRAINING, INFERENCE):
            if its.apart:
                each.append(Standing(recipe, recipe, at_equal, why=(its.apart,)))
                continue
            compared, source = _at_cost(
                choice, (baseline, recipe), at_equal, spending, noise, num_draws
            )
            bias = choice.uneven(baseline, recipe) if compared.flops and source == "search" else ""
            sample = WORDS[source] + (f", with the noise of {of}" if of and num_draws else "")
            one = at_cost(recipe, recipe, at_equal, compared)
            each.append(replace(one, sample=sample if compared.flops else "", bias=bias))
        members = max(cell.winner.num_members for cell in choice.of(recipe))
        label = choice.label(recipe)
        found += [replace(one, label=label, num_members=members) for one in each]
    return tuple(by_worth(found))


def _at_parameters(recipe: str, its: Told) -> Standing:
    if its.answer is not None and not its.why:
        found = at_parameters(its.answer, recipe, its.pairs, its.seeds)
    else:
        pairs = differences(its.pairs, its.seeds)
        found = Standing(recipe, recipe, PARAMETERS, why=its.why, **pairs)
    return replace(found, bias=its.bias)


def _unpaired(
    one: Standing, choice: Choice, names: tuple[str, str], noise: Noise | None
) -> Standing:
    """Give a standing without pairs the difference over equal cells, whose seeds are not equal.

    The interval is that of the noise of seeds, by Student's t; without `noise` there is none.
    """
    from scipy.stats import t

    source = choice.source_of(*names)
    own, other = (
        {cell.place[:2]: cell for cell in choice.of(name) if cell.counted(source)} for name in names
    )
    both = [(own[place], other[place]) for place in own if place in other]
    if not both:
        return one
    mean = float(np.mean([its.loss(source) - base.loss(source) for base, its in both]))
    sample = f"{plural(len(both), 'cell')}, {WORDS[source]}, not paired"
    found = replace(one, difference=mean, sample=sample)
    if noise is None:
        return found
    squares = sum(
        cell.loss(source) ** 2 / sum(row.num_members for row in cell.counted(source))
        for pair in both
        for cell in pair
    )
    error = np.sqrt(noise.squares / noise.freedom * squares) / len(both)
    half = float(t.ppf((1 + LEVEL) / 2, noise.freedom) * error)
    return replace(found, low=mean - half, high=mean + half)


def _noise(choice: Choice, answer: Answer | None) -> tuple[Noise | None, str]:
    """Estimate the noise of a run, from fresh seeds or else a law's residuals, and name which."""
    found = seed_noise([[loss_of(row) for row in cell.fresh] for cell in choice.cells])
    if found is not None or answer is None:
        return found, "fresh seeds" if found else ""
    fits = answer.fits[answer.baseline]
    law = ranked(fits)[0]
    freedom = len(fits[law].points.L) - len(fits[law].theta)
    if not fits[law].describes or freedom < 1:
        return None, ""
    return Noise(log_squares(fits[law]), freedom), f"{law}'s residuals on {answer.baseline}"


def _at_cost(
    choice: Choice,
    names: tuple[str, str],
    at_equal: str,
    spending: Spending,
    noise: Noise | None,
    num_draws: int,
) -> tuple[EqualCost, str]:
    """Compare two recipes at equal cost, on the source of their comparison; name the source.

    The search seed takes its place if winners at fresh seeds have no cost in common.
    """
    source = choice.source_of(*names)
    sources = [source] if choice.asked else list(dict.fromkeys((source, "search")))
    first: EqualCost | None = None
    for source in sources:
        try:
            own, other = (spending.spent(choice.of(name), source, at_equal) for name in names)
        except ConfigError as error:
            return EqualCost(why=(f"FLOPs are not known: {error}",)), source
        found = at_equal_cost(own, other, names, noise, num_draws=num_draws)
        if found.flops:
            return found, source
        first = first or found
    assert first is not None
    return first, sources[0]
