"""The comparison of a recipe with a baseline: leading law and method, and the worth by each law."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dcray.fit import efficiency
from dcray.fit.efficiency import Equivalence
from dcray.fit.fit import DRAW, Fit, ranked
from dcray.fit.grid import Grid
from dcray.fit.uncertainty import intervals
from dcray.fit.uncertainty.bootstrap import Resamples
from dcray.fit.uncertainty.null import with_nulls
from dcray.fit.uncertainty.paired import Paired


@dataclass(frozen=True)
class Floor:
    """A simpler recipe of the baseline's objective, with which the baseline itself is compared.

    subject: what the baseline adds, as a sentence begins ("Tuned weight decay"), "" for the
    baseline's name; described: what the floor is ("weight decay fixed at 0.1"), "" for nothing.
    """

    recipe: str
    subject: str = ""
    described: str = ""


@dataclass(frozen=True)
class Comparison:
    """The worth of `recipe` in unique data of `baseline`. fits: {law: (baseline's, recipe's)}.

    floor is set if the baseline of this comparison is a floor.
    """

    baseline: Grid
    recipe: Grid
    fits: Mapping[str, tuple[Fit, Fit]]
    equivalences: tuple[Equivalence, ...] = ()
    pairs: tuple[Paired, ...] = ()
    floor: Floor | None = None
    drawn: bool = field(default=False)  # whether intervals and nulls were drawn

    @property
    def describing(self) -> list[str]:
        """List the laws that describe both grids, the lowest AICc on the baseline's first."""
        return [law for law in self._ranked if self._describes(law)]

    @property
    def lead(self) -> str:
        """Find the leading law: the lowest AICc of those that describe both grids, else of all."""
        return (self.describing or self._ranked)[0]

    @property
    def draws(self) -> list[str]:
        """List the describing laws whose AICc is within DRAW of the leading law's."""
        best = self.fits[self.lead][0]
        others = {law: self.fits[law][0] for law in self.describing[1:]}
        alike = {law: one for law, one in others.items() if len(one.points.L) == len(best.points.L)}
        return [law for law, one in alike.items() if one.aicc - best.aicc < DRAW]

    @property
    def method(self) -> str:
        """Choose the method that leads under the leading law."""
        return self.method_of(self.lead)

    def method_of(self, law: str) -> str:
        """Choose "joint" (infinite models) if both fits identify that limit, else "finite"."""
        return "joint" if all(one.has_limit for one in self.fits[law]) else "finite"

    def answers(self, law: str, method: str) -> list[Equivalence]:
        """Select the answers of a law and a method, by budget."""
        return [one for one in self.equivalences if (one.law, one.method) == (law, method)]

    @property
    def leading(self) -> list[Equivalence]:
        """Select the answers of the leading law and method, by budget."""
        return self.answers(self.lead, self.method)

    @property
    def _ranked(self) -> list[str]:
        return ranked({law: first for law, (first, _) in self.fits.items()})

    def _describes(self, law: str) -> bool:
        return all(one.describes for one in self.fits[law])


def equivalences(
    compared: Comparison,
    resamples: tuple[Mapping[str, Resamples], Mapping[str, Resamples]] | None,
    num_draws: int,
    seed: int,
) -> list[Equivalence]:
    """Compute the worth under every law, by every method (the leading one first), at every budget.

    resamples: {law: Resamples} of (baseline, recipe), None for no intervals and no nulls.
    """
    base, other = compared.baseline.points, compared.recipe.points
    curves = intervals.asymptote_draws(base, other, num_draws, seed) if resamples else None
    found: list[Equivalence] = []
    for law, (fitted, its) in compared.fits.items():
        each: Sequence[Equivalence] = [
            *efficiency.joint(fitted, its),
            *efficiency.finite(fitted, its),
            *efficiency.by_asymptote(fitted, other, base),
        ]
        if not (fitted.has_limit and its.has_limit):
            each = [efficiency.without_limit(one) for one in each]
        if resamples:
            each = intervals.with_intervals(each, resamples[0][law], resamples[1][law], curves)
        found += each
    describing = {law: compared.fits[law] for law in compared.describing}
    if resamples and describing:
        found = with_nulls(found, describing, compared.lead, num_draws, seed)
    return found
