"""Muennighoff with its published C4 constants: only the two repetition constants are fitted."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from dcray.laws._law import Law, Points, namespace

# From the law's own released code, unrounded (datablations README), there as logs for raw counts of
# parameters and tokens; rounded ones give the paper's grid RMSE 0.06002 instead of 0.06026.
ALPHA = BETA = 0.3526596
E_C4 = float(np.exp(0.6254804))
A_C4 = float(np.exp(6.255414) * 1e9**-ALPHA)
B_C4 = float(np.exp(7.3049974) * 1e9**-BETA)

# Bounds of both repetition constants; the paper prints 10**8 for "no finite optimum".
LEAST, MOST = 1e-6, 1e8
ENDLESS = 1e12  # a constant that no repetition exhausts: every one counts in full
TINY = 1e-200  # billions of parameters: an optimal size that float64 would round to nothing


def effective(resource: Any, repetitions: Any, constant: Any) -> Any:
    """Compute resource * (1 + constant * (1 - exp(-repetitions / constant))), the effective amount.

    If constant is at least ENDLESS / 10 the result is the limit resource * (1 + repetitions);
    otherwise the worth of a size that is a trillion times the optimal one would still saturate.
    """
    xp = namespace(repetitions, constant)
    worth = -constant * xp.expm1(-repetitions / constant)
    return resource * (1 + xp.where(constant + 0 * worth < ENDLESS / 10, worth, repetitions))


def optimal_size(base: Any, U: Any) -> Any:
    """Compute N_opt = (alpha A / (beta B))**(1/alpha) U**(beta/alpha) in billions.

    That is the size that U billion tokens can use.
    """
    _, A, alpha, B, beta = base
    size, data = alpha * A, beta * B
    with np.errstate(all="ignore"):  # slow exponents give sizes that only their logarithm can hold
        ratio = namespace(size).log(size) - namespace(data).log(data)
        log = (ratio + beta * namespace(U).log(U)) / alpha
        optimal = namespace(log).exp(log)
    return namespace(optimal).clip(optimal, TINY, None)


def predict(base: Any, R_N: Any, R_D: Any, N: Any, U: Any, num_epochs: Any) -> Any:
    """Compute E + A / N'**alpha + B / D'**beta of the base E, A, alpha, B, beta.

    By paper app:scaling-law-details U_N = min(N, optimal_size(U)); N' and D' are
    effective(U_N, N / U_N - 1, R_N) and effective(U, num_epochs - 1, R_D).
    """
    E, A, alpha, B, beta = base
    optimal = optimal_size(base, U)
    used = namespace(optimal, N).minimum(N, optimal)
    size = effective(used, N / used - 1, R_N)
    data = effective(U, num_epochs - 1, R_D)
    return E + A * size**-alpha + B * data**-beta


def saturated(base: Any, R_N: Any, R_D: Any, U: Any) -> Any:
    """Compute the limit of infinite N and repetitions: N' = (1 + R_N) N_opt, D' = (1 + R_D) U."""
    E, A, alpha, B, beta = base
    optimal = optimal_size(base, U)
    return E + A * ((1 + R_N) * optimal) ** -alpha + B * ((1 + R_D) * U) ** -beta


def repetition_caveats(R_N: float, R_D: float, num_epochs: Any) -> dict[str, str]:
    """Explain why R_D or R_N is not identified by runs of these epochs: {name: reason}."""
    found = {}
    most, least = float(np.max(num_epochs)) - 1, float(np.min(num_epochs)) - 1
    if most < R_D:
        found["R_D"] = (
            f"no run repeats its data more than {most:g} times, so where its worth runs "
            f"out (R_D = {R_D:.3g}) lies outside of what was seen"
        )
    elif least > 4 * R_D:
        found["R_D"] = (
            f"every run repeats its data at least {least:g} times, so the term is saturated "
            f"(R_D = {R_D:.3g}): epochs have no effect, R_D only rescales U"
        )
    if R_N > MOST / 10:
        found["R_N"] = "it has no finite optimum: parameters beyond the optimum count in full"
    return found


def to_unit(constant: Any) -> Any:
    """Compute R / (1 + R), finite and well scaled as R goes to infinity or to zero."""
    return constant / (1 + constant)


def from_unit(share: Any) -> Any:
    """Invert `to_unit`."""
    return share / (1 - share)


UNIT_BOX = (to_unit(LEAST), to_unit(MOST))
UNIT_STARTS = tuple(product((0.05, 10.0, 1000.0), (0.05, 1.0, 10.0)))  # (R_N, R_D)


class MuennighoffC4(Law):
    """L = E + A / N'**alpha + B / D'**beta with E, A, B, alpha, beta fixed to C4's; k = 2.

    Paper tab:app-muennighoff-fixed-c4, an ablation: another corpus and another loss scale.
    Limit: N and R_D to infinity.
    """

    names = ("R_N", "R_D")
    example = (5.31, 15.39)
    needs = ("num_epochs",)
    base = (E_C4, A_C4, ALPHA, B_C4, BETA)

    def __call__(self, theta: Any, N: Any, U: Any, *, num_epochs: Any = 1.0, **more: Any) -> Any:
        """Compute the loss by `predict`."""
        R_N, R_D = theta
        return predict(self.base, R_N, R_D, N, U, num_epochs)

    def limit(self, theta: Any, U: Any) -> Any:
        """Compute the limit by `saturated`."""
        R_N, R_D = theta
        return saturated(self.base, R_N, R_D, U)

    def starts(self, grid: Points) -> list[tuple[float, ...]]:
        """List pairs (R_N, R_D) from small to large constants."""
        return [*UNIT_STARTS]

    def bounds(self, grid: Points) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Keep both constants between 1e-6 and 1e8."""
        return (LEAST, LEAST), (MOST, MOST)

    def to_free(self, theta: Any, grid: Points) -> Any:
        """Compute R / (1 + R) of both constants."""
        return tuple(to_unit(constant) for constant in theta)

    def from_free(self, free: Any, grid: Points) -> Any:
        """Invert `to_free`."""
        return tuple(from_unit(share) for share in free)

    def box(self, grid: Points) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Convert `bounds` to R / (1 + R)."""
        return (UNIT_BOX[0],) * 2, (UNIT_BOX[1],) * 2

    def caveats(self, theta: Sequence[float], grid: Points) -> dict[str, str]:
        """Report an R_D outside the epochs that were run, and an R_N without a finite optimum."""
        return repetition_caveats(theta[0], theta[1], grid.more["num_epochs"])


PLUGIN = MuennighoffC4
