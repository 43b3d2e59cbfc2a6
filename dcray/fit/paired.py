"""Two recipes on equal seeds, pair by pair: what a difference is worth before any law is fitted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dcray.fit.grid import Row


@dataclass(frozen=True)
class Paired:
    """recipe minus baseline in nats over `num_pairs` equal (cell, seed); a win is a lower loss.

    low and high: the 95 % t interval of the mean, None for fewer than two pairs.
    """

    num_pairs: int
    mean: float
    wins: int
    low: float | None
    high: float | None
    num_params: int | None = None
    unique_tokens: int | None = None


def paired(rows: Sequence[Row], baseline: str, recipe: str) -> list[Paired]:
    """Over all matched pairs, then per cell; empty where the recipes share no (cell, seed)."""
    first = {(row.cell, row.seed): row.val_loss for row in rows if row.recipe == baseline}
    second = {(row.cell, row.seed): row.val_loss for row in rows if row.recipe == recipe}
    common = sorted(
        first.keys() & second.keys(), key=lambda key: (key[0], key[1] is not None, key[1] or 0)
    )
    if not common:
        return []
    by_cell: dict[tuple[int, int], list[float]] = {}
    for key in common:
        by_cell.setdefault(key[0], []).append(second[key] - first[key])
    found = [_paired([d for cell in by_cell.values() for d in cell])]
    return found + [_paired(differences, *cell) for cell, differences in by_cell.items()]


def _paired(differences: Sequence[float], N: int | None = None, U: int | None = None) -> Paired:
    values, n = np.asarray(differences, float), len(differences)
    mean, wins = float(values.mean()), int((values < 0).sum())
    if n < 2:
        return Paired(n, mean, wins, None, None, N, U)
    from scipy.stats import t

    half = float(t.ppf(0.975, n - 1) * values.std(ddof=1) / math.sqrt(n))
    return Paired(n, mean, wins, mean - half, mean + half, N, U)
