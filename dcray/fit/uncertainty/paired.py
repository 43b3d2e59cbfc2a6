"""Differences of two recipes on equal cells and seeds, pair by pair, before any law is fitted.

A difference d of cell c and seed s is mu + a_c + b_s + e_cs: cells differ, and so do seeds, whose
order of the data and masks all cells share. The interval is that of mu: it holds for further cells
like these and for further seeds. If a factor has a single level (one cell, one seed), the interval
holds given that level.

The variances of a, b and e are Henderson's first method ("Estimation of Variance and Covariance
Components", Biometrics 9, 1953): the sums of squares between cells, between seeds and in all are
set equal to their expectations, which holds for incomplete tables too. A factor whose estimate is
not positive is left out and the rest solved again, which pools it with the noise. The variance of
the mean is then a sum of parts V_i, each known with df_i degrees of freedom, and the half width is
sqrt(V) times the mean of the quantiles t(df_i), weighted by V_i (Cochran's approximation). Under
Satterthwaite's single number of degrees of freedom intervals were too narrow for two and three
seeds beside many cells (coverage 0.88 and 0.92); these hold mu in 0.91 to 0.98 of simulated cases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dcray.errors import plural
from dcray.fit.grid import Row
from dcray.laws._law import Array

LEVEL = 0.95


@dataclass(frozen=True)
class Paired:
    """Recipe minus baseline in nats over `num_pairs` equal (cell, seed); a win is a lower loss.

    low and high: the 95 % interval of the mean for `population`, None for fewer than two pairs.
    num_params and unique_tokens are those of the one cell, None over several.
    """

    num_pairs: int
    mean: float
    wins: int
    low: float | None
    high: float | None
    num_params: int | None = None
    unique_tokens: int | None = None
    num_cells: int = 1
    num_seeds: int = 1

    @property
    def population(self) -> str:
        """Name what the interval holds for: "further cells and seeds"; "" without one."""
        if self.low is None:
            return ""
        if self.num_cells == 1:
            return "further seeds in this cell"
        return "further cells at this seed" if self.num_seeds == 1 else "further cells and seeds"

    @property
    def sample(self) -> str:
        """Describe the pairs: "25 pairs (5 cells, 5 seeds)", or "1 pair"."""
        pairs = plural(self.num_pairs, "pair")
        if self.num_pairs == 1:
            return pairs
        return f"{pairs} ({plural(self.num_cells, 'cell')}, {plural(self.num_seeds, 'seed')})"


def paired(rows: Sequence[Row], baseline: str, recipe: str) -> list[Paired]:
    """Compare all matched pairs, then those of each cell; empty if no (cell, seed) is shared."""
    first = {(row.cell, row.seed): row.val_loss for row in rows if row.recipe == baseline}
    second = {(row.cell, row.seed): row.val_loss for row in rows if row.recipe == recipe}
    common = sorted(
        first.keys() & second.keys(), key=lambda key: (key[0], key[1] is not None, key[1] or 0)
    )
    if not common:
        return []
    differences = {key: second[key] - first[key] for key in common}
    cells = list(dict.fromkeys(cell for cell, _ in common))
    each = [{key: d for key, d in differences.items() if key[0] == cell} for cell in cells]
    return [_paired(differences)] + [
        _paired(its, *cell) for cell, its in zip(cells, each, strict=True)
    ]


def _paired(
    differences: dict[tuple[tuple[int, int], int | None], float],
    N: int | None = None,
    U: int | None = None,
) -> Paired:
    cells, seeds = ([key[i] for key in differences] for i in range(2))
    values = np.array(list(differences.values()), float)
    mean, half = float(values.mean()), half_width(values, cells, seeds)
    low, high = (None, None) if half is None else (mean - half, mean + half)
    counts = len(set(cells)), len(set(seeds))
    return Paired(len(values), mean, int((values < 0).sum()), low, high, N, U, *counts)


def half_width(values: Array, *factors: Sequence[object], level: float = LEVEL) -> float | None:
    """Compute half the width of the interval of the mean of values (n,); None for one value.

    Each factor holds n labels. The module's docstring has the model and the source.
    """
    from scipy.stats import t

    n = len(values)
    if n < 2:
        return None
    groups = [_indicator(labels) for labels in factors]
    groups = [z for z in groups if 1 < z.shape[1] < n]  # 1 level is the mean's, n the noise's
    while True:
        parts, freedom = _variance_parts(values, groups)
        worst = int(np.argmin(parts[:-1])) if groups else 0
        if not groups or parts[worst] > 0:
            break
        del groups[worst]
    total = parts.sum()
    if total <= 0:  # equal differences
        return 0.0
    quantile = float(parts @ t.ppf((1 + level) / 2, freedom)) / total
    return float(quantile * np.sqrt(total))


def _variance_parts(values: Array, groups: Sequence[Array]) -> tuple[Array, Array]:
    """Estimate the mean's variance by source, the noise last, and each one's degrees of freedom."""
    n = len(values)
    identity, ones = np.eye(n), np.full((n, n), 1 / n)
    squares = [z @ (z / z.sum(0)).T - ones for z in groups] + [identity - ones]
    covariances = [z @ z.T for z in groups] + [identity]
    expected = np.array([[np.sum(q * c) for c in covariances] for q in squares])
    found = np.linalg.lstsq(expected, np.array([values @ q @ values for q in squares]))[0]
    of_mean = np.array([c.sum() for c in covariances]) / n**2
    freedom = [z.shape[1] - 1 for z in groups]
    return found * of_mean, np.array([*freedom, max(n - 1 - sum(freedom), 1)], float)


def _indicator(labels: Sequence[object]) -> Array:
    """Build the (n, number of distinct labels) matrix that marks which label each row has."""
    known = {label: i for i, label in enumerate(dict.fromkeys(labels))}
    return np.eye(len(known))[[known[label] for label in labels]]
