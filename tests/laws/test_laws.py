"""What single laws promise beyond the contract: closed forms and the paper's constants."""

from __future__ import annotations

import numpy as np
import pytest

from dcray import plugins
from dcray.fit.paper import published

N, U = np.meshgrid(np.logspace(-2, 1, 7), np.logspace(-2, 0, 5))


def test_softq_with_rho_one_is_quanta():
    E, A, B, alpha = 1.3, 0.4, 0.9, 0.31
    softq = plugins.load("laws", "softq")((E, A, B, alpha, 1.0), N, U)
    np.testing.assert_allclose(
        softq, plugins.load("laws", "quanta")((E, A, B, alpha), N, U), rtol=1e-14
    )


def test_softq_is_the_boxed_equation():
    boxed = published.figures()["softq_boxed"]
    E, A, B, rho = (boxed[name] for name in ("E", "A", "B", "rho"))
    alpha = boxed["outer_exponent"] * rho
    inner = A * N**-rho + B * U ** -boxed["U_exponent"]
    ours = plugins.load("laws", "softq")((E, A, B, alpha, rho), N, U)
    np.testing.assert_allclose(ours, E + inner ** boxed["outer_exponent"], rtol=1e-5)


def test_chinchillas_gap_between_budgets_does_not_depend_on_size():
    law = plugins.load("laws", "chinchilla")
    gap = law(law.example, N[0], 0.1) - law(law.example, N[0], 0.4)
    np.testing.assert_allclose(gap, gap[0], rtol=1e-12)


def test_muennighoff_without_repetition_and_surplus_is_chinchilla():
    base = plugins.load("laws", "chinchilla").example
    law = plugins.load("laws", "muennighoff")
    plain = plugins.load("laws", "chinchilla")(base, N, U)
    np.testing.assert_allclose(law((*base, 1e12, 5.0), N, U, num_epochs=1.0), plain, rtol=1e-9)
    np.testing.assert_allclose(law((*base, 1e12, 1e-12), N, U, num_epochs=40.0), plain, rtol=1e-9)


def test_muennighoff_by_hand():
    """One point with both constants at work, written out as in the paper."""
    E, A, alpha, B, beta, R_N, R_D = 1.9, 0.35, 0.4, 1.0, 0.3, 5.0, 15.0
    size, tokens, epochs = 40.0, 0.1, 9.0
    optimal = (alpha * A / (beta * B)) ** (1 / alpha) * tokens ** (beta / alpha)
    assert optimal < size
    N_eff = optimal + optimal * R_N * (1 - np.exp(-(size / optimal - 1) / R_N))
    D_eff = tokens + tokens * R_D * (1 - np.exp(-(epochs - 1) / R_D))
    expected = E + A / N_eff**alpha + B / D_eff**beta
    law = plugins.load("laws", "muennighoff")
    assert law((E, A, alpha, B, beta, R_N, R_D), size, tokens, num_epochs=epochs) == pytest.approx(
        expected, rel=1e-12
    )


def test_c4_constants_in_billions():
    note = published.figures()["muennighoff_fixed_c4"]["c4_coefficients_log"]["note"]
    E, A, _, B, _ = plugins.load("laws", "muennighoff_c4").base
    assert f"A = {A:.6f}, B = {B:.6f}, E = {E:.6f}" in note


def test_exponents_so_slow_that_a_size_overflows_give_a_loss():
    """Where losses do not depend on size, a fit ends at alpha = 0.01: N_opt is 10^500 or so."""
    law = plugins.load("laws", "muennighoff")
    for B in (1e-6, 0.0):
        loss = law((2.0, 0.9, 0.01, B, 0.3, 10.0, 1.0), 6e-5, 1.6e-5, num_epochs=16.0)
        assert loss == pytest.approx(2 + 0.9 * 6e-5**-0.01, abs=1e-4)
