"""Quanta: the loss falls with the number of skills that size and data let a model learn."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from dcray.laws._law import Law, Points, logistic, namespace


class Quanta(Law):
    """L = E + (A / N + B / U**(1 / (1 + alpha)))**alpha, paper eq:quanta-main; k = 4.

    Derived in the paper's appendix from skills used with Zipf frequencies.
    Limit: E + B**alpha / U**(alpha / (1 + alpha)).
    """

    names = ("E", "A", "B", "alpha")
    example = (0.2283, 242.5882, 564.4767, 0.1354)

    def __call__(self, theta: Any, N: Any, U: Any, **more: Any) -> Any:
        """Compute E + (A / N + B / U**(1 / (1 + alpha)))**alpha."""
        E, A, B, alpha = theta
        return E + (A / N + B * U ** (-1 / (1 + alpha))) ** alpha

    def limit(self, theta: Any, U: Any) -> Any:
        """Compute E + B**alpha * U**(-alpha / (1 + alpha))."""
        E, _, B, alpha = theta
        return E + B**alpha * U ** (-alpha / (1 + alpha))

    def starts(self, grid: Points) -> list[tuple[float, ...]]:
        """Combine exponents from slow to fast with small to large irreducible shares."""
        frees = [
            (np.log(grid.center[2]), share, 0.0, np.log(alpha))
            for share, alpha in product((0.1, 0.5, 0.8), (0.15, 0.4, 1.2))
        ]
        return [tuple(map(float, self.from_free(free, grid))) for free in frees]

    def bounds(self, grid: Points) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Keep E between 0 and the lowest loss, alpha between 0.02 and 10."""
        inf = float("inf")
        return (0.0, 0.0, 0.0, 0.02), (float(grid.L.min()), inf, inf, 10.0)

    def to_free(self, theta: Any, grid: Points) -> Any:
        """Compute log loss at the centre, E's share in it, the terms' log ratio, and log alpha."""
        E, A, B, alpha = theta
        xp = namespace(*theta)
        Nc, Uc, _ = grid.center
        size_term, data_term = A / Nc, B * Uc ** (-1 / (1 + alpha))
        loss = E + (size_term + data_term) ** alpha
        return xp.log(loss), E / loss, xp.log(size_term) - xp.log(data_term), xp.log(alpha)

    def from_free(self, free: Any, grid: Points) -> Any:
        """Invert `to_free`."""
        log_loss, share, ratio, log_alpha = free
        xp = namespace(*free)
        Nc, Uc, _ = grid.center
        loss, alpha = xp.exp(log_loss), xp.exp(log_alpha)
        both = (loss * (1 - share)) ** (1 / alpha)
        return (
            loss * share,
            both * logistic(ratio) * Nc,
            both * logistic(-ratio) * Uc ** (1 / (1 + alpha)),
            alpha,
        )

    def box(self, grid: Points) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Keep E's share from 0 on, alpha as in `bounds`, each term above 1e-6 of the other."""
        low, high = float(np.log(grid.L.min())), float(np.log(grid.L.max()))
        return (low - 1, 0.0, -14.0, float(np.log(0.02))), (
            high + 1,
            0.9999,
            14.0,
            float(np.log(10)),
        )


PLUGIN = Quanta
