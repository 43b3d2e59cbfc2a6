"""Resampling: the draws, the known spread on the paper's grid, and what has no interval."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from dcray import plugins
from dcray.errors import ConfigError
from dcray.fit import published
from dcray.fit.bootstrap import cell_weights, interval, resample, seed_draws
from dcray.fit.fit import fit, fit_plain
from dcray.fit.grid import grid_of
from tests.fit.planted import planted, random_theta

NAMES = plugins.names("laws")


@pytest.fixture(scope="module")
def dclm():
    return grid_of(published.rows("dclm_ar"), "ar").points


def test_each_draw_has_all_cells_in_number_and_enough_in_kind(dclm):
    counts = cell_weights(dclm, 500, min_cells=6)
    assert counts.shape == (500, 20)
    assert (counts.sum(-1) == 20).all()
    assert ((counts > 0).sum(-1) >= 6).all()
    assert np.ptp(counts.mean(0)) < 0.25  # every cell once on average
    np.testing.assert_array_equal(counts, cell_weights(dclm, 500, min_cells=6))
    assert (counts != cell_weights(dclm, 500, min_cells=6, seed=1)).any()


def test_a_grid_too_small_to_resample_is_refused(dclm):
    with pytest.raises(ConfigError, match="too few to resample"):
        cell_weights(dclm.take(np.arange(6)), 100, min_cells=6)


@pytest.mark.parametrize("name", NAMES)
def test_a_batched_resample_is_the_fit_of_its_rows(name, dclm):
    """Brute force: the rows repeated as drawn and fitted one by one, from all starts; in turn in
    stages and all at once, where the law has stages.
    """
    whole = fit(name, dclm)
    counts = cell_weights(dclm, 6, len(whole.theta) + 1, seed=2)
    drawn = resample(whole, counts)
    ways = [whole.law, whole.law.whole() or whole.law]
    for number, (count, theta) in enumerate(zip(counts, drawn.theta.T, strict=True)):
        rows = np.repeat(np.arange(20), count.astype(int))
        alone = fit_plain(ways[number % 2], dclm.take(rows))
        weighted = dataclasses.replace(whole, theta=tuple(theta), points=dclm.take(rows))
        size = np.abs(np.log(1 + weighted.residuals / weighted.points.L)) / 1e-3
        assert np.where(size <= 1, size**2 / 2, size - 0.5).sum() <= alone.cost * (1 + 1e-6) + 1e-6


def test_known_spread_on_the_papers_grid(dclm):
    """E runs from 0 to 1.42: it is not identified, and has no interval."""
    drawn = resample(fit("softq", dclm), cell_weights(dclm, 1000, 6))
    low, high = interval(drawn.theta[0])
    assert low == pytest.approx(0.0, abs=1e-6)
    assert high == pytest.approx(1.42, abs=0.1)
    assert drawn.parameters()["E"] is None
    low, high = drawn.parameters()["rho"]
    assert low < 0.796 < high


@pytest.mark.parametrize("at_once", [False, True])
def test_no_parameter_has_an_interval_of_no_width(at_once):
    points = planted("muennighoff", (1.9, 0.35, 0.45, 0.9, 0.35, 5.3, 15.4))
    points = dataclasses.replace(points, more={"num_epochs": np.full(20, 4.0)})
    law = plugins.load("laws", "muennighoff", at_once=at_once)
    losses = law((1.9, 0.35, 0.45, 0.9, 0.35, 5.3, 15.4), points.N, points.U, **points.more)
    random = np.random.default_rng(0)
    points = dataclasses.replace(points, L=losses * np.exp(0.003 * random.standard_normal(20)))
    drawn = resample(fit(law, points), cell_weights(points, 100, 8))
    intervals = drawn.parameters()
    assert intervals["R_D"] is None
    assert all(high > low for low, high in filter(None, intervals.values()))


def test_seeds_are_drawn_within_their_cell():
    losses = [[3.0, 3.1, 3.2], [2.5]]
    drawn = seed_draws(losses, 20000)
    assert (drawn[:, 1] == 2.5).all()
    assert drawn[:, 0].mean() == pytest.approx(3.1, abs=2e-3)
    assert drawn[:, 0].std() == pytest.approx(0.1 / np.sqrt(3), rel=0.03)  # sd of a mean of three


def test_more_noise_gives_wider_bands():
    widths = []
    for noise in (0.001, 0.01):
        random = np.random.default_rng(5)
        points = planted("softq", random_theta("softq", random), random, noise)
        drawn = resample(fit("softq", points), cell_weights(points, 100, 6))
        low, high = np.quantile(drawn.predict(points.N, points.U), (0.025, 0.975), axis=0)
        widths.append((high - low).mean())
    assert widths[1] > 3 * widths[0]


def test_a_band_of_a_law_in_stages_holds_both_ways_of_fitting_it(dclm):
    """On the paper's grid they differ by more than resampling one of them shows."""
    staged = fit("muennighoff", dclm)
    at_once = fit_plain(staged.law.whole(), dclm)
    counts = cell_weights(dclm, 200, 8)
    low, high = np.quantile(
        resample(staged, counts).predict(dclm.N, dclm.U, **dclm.more), (0.025, 0.975), axis=0
    )
    one, other = (f.predict(dclm.N, dclm.U, **dclm.more) for f in (staged, at_once))
    assert ((low <= one) & (one <= high)).all()
    assert ((low <= other) & (other <= high)).all()
    alone = resample(staged, counts).theta[:, ::2]
    only = staged.law([p[:, None] for p in alone], dclm.N, dclm.U, **dclm.more)
    outside = (np.quantile(only, 0.025, axis=0) > other) | (
        np.quantile(only, 0.975, axis=0) < other
    )
    assert outside.sum() >= 2
    assert resample(staged, counts[:1]).theta.shape == (7, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_bands_cover_the_true_loss(name):
    """60 planted grids, noise 0.3 %; the benchmark does 400."""
    random, law = np.random.default_rng(6), plugins.load("laws", name)
    covered = []
    for seed in range(60):
        theta = random_theta(name, random)
        truth, points = planted(name, theta), planted(name, theta, random, 0.003)
        drawn = resample(
            fit_plain(name, points), cell_weights(points, 300, len(law.names) + 1, seed)
        )
        low, high = np.quantile(
            drawn.predict(points.N, points.U, **points.more), (0.025, 0.975), axis=0
        )
        covered.append((low <= truth.L) & (high >= truth.L))
    assert 0.90 <= np.mean(covered) <= 0.98
