"""The loss of an ensemble against brute force over probabilities; its limit and the interval."""

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dcray.fit import ensemble
from dcray.fit.ensemble import EnsembleLoss, ensemble_loss, mean_nats, subsets

NATS = st.integers(2, 7).flatmap(
    lambda members: arrays.arrays(
        np.float32, (members, 23), elements=st.floats(0, 80, width=32, allow_subnormal=False)
    )
)


def brute_force(nats) -> float:
    """-mean log of the mean probability, one target after the other."""
    probabilities = [[math.exp(-float(x)) for x in one] for one in nats]
    logs = [math.log(sum(column) / len(column)) for column in zip(*probabilities, strict=True)]
    return -sum(logs) / len(logs)


@given(NATS)
@settings(max_examples=60, deadline=None)
def test_a_loss_is_brute_force_over_probabilities_and_jensen_holds(nats):
    found = ensemble_loss(nats)
    assert found.loss == pytest.approx(brute_force(nats), abs=1e-6)
    assert found.losses[0] == pytest.approx(float(nats.mean(dtype=float)), abs=1e-6)
    assert found.loss <= found.losses[0] + 1e-9
    falls = zip(found.losses, found.losses[1:], strict=False)
    assert all(fewer + 1e-9 >= more for fewer, more in falls)


@given(NATS, st.randoms(use_true_random=False))
@settings(max_examples=20, deadline=None)
def test_the_order_of_few_members_does_not_enter(nats, random):
    nats = nats[: ensemble.MAX_SUBSETS_OF]
    order = random.sample(range(len(nats)), len(nats))
    mixed, found = ensemble_loss(nats[order]), ensemble_loss(nats)
    assert mixed.losses == pytest.approx(found.losses, abs=1e-9)
    assert mixed.limit == pytest.approx(found.limit, abs=1e-7)


def test_each_size_is_the_mean_over_every_set():
    nats = np.random.default_rng(0).gamma(2, 1, (5, 40)).astype(np.float32)
    for size, loss in enumerate(ensemble_loss(nats).losses, 1):
        every = [brute_force(nats[list(chosen)]) for chosen in combinations(range(5), size)]
        assert loss == pytest.approx(np.mean(every), abs=1e-6)


@pytest.mark.parametrize("number", [2, 6, 7, 9])
def test_at_each_size_every_member_counts_alike(number):
    for size in range(1, number + 1):
        its = [one for one in subsets(number) if len(one) == size]
        counts = {member: sum(member in one for one in its) for member in range(number)}
        assert len(set(counts.values())) == 1
        assert all(len(set(one)) == size for one in its)


def test_equal_members_gain_nothing_and_their_interval_is_a_point():
    nats = np.tile(np.linspace(0.1, 9, 50), (4, 1))
    found = ensemble_loss(nats)
    assert found.losses == pytest.approx([nats.mean()] * 4)
    assert (found.low, found.high) == pytest.approx((found.limit, found.limit))


def test_the_limit_of_a_curve_of_the_fitted_form_is_its_own():
    for number in (2, 3, 4, 9):
        losses = [3.1 + 0.4 / k for k in range(1, number + 1)]
        assert ensemble.fitted_limit(losses) == pytest.approx(3.1)


def test_two_members_have_a_limit_and_no_interval():
    found = ensemble_loss(np.array([[1.0, 2.0], [2.0, 1.0]]))
    assert found.limit == pytest.approx(2 * found.losses[1] - found.losses[0])
    assert (found.low, found.high) == (None, None)


def test_the_limit_is_that_of_many_members_of_simulated_models():
    """512 members stand for no end; the interval of four holds it about as often as it says."""
    rng = np.random.default_rng(1)
    truth = rng.normal(0, 2, (400, 20))
    targets = np.array([rng.choice(20, p=np.exp(z) / np.exp(z).sum()) for z in truth])
    shared = []
    for _ in range(512):
        logits = truth + rng.normal(0, 0.5, truth.shape)
        total = np.log(np.exp(logits).sum(1))
        shared.append(total - logits[np.arange(400), targets])
    nats = np.array(shared)
    without_end = float(mean_nats(nats).mean())
    found = [ensemble_loss(nats[start : start + 4]) for start in range(0, 512, 4)]
    assert np.mean([one.limit for one in found]) == pytest.approx(without_end, abs=0.005)
    inside = np.mean([one.low <= without_end <= one.high for one in found])
    assert 0.85 < inside < 0.99
    assert np.mean([one.loss for one in found]) > without_end + 0.01


def test_the_losses_come_back_from_the_record_s_metrics():
    for found in (
        EnsembleLoss((3.5, 3.25, 3.125), 3.0, 2.875, 3.0625),
        EnsembleLoss((3.5, 3.25), 3.0),
    ):
        metrics = found.as_metrics() | {"val_loss": 3.125}
        assert EnsembleLoss.from_metrics(metrics) == found
    assert EnsembleLoss.from_metrics({"val_loss": 3.0}) is None
