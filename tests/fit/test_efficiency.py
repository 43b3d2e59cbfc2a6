"""Equivalent unique data: closed forms, the published ratios, the nulls, and having no answer."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

import dcray
from dcray import plugins
from dcray.errors import ConfigError
from dcray.fit import efficiency
from dcray.fit.fit import fit
from dcray.fit.grid import Row, grid_of
from dcray.fit.paper import published
from dcray.fit.paper.only_runs import only_runs
from dcray.fit.paper.reproduce import counts, like_for_like, reproduce
from dcray.fit.uncertainty.bootstrap import refit, resample
from dcray.fit.uncertainty.intervals import asymptote_draws, with_intervals
from dcray.fit.uncertainty.paired import paired
from dcray.report import run_times
from tests.fit.planted import planted, rows_drawn

SPACES = Path(dcray.__file__).with_name("search_spaces")
NAMES = plugins.names("laws")


@pytest.fixture(scope="module")
def ar():
    return grid_of(published.rows("dclm_ar"), "ar").points


@pytest.fixture(scope="module")
def mir():
    return grid_of(published.rows("dclm_mir"), "mir").points


def test_inversion_against_a_closed_form():
    U = efficiency.invert(
        lambda tokens: 2.0 + 0.5 * tokens**-0.3, np.array([3.0, 2.5, 2.1]), 1e-9, 1e9
    )
    np.testing.assert_allclose(U, (np.array([1.0, 0.5, 0.1]) / 0.5) ** (-1 / 0.3), rtol=1e-12)


def test_inversion_without_an_answer():
    found = efficiency.invert(lambda U: 2.0 + U**-1.0, np.array([1.9, 1e9, np.nan]), 1e-6, 1e6)
    assert found[0] == np.inf
    assert found[1] == 0
    assert np.isnan(found[2])


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_worth_itself_by_joint_law_and_at_finite_size(name, ar):
    one = fit(name, ar)
    answers = efficiency.joint(one, one) + efficiency.finite(one, one)
    assert len(answers) == 8
    for answer in answers:
        assert answer.data_efficiency == pytest.approx(1, abs=1e-6)
        assert answer.null is None  # an identity is no evidence: it has to be drawn
        assert answer.status == "within"


def test_the_baseline_is_worth_more_than_itself_by_the_papers_method(ar):
    ratios = [a.data_efficiency for a in efficiency.by_asymptote(fit("softq", ar), ar)]
    assert ratios == pytest.approx([0.96, 1.28, 1.16, 1.13], abs=0.01)


def test_like_for_like_figures_of_mir_under_softq(ar, mir):
    lines = [line for line in like_for_like() if line["law"] == "softq"]
    columns = {key: [line[key] for line in lines] for key in lines[0]}
    assert columns["paper"] == pytest.approx([1.06, 1.34, 1.28, 1.29], abs=0.01)
    assert columns["like_for_like"] == pytest.approx([1.11, 1.05, 1.10, 1.14], abs=0.01)
    assert columns["joint"] == pytest.approx([1.14, 1.13, 1.13, 1.12], abs=0.01)
    assert columns["finite"] == pytest.approx([1.11, 1.10, 1.08, 1.07], abs=0.01)


def test_equivalent_tokens_of_the_printed_asymptotes(ar):
    softq = fit("softq", ar)
    worth = efficiency.by_limit(softq, [3.27997, 2.95596, 2.83953, 2.74826]) * 1e3
    np.testing.assert_allclose(worth, [106.4, 268.2, 384.5, 515.9], atol=0.2)


def test_a_planted_doubling_of_the_data_is_found_by_both_like_for_like_methods():
    theta = plugins.load("laws", "softq").example
    base = planted("softq", theta)
    law = plugins.load("laws", "softq")
    twice = dataclasses.replace(base, L=law(theta, base.N, 2 * base.U))
    first, second = fit("softq", base), fit("softq", twice)
    for answer in efficiency.joint(first, second) + efficiency.finite(first, second):
        assert answer.data_efficiency == pytest.approx(2, abs=1e-3)
        expected = "within" if answer.unique_tokens <= 2e8 else "beyond the grid"
        if abs(answer.unique_tokens - 2e8) > 1:  # there it lies on the edge
            assert answer.status == expected


def test_below_the_baselines_irreducible_loss_there_is_no_answer():
    base = planted("chinchilla", (2.5, 0.13, 0.5, 0.5, 0.3))
    better = planted("chinchilla", (1.5, 0.13, 0.5, 0.5, 0.3))
    answers = efficiency.joint(fit("chinchilla", base), fit("chinchilla", better))
    assert {answer.status for answer in answers} == {"none"}
    assert all(a.data_efficiency is None and a.like_for_like is None for a in answers)


def test_intervals_hold_the_figure_and_carry_the_recipes_own_uncertainty(ar, mir):
    baseline, recipe = fit("softq", ar), fit("softq", mir)
    first, second = resample(baseline, 200), resample(recipe, 200)
    answers = efficiency.joint(baseline, recipe) + efficiency.by_asymptote(baseline, mir)
    draws = asymptote_draws(ar, mir, 200)
    found = with_intervals(answers, first, second, draws)
    for answer in found:
        assert answer.low < answer.data_efficiency < answer.high
        assert answer.answered_frac == 1
        assert answer.ratio_low < answer.like_for_like < answer.ratio_high
    fixed = {
        U: np.full(200, E)
        for U, E in zip(draws[0], [3.27997, 2.95596, 2.83953, 2.74826], strict=True)
    }
    narrow = with_intervals(answers[4:], first, second, (fixed, draws[1]))
    for answer, without in zip(found[4:], narrow, strict=True):
        assert answer.high - answer.low > without.high - without.low


def test_held_asymptotes_give_the_known_intervals(ar, mir):
    """The row bootstrap of the planners, with MIR's asymptotes held: too narrow, but known."""
    baseline = fit("softq", ar)
    counts = rows_drawn(ar, 1000, 6)
    theta = refit(baseline, np.broadcast_to(np.log(ar.L), counts.shape), counts)
    known = (
        (0.1, 3.27997, 0.89, 1.10),
        (0.2, 2.95596, 1.18, 1.42),
        (0.3, 2.83953, 1.16, 1.36),
        (0.4, 2.74826, 1.19, 1.39),
    )
    for U, E, low, high in known:
        ends = np.quantile(efficiency.by_limit(baseline, E, theta) / U, (0.025, 0.975))
        assert ends == pytest.approx((low, high), abs=0.05)


