"""Recipes side by side: what each is worth in the baseline's unique data, at equal what.

A standing is one recipe at equal parameters (one size, one budget: the leading answer of its
comparison), at equal training FLOPs, or at equal inference FLOPs (dcray.fit.equal_cost).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dcray.fit.answer import Answer
from dcray.fit.compare import Comparison
from dcray.fit.efficiency import Equivalence
from dcray.fit.equal_cost import EqualCost
from dcray.fit.output.headline import outside, refused
from dcray.fit.uncertainty.paired import Paired

PARAMETERS, TRAINING, INFERENCE = "parameters", "training FLOPs", "inference FLOPs"
EQUALS = (PARAMETERS, TRAINING, INFERENCE)


@dataclass(frozen=True)
class Standing:
    """Hold what a recipe is worth at equal `at_equal`, budget by budget, with intervals and nulls.

    why: a sentence for each number that is missing. difference: recipe minus baseline in nats with
    its 95 % interval: over equal cells and seeds, or over the budgets that
    are compared at equal FLOPs. sample: what losses these are; flops: {budget: FLOPs at which the
    two are compared}.
    bias: a sentence if one of the two selected from more candidates, else "".
    """

    recipe: str
    label: str
    at_equal: str
    worths: tuple[Equivalence, ...] = ()
    why: tuple[str, ...] = ()
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    sample: str = ""
    flops: Mapping[int, float] = field(default_factory=dict)
    num_members: int = 1
    bias: str = ""

    @property
    def told(self) -> tuple[Equivalence, ...]:
        """Select the worths that are numbers; if none is one, those that are bounds."""
        numbers = tuple(one for one in self.worths if one.data_efficiency is not None)
        return numbers or tuple(one for one in self.worths if one.ratio_or_bound is not None)

    @property
    def middle(self) -> float | None:
        """Compute the geometric mean of the worths over budgets; None without any."""
        ratios = [float(one.ratio_or_bound or 0.0) for one in self.told]
        return float(np.exp(np.mean(np.log(ratios)))) if ratios else None


def at_parameters(found: Answer, recipe: str, pairs: Sequence[Paired], seeds: str = "") -> Standing:
    """Place a recipe at equal parameters: its comparison's leading answers, and its pairs.

    seeds: what seeds the pairs have in common, as in "fresh seeds"; "" to leave it unsaid.
    """
    one = comparison_of(found, recipe)
    label = one.recipe.label if one else recipe
    why = [found.aside[recipe]] if recipe in found.aside else []
    if one is None:
        why = why or [f"no law can be fitted to {found.baseline} and to {recipe}"]
    elif said := refused(one):
        why.append(said.rstrip("."))
    worths = tuple(one.leading) if one and not why else ()
    return Standing(recipe, label, PARAMETERS, worths, tuple(why), **differences(pairs, seeds))


def differences(pairs: Sequence[Paired], seeds: str = "") -> dict[str, Any]:
    """Return a standing's difference, its interval and its sample, from the pairs over all cells.

    Without pairs there are none.
    """
    if not pairs:
        return {}
    whole = pairs[0]
    sample = ", ".join(filter(None, [whole.sample, seeds]))  # "32 pairs (16 cells, 2 seeds), ..."
    return {"difference": whole.mean, "low": whole.low, "high": whole.high, "sample": sample}


def at_cost(recipe: str, label: str, at_equal: str, found: EqualCost) -> Standing:
    """Place a recipe at equal FLOPs."""
    return Standing(
        recipe, label, at_equal, found.worths, found.why, found.difference, found.low, found.high,
        flops=dict(found.flops),
    )  # fmt: skip


def comparison_of(found: Answer, recipe: str) -> Comparison | None:
    """Find the comparison of a recipe in the baseline's data; None if there is none."""
    both = (*found.comparisons, *found.in_baseline)
    names = (found.baseline, recipe)
    return next((c for c in both if (c.baseline.recipe, c.recipe.recipe) == names), None)


def standings_of(found: Answer) -> list[Standing]:
    """Place every recipe of an answer at equal parameters, the one worth most first."""
    return by_worth(at_parameters(found, recipe, pairs) for recipe, pairs in found.pairs.items())


def by_worth(standings: Iterable[Standing]) -> list[Standing]:
    """Sort standings: the recipe worth most first, its own in the order of EQUALS.

    A recipe's place is its worth at equal parameters. Recipes without one come after, the lowest
    difference from the baseline first; then those without a difference, by name.
    """
    found = list(standings)
    places = {one.recipe: _place(one) for one in found if one.at_equal == PARAMETERS}
    return sorted(found, key=lambda one: (places[one.recipe], EQUALS.index(one.at_equal)))


def _place(one: Standing) -> tuple[int, float, str]:
    if one.middle is not None:
        return 0, -one.middle, one.recipe
    if one.difference is not None:
        return 1, one.difference, one.recipe
    return 2, 0.0, one.recipe


def lines(standings: Iterable[Standing]) -> list[dict[str, Any]]:
    """Convert standings to flat values: a line for each budget, or one that says why there is none.

    unique_tokens is None on a line without a budget; worth is None where only a bound is known, and
    `beyond` then says "at least" or "at most".
    """
    return [_line(one, worth) for one in standings for worth in (one.worths or (None,))]


def _line(one: Standing, worth: Equivalence | None) -> dict[str, Any]:
    tokens = None if worth is None else round(worth.unique_tokens)
    found: dict[str, Any] = {
        "recipe": one.recipe, "at_equal": one.at_equal, "num_members": one.num_members,
        "unique_tokens": tokens, "flops": None if tokens is None else one.flops.get(tokens),
    }  # fmt: skip
    values: tuple[Any, ...] = (None,) * 9
    if worth is not None:
        values = (
            worth.data_efficiency, worth.beyond, worth.ratio_or_bound if worth.beyond else None,
            worth.low, worth.high, worth.null, worth.null_low, worth.null_high,
            None if worth.answered_frac is None else outside(worth),
        )  # fmt: skip
    names = ("worth", "beyond", "bound", "low", "high", "null", "null_low", "null_high",
             "outside_null")  # fmt: skip
    found |= dict(zip(names, values, strict=True))
    return found | {
        "law": worth.law if worth else None, "num_params": worth.num_params if worth else None,
        "difference": one.difference, "difference_low": one.low, "difference_high": one.high,
        "sample": one.sample or None, "why": "; ".join(one.why) or None,
    }  # fmt: skip
