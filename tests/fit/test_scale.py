"""Units and scale of N and U change no flag, no status, no leading law, no curve and no ratio."""

from __future__ import annotations

import dataclasses
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcray.fit import efficiency
from dcray.fit.fit import fit, ranked
from dcray.laws._law import Points
from tests.fit.planted import iso_flop, planted

LAWS = ("chinchilla", "quanta", "softq")
MINI = (2.0, 2e-6, 4e-5, 0.5, 1.3)  # SoftQ at 60 thousand parameters and 16 thousand tokens
NOISE = 0.003


def pair(name):
    """A baseline's points and a recipe's of 1.2 times the data, each with noise."""
    random = np.random.default_rng(5)
    if name == "iso":
        theta = (1.8, 0.36, 0.35, 1.06, 0.37)
        return iso_flop(theta, random), iso_flop(theta, random, worth=1.2)
    if name == "paper":
        theta = (0.30565, 39.2962, 92.4362, 0.1425, 0.79608)
        one = planted("softq", theta, random, NOISE)
        return one, dataclasses.replace(one, L=planted("softq", theta, random, NOISE).L / 1.01)
    N, U = (a.ravel() for a in np.meshgrid([6e-5, 2.3e-4, 4.3e-4], [1.6e-5, 3.2e-5, 6.4e-5]))
    E, A, B, alpha, rho = MINI
    return tuple(
        Points(N, U, (E + (A * N**-rho + B * (w * U) ** (-rho / (1 + alpha))) ** (alpha / rho))
               * np.exp(NOISE * random.standard_normal(9)))
        for w in (1.0, 1.2)
    )  # fmt: skip


def scaled(points, by_N, by_U):
    return dataclasses.replace(points, N=points.N * by_N, U=points.U * by_U)


def read(points, other):
    """Everything that is said of the two, with numbers apart from words."""
    fits = {law: (fit(law, points), fit(law, other)) for law in LAWS}
    flags = {law: [one.flags for one in both] for law, both in fits.items()}
    curves = [one.residuals for both in fits.values() for one in both]
    answers = [
        answer
        for one, two in fits.values()
        for answer in (*efficiency.joint(one, two), *efficiency.finite(one, two))
    ]
    words = (
        flags,
        ranked({law: one for law, (one, _) in fits.items()}),
        [(a.status, a.beyond) for a in answers],
    )
    return words, np.concatenate(curves), [a.ratio_or_bound for a in answers]


@cache
def unscaled(name):
    return read(*pair(name))


@pytest.mark.parametrize("name", ["paper", "mini", "iso"])
@settings(max_examples=6, deadline=None)
@given(by_N=st.floats(-6, 3), by_U=st.floats(-6, 3))
def test_scale_changes_nothing_that_is_said(name, by_N, by_U):
    words, curves, ratios = unscaled(name)
    told = read(*(scaled(points, 10**by_N, 10**by_U) for points in pair(name)))
    assert told[0] == words
    np.testing.assert_allclose(told[1], curves, rtol=0, atol=1e-7)
    np.testing.assert_allclose(told[2], ratios, rtol=1e-4)


def test_constants_of_a_mini_grid_are_at_no_bound():
    """B = 4e-5 is small in billions of tokens, and half of the loss that falls."""
    points, _ = pair("mini")
    assert not [flag for law in LAWS for flag in fit(law, points).flags if "at its bound" in flag]


def test_an_iso_flop_grid_measures_both_terms():
    """No two of its cells share a size or a budget, and every law reads both off the grid."""
    theta = (1.8172, 0.36, 0.348, 1.06, 0.366)
    points = iso_flop(theta, np.random.default_rng(7))
    assert len(np.unique(points.N)) == len(np.unique(points.U)) == len(points.L)
    for law in LAWS:
        assert not [flag for flag in fit(law, points).flags if "do not change" in flag]
    found = fit("chinchilla", points).theta
    assert found[0] == pytest.approx(theta[0], abs=0.03)
    assert (found[2], found[4]) == pytest.approx((theta[2], theta[4]), abs=0.03)


@pytest.mark.parametrize(("A", "B", "axis"), [(0.0, 1.06, "num_params"), (0.36, 0.0, "unique")])
def test_an_iso_flop_grid_without_a_term_says_so(A, B, axis):
    points = iso_flop((1.8, A, 0.348, B, 0.366), np.random.default_rng(8))
    (flag,) = [flag for flag in fit("chinchilla", points).flags if "do not change" in flag]
    assert f"with {axis}" in flag


def test_one_budget_of_compute_does_not_tell_size_from_data():
    points = iso_flop((1.8, 0.36, 0.348, 1.06, 0.366), np.random.default_rng(9), budgets=(1e20,))
    assert [flag for flag in fit("chinchilla", points).flags if "is not identified" in flag]
