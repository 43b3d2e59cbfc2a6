"""Grids drawn from laws with known parameters: the paper's sizes and budgets."""

from __future__ import annotations

import numpy as np

from dcray import plugins
from dcray.laws._law import Points

SIZES = np.array([0.071965952, 0.14098368, 0.2571904, 0.66420096, 1.439273984])
BUDGETS = np.array([0.1, 0.2, 0.3, 0.4])
EPOCHS = np.array(
    [[32, 32, 16, 16, 16], [64, 32, 16, 16, 16], [64, 64, 32, 32, 32], [64, 64, 32, 32, 32]], float
)


def random_theta(name: str, random: np.random.Generator) -> tuple[float, ...]:
    """A plausible theta: loss near 3.2 at the centre, E 20 to 70 % of it, both terms alive."""
    law = plugins.load("laws", name)
    if name == "muennighoff_c4":
        return float(np.exp(random.uniform(1, 4))), float(np.exp(random.uniform(1, 3)))
    grid = Points(np.repeat(SIZES, 4), np.tile(BUDGETS, 5), np.full(20, 3.2))
    loss, share, ratio = (
        np.log(random.uniform(2.8, 3.6)),
        random.uniform(0.2, 0.7),
        random.uniform(-1, 1),
    )
    exponents = {
        "chinchilla": (random.uniform(0.3, 1.0), random.uniform(0.2, 0.6)),
        "quanta": (random.uniform(0.15, 0.6),),
        "softq": (random.uniform(0.15, 0.6), random.uniform(0.6, 2.0)),
        "muennighoff": (random.uniform(0.3, 1.0), random.uniform(0.2, 0.6)),
    }[name]
    free = (loss, share, ratio, *np.log(exponents))
    if name == "muennighoff":
        constants = np.exp(random.uniform(1, 4)), np.exp(random.uniform(1, 3))
        free = (*free, *(c / (1 + c) for c in constants))
    return tuple(float(v) for v in law.from_free(free, grid))


def planted(
    name: str,
    theta: tuple[float, ...],
    random: np.random.Generator | None = None,
    noise: float = 0.0,
) -> Points:
    """The law's losses on the paper's grid, times exp(noise * normal)."""
    law = plugins.load("laws", name)
    U, N = (axis.ravel() for axis in np.meshgrid(BUDGETS, SIZES, indexing="ij"))
    more = {"num_epochs": EPOCHS.ravel()}
    L = np.asarray(law(theta, N, U, **more), float)
    if random is not None:
        L = L * np.exp(noise * random.standard_normal(L.shape))
    return Points(N, U, L, more)
