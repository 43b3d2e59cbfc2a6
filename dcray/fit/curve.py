"""The loss over model size at one budget, L_U(N) = E_U + A_U / N**alpha_U.

The paper has it in tab:app-mir-param-fits.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from dcray.errors import ConfigError
from dcray.fit.fit import Fit, fit_many
from dcray.laws._law import Law, Points, namespace


class ParameterCurve(Law):
    """L = E_U + A_U / N**alpha_U at one budget; k = 3, with no data term. Limit: E_U."""

    names = ("E_U", "A_U", "alpha_U")
    example = (3.27997, 0.03829, 0.82186)

    def __call__(self, theta: Any, N: Any, U: Any, **more: Any) -> Any:
        """Compute E_U + A_U / N**alpha_U, N in billions; U gives only the shape."""
        E, A, alpha = theta
        return E + A * N**-alpha + 0 * U

    def limit(self, theta: Any, U: Any) -> Any:
        """Return E_U, the loss as N goes to infinity."""
        return theta[0] + 0 * U

    def starts(self, grid: Points) -> list[tuple[float, ...]]:
        """Combine slow and fast exponents with small and large irreducible shares."""
        center = np.log(grid.center[2])
        frees = [(center, s, np.log(a)) for s, a in product((0.5, 0.8, 0.95), (0.3, 1.0))]
        return [tuple(map(float, self.from_free(free, grid))) for free in frees]

    def bounds(self, grid: Points) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Keep E_U between 0 and the lowest loss, alpha_U between 0.01 and 10."""
        return (0.0, 0.0, 0.01), (float(grid.L.min()), float("inf"), 10.0)

    def to_free(self, theta: Any, grid: Points) -> Any:
        """Compute the log loss at the middle size, the share of E_U in that loss, log alpha_U."""
        E, A, alpha = theta
        xp = namespace(*theta)
        loss = E + A * grid.center[0] ** -alpha
        return xp.log(loss), E / loss, xp.log(alpha)

    def from_free(self, free: Any, grid: Points) -> Any:
        """Invert `to_free`."""
        log_loss, share, log_alpha = free
        xp = namespace(*free)
        loss, alpha = xp.exp(log_loss), xp.exp(log_alpha)
        return loss * share, loss * (1 - share) * grid.center[0] ** alpha, alpha

    def box(self, grid: Points) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Keep the share of E_U from 0 on, alpha_U as in `bounds`."""
        low, high = float(np.log(grid.L.min())), float(np.log(grid.L.max()))
        return (low - 1, 0.0, float(np.log(0.01))), (high + 1, 0.999999, float(np.log(10)))


def fit_curve(points: Points) -> Fit:
    """Fit the curve to one budget's points, with the objective of the laws.

    Raises ConfigError for fewer than three sizes; with three the curve passes through all of them.
    """
    if (sizes := len(np.unique(points.N))) < 3:
        raise ConfigError(
            "a curve E_U + A_U / N**alpha_U needs at least three model sizes at a budget, "
            f"got {sizes}"
        )
    law = ParameterCurve()
    starts = np.array([law.to_free(theta, points) for theta in law.starts(points)])
    weight = np.ones_like(points.L) if points.weight is None else points.weight
    found = fit_many(np, law, points, np.log(points.L)[None], weight[None], starts[None])
    theta = tuple(float(v) for v in law.from_free(tuple(found.free[0]), points))
    flags = (
        (f"{sizes} sizes for 3 parameters: a curve through every point, without an error bar",)
        if sizes == 3
        else ()
    )
    return Fit(
        name="curve", law=law, points=points, theta=theta, cost=float(found.cost[0]),
        num_starts=len(starts), agreeing_frac=float(found.agreeing_frac[0]),
        converged=bool(found.converged[0]), flags=flags,
    )  # fmt: skip


def at_bound(curve: Fit) -> bool:
    """Tell whether E_U is at its bound 0: the losses bend too little to show an asymptote."""
    return curve.theta[0] < 1e-6 * curve.points.center[2]


def curves(points: Points) -> dict[float, Fit]:
    """Fit one curve {U: Fit} for each budget U (billions) that has at least three sizes."""
    found = {}
    for U in np.unique(points.U):
        at_budget = points.take(points.U == U)
        if len(np.unique(at_budget.N)) >= 3:
            found[float(U)] = fit_curve(at_budget)
    return found
