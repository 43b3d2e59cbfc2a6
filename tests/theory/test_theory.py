"""The appendix: closed forms, limits and bounds, none against its own algebra."""

from __future__ import annotations

import numpy as np
import pytest

from dcray.theory import checks, quanta
from dcray.theory import noise_model as model
from dcray.theory.noise_model import MaskMoments, Sample


@pytest.fixture
def sample():
    return model.random_sample(np.random.default_rng(1), n=12, d=3)


def test_moments_against_a_simulation():
    masks = MaskMoments(0.4, 0.1, 0.7)
    r = np.random.default_rng(0).uniform(0.1, 0.7, 10**6)
    assert masks.h == pytest.approx(((1 - r) ** 2).mean(), abs=1e-3)
    assert masks.q == pytest.approx((r * (1 - r)).mean(), abs=1e-3)
    assert masks.eta == pytest.approx(masks.beta * (masks.delta + masks.alpha) / masks.delta)


def test_every_figure_of_the_appendix():
    outside = [
        what
        for what, expected, ours, tolerance in checks.checks()
        if abs(ours - expected) > tolerance
    ]
    assert outside == []


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", ["squared", "logistic"])
@pytest.mark.parametrize("weight", [0.0, 0.7])
def test_minimizers_against_the_definition(seed, kind, weight):
    random = np.random.default_rng(seed)
    small = model.random_sample(random, n=5, d=2)
    features = random.standard_normal((5, 6))
    G, masks = features @ features.T, MaskMoments(weight, 0.0, 0.8)
    if kind == "squared":
        ours = model.mir_squared(small, G, masks)
        if not weight:
            np.testing.assert_allclose(model.clean_squared(small, G), ours, atol=1e-10)
    else:
        ours = model.logistic_minimizer(small, G, masks if weight else None)
    np.testing.assert_allclose(
        checks.numerical_minimizer(small, features, masks, kind), ours, atol=1e-6
    )


def test_clean_weights_vanish_and_masked_ones_stay(sample):
    masks = MaskMoments(0.4, 0.0, 0.5)
    limit, log_limit = (
        model.mir_squared_limit(sample, masks),
        model.logistic_minimizer(sample, None, masks),
    )
    gaps = []
    for m in (1e2, 1e4, 1e6, 1e8):
        G = m * np.eye(12)
        gaps.append([
            np.linalg.norm(model.clean_squared(sample, G)),
            np.linalg.norm(model.mir_squared(sample, G, masks) - limit),
            np.linalg.norm(model.logistic_minimizer(sample, G, None)),
            np.linalg.norm(model.logistic_minimizer(sample, G, masks) - log_limit),
        ])  # fmt: skip
    assert (np.diff(gaps, axis=0) < 0).all()
    assert max(gaps[-1]) < 1e-5
    assert np.linalg.norm(limit) > 0.01
    assert sample.mu @ limit > 0


def test_the_logistic_limit_is_stationary_and_bounded(sample):
    masks = MaskMoments(0.9, 0.0, 1.0)
    b = model.logistic_minimizer(sample, None, masks)
    wrong = 1 / (1 + np.exp(sample.Y * (sample.S @ b)))
    gradient = -masks.beta * (wrong * sample.Y) @ sample.S / 12 + sample.rho_b * b
    np.testing.assert_allclose(gradient, 0, atol=1e-12)
    assert np.linalg.norm(b) <= masks.beta * sample.bound / sample.rho_b


def test_the_asymptotic_gain_in_risk(sample):
    masks, G = MaskMoments(0.4, 0.0, 0.5), 1e10 * np.eye(12)
    risks = [model.risk_squared(b, sample.mu, sample.sigma) for b in (
        model.clean_squared(sample, G), model.mir_squared(sample, G, masks),
        np.zeros(3), model.mir_squared_limit(sample, masks))]  # fmt: skip
    assert risks[0] - risks[1] == pytest.approx(risks[2] - risks[3], abs=1e-6)
    assert risks[2] - risks[3] > 0


def test_the_key_ablating_gain_rises_with_size_where_the_full_one_need_not():
    random = np.random.default_rng(3)
    falls = []
    for _ in range(100):
        rho_w, rho_b = np.exp(random.uniform((-1, -4), (2, 0)))
        one = model.random_sample(random, n=10, d=3, rho_w=rho_w, rho_b=rho_b)
        key, full = checks.gains(one, MaskMoments(0.4, 0.0, 0.5), np.logspace(-1, 5, 40))
        assert (np.diff(key) > 0).all()
        falls.append((np.diff(full) <= 0).any())
    assert any(falls)


def test_the_key_ablating_minimizer_is_stationary(sample):
    G = 3.0 * np.eye(12)
    b = model.key_squared(sample, G, 0.7)
    u = np.linalg.solve(G + sample.rho_w * np.eye(12), G @ (sample.Y - sample.S @ b))
    gradient = -sample.S.T @ (sample.Y - u - sample.S @ b) / 12 + sample.rho_b * b
    gradient -= 0.7 * sample.S.T @ (sample.Y - sample.S @ b) / 12
    np.testing.assert_allclose(gradient, 0, atol=1e-12)


def test_a_signal_that_is_absent_stays_absent():
    S = np.array([[1.0], [1.0], [-1.0], [-1.0]])
    none = Sample(S, np.array([1.0, -1.0, 1.0, -1.0]), 1.0, 0.3)
    assert model.mir_squared_limit(none, MaskMoments(0.4)) == pytest.approx(0)


@pytest.mark.parametrize("alpha", [0.2, 0.4, 0.8, 1.2])
def test_quanta_exponents(alpha):
    size, size_error = quanta.size_exponent(alpha)
    assert abs(size - alpha) <= max(3 * size_error, 0.02 * alpha)
    data, error = quanta.data_exponent(alpha)
    expected = alpha / (1 + alpha)
    assert abs(data - expected) <= max(3 * error, 0.02 * expected)


def test_the_tail_is_summed_exactly():
    p, tail = quanta.frequencies(0.5, 10**5)
    assert p.sum() + tail == pytest.approx(1, abs=1e-12)
    assert quanta.loss_of_size(0.5, np.array([10.0]))[0] == pytest.approx(
        1 - p[:10].sum(), abs=1e-12
    )


def test_tokens_drawn_one_by_one_give_the_same_loss():
    """Brute force: a corpus as a list of tokens, each needing one skill."""
    random, alpha, U = np.random.default_rng(0), 0.5, 3000
    p, tail = quanta.frequencies(alpha, 10**5)
    direct = []
    for _ in range(40):
        skills = random.choice(10**5 + 1, size=U, p=np.append(p, tail))
        seen = np.bincount(skills, minlength=10**5 + 1)[:-1]
        direct.append(p[seen < 2].sum() + tail)
    drawn = [quanta.loss_of_data(alpha, U, 2, random, 10**5) for _ in range(40)]
    assert np.mean(drawn) == pytest.approx(np.mean(direct), rel=0.02)
