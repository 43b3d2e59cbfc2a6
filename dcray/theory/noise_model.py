"""The paper's toy model (app theory): why masking keeps a signal that clean training drops.

n examples with a generalizable part S (n, d), labels Y in {-1, 1} and a context that a model of
size m can memorize, through the Gram matrix G_m (n, n) of its features. The model is written in
(u, b): u holds the scores of the memorizing part, with the penalty rho_w u' G_m^-1 u / 2n, and b
the weights of the generalizable part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class MaskMoments:
    """Moments of the mask ratio r ~ U(low, high), and the weight lambda of the masked loss."""

    weight: float
    low: float = 0.0
    high: float = 1.0

    @property
    def h(self) -> float:
        """Compute E[(1 - r)**2]: both parts visible."""
        return 1 - (self.low + self.high) + self.second

    @property
    def q(self) -> float:
        """Compute E[r (1 - r)]: one part visible, the other hidden."""
        return (self.low + self.high) / 2 - self.second

    @property
    def second(self) -> float:
        """Compute E[r**2]: both parts hidden."""
        return (self.low**2 + self.low * self.high + self.high**2) / 3

    @property
    def alpha(self) -> float:
        """Compute 1 + lambda h."""
        return 1 + self.weight * self.h

    @property
    def beta(self) -> float:
        """Compute lambda q, the factor without which b vanishes as m grows."""
        return self.weight * self.q

    @property
    def delta(self) -> float:
        """Compute alpha + beta."""
        return self.alpha + self.beta

    @property
    def eta(self) -> float:
        """Compute delta - alpha**2 / delta."""
        return self.delta - self.alpha**2 / self.delta


@dataclass(frozen=True)
class Sample:
    """A finite training set with its regularization: S (n, d) (rows at most B long), Y (n,)."""

    S: Array
    Y: Array
    rho_w: float
    rho_b: float

    @property
    def mu(self) -> Array:
        """Compute the empirical mean of Y S, (d,)."""
        return np.asarray(self.Y @ self.S / len(self.Y))

    @property
    def sigma(self) -> Array:
        """Compute the empirical mean of S S', (d, d)."""
        return np.asarray(self.S.T @ self.S / len(self.Y))

    @property
    def bound(self) -> float:
        """Compute B, the norm of the longest row of S."""
        return float(np.linalg.norm(self.S, axis=1).max())


def clean_squared(sample: Sample, G: Array) -> Array:
    """Compute b (d,) of the clean loss: (rho_b I + S' T S / n)^-1 S' T Y / n.

    T = rho_w / (G + rho_w).
    """
    n, d = sample.S.shape
    T = sample.rho_w * np.linalg.inv(G + sample.rho_w * np.eye(n))
    left = sample.rho_b * np.eye(d) + sample.S.T @ T @ sample.S / n
    return np.asarray(np.linalg.solve(left, sample.S.T @ T @ sample.Y / n))


def mir_squared(sample: Sample, G: Array, masks: MaskMoments) -> Array:
    """Compute b (d,) of the masked squared loss at a finite size.

    The equation is in the proof of thm:mir-generalization.
    """
    n, d = sample.S.shape
    M = np.linalg.inv(masks.delta * np.eye(n) + sample.rho_w * np.linalg.inv(G))
    left = sample.rho_b * np.eye(d) + masks.delta * sample.sigma
    left = left - masks.alpha**2 / n * sample.S.T @ M @ sample.S
    right = masks.delta * sample.mu - masks.alpha * masks.delta / n * sample.S.T @ M @ sample.Y
    return np.asarray(np.linalg.solve(left, right))


def mir_squared_limit(sample: Sample, masks: MaskMoments) -> Array:
    """Compute the limit of `mir_squared` as m grows: beta (rho_b I + eta Sigma)^-1 mu, (d,).

    The equation is thm:mir-generalization.
    """
    d = sample.S.shape[1]
    left = sample.rho_b * np.eye(d) + masks.eta * sample.sigma
    return np.asarray(masks.beta * np.linalg.solve(left, sample.mu))


def key_squared(sample: Sample, G: Array, beta: float) -> Array:
    """Compute b (d,) of the key-ablating objective, clean plus beta / 2n |Y - S b|**2."""
    n, d = sample.S.shape
    T = sample.rho_w * np.linalg.inv(G + sample.rho_w * np.eye(n)) + beta * np.eye(n)
    left = sample.rho_b * np.eye(d) + sample.S.T @ T @ sample.S / n
    return np.asarray(np.linalg.solve(left, sample.S.T @ T @ sample.Y / n))


def key_gain_limit(sample: Sample, beta: float) -> float:
    """Compute the limit of the key-ablating gain in risk under G_m = m I and exact moments."""
    eigenvalues, U = np.linalg.eigh(sample.sigma)
    alive = eigenvalues > 1e-12 * eigenvalues.max()
    mu, eigenvalues = (U.T @ sample.mu)[alive], eigenvalues[alive]
    kappa = beta * eigenvalues / sample.rho_b
    return float((mu**2 / eigenvalues * kappa * (kappa + 2) / (1 + kappa) ** 2).sum())


