"""The fit of a law to a grid of losses: theta, the quality of the fit, and the doubts about it.

The objective is the paper's (eq:app-approach3): sum over cells of Huber(1e-3) of log residuals,
here divided by delta**2 and minimized over decorrelated coordinates from several starts at once
(batched).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dcray import plugins
from dcray.errors import ConfigError
from dcray.fit import batched
from dcray.laws._law import Array, Law, Points

FAILS = "the law does not describe this grid"  # how the flag of a hopeless fit begins
NO_LIMIT = "alpha is not identified"  # how the flag begins if losses hardly fall with size
AGREE = 1e-6  # relative difference of the objective up to which two starts count as one optimum


@dataclass(frozen=True)
class Fit:
    """A fitted law. Losses in nats per token, N and U in billions.

    flags: sentences that say why not to rely on this fit; not_identified: parameters that the grid
    does not determine, each with the reason.
    """

    name: str
    law: Law
    points: Points
    theta: tuple[float, ...]
    cost: float
    num_starts: int
    agreeing_frac: float
    converged: bool
    flags: tuple[str, ...] = ()
    not_identified: Mapping[str, str] = field(default_factory=dict)

    def predict(self, N: Any, U: Any, **more: Any) -> Any:
        """Predict the loss (nats) at N billion parameters and U billion unique tokens."""
        return self.law(self.theta, N, U, **more)

    def limit(self, U: Any) -> Any:
        """Predict the loss (nats) with infinitely many parameters at U billion unique tokens."""
        return self.law.limit(self.theta, U)

    @property
    def describes(self) -> bool:
        """Tell whether the law describes its grid at all; if not, the fit gives no figures."""
        return not any(flag.startswith(FAILS) for flag in self.flags)

    @property
    def has_limit(self) -> bool:
        """Tell whether the grid identifies the law's limit of infinite models."""
        return not any(flag.startswith(NO_LIMIT) for flag in self.flags)

    @property
    def residuals(self) -> Array:
        """Compute predicted minus observed losses, (n,) nats."""
        points = self.points
        return np.asarray(self.predict(points.N, points.U, **points.more) - points.L)

    @property
    def rmse(self) -> float:
        """Compute the root mean square residual in nats."""
        return float(np.sqrt(np.mean(self.residuals**2)))

    @property
    def mae(self) -> float:
        """Compute the mean absolute residual in nats."""
        return float(np.mean(np.abs(self.residuals)))

    @property
    def aic(self) -> float:
        """Compute the paper's n log(RSS / n) + 2k on raw losses: a summary, not a likelihood."""
        with np.errstate(divide="ignore"):
            return float(len(self.points.L) * np.log(self.rmse**2) + 2 * len(self.theta))

    @property
    def aicc(self) -> float:
        """Compute AIC + 2k (k + 1) / (n - k - 1), corrected for few cells; infinite for n <= k + 1.

        k counts as in the paper's AIC, without the noise. If the noise counted, nine cells would
        select a law of four parameters even if the truth has five (bench_fits, part laws).
        """
        k, left = len(self.theta), len(self.points.L) - len(self.theta) - 1
        return self.aic + 2 * k * (k + 1) / left if left > 0 else float("inf")


DRAW = 2.0  # difference of AICc below which the cells do not tell two laws apart


def ranked(fits: Mapping[str, Fit]) -> list[str]:
    """Sort the laws of one grid by AICc, the lowest first; without one, by number of parameters.

    Laws that read more points (every number of epochs of a cell) come last: no criterion compares
    fits to different data.
    """

    def place(law: str) -> tuple[float, ...]:
        one = fits[law]
        return len(one.points.L), one.aicc, len(one.theta), one.aic

    return sorted(fits, key=place)


def fit(law: str | Law, points: Points) -> Fit:
    """Fit the law `law` (a plug-in's name, or the law itself) to `points`, and add its flags.

    Raises ConfigError if the points cannot carry the law (`check_points`), or if the law gives no
    finite loss for them.
    """
    from dcray.fit.uncertainty.diagnose import diagnose

    plain = fit_plain(law, points)
    return diagnose(plain)


def fit_plain(law: str | Law, points: Points) -> Fit:
    """Fit as `fit` does, with the same errors, but without the flags."""
    name = law if isinstance(law, str) else type(law).__module__.rpartition(".")[2]
    law = plugins.load("laws", law) if isinstance(law, str) else law
    check_points(name, law, points)
    found = _fit_from_starts(name, law, points)
    if found is None:
        starts = len(law.starts(points))
        raise ConfigError(
            f"{name} gave no finite prediction for every cell from any of its {starts} "
            f"start{'s' * (starts > 1)}"
        )
    return found


def refit(fit: Fit, points: Points) -> Fit | None:
    """Fit the same law to other points, unchecked; None if it gives no finite loss there."""
    return _fit_from_starts(fit.name, fit.law, points)


