"""The interval over pairs: closed forms, incomplete tables, and what it speaks of."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.stats import t

from dcray.fit.grid import Row
from dcray.fit.uncertainty.paired import half_width, paired
from tests.fit.planted import differences


def labels(num_cells, num_seeds):
    return zip(*itertools.product(range(num_cells), range(num_seeds)), strict=True)


def test_cells_as_draws_are_as_many_draws_as_there_are_cells():
    """Differences that vary between cells alone: t of five cells, however many seeds."""
    cells, seeds = labels(5, 5)
    of_cell = np.array([-0.03, 0.01, -0.06, -0.02, -0.05])
    half = half_width(of_cell[list(cells)], cells, seeds)
    assert half == pytest.approx(t.ppf(0.975, 4) * of_cell.std(ddof=1) / np.sqrt(5))
    by_seed = half_width(of_cell[list(seeds)], cells, seeds)
    assert by_seed == pytest.approx(half)


def test_both_factors_by_the_textbooks_mean_squares():
    """A complete table: (MS_cells + MS_seeds - MS_rest) / n, each part by its own quantile."""
    cells, seeds = labels(4, 3)
    table = np.add.outer([0.0, 0.3, 0.5, 0.9], [0.0, 0.4, 1.1])
    table += 0.05 * np.array([[1, -1, 0], [0, 1, -1], [-1, 0, 1], [0, 0, 0]])
    across, down = table.mean(1), table.mean(0)
    rest = table - across[:, None] - down + table.mean()
    squares = 3 * across.var(ddof=1), 4 * down.var(ddof=1), (rest**2).sum() / 6
    parts = np.array([squares[0] - squares[2], squares[1] - squares[2], squares[2]]) / 12
    quantile = parts @ t.ppf(0.975, [3, 2, 6]) / parts.sum()
    half = half_width(table.ravel(), cells, seeds)
    assert half == pytest.approx(quantile * np.sqrt(parts.sum()))


def test_independent_noise_alone_is_as_many_draws_as_pairs():
    """Neither factor varies more than noise: both are pooled with it."""
    cells, seeds = labels(2, 2)
    values = np.array([1.0, -1.0, -1.0, 1.0])
    half = half_width(values, cells, seeds)
    assert half == pytest.approx(t.ppf(0.975, 3) * values.std(ddof=1) / 2)


def test_an_incomplete_table_has_an_interval_of_the_same_kind():
    cells, seeds = (list(each) for each in labels(5, 5))
    of_cell = np.array([-0.03, 0.01, -0.06, -0.02, -0.05])
    whole = half_width(of_cell[cells], cells, seeds)
    kept = [i for i in range(25) if i not in (3, 11, 19)]
    some = half_width(of_cell[cells][kept], [cells[i] for i in kept], [seeds[i] for i in kept])
    assert some == pytest.approx(whole, rel=0.1)
    assert half_width(np.zeros(4), [0, 0, 1, 1], [0, 1, 0, 1]) == 0.0
    assert half_width(np.ones(1), [0], [0]) is None
    nested = half_width(np.array([1.0, 2.0, 3.0]), [0, 1, 2], [0, 1, 2])
    assert nested == pytest.approx(t.ppf(0.975, 2) / np.sqrt(3))


def rows_of(table):
    for (i, j), difference in np.ndenumerate(table):
        N = 10_000_000 * (i + 1)
        yield Row(N, 1_000_000, 3.0, recipe="ar", seed=j)
        yield Row(N, 1_000_000, 3.0 + difference, recipe="mir", seed=j)


@pytest.mark.parametrize(
    ("shape", "population", "sample"),
    [
        ((3, 2), "further cells and seeds", "6 pairs (3 cells, 2 seeds)"),
        ((3, 1), "further cells at this seed", "3 pairs (3 cells, 1 seed)"),
        ((1, 3), "further seeds in this cell", "3 pairs (1 cell, 3 seeds)"),
        ((1, 1), "", "1 pair"),
    ],
)
def test_an_interval_says_of_what_it_speaks(shape, population, sample):
    table = np.random.default_rng(0).standard_normal(shape) / 10
    whole = paired(list(rows_of(table)), "ar", "mir")[0]
    assert (whole.population, whole.sample) == (population, sample)
    assert whole.mean == pytest.approx(table.mean())


@pytest.mark.parametrize("num_seeds", [1, 3, 5])
@pytest.mark.parametrize("case", ["cells", "seeds", "both", "noise"])
def test_the_interval_holds_the_planted_mean(case, num_seeds):
    """300 planted tables of five cells; the benchmark has 4,000 of each kind."""
    random, held = np.random.default_rng(1), 0
    cells, seeds = labels(5, num_seeds)
    for _ in range(300):
        values, truth = differences(case, 5, num_seeds, random)
        held += abs(values.mean() - truth) <= half_width(values.ravel(), cells, seeds)
    assert 0.90 <= held / 300 <= 1.0
