"""SoftQ: size and data as a smooth bottleneck on the skills that can be learned."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from dcray.laws._law import Law, Points, logistic, namespace


class SoftQ(Law):
    """L = E + (A / N**rho + B / U**(rho / (1 + alpha)))**(alpha / rho), paper eq:softq-main; k = 5.

    rho is the sharpness of the bottleneck; rho = 1 is the Quanta law. The paper chooses this law.
    Limit: E + B**(alpha / rho) / U**(alpha / (1 + alpha)).
    """

    names = ("E", "A", "B", "alpha", "rho")
    example = (0.30565, 39.2962, 92.4362, 0.1425, 0.79608)

    def __call__(self, theta: Any, N: Any, U: Any, **more: Any) -> Any:
        """Compute E + (A / N**rho + B / U**(rho / (1 + alpha)))**(alpha / rho)."""
        E, A, B, alpha, rho = theta
        return E + (A * N**-rho + B * U ** (-rho / (1 + alpha))) ** (alpha / rho)

    def limit(self, theta: Any, U: Any) -> Any:
        """Compute E + B**(alpha / rho) * U**(-alpha / (1 + alpha))."""
        E, _, B, alpha, rho = theta
        return E + B ** (alpha / rho) * U ** (-alpha / (1 + alpha))

    def starts(self, grid: Points) -> list[tuple[float, ...]]:
        """Combine slow and fast exponents, soft and sharp, with small and large shares of E."""
        frees = [
            (np.log(grid.center[2]), share, 0.0, np.log(alpha), np.log(rho))
            for share, alpha, rho in product((0.2, 0.7), (0.2, 0.8), (0.7, 2.0))
        ]
        return [tuple(map(float, self.from_free(free, grid))) for free in frees]

    def bounds(self, grid: Points) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Keep E between 0 and the lowest loss, alpha in 0.02 to 10, rho in 0.05 to 10."""
        inf = float("inf")
        return (0.0, 0.0, 0.0, 0.02, 0.05), (float(grid.L.min()), inf, inf, 10.0, 10.0)

    def to_free(self, theta: Any, grid: Points) -> Any:
        """Compute log loss at the centre, E's share, the terms' log ratio, log alpha, log rho."""
        E, A, B, alpha, rho = theta
        xp = namespace(*theta)
        Nc, Uc, _ = grid.center
        size_term, data_term = A * Nc**-rho, B * Uc ** (-rho / (1 + alpha))
        loss = E + (size_term + data_term) ** (alpha / rho)
        ratio = xp.log(size_term) - xp.log(data_term)
        return xp.log(loss), E / loss, ratio, xp.log(alpha), xp.log(rho)

    def from_free(self, free: Any, grid: Points) -> Any:
        """Invert `to_free`."""
        log_loss, share, ratio, log_alpha, log_rho = free
        xp = namespace(*free)
        Nc, Uc, _ = grid.center
        loss, alpha, rho = xp.exp(log_loss), xp.exp(log_alpha), xp.exp(log_rho)
        both = (loss * (1 - share)) ** (rho / alpha)
        A = both * logistic(ratio) * Nc**rho
        B = both * logistic(-ratio) * Uc ** (rho / (1 + alpha))
        return loss * share, A, B, alpha, rho

    def box(self, grid: Points) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Keep E's share from 0 on, exponents as in `bounds`, each term above 1e-6 of the other."""
        low, high = float(np.log(grid.L.min())), float(np.log(grid.L.max()))
        lowest = (low - 1, 0.0, -14.0, float(np.log(0.02)), float(np.log(0.05)))
        return lowest, (high + 1, 0.9999, 14.0, float(np.log(10)), float(np.log(10)))


PLUGIN = SoftQ