def test_pairs_are_matched_by_cell_and_seed():
    def row(recipe, seed, loss, N=72_000_000):
        return Row(N, 100_000_000, loss, recipe=recipe, seed=seed)

    base = [row("ar", 1, 3.0), row("ar", 2, 3.2), row("ar", 3, 3.1), row("ar", 9, 5.0)]
    other = [row("mir", 2, 3.1), row("mir", 1, 2.8), row("mir", 3, 3.2), row("mir", 7, 1.0)]
    rows = base + other
    whole, cell = paired(rows, "ar", "mir")
    assert (whole.num_pairs, whole.wins) == (3, 2)
    assert whole.mean == pytest.approx((-0.2 - 0.1 + 0.1) / 3)
    half = (
        4.302652729911275 * np.std([-0.2, -0.1, 0.1], ddof=1) / np.sqrt(3)
    )  # t, two degrees of freedom
    assert (whole.low, whole.high) == pytest.approx((whole.mean - half, whole.mean + half))
    assert (cell.num_params, cell.unique_tokens) == (72_000_000, 100_000_000)
    assert paired(rows[:4], "ar", "mir") == []
    single = paired([rows[0], rows[5]], "ar", "mir")[0]
    assert single.low is None


@pytest.fixture(scope="module")
def checks():
    return reproduce()


