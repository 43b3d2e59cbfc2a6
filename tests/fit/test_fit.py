"""Fits against an independent optimizer, planted truths and changes that must not matter."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy.optimize import least_squares

from dcray import plugins
from dcray.errors import ConfigError
from dcray.fit import batched
from dcray.fit.curve import curves, fit_curve
from dcray.fit.fit import fit, fit_plain, law_log_loss
from dcray.fit.grid import grid_of
from dcray.fit.paper import published
from dcray.fit.uncertainty.diagnose import hold_out, leave_one_out, model_gap
from tests.fit.planted import planted, random_theta

NAMES = plugins.names("laws")
ADAPTED = ("chinchilla", "muennighoff", "quanta", "softq")  # laws without constants of one scale


@pytest.fixture(scope="module")
def dclm():
    return grid_of(published.rows("dclm_ar"), "ar").points


@pytest.fixture(scope="module")
def kim():
    return grid_of(published.rows("kim_ar"), "ar").points


@pytest.mark.parametrize("name", ["chinchilla", "quanta", "softq", "muennighoff_c4"])
def test_an_independent_optimizer_finds_nothing_better(name, dclm):
    found = fit(name, dclm)
    law = found.law
    low, high = (np.array(side) for side in law.box(dclm))

    def residuals(free):
        return np.log(law(law.from_free(free, dclm), dclm.N, dclm.U, **dclm.more) / dclm.L) / 1e-3

    begin = np.clip(law.to_free(found.theta, dclm), low, high)
    for jump in (0.0, 0.02):
        other = least_squares(
            residuals, np.clip(begin + jump, low, high), bounds=(low, high), loss="huber",
            xtol=1e-14, ftol=1e-14, gtol=1e-14, max_nfev=2000,
        )  # fmt: skip
        assert other.cost >= found.cost * (1 - 1e-7)


@pytest.mark.parametrize("name", ["chinchilla", "quanta", "softq", "muennighoff_c4"])
def test_noise_free_grids_come_back(name):
    random = np.random.default_rng(1)
    for _ in range(20):
        assert fit_plain(name, planted(name, random_theta(name, random))).rmse <= 1e-4


def test_noise_free_muennighoff_grids_come_back_at_once_and_not_in_stages():
    random, law = np.random.default_rng(2), plugins.load("laws", "muennighoff", at_once=True)
    grids = [planted("muennighoff", random_theta("muennighoff", random)) for _ in range(10)]
    assert all(fit_plain(law, points).rmse <= 1e-4 for points in grids)
    assert any(fit_plain("muennighoff", points).rmse > 1e-3 for points in grids)


def test_the_first_stage_is_chinchillas_whatever_its_optimal_size():
    """At 6e-14 billion parameters, as the first theta has it, a large finite R_N still saturates:
    a stage that holds it there is not Chinchilla's law, and has an optimum of its own.
    """
    law, base = plugins.load("laws", "muennighoff"), plugins.load("laws", "chinchilla")
    neutral = law.neutral()
    N, U = 10.0 ** np.arange(-2, 2), 10.0 ** np.arange(-3.0, 1)
    for theta in ((0.0, 1.56455, 0.05574, 0.55197, 0.36655), (1.0, 1e-9, 0.01, 2.0, 9.0)):
        plain = base(theta, N, U)
        held = law((*theta, neutral["R_N"], neutral["R_D"]), N, U, num_epochs=64.0)
        np.testing.assert_allclose(held, plain, rtol=1e-10)
    random = np.random.default_rng(12)
    for _ in range(20):
        points = planted("muennighoff", random_theta("muennighoff", random), random, 0.003)
        ours, alone = fit_plain("muennighoff", points), fit_plain("chinchilla", points)
        first = base(ours.theta[:5], points.N, points.U)
        expected = alone.predict(points.N, points.U)
        np.testing.assert_allclose(first, expected, rtol=1e-7)


def test_starts_that_have_met_go_on_as_one(dclm):
    """Against each start on its own: the same optimum, to the last digit that counts."""
    law = plugins.load("laws", "softq")
    starts = np.array([law.to_free(theta, dclm) for theta in law.starts(dclm)])
    low, high = (np.array(side) for side in law.box(dclm))
    observed, weight = np.tile(np.log(dclm.L), (8, 1)), np.ones((8, 20))
    problem = batched.Problem(
        law_log_loss(np, law, dclm), observed, weight, low, high, list(range(5))
    )
    met = batched.solve(np, problem, starts, num_starts=8)
    alone = batched.solve(np, problem, starts)
    np.testing.assert_allclose(met.cost, alone.cost, rtol=1e-9)
    assert met.converged.all()


def swinging():
    """Grids on which undamped steps overshoot for ever: of 1,000 planted, these did."""
    random = np.random.default_rng(12)
    for number in range(700):
        points = planted("muennighoff", random_theta("muennighoff", random), random, 0.003)
        if number in (144, 196, 341, 447, 605, 632):
            yield points


def test_steps_that_overshoot_are_damped_until_they_settle():
    for points in swinging():
        found = fit_plain("muennighoff", points)
        order = np.random.default_rng(0).permutation(20)
        shuffled = fit_plain("muennighoff", points.take(order))
        assert found.converged
        assert shuffled.converged
        np.testing.assert_allclose(shuffled.residuals, found.residuals[order], atol=1e-8)


def test_fitting_in_stages_says_what_it_costs(dclm):
    """On the paper's grid three times the RMSE (0.0233 printed, seven parameters at once 0.0075);
    in a Chinchilla world, which the first stage describes wholly, nothing.
    """
    (flag,) = (flag for flag in fit("muennighoff", dclm).flags if "in stages" in flag)
    assert "0.0233 nats, all at once 0.0075" in flag
    assert "half of the resamples are fitted all at once" in flag
    random = np.random.default_rng(4)
    plain = planted("chinchilla", random_theta("chinchilla", random))
    noisy = planted("chinchilla", random_theta("chinchilla", random), random, 0.003)
    for points in (plain, noisy):
        assert not [flag for flag in fit("muennighoff", points).flags if "in stages" in flag]
    for name in ("softq", "muennighoff_c4"):
        assert not [flag for flag in fit(name, dclm).flags if "in stages" in flag]


@pytest.mark.parametrize("name", NAMES)
def test_row_order_changes_no_prediction(name, dclm):
    order = np.random.default_rng(3).permutation(len(dclm.L))
    first, second = fit_plain(name, dclm), fit_plain(name, dclm.take(order))
    ours = first.predict(dclm.N, dclm.U, **dclm.more)
    np.testing.assert_allclose(second.predict(dclm.N, dclm.U, **dclm.more), ours, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ADAPTED)
@pytest.mark.parametrize(
    ("by_N", "by_U", "by_L"), [(1e3, 1.0, 1.0), (1e9, 1e9, 1.0), (1.0, 1e-3, 1 / np.log(2))]
)
def test_units_change_no_prediction(name, by_N, by_U, by_L, dclm):
    other = dataclasses.replace(dclm, N=dclm.N * by_N, U=dclm.U * by_U, L=dclm.L * by_L)
    ours = fit_plain(name, dclm).predict(dclm.N, dclm.U, **dclm.more)
    theirs = fit_plain(name, other).predict(other.N, other.U, **other.more) / by_L
    np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_scaling_the_objective_changes_no_prediction(name, factor, dclm):
    scaled = dataclasses.replace(dclm, weight=np.full(len(dclm.L), factor))
    ours = fit_plain(name, dclm).predict(dclm.N, dclm.U, **dclm.more)
    theirs = fit_plain(name, scaled).predict(dclm.N, dclm.U, **dclm.more)
    np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-9)


def test_the_objective_is_hubers(dclm):
    """Against the definition, written out cell by cell."""
    found = fit_plain("softq", dclm)
    total = 0.0
    for residual in np.log(found.predict(dclm.N, dclm.U) / dclm.L):
        size = abs(residual)
        total += size**2 / 2 if size <= 1e-3 else 1e-3 * (size - 1e-3 / 2)
    assert found.cost * batched.DELTA**2 == pytest.approx(total, rel=1e-10)


def test_a_cell_of_weight_two_counts_like_two_cells(dclm):
    doubled = dclm.take(np.array([0, *range(len(dclm.L))]))
    weight = np.ones(len(dclm.L))
    weight[0] = 2.0
    weighted = fit_plain("softq", dataclasses.replace(dclm, weight=weight))
    ours = weighted.predict(dclm.N, dclm.U)
    np.testing.assert_allclose(fit_plain("softq", doubled).predict(dclm.N, dclm.U), ours, atol=1e-7)


def test_all_starts_agree_on_the_papers_grid(dclm):
    for name in NAMES:
        found = fit(name, dclm)
        assert found.converged
        assert found.num_starts >= 6
        assert found.agreeing_frac == 1.0


def test_what_the_papers_grid_does_not_identify(dclm, kim):
    softq = fit("softq", dclm)
    assert {"E", "A", "B"} <= set(softq.not_identified)
    assert "rho" not in softq.not_identified
    assert "saturated" in fit("muennighoff", dclm).not_identified["R_D"]
    assert "no finite optimum" in fit("muennighoff_c4", kim).not_identified["R_N"]
    assert any("at its bound" in flag for flag in fit("muennighoff_c4", kim).flags)


@pytest.mark.parametrize("name", ["quanta", "softq"])
def test_held_out_laws_sit_at_no_irreducible_loss(name, dclm):
    found = fit(name, dclm.take(dclm.U < 0.35))
    assert found.theta[0] <= 1e-6
    assert any(flag.startswith("E is at its bound 0") for flag in found.flags)


def test_four_epochs_do_not_identify_the_worth_of_repetition():
    random = np.random.default_rng(4)
    theta = (1.9, 0.35, 0.45, 0.9, 0.35, 5.3, 15.4)
    for epochs in (np.full(20, 4.0), np.tile([4.0, 4.0, 2.0, 1.0], 5)):
        points = planted("muennighoff", theta)
        law = plugins.load("laws", "muennighoff")
        losses = law(theta, points.N, points.U, num_epochs=epochs) * np.exp(
            0.003 * random.standard_normal(20)
        )
        points = dataclasses.replace(points, L=losses, more={"num_epochs": epochs})
        for fitted in (
            fit("muennighoff", points),
            fit(plugins.load("laws", "muennighoff", at_once=True), points),
        ):
            assert "R_D" in fitted.not_identified
            assert any(flag.startswith("R_D is not identified") for flag in fitted.flags)


def test_a_law_that_fails_says_so():
    """Losses that fall faster with each doubling of the data are no power law."""
    N, U = (a.ravel() for a in np.meshgrid([59_616, 225_824, 430_848], [8e3, 16e3, 32e3]))
    losses = np.array([5.523, 5.112, 4.996, 4.865, 4.653, 4.644, 4.063, 3.891, 3.866])
    from dcray.laws._law import Points

    found = fit("softq", Points(N / 1e9, U / 1e9, losses.reshape(3, 3).ravel()))
    assert any("does not describe this grid" in flag for flag in found.flags)


def test_losses_that_do_not_change_with_size_are_flagged():
    points = planted("chinchilla", (2.0, 1e-9, 0.5, 0.5, 0.3))
    assert any("do not change with num_params" in flag for flag in fit("chinchilla", points).flags)


def test_a_curve_through_mirs_printed_row_gives_the_printed_constants():
    points = grid_of(published.rows("dclm_mir"), "mir").points
    A, alpha, E = published.figures()["mir_param_fits"]["100m"]
    found = curves(points)[0.1].theta
    assert found == pytest.approx((E, A, alpha), abs=1e-4)


def test_a_curve_of_three_sizes_says_that_it_has_no_error_bar(dclm):
    three = dclm.take((dclm.U == 0.1) & (dclm.N < 0.5))
    assert "without an error bar" in fit_curve(three).flags[0]
    with pytest.raises(ConfigError, match="at least three"):
        fit_curve(dclm.take((dclm.U == 0.1) & (dclm.N < 0.2)))


def test_leave_one_out_is_a_fit_without_that_cell(dclm):
    residuals = leave_one_out("quanta", dclm)
    rest = np.arange(len(dclm.L)) != 7
    alone = fit_plain("quanta", dclm.take(rest))
    expected = alone.predict(dclm.N[7], dclm.U[7]) - dclm.L[7]
    assert residuals[7] == pytest.approx(expected, abs=1e-9)


def test_holding_out_by_size(dclm):
    held = hold_out("softq", dclm, dclm.N > 1, "num_params=1.4b")
    assert len(held.residual) == 4
    assert held.rmse == pytest.approx(np.sqrt(np.mean(held.residual**2)))
    with pytest.raises(ConfigError, match="cannot be held out"):
        hold_out("softq", dclm, dclm.N > 5, "num_params=5b")


def test_the_model_gap_fans_out_in_the_data_and_not_under_chinchilla(dclm):
    observed = list(model_gap(dclm)[0.1].values())
    assert observed[-1] > observed[0] + 0.1
    chinchilla = fit("chinchilla", dclm)
    flat = list(model_gap(dclm, chinchilla.predict(dclm.N, dclm.U))[0.1].values())
    np.testing.assert_allclose(flat, flat[0], rtol=1e-9)
