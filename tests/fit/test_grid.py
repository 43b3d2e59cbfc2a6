"""Rows to grids: weights, seeds, epochs; and the two-core grid that the quickstart resembles."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dcray.errors import ConfigError
from dcray.fit import efficiency
from dcray.fit.fit import fit
from dcray.fit.grid import Row, check_rows, grid_of
from dcray.fit.paper import published
from dcray.fit.uncertainty.intervals import asymptote_draws
from dcray.laws._law import Points


def row(N, U, loss, **more):
    return Row(round(N * 1e6), round(U * 1e6), loss, **more)


def square():
    return [row(N, U, 4 - 0.1 * math.log(N) - 0.2 * math.log(U)) for N in (1, 2) for U in (1, 2)]


def test_cells_are_means_over_seeds_weighted_by_their_number():
    rows = [row(1, 1, loss, seed=seed) for seed, loss in enumerate((3.0, 3.2, 3.4))]
    rows += [row(N, U, 2.9 - 0.01 * N, seed=0) for N, U in ((1, 2), (2, 1), (2, 2))]
    grid = grid_of(rows, "all")
    assert grid.points.L[0] == pytest.approx(3.2)
    np.testing.assert_allclose(grid.points.weight, np.array([3, 1, 1, 1]) / 1.5)
    assert grid.seed_noise == pytest.approx(0.2)


def test_equal_numbers_of_seeds_leave_the_fit_unweighted():
    assert grid_of(square(), "all").points.weight is None
    assert grid_of(square(), "all").seed_noise is None


def test_epochs_are_kept_only_where_every_cell_has_them():
    assert "num_epochs" not in grid_of(square(), "all").points.more
    points = grid_of(published.rows("kim_ar"), "ar").points
    assert points.more["num_epochs"].shape == (16,)


def test_the_order_of_rows_does_not_matter():
    first, second = grid_of(square(), "all"), grid_of(square()[::-1], "all")
    np.testing.assert_array_equal(first.points.L, second.points.L)


def test_absurd_losses_name_their_cell():
    with pytest.raises(ConfigError, match="1m at 1m, recipe all: a loss of"):
        check_rows([row(1, 1, 1.797e308)])


AR = (4.865, 4.653, 4.644, 4.063, 3.891, 3.866, 3.549, 3.345, 3.315)
MIR = (4.864, 4.648, 4.629, 4.060, 3.869, 3.834, 3.523, 3.344, 3.292)


def mini(losses):
    N, U = (
        axis.ravel() for axis in np.meshgrid([59_616, 225_824, 430_848], [16_000, 32_000, 64_000])
    )
    return Points(N / 1e9, U / 1e9, np.array(losses))


def test_nine_cells_of_two_cpu_cores_carry_a_law():
    for losses in (AR, MIR):
        found = fit("softq", mini(losses))
        assert found.rmse <= 0.01
        assert found.agreeing_frac == 1.0
        assert not any("does not describe" in flag for flag in found.flags)


def test_there_mir_is_worth_little_and_the_curves_have_no_error_bar():
    base, other = fit("softq", mini(AR)), fit("softq", mini(MIR))
    ratios = [answer.data_efficiency for answer in efficiency.finite(base, other)]
    assert all(1.0 < ratio < 1.06 for ratio in ratios)
    assert asymptote_draws(base.points, other.points, 10) == ({}, {})
    for answer in efficiency.by_asymptote(base, other.points):
        assert "without an error bar" in answer.flags[0]
