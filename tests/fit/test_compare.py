"""Comparisons: the law that leads, nulls that can fail, bounds for numbers, what is not told."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from dcray import plugins
from dcray.fit import efficiency
from dcray.fit.answer import Question, answer
from dcray.fit.compare import Floor
from dcray.fit.fit import DRAW, fit, fit_plain, ranked
from dcray.fit.grid import Row
from dcray.fit.output.as_json import as_json
from dcray.fit.output.headline import headline, null_note, sensitivity
from dcray.fit.predictions import new_runs
from dcray.fit.uncertainty.null import with_nulls
from tests.fit.planted import BUDGETS, SIZES, nine_cells, planted, random_theta

NOISE = 0.003
SOFTQ = (0.30565, 39.2962, 92.4362, 0.1425, 0.79608)


def rows_of(points, recipe):
    return [
        Row(round(N * 1e9), round(U * 1e9), float(L), recipe=recipe)
        for N, U, L in zip(points.N, points.U, points.L, strict=True)
    ]


def world(worth, seed=0, noise=NOISE):
    """Rows of ar and of mir, which is worth so many times its data, with noise."""
    random = np.random.default_rng(seed)
    one, other = (planted("softq", SOFTQ, random, noise, worth=of) for of in (1.0, worth))
    return [*rows_of(one, "ar"), *rows_of(other, "mir")]


def test_a_small_sample_criterion_finds_the_law_of_nine_cells():
    """Of 20 planted Quanta grids; bench_fits counts 100 of each law."""
    random, wrong = np.random.default_rng(21), {"aic": 0, "aicc": 0}
    for _ in range(20):
        points = nine_cells(planted("quanta", random_theta("quanta", random), random, NOISE))
        fits = {law: fit_plain(law, points) for law in ("chinchilla", "quanta", "softq")}
        wrong["aic"] += min(fits, key=lambda law: fits[law].aic) != "quanta"
        wrong["aicc"] += ranked(fits)[0] != "quanta"
    assert wrong["aicc"] <= 4
    assert wrong["aic"] >= 7


def test_aicc_is_the_textbooks():
    """n = 20, k = 5: AIC + 2 * 5 * 6 / 14."""
    one = fit_plain("softq", planted("softq", SOFTQ, np.random.default_rng(1), NOISE))
    assert one.aicc == pytest.approx(one.aic + 60 / 14)


@pytest.fixture(scope="module")
def gain():
    """A SoftQ world in which mir is worth 1.30 times ar's data."""
    asked = Question(laws=("softq", "chinchilla"), bootstrap=60)
    return answer(world(1.3, noise=0.001), asked)


def test_the_spread_over_laws_stands_beside_a_worth_that_hangs_on_its_law(gain):
    (one,) = gain.comparisons
    assert one.lead == "softq"
    assert one.describing == ["softq", "chinchilla"]
    ratios = {
        law: [a.data_efficiency for a in one.answers(law, one.method_of(law))]
        for law in one.describing
    }
    assert np.mean(ratios["softq"]) == pytest.approx(1.3, abs=0.1)
    assert max(ratios["chinchilla"]) > 1.4  # under a law that is not the truth
    said = sensitivity(one)
    assert said.startswith("Under each law that describes both grids mir is worth ")
    assert f"to {max(map(max, ratios.values())):.2f} times ar's data: softq " in said
    assert "; null " in headline(one)


def test_the_null_has_a_spread_around_one_and_the_worth_lies_outside(gain):
    (one,) = gain.comparisons
    for a in one.leading:
        assert a.null == pytest.approx(1, abs=0.05)
        assert a.null_low < 1 < a.null_high < a.data_efficiency
    assert null_note(one).startswith("The null of mir: two grids drawn from ar's own curve")
    assert headline(one).endswith("It lies outside of its null.")


def test_a_recipe_that_is_the_baseline_lies_within_its_null():
    """In four worlds without a gain: of 16 figures no more than two by chance."""
    inside = []
    for seed in range(1, 5):
        random = np.random.default_rng(seed)
        one, two = (fit("softq", planted("softq", SOFTQ, random, NOISE)) for _ in range(2))
        answers = efficiency.finite(one, two)
        drawn = with_nulls(answers, {"softq": (one, two)}, "softq", 60, seed)
        inside += [a.null_low <= a.data_efficiency <= a.null_high for a in drawn]
    assert sum(inside) >= 14


def test_a_draw_between_laws_is_said(gain):
    (one,) = gain.comparisons
    best = one.fits["softq"][0].aicc
    near = dataclasses.replace(one.fits["softq"][0], name="twin")
    fits = {**one.fits, "twin": (near, one.fits["softq"][1])}
    assert near.aicc - best < DRAW
    twins = dataclasses.replace(one, fits=fits)
    assert "(lowest AICc, a draw with twin)" in headline(twins)
    assert "a draw" not in headline(one)


