"""Muennighoff, adapted to the data set: repeated tokens and surplus parameters count for less."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from dcray.laws._law import Law, Points
from dcray.laws.chinchilla import Chinchilla
from dcray.laws.muennighoff_c4 import (
    ENDLESS,
    LEAST,
    MOST,
    UNIT_BOX,
    UNIT_STARTS,
    from_unit,
    predict,
    repetition_caveats,
    saturated,
    to_unit,
)

BASE = Chinchilla()


class Muennighoff(Law):
    """L = E + A / N'**alpha + B / D'**beta, N' and D' as in muennighoff_c4.predict; k = 7.

    The fit has two stages as in paper app:scaling-law-details: E, A, alpha, B, beta as a Chinchilla
    law, then R_N and R_D with those held. The first stage treats losses of repeated data as those
    of fresh data, so on losses that follow this very law the two stages do not recover its
    parameters; `at_once` fits all seven together and does, and half of all resamples are fitted
    that way. Limit: N and R_D to infinity.
    """

    names = (*Chinchilla.names, "R_N", "R_D")
    example = (*Chinchilla.example, 31.39, 6.0)
    needs = ("num_epochs",)

    def __init__(self, *, at_once: bool = False) -> None:
        self.at_once = at_once

    def __call__(self, theta: Any, N: Any, U: Any, *, num_epochs: Any = 1.0, **more: Any) -> Any:
        """Compute the loss by `muennighoff_c4.predict`."""
        *base, R_N, R_D = theta
        return predict(base, R_N, R_D, N, U, num_epochs)

    def limit(self, theta: Any, U: Any) -> Any:
        """Compute the limit by `muennighoff_c4.saturated`."""
        *base, R_N, R_D = theta
        return saturated(base, R_N, R_D, U)

    def starts(self, grid: Points) -> list[tuple[float, ...]]:
        """Combine Chinchilla's starts with small and large constants; at once, each with each."""
        bases = BASE.starts(grid)
        if self.at_once:
            return [(*base, *constants) for base, constants in product(bases[::2], UNIT_STARTS)]
        longer = max(len(bases), len(UNIT_STARTS))
        return [(*bases[i % len(bases)], *UNIT_STARTS[i % len(UNIT_STARTS)]) for i in range(longer)]

    def bounds(self, grid: Points) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Keep Chinchilla's bounds, and both constants between 1e-6 and 1e8."""
        low, high = BASE.bounds(grid)
        return (*low, LEAST, LEAST), (*high, MOST, MOST)

    def stages(self) -> tuple[tuple[str, ...], ...]:
        """Group Chinchilla's five, then the two repetition constants; or all at once."""
        if self.at_once:
            return (self.names,)
        return (Chinchilla.names, ("R_N", "R_D"))

    def whole(self) -> Muennighoff | None:
        """Return the law that fits all seven parameters at once; None if this one does."""
        return None if self.at_once else Muennighoff(at_once=True)

    def neutral(self) -> Mapping[str, float]:
        """Hold N' = N and D' = U: surplus parameters count in full, repeated tokens do not."""
        return {"R_N": ENDLESS, "R_D": 1e-12}  # zero to float64, and yet no division by it

    def to_free(self, theta: Any, grid: Points) -> Any:
        """Compute Chinchilla's coordinates, and R / (1 + R) of both constants."""
        *base, R_N, R_D = theta
        return (*BASE.to_free(base, grid), to_unit(R_N), to_unit(R_D))

    def from_free(self, free: Any, grid: Points) -> Any:
        """Invert `to_free`."""
        *base, R_N, R_D = free
        return (*BASE.from_free(base, grid), from_unit(R_N), from_unit(R_D))

    def box(self, grid: Points) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Combine Chinchilla's box with R / (1 + R) of the constants' bounds."""
        low, high = BASE.box(grid)
        return (*low, *(UNIT_BOX[0],) * 2), (*high, *(UNIT_BOX[1],) * 2)

    def caveats(self, theta: Sequence[float], grid: Points) -> dict[str, str]:
        """Report an R_D outside the epochs that were run, and an R_N without a finite optimum."""
        return repetition_caveats(theta[-2], theta[-1], grid.more["num_epochs"])


PLUGIN = Muennighoff
