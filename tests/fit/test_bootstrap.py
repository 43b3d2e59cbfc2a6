"""Resampling: the draws, the known spread on the paper's grid, and what has no interval."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from dcray import plugins
from dcray.fit.fit import fit, fit_plain
from dcray.fit.grid import grid_of
from dcray.fit.paper import published
from dcray.fit.uncertainty.bootstrap import drawn_noise, interval, refit, resample
from tests.bench.bench_fits import of_truth
from tests.fit.planted import planted, random_theta, rows_drawn, with_seeds

NAMES = plugins.names("laws")


@pytest.fixture(scope="module")
def dclm():
    return grid_of(published.rows("dclm_ar"), "ar").points


@pytest.mark.parametrize("name", NAMES)
def test_a_batched_refit_is_the_fit_of_its_rows(name, dclm):
    """Brute force: the rows repeated as drawn and fitted one by one, from all starts."""
    staged = fit(name, dclm)
    ways = [staged] + [fit_plain(whole, dclm) for whole in [staged.law.whole()] if whole]
    for way in ways:
        counts = rows_drawn(dclm, 6 // len(ways), len(way.theta) + 1, seed=2)
        logs = np.broadcast_to(np.log(dclm.L), counts.shape)
        for count, theta in zip(counts, refit(way, logs, counts).T, strict=True):
            rows = np.repeat(np.arange(20), count.astype(int))
            alone = fit_plain(way.law, dclm.take(rows))
            weighted = dataclasses.replace(way, theta=tuple(theta), points=dclm.take(rows))
            size = np.abs(np.log(1 + weighted.residuals / weighted.points.L)) / 1e-3
            cost = np.where(size <= 1, size**2 / 2, size - 0.5).sum()
            assert cost <= alone.cost * (1 + 1e-6) + 1e-6


def test_known_spread_of_drawn_rows_on_the_papers_grid(dclm):
    """E runs from 0 to 1.42: it is not identified, and has no interval."""
    softq = fit("softq", dclm)
    counts = rows_drawn(dclm, 1000, 6)
    theta = refit(softq, np.broadcast_to(np.log(dclm.L), counts.shape), counts)
    low, high = interval(theta[0])
    assert low == pytest.approx(0.0, abs=1e-6)
    assert high == pytest.approx(1.42, abs=0.1)
    drawn = resample(softq, 200)
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
    drawn = resample(fit(law, points), 100)
    intervals = drawn.parameters()
    assert intervals["R_D"] is None
    assert all(high > low for low, high in filter(None, intervals.values()))


@pytest.mark.parametrize("num_seeds", [1, 3, 5])
def test_drawn_noise_is_as_large_as_that_of_the_cells_means(num_seeds):
    """Runs differ by 0.3 %, so means of s seeds by 0.3 % / sqrt(s): counted once, whatever s."""
    random, theta = np.random.default_rng(8), (2.0, 0.15, 0.25, 0.55, 0.4)
    truth, widths = planted("chinchilla", theta), []
    for seed in range(25):
        losses = with_seeds(truth, num_seeds, random, 0.003)
        means = dataclasses.replace(truth, L=np.mean(losses, axis=-1))
        drawn = drawn_noise(fit_plain("chinchilla", means), 400, np.random.default_rng(seed))
        assert drawn.shape == (400, 20)
        low, high = np.quantile(drawn, (0.025, 0.975))
        widths.append((high - low) / (2 * 1.96 * 0.003 / np.sqrt(num_seeds)))
    assert 0.9 <= np.mean(widths) <= 1.2


def test_drawn_noise_does_not_crowd_around_the_curve():
    """The Huber loss meets some k of n cells all but exactly; the noise of cells knows no such.

    Of normal noise 0.080 lies within a tenth of its size; of t noise (15 residuals) 0.078.
    """
    random, close = np.random.default_rng(10), {"residuals": [], "noise": []}
    for _ in range(25):
        points = planted("softq", random_theta("softq", random), random, 0.003)
        softq = fit_plain("softq", points)
        noise = drawn_noise(softq, 50, random)
        for what, values in (("residuals", softq.residuals / points.L), ("noise", noise)):
            close[what].append(np.mean(np.abs(values) < 0.1 * noise.std()))
    assert np.mean(close["residuals"]) > 0.15
    assert np.mean(close["noise"]) == pytest.approx(0.079, abs=0.01)


def test_a_cell_of_more_seeds_has_less_noise():
    """Weights say how many seeds a cell has: of four its noise is half that of one."""
    random, theta = np.random.default_rng(9), (2.0, 0.15, 0.25, 0.55, 0.4)
    weight = np.where(np.arange(20) % 2, 4.0, 1.0)
    truth = planted("chinchilla", theta)
    noise = 0.003 * random.standard_normal(20) / np.sqrt(weight)
    points = dataclasses.replace(truth, L=truth.L * np.exp(noise), weight=weight / weight.mean())
    size = drawn_noise(fit_plain("chinchilla", points), 4000, random).std(axis=0)
    assert size[::2].mean() / size[1::2].mean() == pytest.approx(2, rel=0.05)


def test_recipes_on_the_same_cells_keep_what_they_have_in_common(dclm):
    """Half of the noise is shared: the residuals' own correlation comes back in the draws."""
    random, common = np.random.default_rng(3), np.random.default_rng(2).standard_normal(20)
    fits = [
        fit_plain("softq", dataclasses.replace(dclm, L=dclm.L * np.exp(0.003 * noise)))
        for noise in common + random.standard_normal((2, 20))
    ]
    first, second = (np.log1p(one.residuals / dclm.L) for one in fits)
    cosine = first @ second / np.sqrt(first @ first * (second @ second))
    draws = [drawn_noise(one, 2000, np.random.default_rng(0)).ravel() for one in fits]
    assert np.corrcoef(draws)[0, 1] == pytest.approx(cosine, abs=0.02)
    apart = drawn_noise(fits[1], 2000, np.random.default_rng(1)).ravel()
    assert abs(np.corrcoef(draws[0], apart)[0, 1]) < 0.02