def test_the_baseline_is_told_against_its_floor_first():
    rows = world(1.3)
    floor = planted("softq", SOFTQ, np.random.default_rng(9), NOISE, worth=0.5)
    rows += rows_of(floor, "weak")
    weak = Floor("weak", "Tuned weight decay", "weight decay fixed at 0.1")
    found = answer(rows, Question(laws=("softq",), floors=(weak,)))
    first, second = found.comparisons
    names = [(one.baseline.recipe, one.recipe.recipe) for one in (first, second)]
    assert names == [("weak", "ar"), ("ar", "mir")]
    ratios = [a.data_efficiency for a in first.leading]
    assert np.mean(ratios) == pytest.approx(2, abs=0.15)
    said = headline(first)
    assert said.startswith("Tuned weight decay is worth ")
    assert "the unique data, ar against weak (weight decay fixed at 0.1), like for like" in said
    assert headline(second).startswith("mir is worth ")
    plain = as_json(found)
    assert [one["headline"] for one in plain["comparisons"]] == [said, headline(second)]
    assert {(e["baseline"], e["recipe"]) for e in plain["efficiency"]} == set(names)


def test_far_beyond_the_grid_a_bound_stands_in_place_of_a_number():
    """Worth 9 of budgets that span 4: the largest supports 16, 8, 5.33 and 4 times the data."""
    found = answer(world(9.0), Question(laws=("softq",)))
    (one,) = found.comparisons
    statuses = [(a.status, a.beyond) for a in one.answers("softq", "finite")]
    assert statuses == [("beyond the grid", None), *[("out of reach", "at least")] * 3]
    bounds = [a.ratio_or_bound for a in one.answers("softq", "finite")[1:]]
    assert bounds == pytest.approx([8, 16 / 3, 4])
    assert "at least 4.00 times (at 400m)" in headline(one)
    assert all(a.data_efficiency is None for a in one.answers("softq", "finite")[1:])


def test_a_recipe_without_a_grid_costs_its_own_comparison_alone():
    rows = [*world(1.3), Row(72_000_000, 100_000_000, 3.9, recipe="weak")]
    found = answer(rows, Question(laws=("softq",), floors=(Floor("weak"),)))
    assert [one.recipe.recipe for one in found.comparisons] == ["mir"]
    (said,) = found.untold
    assert said.startswith("What ar is worth in weak's data is not told: recipe weak has one ")


@pytest.mark.slow
def test_intervals_of_the_mean_and_of_a_new_run_hold_what_they_say():
    """In 40 worlds: of the law's truth at an unseen size, and of one more noisy run there."""
    random, held = np.random.default_rng(17), {"mean": [], "run": [], "mean holds the run": []}
    point = f"num_params={SIZES[-1] * 2e9:.0f},unique_tokens={BUDGETS[-1] * 1e9:.0f}"
    truth = float(plugins.load("laws", "quanta")(QUANTA, SIZES[-1] * 2, BUDGETS[-1]))
    for seed in range(40):
        rows = rows_of(planted("quanta", QUANTA, random, NOISE), "ar")
        asked = Question(laws=("quanta",), bootstrap=60, predict=(point,), seed=seed)
        (one,) = answer(rows, asked).predictions
        run = truth * np.exp(NOISE * random.standard_normal())
        held["mean"].append(one.mean_low <= truth <= one.mean_high)
        held["run"].append(one.run_low <= run <= one.run_high)
        held["mean holds the run"].append(one.mean_low <= run <= one.mean_high)
        assert one.recipe == "ar"
    assert np.mean(held["mean"]) >= 0.8
    assert np.mean(held["run"]) >= 0.875
    assert np.mean(held["run"]) > np.mean(held["mean holds the run"])


QUANTA = (0.2283, 242.5882, 564.4767, 0.1354)


def test_a_new_run_varies_more_than_a_mean_of_seeds():
    """Cells of four seeds each: a run's noise is that of its seeds, twice their mean's."""
    random = np.random.default_rng(3)
    one = planted("quanta", QUANTA)
    rows = [
        dataclasses.replace(row, seed=seed, val_loss=row.val_loss * np.exp(0.01 * noise))
        for row in rows_of(one, "ar")
        for seed, noise in enumerate(random.standard_normal(4))
    ]
    found = answer(rows, Question(laws=("quanta",)))
    runs = new_runs(found.grids["ar"], found.fits["ar"]["quanta"], np.full(4000, 3.0))
    assert np.std(np.log(runs)) == pytest.approx(0.01, rel=0.25)
