"""Whether to believe a fit: flags in words, what is not identified, held-out tests, model gap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dcray.errors import ConfigError
from dcray.fit import batched
from dcray.fit.fit import FAILS, Fit, fit_plain, law_log_loss
from dcray.laws._law import Array, Law, Points

NOISE_FLOOR = 1e-3  # of log losses: no grid is taken to be more exact than the objective's delta
POOR_FRAC = 0.05  # RMSE as a share of the losses' range from which a law does not describe a grid
LOOSE = 0.35  # standard error of a log parameter from which it is not identified (a factor of two)


def diagnose(fit: Fit) -> Fit:
    """The fit with its flags and the parameters that the grid does not identify."""
    caveats = {**_loose(fit), **fit.law.caveats(fit.theta, fit.points)}
    flags = [
        *_at_bounds(fit),
        *(f"{name} is not identified: {reason}" for name, reason in caveats.items()),
        *_quality(fit),
        *_stages(fit),
    ]
    return replace(fit, flags=tuple(flags), not_identified=caveats)


def _at_bounds(fit: Fit) -> list[str]:
    """Parameters at a bound of the law, and a term that has no effect at all."""
    lows, highs = fit.law.bounds(fit.points)
    bounds = [
        (n, v, b)
        for n, v, *both in zip(fit.law.names, fit.theta, lows, highs, strict=True)
        for b in both
    ]
    found = [
        f"{n} is at its bound {b:g}" for n, v, b in bounds if np.isclose(v, b, rtol=1e-4, atol=1e-6)
    ]
    with np.errstate(divide="ignore"):  # of a term that is 0
        free = np.array(fit.law.to_free(fit.theta, fit.points), float)
    low_box, high_box = (np.array(side, float) for side in fit.law.box(fit.points))
    edge = 1e-6 * np.minimum(high_box - low_box, 1.0)
    if not found and ((free <= low_box + edge) | (free >= high_box - edge)).any():
        found.append("one of the law's terms has no effect on this grid")
    return found


def _quality(fit: Fit) -> list[str]:
    """What is wrong with the optimum or with the law on this grid."""
    found, points = [], fit.points
    if not fit.converged:
        found.append("the optimizer has not converged")
    if fit.agreeing_frac < 0.5:
        found.append(f"only {fit.agreeing_frac:.0%} of {fit.num_starts} starts reach this optimum")
    spread = float(points.L.max() - points.L.min())
    if fit.rmse > POOR_FRAC * spread:
        found.append(f"{FAILS}: RMSE {fit.rmse:.3f} nats where all losses lie within {spread:.3f}")
    if (left := len(points.L) - len(fit.theta)) < 3:
        found.append(f"{len(points.L)} cells leave {left} degree{'s' * (left != 1)} of freedom")
    for axis, values, others in (
        ("num_params", points.N, points.U),
        ("unique_tokens", points.U, points.N),
    ):
        if _spread_along(values, others, points.L) < NOISE_FLOOR:
            found.append(f"the losses do not change with {axis}: its term is not measured")
    return found


def _stages(fit: Fit) -> list[str]:
    """What fitting in stages costs: a misfit, where an F test sees one."""
    whole = fit.law.whole()
    if whole is None:
        return []
    from scipy.stats import f

    at_once, n, k = fit_plain(whole, fit.points), len(fit.points.L), len(fit.theta)
    later, left = k - len(fit.law.stages()[0]), max(n - k, 1)
    by_chance = (
        1 + later * f.ppf(0.95, later, left) / left
    )  # ratio of squares, were the stages right
    floor = NOISE_FLOOR * fit.points.center[2]
    if fit.rmse < max(at_once.rmse * by_chance**0.5, floor):
        return []
    rmses = f"an RMSE of {fit.rmse:.4f} nats, all at once {at_once.rmse:.4f}"
    meaning = "half of the resamples are fitted all at once, so that intervals hold both answers"
    return [f"fitted in stages it leaves {rmses}: {meaning}"]


def _spread_along(values: Array, others: Array, losses: Array) -> float:
    """The largest range of log loss along one axis with the other held."""
    ranges = [np.ptp(np.log(losses[others == other])) for other in np.unique(others)]
    return float(max(ranges)) if len(np.unique(values)) > 1 else 0.0


def _loose(fit: Fit) -> dict[str, str]:
    """Parameters whose linearized 95 % interval is too wide to mean anything, in words."""
    widths = standard_errors(fit)
    found = {}
    for name, value, (error, log_error) in zip(fit.law.names, fit.theta, widths, strict=True):
        if name.startswith("E"):
            low, high = (
                max(0.0, value - 2 * error),
                min(value + 2 * error, float(fit.points.L.min())),
            )
            if high - low > 0.25 * float(fit.points.L.min()):
                found[name] = (
                    f"from {low:.2f} to {high:.2f} nats all describe the grid about as well"
                )
        elif not np.isfinite(log_error) or log_error > LOOSE:
            factor = float(np.exp(min(2 * log_error, 10.0))) if np.isfinite(log_error) else np.inf
            how_far = f"by up to {factor:.2g}" if factor < 1e4 else "by thousands"
            found[name] = (
                f"{value:.3g} multiplied or divided {how_far} describes the grid about as well"
            )
    return found


def standard_errors(fit: Fit) -> list[tuple[float, float]]:
    """(of theta, of log theta) by linearization, for residuals of at least NOISE_FLOOR."""
    law, points = fit.law, fit.points
    with np.errstate(divide="ignore"):  # of a term that is 0
        free = np.array(law.to_free(fit.theta, points), float)
    low, high = (np.array(side, float) for side in law.box(points))
    problem = batched.Problem(
        law_log_loss(np, law, points), np.log(points.L)[None], np.ones((1, len(points.L))),
        low, high, list(range(len(free))), delta=1.0,
    )  # fmt: skip
    with np.errstate(all="ignore"):
        residual, jacobian = batched.linearize(np, problem, free[None])
        rows = jacobian[0]  # (k, n)
        left = max(len(points.L) - len(free), 1)
        noise = max(float(np.sqrt((residual[0] ** 2).sum() / left)), NOISE_FLOOR)
        size = np.sqrt((rows**2).sum(-1)) + 1e-12
        scaled = (rows / size[:, None]) @ (rows / size[:, None]).T
        cov = noise**2 * np.linalg.pinv(scaled, rcond=1e-12) / np.outer(size, size)
        slopes = _theta_slopes(law, points, free, low, high)  # (k theta, k free)
        errors = np.sqrt(np.maximum(np.einsum("ij,jl,il->i", slopes, cov, slopes), 0.0))
    theta = np.array(fit.theta)
    return [
        (float(e), float(e / t) if t > 0 else float("inf"))
        for e, t in zip(errors, theta, strict=True)
    ]


def _theta_slopes(law: Law, points: Points, free: Array, low: Array, high: Array) -> Array:
    """d theta / d free by differences inside the box, (k, k)."""
    columns = []
    for j in range(len(free)):
        up, down = free.copy(), free.copy()
        up[j], down[j] = min(free[j] + 1e-6, high[j]), max(free[j] - 1e-6, low[j])
        ends = [np.array(law.from_free(tuple(end), points), float) for end in (up, down)]
        columns.append((ends[0] - ends[1]) / (up[j] - down[j]))
    return np.stack(columns, axis=1)


@dataclass(frozen=True)
class HeldOut:
    """A fit without some cells, and its errors there. residual = predicted - observed, in nats."""

    left_out: str
    fit: Fit
    points: Points
    residual: Array

    @property
    def rmse(self) -> float:
        """Root mean square residual on what was held out."""
        return float(np.sqrt(np.mean(self.residual**2)))

    @property
    def mae(self) -> float:
        """Mean absolute residual on what was held out."""
        return float(np.mean(np.abs(self.residual)))


def hold_out(
    law: str, points: Points, out: Any, left_out: str, *, fitter: Callable[..., Fit] = fit_plain
) -> HeldOut:
    """Fit without the rows of the mask `out` and predict them.

    Raises ConfigError where nothing is held out or what is left cannot carry the law.
    """
    out = np.asarray(out, bool)
    if not out.any():
        raise ConfigError(f"nothing in the grid has {left_out}, so it cannot be held out")
    rest, there = points.take(~out), points.take(out)
    try:
        fitted = fitter(law, rest)
    except ConfigError as error:
        raise ConfigError([f"without {left_out}: {p}" for p in error.problems]) from None
    residual = np.asarray(fitted.predict(there.N, there.U, **there.more) - there.L)
    return HeldOut(left_out, fitted, there, residual)


def leave_one_out(law: str, points: Points) -> Array:
    """Residuals (n,) of each cell, predicted by the law fitted to all others."""
    each = np.eye(len(points.L), dtype=bool)
    return np.array([hold_out(law, points, row, "one cell").residual[0] for row in each])


def model_gap(points: Points, losses: Any = None) -> dict[float, dict[float, float]]:
    """{U: {N: L(N, U) - L(N, largest U)}} in nats: constant in N under an additive law.

    `losses` (n,) replaces the observed losses, for a law's own gap.
    """
    L = points.L if losses is None else np.asarray(losses)
    largest = points.U.max()
    top = {float(N): loss for N, U, loss in zip(points.N, points.U, L, strict=True) if largest == U}
    gap: dict[float, dict[float, float]] = {}
    for N, U, loss in zip(points.N, points.U, L, strict=True):
        if largest != U and float(N) in top:
            gap.setdefault(float(U), {})[float(N)] = float(loss - top[float(N)])
    return gap