def test_more_noise_gives_wider_bands():
    widths = []
    for noise in (0.001, 0.01):
        random = np.random.default_rng(5)
        points = planted("softq", random_theta("softq", random), random, noise)
        drawn = resample(fit("softq", points), 100)
        low, high = np.quantile(drawn.predict(points.N, points.U), (0.025, 0.975), axis=0)
        widths.append((high - low).mean())
    assert widths[1] > 3 * widths[0]


def test_a_band_of_a_law_in_stages_holds_both_ways_of_fitting_it(dclm):
    """On the paper's grid they differ by more than resampling one of them shows."""
    staged = fit("muennighoff", dclm)
    at_once = fit_plain(staged.law.whole(), dclm)
    drawn = resample(staged, 200)
    low, high = np.quantile(drawn.predict(dclm.N, dclm.U, **dclm.more), (0.025, 0.975), axis=0)
    one, other = (f.predict(dclm.N, dclm.U, **dclm.more) for f in (staged, at_once))
    assert ((low <= one) & (one <= high)).all()
    assert ((low <= other) & (other <= high)).all()
    alone = drawn.theta[:, ::2]
    only = staged.law([p[:, None] for p in alone], dclm.N, dclm.U, **dclm.more)
    outside = (np.quantile(only, 0.025, axis=0) > other) | (
        np.quantile(only, 0.975, axis=0) < other
    )
    assert outside.sum() >= 2
    assert resample(staged, 1).theta.shape == (7, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_bands_cover_the_true_loss(name):
    """30 planted grids, noise 0.3 %; the benchmark does more, with several seeds and worth."""
    random, covered = np.random.default_rng(6), []
    for seed in range(12 if name == "muennighoff" else 30):  # its fit takes eight times as long
        theta = random_theta(name, random)
        truth, points = planted(name, theta), planted(name, theta, random, 0.003)
        drawn = resample(fit_plain(name, points), 100, seed)
        low, high = np.quantile(
            drawn.predict(points.N, points.U, **points.more), (0.025, 0.975), axis=0
        )
        covered.append((low <= truth.L) & (high >= truth.L))
    assert 0.90 <= np.mean(covered) <= 0.98


@pytest.mark.slow
@pytest.mark.parametrize("name", ["chinchilla", "softq"])
def test_intervals_hold_what_a_recipe_is_worth(name):
    """4 truths x 15 grids with one seed a cell, worth 1.15, by finite and by infinite models."""
    law, random, figures = plugins.load("laws", name), np.random.default_rng(10), {}
    for theta in [random_theta(name, random) for _ in range(4)]:
        for what, figure in of_truth(law, name, theta, 1, 15, 100, random):
            figures.setdefault(what, []).append(figure)
    for what, each in figures.items():
        held, width = np.mean(each, axis=0)
        assert 0.90 <= held <= 0.98, what
        assert 0.8 <= width <= 1.2, what