def log_squares(fit: Fit) -> float:
    """Compute the weighted sum of squares of log predicted - log observed."""
    points = fit.points
    logs = np.log(points.L + fit.residuals) - np.log(points.L)
    return float((logs**2 * (1.0 if points.weight is None else points.weight)).sum())


def _fit_from_starts(name: str, law: Law, points: Points) -> Fit | None:
    starts = np.array([law.to_free(theta, points) for theta in law.starts(points)], float)
    weight = np.ones_like(points.L) if points.weight is None else points.weight
    found = fit_many(np, law, points, np.log(points.L)[None], weight[None], starts[None])
    if not np.isfinite(found.cost[0]):
        return None
    theta = law.from_free(tuple(found.free[0]), points)
    return Fit(
        name=name,
        law=law,
        points=points,
        theta=tuple(float(value) for value in theta),
        cost=float(found.cost[0]),
        num_starts=len(starts),
        agreeing_frac=float(found.agreeing_frac[0]),
        converged=bool(found.converged[0]),
    )


def check_points(name: str, law: Law, points: Points) -> None:
    """Raise ConfigError unless the points suffice for the law's parameters."""
    problems = [
        f"{name} reads {need}, which these results do not have"
        for need in law.needs
        if need not in points.more or not np.isfinite(points.more[need]).all()
    ]
    if (n := len(points.L)) <= len(law.names):
        problems.append(
            f"{name} has {len(law.names)} parameters, the grid only {n} cells: it takes at least "
            f"{len(law.names) + 1}, or the curve passes through all of them whatever they are"
        )
    for axis, values in (("model size", points.N), ("budget of unique tokens", points.U)):
        if len(np.unique(values)) < 2:
            problems.append(f"{name} needs at least two of each axis, there is one {axis} only")
    if problems:
        raise ConfigError(problems)


@dataclass
class Many:
    """The results of P fits at once: free (P, k), cost, agreeing_frac and converged (P,)."""

    free: Any
    cost: Any
    agreeing_frac: Any
    converged: Any


def fit_many(
    xp: Any,
    law: Law,
    points: Points,
    log_observed: Any,
    weight: Any,
    starts: Any,
    *,
    max_iterations: int = 1000,
) -> Many:
    """Fit P problems on the same cells, stage by stage, each from S starts; xp is numpy or torch.

    log_observed and weight are (P, n), starts (P, S, k) in the law's free coordinates on `points`.
    max_iterations: of each start, in each stage.
    """
    low, high = (xp.asarray(np.array(side, float)) for side in law.box(points))
    P, S, k = starts.shape
    free = xp.clip(starts.reshape(P * S, k), low, high)
    names, agree, converged = list(law.names), None, None
    still_to_fit, hold = set(names), _neutral_free(law, points)
    for stage in law.stages():
        still_to_fit -= set(stage)
        begin, floor, ceiling = free + 0, low + 0, high + 0
        for j in (names.index(name) for name in still_to_fit):
            begin[:, j], floor[j], ceiling[j] = hold[j], -np.inf, np.inf
        problem = batched.Problem(
            law_log_loss(xp, law, points), _repeat(log_observed, S), _repeat(weight, S),
            floor, ceiling, [names.index(name) for name in stage],
        )  # fmt: skip
        with np.errstate(all="ignore"):
            found = batched.solve(xp, problem, begin, num_starts=S, max_iterations=max_iterations)
        cost = found.cost.reshape(P, S)
        best = cost.argmin(-1)
        rows = xp.arange(P)
        lowest, winner = cost[rows, best], found.free.reshape(P, S, k)[rows, best]
        same = (cost <= (lowest * (1 + AGREE) + 1e-9)[:, None]).sum(-1) / S
        agree = same if agree is None else xp.minimum(agree, same)
        settled = found.converged.reshape(P, S)[rows, best]
        converged = settled if converged is None else converged & settled
        for name in stage:
            free[:, names.index(name)] = _repeat(winner[:, names.index(name)], S)
    return Many(free.reshape(P, S, k)[:, 0], lowest, agree, converged)


def law_log_loss(xp: Any, law: Law, points: Points) -> Any:
    """Build the function of free coordinates (..., k) that gives log losses (..., n), in `xp`."""
    N, U = xp.asarray(points.N), xp.asarray(points.U)
    more = {name: xp.asarray(value) for name, value in points.more.items()}

    def log_loss(free: Any) -> Any:
        theta = law.from_free(tuple(free[..., j, None] for j in range(free.shape[-1])), points)
        return xp.log(law(theta, N, U, **more))

    return log_loss


def _neutral_free(law: Law, points: Points) -> Any:
    """Compute the free coordinates at which the parameters of later stages have no effect."""
    theta = [
        law.neutral().get(name, value) for name, value in zip(law.names, law.example, strict=True)
    ]
    return law.to_free(theta, points) if law.neutral() else theta


def _repeat(values: Any, times: int) -> Any:
    """Repeat each row `times` times in a row."""
    rows = [i for i in range(len(values)) for _ in range(times)]
    return values[rows]
