"""Resampling over cells, and over seeds where a cell has several: intervals for every figure.

Cells are drawn with replacement, which is a matter of weights: every resample keeps all cells and
counts some of them twice and some not at all. A draw that a law cannot be fitted to (fewer distinct
cells than parameters, one size or one budget only) is drawn again. Recipes on the same cells are
resampled together, so that their difference keeps what they have in common.

A law fitted in stages is biased where the law itself holds: an early stage takes for its own what
later ones explain. Resampling shows noise, never bias (on planted Muennighoff grids, noise 0.3 %,
the two stages are 0.26 % off on average; their own bands hold the true loss at 88 % of the cells).
The same law fitted all at once is not biased, but is another estimate than the one that was asked
for. So every second resample is fitted all at once (`Law.whole`). What lies below the pooled 2.5 %
quantile is at most 5 % of either half: whichever of the two is right, at least 90 % of its own
draws lie inside, 95 % where the other draws all lie to one side, and the point fit does as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dcray.errors import ConfigError
from dcray.fit.fit import Fit, fit_many, fit_plain
from dcray.laws._law import Array, Law, Points

LEVEL = 0.95
CHUNK = 4000  # problems that are solved at once: bounds the memory
MAX_ITERATIONS = 400  # a hundredth of all resamples, flat or degenerate, would take thousands


@dataclass(frozen=True)
class Resamples:
    """theta (k, P): one fit for each of P resamples, of the law and the points of `fit`."""

    fit: Fit
    theta: Array

    def predict(self, N: Any, U: Any, **more: Any) -> Array:
        """Losses (P, ...) at N and U of shape (...)."""
        N, U = np.asarray(N, float), np.asarray(U, float)
        theta = [column.reshape(-1, *[1] * N.ndim) for column in self.theta]
        return np.asarray(self.fit.law(theta, N[None], U[None], **more))

    def parameters(self) -> dict[str, tuple[float, float] | None]:
        """The interval of each parameter; None where it is not identified or does not move."""
        found: dict[str, tuple[float, float] | None] = {}
        for name, draws in zip(self.fit.law.names, self.theta, strict=True):
            low, high = interval(draws)
            moves = high - low > 1e-9 * max(abs(low), abs(high))
            found[name] = (low, high) if moves and name not in self.fit.not_identified else None
        return found


def interval(draws: Any, level: float = LEVEL) -> tuple[float, float]:
    """The central `level` of the draws; the draws that give no number (NaN) are left out."""
    low, high = np.nanquantile(np.asarray(draws, float), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def cell_weights(points: Points, num_resamples: int, min_cells: int, seed: int = 0) -> Array:
    """How often each cell is in each resample, (P, n); each has two sizes, two budgets, min_cells.

    Raises ConfigError where the grid is so small that next to no draw qualifies.
    """
    random = np.random.default_rng(seed)
    n, kept, tries = len(points.L), [], 0
    sizes, budgets = _indicator(points.N), _indicator(points.U)
    num_left = num_resamples
    while num_left > 0:
        counts = random.multinomial(n, np.full(n, 1 / n), size=max(num_left * 2, 100)).astype(float)
        there = (counts > 0).astype(float)
        usable = there.sum(-1) >= min_cells
        usable &= ((there @ sizes) > 0).sum(-1) >= min(2, sizes.shape[1])
        usable &= ((there @ budgets) > 0).sum(-1) >= min(2, budgets.shape[1])
        kept.append(counts[usable][:num_left])
        num_left -= len(kept[-1])
        tries += 1
        if tries > 50:
            raise ConfigError(
                f"{n} cells are too few to resample a law of {min_cells - 1} parameters: "
                "leave --bootstrap away"
            )
    return np.concatenate(kept)


def _indicator(values: Array) -> Array:
    """(n, number of distinct values): which value each has."""
    return np.asarray(values[:, None] == np.unique(values)[None], float)


def seed_draws(losses: Sequence[Sequence[float]], num_resamples: int, seed: int = 0) -> Array:
    """(P, n) mean losses with each cell's seeds drawn anew; a cell of one seed keeps its loss.

    A mean of s drawn seeds varies by (s - 1) / s too little, which is made good around the mean.
    """
    random = np.random.default_rng((seed, 1))
    columns = []
    for values in losses:
        seeds = np.asarray(values, float)
        drawn = seeds[random.integers(len(seeds), size=(num_resamples, len(seeds)))].mean(-1)
        inflate = np.sqrt(len(seeds) / (len(seeds) - 1)) if len(seeds) > 1 else 1.0
        columns.append(seeds.mean() + (drawn - seeds.mean()) * inflate)
    return np.stack(columns, axis=-1)


def resample(fit: Fit, counts: Array, losses: Array | None = None) -> Resamples:
    """The law fitted to each resample: counts (P, n) of the cells, losses (P, n) if seeds vary.

    In turn in stages and all at once, where the law is fitted in stages.
    """
    points, whole = fit.points, fit.law.whole()
    weight = counts * (1.0 if points.weight is None else points.weight)
    logs = np.broadcast_to(np.log(points.L if losses is None else losses), weight.shape)
    ways = [fit] if whole is None else [fit, fit_plain(whole, points)][: len(counts)]
    theta = np.empty((len(fit.theta), len(counts)))
    for first, way in enumerate(ways):
        turn = slice(first, None, len(ways))
        theta[:, turn] = _refit(way, logs[turn], weight[turn])
    return Resamples(fit, theta)


def _refit(fit: Fit, logs: Array, weight: Array) -> Array:
    """theta (k, P) of log losses and weights (P, n), some thousand problems at once."""
    law, points = fit.law, fit.points
    starts = np.array([law.to_free(theta, points) for theta in _starts(fit)], float)
    size = CHUNK // len(starts)
    parts = [slice(begin, begin + size) for begin in range(0, len(logs), size)]
    thetas = [fit_batch(law, points, logs[part], weight[part], starts) for part in parts]
    return np.concatenate(thetas, axis=-1)


def fit_batch(law: Law, points: Points, logs: Array, weight: Array, starts: Array) -> Array:
    """theta (k, P) of log losses and weights (P, n), each from the free starts (S, k); in torch.

    On one thread: the arrays are small, and more threads wait for each other most of the time.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        tensors = (torch.tensor(np.ascontiguousarray(a)) for a in (logs, weight, starts))
        observed, weights, begin = tensors
        many = begin[None].repeat(len(weights), 1, 1)
        found = fit_many(torch, law, points, observed, weights, many, max_iterations=MAX_ITERATIONS)
        free = found.free.numpy()
    finally:
        torch.set_num_threads(threads)
    return np.stack(np.broadcast_arrays(*law.from_free(tuple(free.T), points)))


def _starts(fit: Fit) -> list[tuple[float, ...]]:
    """The optimum of the whole grid, and two of the law's own starts."""
    own = fit.law.starts(fit.points)
    return [fit.theta, own[0], own[-1]]


def bootstrap(
    fits: Mapping[str, Fit], num_resamples: int, *, seed: int = 0
) -> dict[str, Resamples]:
    """Each fit of one grid resampled with the same draws of cells."""
    found = {}
    for name, one in fits.items():
        counts = cell_weights(one.points, num_resamples, len(one.theta) + 1, seed)
        found[name] = resample(one, counts)
    return found
