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
    worth: float = 1.0,
) -> Points:
    """The law's losses on the paper's grid at `worth` times its data, times exp(noise * normal)."""
    law = plugins.load("laws", name)
    U, N = (axis.ravel() for axis in np.meshgrid(BUDGETS, SIZES, indexing="ij"))
    more = {"num_epochs": EPOCHS.ravel()}
    L = np.asarray(law(theta, N, worth * U, **more), float)
    if random is not None:
        L = L * np.exp(noise * random.standard_normal(L.shape))
    return Points(N, U, L, more)


def nine_cells(points: Points) -> Points:
    """Three of the sizes at three of the budgets."""
    return points.take(np.isin(points.N, SIZES[::2]) & np.isin(points.U, BUDGETS[[0, 1, 3]]))


def iso_flop(
    theta: tuple[float, ...],
    random: np.random.Generator,
    *,
    budgets: tuple[float, ...] = (6e18, 3e19, 1e20, 6e20),
    worth: float = 1.0,
    noise: float = 0.003,
) -> Points:
    """Chinchilla's losses at ten sizes for each budget of 6ND FLOPs: no two cells share a value."""
    shape = np.exp(random.uniform(-1.2, 1.2, (len(budgets), 10)))
    flops = np.array(budgets)[:, None]
    N = (shape * np.sqrt(flops / 6 / 20)).ravel() / 1e9
    U = (flops / 6 / 1e18 / N.reshape(shape.shape)).ravel()
    E, A, alpha, B, beta = theta
    L = E + A * N**-alpha + B * (worth * U) ** -beta
    return Points(N, U, L * np.exp(noise * random.standard_normal(L.shape)))


def with_seeds(
    truth: Points, num_seeds: int, random: np.random.Generator, noise: float
) -> list[list[float]]:
    """Losses of every cell's seeds, [cell][seed]: the truth's, times exp(noise * normal)."""
    shape = len(truth.L), num_seeds
    return (truth.L[:, None] * np.exp(noise * random.standard_normal(shape))).tolist()


def rows_drawn(points: Points, number: int, min_cells: int, seed: int = 0) -> np.ndarray:
    """How often each row is drawn, (number, n): at least min_cells rows, two sizes, two budgets."""
    random, n, found = np.random.default_rng(seed), len(points.L), []
    while len(found) < number:
        drawn = random.integers(n, size=n)
        kinds = len(set(drawn)), len(set(points.N[drawn])), len(set(points.U[drawn]))
        if kinds[0] >= min_cells and min(kinds[1:]) > 1:
            found.append(np.bincount(drawn, minlength=n))
    return np.array(found, float)


DEVIATIONS = {"cells": (1.0, 0.0, 0.3), "seeds": (0.0, 1.0, 0.3), "both": (1.0, 1.0, 0.3),
              "noise": (0.0, 0.0, 1.0)}  # fmt: skip


def differences(
    case: str, num_cells: int, num_seeds: int, random: np.random.Generator
) -> tuple[np.ndarray, float]:
    """Paired differences (cells, seeds) with effects of cells, seeds and single runs; their mean.

    With one seed the mean is that at this seed: nothing else can be told from it.
    """
    of_cells, of_seeds, of_runs = DEVIATIONS[case]
    shared = of_seeds * random.standard_normal((1, num_seeds))
    values = (
        of_cells * random.standard_normal((num_cells, 1))
        + shared
        + of_runs * random.standard_normal((num_cells, num_seeds))
    )
    return values, float(shared[0, 0]) if num_seeds == 1 else 0.0