def risk_squared(b: Array, mu: Array, sigma: Array) -> float:
    """Compute 1 - 2 mu b + b' Sigma b: validation contexts are unseen, so only b counts."""
    return float(1 - 2 * mu @ b + b @ sigma @ b)


def risk_logistic(b: Array, S: Array, Y: Array) -> float:
    """Average log(1 + exp(-Y S b)) over a population with an equally weighted support."""
    return float(np.logaddexp(0, -Y * (S @ b)).mean())


def logistic_minimizer(sample: Sample, G: Array | None, masks: MaskMoments | None) -> Array:
    """Find b (d,) of the clean (masks None) or masked logistic objective.

    Damped Newton in (u, b). G None: the limiting problem, beta mean log(1 + exp(-Y S b)) +
    rho_b |b|**2 / 2, in b alone.
    """
    n, d = sample.S.shape
    if G is None:
        assert masks is not None, "the clean limit is zero"
        terms = [(masks.beta, sample.S)]
        ridge = sample.rho_b * np.eye(d)
    else:
        both = np.hstack([np.eye(n), sample.S])
        alpha, beta = (masks.alpha, masks.beta) if masks else (1.0, 0.0)
        only_b, only_u = np.hstack([0 * np.eye(n), sample.S]), np.hstack([np.eye(n), 0 * sample.S])
        terms = [(alpha, both), (beta, only_b), (beta, only_u)]
        ridge = np.zeros((n + d, n + d))
        ridge[:n, :n] = sample.rho_w / n * np.linalg.inv(G)
        ridge[n:, n:] = sample.rho_b * np.eye(d)
    return _newton(terms, ridge, sample.Y)[-d:]


def _newton(terms: list[tuple[float, Array]], ridge: Array, Y: Array) -> Array:
    """Minimize sum_t c_t mean log(1 + exp(-Y X_t z)) + z' ridge z / 2 (convex), to rounding."""
    z, n = np.zeros(len(ridge)), len(Y)

    def value(at: Array) -> float:
        losses = [c * np.logaddexp(0, -Y * (X @ at)).mean() for c, X in terms]
        return float(sum(losses) + at @ ridge @ at / 2)

    for _ in range(500):
        gradient, hessian = ridge @ z, ridge.copy()
        for c, X in terms:
            wrong = np.exp(-np.logaddexp(0, Y * (X @ z)))  # sigma(-Y X z)
            gradient = gradient - c * X.T @ (Y * wrong) / n
            hessian = hessian + c * (X.T * (wrong * (1 - wrong))) @ X / n
        step = np.linalg.solve(hessian, gradient)
        scale, here = 1.0, value(z)
        while value(z - scale * step) > here and scale > 1e-12:
            scale /= 2
        z = z - scale * step
        if float(np.abs(step).max()) < 1e-12:
            break
    return z


def masked_objective(
    z: Array, sample: Sample, features: Array, masks: MaskMoments, kind: str
) -> float:
    """Compute the MIR objective as defined (def:clean-mir-objectives), in (w, b).

    For numerical minimizers: z = (w, b) is (m + d,). The mask ratio is integrated by Gauss-Legendre
    quadrature, the four cases of visibility one by one.
    """
    m, n = features.shape[1], len(sample.Y)
    w, b = z[:m], z[m:]
    context, signal = features @ w, sample.S @ b
    nodes, weights = np.polynomial.legendre.leggauss(8)
    ratios = masks.low + (nodes + 1) / 2 * (masks.high - masks.low)
    total = _loss(kind, sample.Y, context + signal)
    for r, share in zip(ratios, weights / 2, strict=True):
        for sees_context, p in ((1, 1 - r), (0, r)):
            for sees_signal, p_signal in ((1, 1 - r), (0, r)):
                score = sees_context * context + sees_signal * signal
                total += masks.weight * share * p * p_signal * _loss(kind, sample.Y, score)
    return float(total + sample.rho_w / (2 * n) * w @ w + sample.rho_b / 2 * b @ b)


def _loss(kind: str, Y: Array, score: Any) -> float:
    if kind == "squared":
        return float(((Y - score) ** 2).mean() / 2)
    return float(np.logaddexp(0, -Y * score).mean())


def random_sample(
    random: np.random.Generator, n: int, d: int, rho_w: float = 1.0, rho_b: float = 0.3
) -> Sample:
    """Draw labels that S predicts a little, and rows of S no longer than 2."""
    S = random.standard_normal((n, d)) / np.sqrt(d)
    S /= np.maximum(1.0, np.linalg.norm(S, axis=1, keepdims=True) / 2)
    truth = random.standard_normal(d)
    Y = np.where(random.random(n) < 1 / (1 + np.exp(-2 * S @ truth)), 1.0, -1.0)
    return Sample(S, Y, rho_w, rho_b)
