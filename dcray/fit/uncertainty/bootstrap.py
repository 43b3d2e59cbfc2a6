"""Intervals for every figure of a law, by new fits to the law's curve plus noise.

A cell's mean over its seeds differs from the law's curve by the error of the law and by the noise
of the cell's seeds together; the residual holds both, once. Drawing cells and, within them, seeds
counts the noise of the seeds twice (twice as wide as the truth with three seeds a cell), and
drawing cells alone leaves out about a third of a small grid in each draw (1.3 times as wide on 20
cells). So all cells stay, and each gets normal noise of its own, of the size of the residuals in
units of the spread expected for its number of seeds. Drawing the residuals themselves (Efron,
"Bootstrap Methods", 1979, section 7) gives intervals that are too narrow (they hold 0.87 to 0.93 of
the worths of simulated grids): under the Huber loss some k of n cells have almost no residual, and
the spread of a robust fit depends on how many losses lie close to the curve. Residuals of n cells
under k parameters are too small, and their size is uncertain: each draw has a size of its own,
|residuals| / sqrt(chi2(n - k)), which makes the ends those of Student's t. Recipes on the same
cells get the same draws, each a sum of the residuals with normal factors (a multiplier bootstrap),
so that the recipes' difference keeps the noise that they have in common. The part that all cells of
a seed share is in no residual: the interval is for other cells, given the seeds that were run.

A law fitted in stages is biased even if the law itself holds: an early stage absorbs what later
ones should explain. Resampling shows noise, never bias (on simulated Muennighoff grids, noise
0.3 %, the two stages are 0.26 % off on average; their own bands hold the true loss at 88 % of the
cells). The same law fitted all at once is not biased, but is another estimate than the one that was
asked for. So every second draw is one of the same law fitted all at once (`Law.whole`). The draws
below the pooled 2.5 % quantile are at most 5 % of either half: whichever of the two is right, at
least 90 % of its own draws lie inside, or 95 % if all other draws lie to one side, and the point
fit lies inside as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dcray.fit.fit import Fit, fit_many, fit_plain
from dcray.laws._law import Array, Law, Points

LEVEL = 0.95
CHUNK = 4000  # problems that are solved at once: bounds the memory
MAX_ITERATIONS = 400  # a hundredth of all resamples, flat or degenerate, would take thousands


@dataclass(frozen=True)
class Resamples:
    """P refits of the law and the points of `fit`, one for each resample: theta (k, P)."""

    fit: Fit
    theta: Array

    def predict(self, N: Any, U: Any, **more: Any) -> Array:
        """Predict the losses (P, ...) in nats at N and U (billions) of shape (...)."""
        N, U = np.asarray(N, float), np.asarray(U, float)
        theta = [column.reshape(-1, *[1] * N.ndim) for column in self.theta]
        return np.asarray(self.fit.law(theta, N[None], U[None], **more))

    def parameters(self) -> dict[str, tuple[float, float] | None]:
        """Compute each parameter's interval; None if it is not identified or does not vary."""
        found: dict[str, tuple[float, float] | None] = {}
        for name, draws in zip(self.fit.law.names, self.theta, strict=True):
            low, high = interval(draws)
            moves = high - low > 1e-9 * max(abs(low), abs(high))
            found[name] = (low, high) if moves and name not in self.fit.not_identified else None
        return found


def interval(draws: Any, level: float = LEVEL) -> tuple[float, float]:
    """Compute the central `level` interval of the draws, without those that are NaN."""
    low, high = np.nanquantile(np.asarray(draws, float), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def resample(fit: Fit, num_resamples: int, seed: int = 0) -> Resamples:
    """Fit the law to its own curve with the noise of the cells drawn anew, num_resamples times.

    If the law is fitted in stages, the draws alternate between the stages and all parameters at
    once (`Law.whole`), each fitted to its own curve.
    """
    points, whole = fit.points, fit.law.whole()
    ways = [fit] if whole is None else [fit, fit_plain(whole, points)][:num_resamples]
    weight = np.ones_like(points.L) if points.weight is None else points.weight
    theta = np.empty((len(fit.theta), num_resamples))
    for first, way in enumerate(ways):
        turn = slice(first, None, len(ways))
        logs = np.log(way.predict(points.N, points.U, **points.more))
        logs = logs + drawn_noise(way, num_resamples, np.random.default_rng((seed, 4)))[turn]
        theta[:, turn] = refit(way, logs, np.broadcast_to(weight, logs.shape))
    return Resamples(fit, theta)


def drawn_noise(fit: Fit, num_draws: int, random: np.random.Generator) -> Array:
    """Draw normal noise (P, n) of the cells' log losses (`normal_noise`)."""
    points = fit.points
    scale = np.ones_like(points.L) if points.weight is None else np.sqrt(points.weight)
    residuals = scale * np.log1p(fit.residuals / points.L)
    freedom = len(residuals) - len(fit.theta)
    return np.asarray(normal_noise(residuals, freedom, num_draws, random) / scale)


def normal_noise(
    residuals: Array, freedom: int, num_draws: int, random: np.random.Generator
) -> Array:
    """Draw normal noise (P, n) of the size of residuals (n,) with `freedom` degrees of freedom.

    For two sets of residuals of the same cells, generators of the same state give noise that
    correlates as the residuals do.
    """
    size, n = float(np.linalg.norm(residuals)), len(residuals)
    direction = residuals / size if size else residuals
    sizes = noise_sizes(size**2, freedom, num_draws, random)
    noise = np.stack([random.standard_normal((n, n)) @ direction for _ in range(num_draws)])
    return np.asarray(sizes[:, None] * noise)


def noise_sizes(squares: float, freedom: int, num_draws: int, random: np.random.Generator) -> Array:
    """Draw standard deviations (P,), sqrt(squares / chi2(freedom)), from a sum of squares."""
    return np.sqrt(squares / random.chisquare(max(freedom, 1), num_draws))


def refit(fit: Fit, logs: Array, weight: Array) -> Array:
    """Fit theta (k, P) to log losses and weights (P, n), some thousand problems at once."""
    law, points = fit.law, fit.points
    starts = np.array([law.to_free(theta, points) for theta in _starts(fit)], float)
    size = CHUNK // len(starts)
    parts = [slice(begin, begin + size) for begin in range(0, len(logs), size)]
    thetas = [fit_batch(law, points, logs[part], weight[part], starts) for part in parts]
    return np.concatenate(thetas, axis=-1)


def fit_batch(law: Law, points: Points, logs: Array, weight: Array, starts: Array) -> Array:
    """Fit theta (k, P) to log losses and weights (P, n), each from free starts (S, k), in torch.

    The fit uses one thread: the arrays are small, and more threads mostly wait for each other.
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
    """Return the optimum of the whole grid and two of the law's own starts."""
    own = fit.law.starts(fit.points)
    return [fit.theta, own[0], own[-1]]