def test_every_published_figure_is_reproduced_and_says_how_independent_it_is(checks):
    assert [f"{c.table}: {c.what}" for c in checks if not c.ok] == []
    count = {table: sum(c.table == table for c in checks) for table in {c.table for c in checks}}
    assert count["mir_efficiency"] == 32  # sixteen ratios, sixteen amounts
    assert count["full_fit"] == count["kim_full_fit"] == 12
    assert count["heldout_residuals_400m"] == 20
    # Chinchilla's five, Quanta's four, two of Muennighoff's, SoftQ's five; its two boxed exponents.
    constants = [count[f"constants of {grid}"] for grid in ("dclm", "heldout", "kim")]
    assert constants == [18, 16, 16]
    assert count["mir_param_fits"] == 12
    assert counts(checks) == {
        "independent": 15, "partly circular": 158, "circular": 10, "our own null": 4,
        "print against print": 5,
    }  # fmt: skip
    independent = {c.table for c in checks if c.kind == "independent"}
    assert independent == {"mir_param_fits", "muennighoff_fixed_c4"}


def test_on_print_alone_the_spread_of_the_laws_does_not_shrink(checks):
    spreads = [c for c in checks if c.table == "spread of mir_efficiency"]
    assert [round(c.expected, 2) for c in spreads] == [0.45, 0.41, 0.38, 0.55]
    assert max(c.ours for c in spreads) == spreads[-1].ours


def test_a_constant_further_off_than_its_grid_allows_is_outside(monkeypatch):
    figures = json.loads(json.dumps(published.figures()))
    figures["constants"]["kim"]["softq"]["rho"] += 4e-4
    figures["muennighoff_fixed_c4"]["dclm_full"]["RD"] += 2e-3
    figures["stack_v2_100m"]["mir"][0] -= 0.02
    monkeypatch.setattr(published, "figures", lambda: figures)
    outside = {f"{c.table}: {c.what}" for c in reproduce() if not c.ok}
    assert outside == {
        "constants of kim: softq rho",
        "muennighoff_fixed_c4: dclm_full RD",
        "gains of MIR: largest on Stack-V2",
    }


def test_the_papers_run_times_are_what_plan_expects_and_bounds_bound_from_above_alone():
    checks = run_times.checks()
    assert all(check.ok for check in checks)
    assert [check.at_most for check in checks] == [False] * 3 + [True] * 2
    assert not dataclasses.replace(checks[-1], expected=checks[-1].ours - 0.1).ok


def test_what_only_runs_can_tell_is_printed_with_the_study_that_trains_for_it():
    studies = {one.study for one in only_runs()}
    assert studies <= {path.stem for path in SPACES.glob("*.toml")}
    assert (3.347,) in {one.printed for one in only_runs()}
    assert all(one.ours == () for one in only_runs())


def test_the_cells_of_a_study_stand_beside_what_only_runs_can_tell():
    """Two seeds of two sizes; another budget and another size are no cells of the paper."""
    rows = [
        Row(num_params, 99_999_744, loss - 0.03 * (recipe == "mir"), 16, recipe, seed)
        for recipe in ("ar", "mir")
        for num_params, loss in ((1_439_273_984, 3.34), (71_965_952, 3.62))
        for seed, loss in ((42, loss), (1, loss + 0.02))
    ]
    rows += [Row(1_439_273_984, 200_000_000, 3.1, 16, "ar", 42), Row(10**9, 10**8, 3.2, 16, "ar")]
    found = {one.what: one for one in only_runs({"seeds": rows})}
    assert found["mean loss of ar over five seeds"].ours == (pytest.approx(3.35),)
    gains = found["mean gain of mir over five seeds"]
    assert gains.sizes == ("72m", "664m", "1.4b")
    assert gains.ours == (pytest.approx(0.03), None, pytest.approx(0.03))
    assert found["losses of ar on Stack-V2"].ours == ()
    epochs = [Row(140_983_680, 10**8, 3.9, 8, "multi_epoch", 42)]
    found = {one.what: one for one in only_runs({"recipes": epochs})}
    assert found["best epochs of multi-epoch AR"].ours == (8, None, None)
    with pytest.raises(ConfigError, match='no figure comes from the study "seed"'):
        only_runs({"seed": rows})
