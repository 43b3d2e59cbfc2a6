"""Worth at equal FLOPs against closed forms: a power law in FLOPs and unique tokens."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcray.fit.equal_cost import Noise, Spent, at_equal_cost, seed_noise

NAMES = ("ar", "mir")
BUDGETS = (10_000, 20_000, 40_000, 80_000)
A, B = 0.05, 0.1  # exponents of FLOPs and of unique tokens


def loss(flops, tokens):
    return 40 * flops**-A * tokens**-B


def runs(*, worth=1.0, times=1.0, budgets=BUDGETS, costs=tuple(1e10 * 2.0**i for i in range(6)),
         num_seeds=1):  # fmt: skip
    """A run at each budget and at `times` each cost, with the data of `worth` times the budget."""
    return [
        Spent(U, times * flops, loss(times * flops, worth * U), num_seeds)
        for U in budgets
        for flops in costs
    ]


@given(
    worth=st.floats(0.55, 1.9), times=st.floats(0.3, 8.0), a=st.floats(0.01, 0.3),
    b=st.floats(0.02, 0.3),
)  # fmt: skip
def test_a_power_law_comes_back_exactly(worth, times, a, b):
    """log loss is linear in log FLOPs and in log U, so nothing is lost between runs."""

    def one(w, factor):
        costs = [factor * 1e10 * 2.0**i for i in range(6)]
        return [Spent(U, C, 40 * C**-a * (w * U) ** -b) for U in BUDGETS for C in costs]

    found = at_equal_cost(one(1.0, 1.0), one(worth, times), NAMES)
    most = min(2.0**5, times * 2.0**5) * 1e10
    assert [U for U, _ in found.flops] == list(BUDGETS)
    assert [flops for _, flops in found.flops] == pytest.approx([most] * 4)
    told = {w.unique_tokens: w.data_efficiency for w in found.worths}
    assert told[20_000] == pytest.approx(worth, rel=1e-6)
    assert told[40_000] == pytest.approx(worth, rel=1e-6)
    differences = [40 * most**-a * ((worth * U) ** -b - U**-b) for U in BUDGETS]
    assert found.difference == pytest.approx(np.mean(differences), rel=1e-6, abs=1e-9)
    end, factor = (BUDGETS[-1], "at least") if worth > 1 else (BUDGETS[0], "at most")
    (edge,) = [w for w in found.worths if w.unique_tokens == end]
    if abs(worth - 1) > 1e-6:
        assert (edge.data_efficiency, edge.beyond, edge.ratio_or_bound) == (None, factor, 1.0)


def test_twice_the_compute_for_nothing_is_a_loss_at_equal_compute():
    """A recipe with the same losses that pays twice: at equal FLOPs it stands where half stands."""
    base = runs()
    twice = [Spent(one.unique_tokens, 2 * one.flops, one.loss) for one in base]
    found = at_equal_cost(base, twice, NAMES)
    told = {w.unique_tokens: w.data_efficiency for w in found.worths}
    assert told[40_000] == pytest.approx(2 ** (-A / B))  # 2**-A in loss is 2**(-A/B) in tokens


def test_an_envelope_is_the_lowest_loss_for_at_most_so_many_flops():
    """Runs that cost more and gave less change nothing; of runs of one cost the lowest counts."""
    base = runs()
    worse = [Spent(one.unique_tokens, one.flops, one.loss + 0.1) for one in base]
    found = at_equal_cost([*worse, *base], [*runs(worth=1.5), *worse], NAMES)
    alone = at_equal_cost(base, runs(worth=1.5), NAMES)
    assert found == alone
    spoilt = [Spent(40_000, 6.4e11, 9.0)]  # a dear failure: up to its cost the best one stands
    (cost,) = (flops for U, flops in at_equal_cost([*base, *spoilt], [*runs(worth=1.5), *spoilt],
                                                   NAMES).flops if U == 40_000)  # fmt: skip
    assert cost == pytest.approx(6.4e11)


def test_where_no_compute_is_in_common_it_is_said_and_nothing_extrapolated():
    found = at_equal_cost(runs(), runs(times=100.0), NAMES)
    assert (found.worths, found.flops, found.difference) == ((), (), None)
    spent = "ar spent 1e+10 to 3.2e+11 and mir spent 1e+12 to 3.2e+13 FLOPs"
    assert found.why[0] == f"at 10k {spent}: no compute in common"
    assert at_equal_cost(runs(), runs(budgets=(5_000,)), NAMES).why == (
        "ar and mir have no budget in common",
    )


def test_one_budget_gives_a_difference_and_says_why_no_worth():
    one = runs(budgets=(10_000,))
    found = at_equal_cost(one, runs(budgets=(10_000,), worth=1.2), NAMES)
    assert found.worths == ()
    flops = 3.2e11
    assert found.difference == pytest.approx(loss(flops, 12_000) - loss(flops, 10_000))
    assert found.why == ("at 10k ar has no other budget at 3.2e+11 FLOPs",)


def test_runs_of_one_cost_are_compared_at_that_cost():
    """Inference at one size: a single point on each side."""
    found = at_equal_cost(runs(costs=(1e6,)), runs(costs=(1e6,), worth=1.3), NAMES)
    told = {w.unique_tokens: w.data_efficiency for w in found.worths}
    assert [told[U] for U in BUDGETS[:3]] == pytest.approx([1.3] * 3)


def test_without_noise_nothing_is_drawn():
    found = at_equal_cost(runs(), runs(worth=1.2), NAMES, None, num_draws=50)
    assert found.low is None
    assert {w.answered_frac for w in found.worths} == {None}


def test_seed_noise_pools_log_deviations():
    noise = seed_noise([[3.0, 3.0 * np.e**0.2], [2.0], [4.0, 4.0, 4.0]])
    assert (noise.squares, noise.freedom) == (pytest.approx(2 * 0.1**2), 3)
    assert seed_noise([[3.0], []]) is None


@pytest.mark.parametrize("worth", [1.0, 1.3])
def test_intervals_hold_the_truth_and_nulls_hold_one(worth):
    """Sixty noisy worlds: 95 % intervals hold the planted worth, the null of a twin holds 1."""
    random, sd, held, within = np.random.default_rng(1), 0.002, 0, 0
    for world in range(60):

        def noisy(spent):
            return [Spent(s.unique_tokens, s.flops,
                          s.loss * np.exp(sd / np.sqrt(3) * random.standard_normal()), 3)
                    for s in spent]  # fmt: skip

        seeds = [np.exp(sd * random.standard_normal(3)) for _ in range(16)]
        found = at_equal_cost(
            noisy(runs()), noisy(runs(worth=worth)), NAMES, seed_noise(seeds),
            num_draws=200, seed=world,
        )  # fmt: skip
        (one,) = [w for w in found.worths if w.unique_tokens == 20_000]
        held += one.low <= worth <= one.high
        within += one.null_low <= one.data_efficiency <= one.null_high
        assert one.null == pytest.approx(1, abs=0.03)
    assert held >= 52
    assert (within >= 52) if worth == 1 else (within == 0)


def test_more_seeds_give_a_narrower_interval():
    wide, narrow = (
        at_equal_cost(runs(num_seeds=n), runs(num_seeds=n, worth=1.2), NAMES, Noise(4e-6, 30),
                      num_draws=400)
        for n in (1, 16)
    )  # fmt: skip
    assert narrow.high - narrow.low == pytest.approx((wide.high - wide.low) / 4, rel=0.15)
