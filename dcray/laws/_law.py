"""The points that a law is fitted to, and the base class of every law with its defaults.

A law is called with theta, a sequence of parameters along the first axis, so that one law serves
one fit (k numbers) and thousands (k arrays that broadcast), in numpy and in torch. N and U are in
billions. The fit never moves theta itself but `free` coordinates, which a law may choose so that
they are nearly uncorrelated on a grid (`to_free`, `from_free`, `box`).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Points:
    """Losses `L` in nats at `N` billion parameters and `U` billion unique tokens, each (n,).

    `more` holds what only some laws read (num_epochs); `weight` multiplies each point's term of the
    objective.
    """

    N: Array
    U: Array
    L: Array
    more: Mapping[str, Array] = field(default_factory=dict)
    weight: Array | None = None

    @cached_property
    def center(self) -> tuple[float, float, float]:
        """Compute the geometric means of N, U and L, the origin of the free coordinates."""
        return tuple(float(np.exp(np.log(v).mean())) for v in (self.N, self.U, self.L))  # type: ignore[return-value]

    def take(self, rows: Array | NDArray[np.intp]) -> Points:
        """Select the points at `rows` (a mask or indices)."""
        more = {name: value[rows] for name, value in self.more.items()}
        weight = None if self.weight is None else self.weight[rows]
        return Points(self.N[rows], self.U[rows], self.L[rows], more, weight)


def namespace(*values: Any) -> Any:
    """Return torch if one of `values` is a tensor, else numpy."""
    torch = sys.modules.get("torch")
    if torch is not None and any(isinstance(v, torch.Tensor) for v in values):
        return torch
    return np


def logistic(x: Any) -> Any:
    """Compute 1 / (1 + exp(-x)), in numpy or torch."""
    return 1.0 / (1.0 + namespace(x).exp(-x))


class Law:
    """The base class of a law. By default `free` is theta itself and the box is the law's bounds.

    names: the parameters, in theta's order; example: a plausible theta;
    needs: what `Points.more` must hold.
    A law given by --plugin has a `name` too.
    """

    kind: ClassVar[str] = "laws"
    names: tuple[str, ...]
    example: tuple[float, ...]
    needs: tuple[str, ...] = ()

    def __call__(self, theta: Any, N: Any, U: Any, **more: Any) -> Any:
        """Compute the loss in nats at N and U (billions); theta, N and U broadcast."""
        raise NotImplementedError

    def limit(self, theta: Any, U: Any) -> Any:
        """Compute the loss in nats at U (billions) as N goes to infinity."""
        raise NotImplementedError

    def starts(self, grid: Points) -> list[tuple[float, ...]]:
        """List the thetas from which a fit of `grid` starts."""
        return [self.example]

    def bounds(self, grid: Points) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return the lowest and the highest theta that a fit of `grid` may return."""
        raise NotImplementedError

    def stages(self) -> tuple[tuple[str, ...], ...]:
        """Group the parameters; each group is fitted with the earlier ones held fixed."""
        return (self.names,)

    def whole(self) -> Law | None:
        """Return the same law fitted all at once, if `stages` has several; else None.

        Half of the resamples are fitted by that law, so that intervals hold the cost of the stages.
        """
        return None

    def neutral(self) -> Mapping[str, float]:
        """Return {name: value} that holds a parameter, without effect, until its stage comes."""
        return {}

    def to_free(self, theta: Any, grid: Points) -> Any:
        """Convert theta to the free coordinates on this grid."""
        return theta

    def from_free(self, free: Any, grid: Points) -> Any:
        """Convert the free coordinates to theta, a sequence of k entries."""
        return free

    def box(self, grid: Points) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return the bounds of the free coordinates."""
        return self.bounds(grid)

    def caveats(self, theta: Sequence[float], grid: Points) -> dict[str, str]:
        """Find the parameters that this grid cannot identify whatever its noise: {name: reason}."""
        return {}
