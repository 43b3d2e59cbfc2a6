"""Checks of a fit: flags in words, parameters not identified, held-out tests, model gap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dcray.errors import ConfigError
from dcray.fit import batched
from dcray.fit.fit import FAILS, Fit, fit_plain, law_log_loss, log_squares, refit
from dcray.laws._law import Array, Law, Points

NOISE_FLOOR = 1e-3  # of log losses: no grid is taken to be more exact than the objective's delta
NO_EFFECT = 1e-5  # of log losses: a change that no loss of any grid can show
POOR_FRAC = 0.05  # RMSE as a share of the losses' range from which a law does not describe a grid
LOOSE = 0.35  # standard error of a log parameter from which it is not identified (a factor of two)
TERM = 2  # parameters of a term: a coefficient and an exponent


def diagnose(fit: Fit) -> Fit:
    """Return the fit with its flags and the parameters that the grid does not identify.

    No flag depends on the units of N and U: effects are judged in log losses, coefficients at the
    centre of the grid.
    """
    caveats = {**_loose(fit), **fit.law.caveats(fit.theta, fit.points)}
    flags = [
        *_at_bounds(fit),
        *(f"{name} is not identified: {reason}" for name, reason in caveats.items()),
        *_quality(fit),
        *_unmeasured(fit),
        *_stages(fit),
    ]
    return replace(fit, flags=tuple(flags), not_identified=caveats)


def _at_bounds(fit: Fit) -> list[str]:
    """Name the parameters at a bound of the law, and any term that has no effect at all."""
    lows, highs = fit.law.bounds(fit.points)
    found = [
        f"{name} is at its bound {bound:g}"
        for j, (name, *both) in enumerate(zip(fit.law.names, lows, highs, strict=True))
        for bound in both
        if _touches(fit, j, bound)
    ]
    with np.errstate(divide="ignore"):  # of a term that is 0
        free = np.array(fit.law.to_free(fit.theta, fit.points), float)
    low_box, high_box = (np.array(side, float) for side in fit.law.box(fit.points))
    edge = 1e-6 * np.minimum(high_box - low_box, 1.0)
    if not found and ((free <= low_box + edge) | (free >= high_box - edge)).any():
        found.append("one of the law's terms has no effect on this grid")
    return found


def _touches(fit: Fit, j: int, bound: float) -> bool:
    """Tell whether parameter j is at this bound.

    A coefficient has a unit, so no value of it is small as such: it is at its bound 0 if 0 in its
    place changes no loss. Any other bound is met by a value that is nearly equal.
    """
    if bound != 0:
        return bool(np.isclose(fit.theta[j], bound, rtol=1e-4, atol=0))
    theta, points = list(fit.theta), fit.points
    theta[j] = 0.0
    with np.errstate(all="ignore"):
        without = fit.law(theta, points.N, points.U, **points.more)
        change = np.log(without) - np.log(points.L + fit.residuals)
    return bool((abs(change) <= NO_EFFECT).all())


def _quality(fit: Fit) -> list[str]:
    """Say what is wrong with the optimum, or with the law on this grid."""
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
    return found


def _unmeasured(fit: Fit) -> list[str]:
    """Find by an F test the axes without which the law describes the losses as well."""
    from scipy.stats import f

    points, left = fit.points, max(len(fit.points.L) - len(fit.theta), 1)
    squares = log_squares(fit)
    noise = max(squares / left, NOISE_FLOOR**2)
    by_chance = TERM * float(f.ppf(0.95, TERM, left)) * noise
    found = []
    ones = np.ones_like(points.L)
    flats = {
        "num_params": replace(points, N=ones * points.center[0]),
        "unique_tokens": replace(points, U=ones * points.center[1]),
    }
    for axis, flat in flats.items():
        without = refit(fit, flat)
        if without is not None and log_squares(without) - squares <= by_chance:
            found.append(
                f"the losses do not change with {axis} beyond their noise: its term is not measured"
            )
    return found


def _stages(fit: Fit) -> list[str]:
    """Report the misfit that fitting in stages causes, if an F test finds one."""
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


def _loose(fit: Fit) -> dict[str, str]:
    """Find the parameters whose linearized 95 % interval is too wide to mean anything, in words."""
    centered, found = _at_center(fit), {}
    have_units = _have_units(fit)
    widths = zip(fit.law.names, fit.theta, have_units, standard_errors(centered), strict=True)
    for name, value, has_units, (error, log_error) in widths:
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
            what = "its term at the grid's centre" if has_units else f"{value:.3g}"
            found[name] = f"{what} multiplied or divided {how_far} describes the grid about as well"
    return found


def _at_center(fit: Fit) -> Fit:
    """Convert the fit to N and U in units of the grid's centre; unchanged if the law has units."""
    points = fit.points
    Nc, Uc, _ = points.center
    with np.errstate(divide="ignore"):  # of a term that is 0
        free = tuple(fit.law.to_free(fit.theta, points))
    moved = replace(points, N=points.N / Nc, U=points.U / Uc)
    with np.errstate(all="ignore"):
        theta = tuple(float(value) for value in fit.law.from_free(free, moved))
        centered = replace(fit, points=moved, theta=theta)
        same = np.allclose(centered.residuals, fit.residuals, rtol=0, atol=1e-6 * points.center[2])
    return centered if same else fit


def _have_units(fit: Fit) -> list[bool]:
    """Tell which parameters change if N and U are counted in another unit."""
    points = fit.points
    with np.errstate(all="ignore"):
        free = tuple(fit.law.to_free(fit.theta, points))
        other = fit.law.from_free(free, replace(points, N=points.N * 3, U=points.U * 3))
    return [not np.isclose(a, b, rtol=1e-6, atol=0) for a, b in zip(other, fit.theta, strict=True)]


def standard_errors(fit: Fit) -> list[tuple[float, float]]:
    """Compute for each parameter the standard errors (of theta, of log theta) by linearization.

    The noise of log losses counts as at least NOISE_FLOOR.
    """
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
    """Compute d theta / d free by differences inside the box, (k, k)."""
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
        """Compute the root mean square residual (nats) on the held-out cells."""
        return float(np.sqrt(np.mean(self.residual**2)))

    @property
    def mae(self) -> float:
        """Compute the mean absolute residual (nats) on the held-out cells."""
        return float(np.mean(np.abs(self.residual)))


def hold_out(
    law: str, points: Points, out: Any, left_out: str, *, fitter: Callable[..., Fit] = fit_plain
) -> HeldOut:
    """Fit the law without the rows of the mask `out` (n,), and predict those rows.

    Raises ConfigError if nothing is held out or the remaining rows cannot carry the law.
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
    """Compute the residual of each cell, (n,) nats, predicted by the law fitted to all others."""
    each = np.eye(len(points.L), dtype=bool)
    return np.array([hold_out(law, points, row, "one cell").residual[0] for row in each])


def model_gap(points: Points, losses: Any = None) -> dict[float, dict[float, float]]:
    """Compute {U: {N: L(N, U) - L(N, largest U)}} in nats: constant in N under an additive law.

    N and U are in billions. `losses` (n,) replaces the observed losses, for a law's own gap.
    """
    L = points.L if losses is None else np.asarray(losses)
    largest = points.U.max()
    top = {float(N): loss for N, U, loss in zip(points.N, points.U, L, strict=True) if largest == U}
    gap: dict[float, dict[float, float]] = {}
    for N, U, loss in zip(points.N, points.U, L, strict=True):
        if largest != U and float(N) in top:
            gap.setdefault(float(U), {})[float(N)] = float(loss - top[float(N)])
    return gap
