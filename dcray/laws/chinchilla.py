"""Chinchilla: an irreducible loss, a parameter term and a data term that do not interact."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from dcray.laws._law import Law, Points, logistic, namespace


class Chinchilla(Law):
    """L = E + A / N**alpha + B / U**beta, paper eq:chinchilla-main; k = 5.

    Additive: the loss gap between two budgets does not depend on N, which the paper shows to be
    wrong if data repeat. Limit: E + B / U**beta.
    """

    names = ("E", "A", "alpha", "B", "beta")
    example = (2.1116, 0.1294, 0.5167, 0.5357, 0.2924)

    def __call__(self, theta: Any, N: Any, U: Any, **more: Any) -> Any:
        """Compute E + A / N**alpha + B / U**beta."""
        E, A, alpha, B, beta = theta
        return E + A * N**-alpha + B * U**-beta

    def limit(self, theta: Any, U: Any) -> Any:
        """Compute E + B / U**beta."""
        E, _, _, B, beta = theta
        return E + B * U**-beta

    def starts(self, grid: Points) -> list[tuple[float, ...]]:
        """Try slow to fast exponents; E, A and B, in which the law is linear, by least squares."""
        return [
            self._linear(alpha, beta, grid) for alpha, beta in product((0.3, 0.6, 1.2), (0.2, 0.6))
        ]

    def _linear(self, alpha: float, beta: float, grid: Points) -> tuple[float, ...]:
        Nc, Uc, Lc = grid.center
        size, data = (grid.N / Nc) ** -alpha, (grid.U / Uc) ** -beta
        columns = np.stack([np.ones_like(grid.N), size, data], axis=1)
        E, *terms = np.linalg.lstsq(columns, grid.L, rcond=None)[0]
        low = float(grid.L.min())
        E = min(max(E, 0.01 * low), 0.99 * low)
        A, B = (max(term, 0.001 * (Lc - E)) for term in terms)  # neither starts at nothing
        return float(E), float(A * Nc**alpha), alpha, float(B * Uc**beta), beta

    def bounds(self, grid: Points) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Keep E between 0 and the lowest loss, exponents between 0.01 and 10."""
        inf = float("inf")
        return (0.0, 0.0, 0.01, 0.0, 0.01), (float(grid.L.min()), inf, 10.0, inf, 10.0)

    def to_free(self, theta: Any, grid: Points) -> Any:
        """Compute log loss at the centre, E's share of it, the terms' log ratio, log exponents."""
        E, A, alpha, B, beta = theta
        xp = namespace(*theta)
        Nc, Uc, _ = grid.center
        size_term, data_term = A * Nc**-alpha, B * Uc**-beta
        loss = E + size_term + data_term
        ratio = xp.log(size_term) - xp.log(data_term)
        return xp.log(loss), E / loss, ratio, xp.log(alpha), xp.log(beta)

    def from_free(self, free: Any, grid: Points) -> Any:
        """Invert `to_free`."""
        log_loss, share, ratio, log_alpha, log_beta = free
        xp = namespace(*free)
        Nc, Uc, _ = grid.center
        loss, alpha, beta = xp.exp(log_loss), xp.exp(log_alpha), xp.exp(log_beta)
        rest = loss * (1 - share)
        A, B = rest * logistic(ratio) * Nc**alpha, rest * logistic(-ratio) * Uc**beta
        return loss * share, A, alpha, B, beta

    def box(self, grid: Points) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Keep E's share from 0 on, exponents as in `bounds`, each term above 1e-6 of the other."""
        low, high = float(np.log(grid.L.min())), float(np.log(grid.L.max()))
        slow, fast = float(np.log(0.01)), float(np.log(10))
        return (low - 1, 0.0, -14.0, slow, slow), (high + 1, 0.9999, 14.0, fast, fast)


PLUGIN = Chinchilla
