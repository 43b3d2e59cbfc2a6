"""A simulation of the quanta model: skills of Zipf frequency, learned or not.

Skill k is needed with probability p_k = k**-(1 + alpha) / Z. A model of N parameters holds the
N / c_N most frequent ones; a corpus of U tokens teaches those that it shows at least tau times. An
unlearned skill costs b - a = 1 nat on the tokens that need it. The paper's exponents are alpha in
N, and alpha / (1 + alpha) in U (app:quanta-derivation).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import zeta

Array = NDArray[np.float64]


def frequencies(alpha: float, num_skills: int) -> tuple[Array, float]:
    """Compute p_k of the first num_skills skills, and the probability of all later ones."""
    k = np.arange(1, num_skills + 1, dtype=float)
    Z = float(zeta(1 + alpha))
    return k ** -(1 + alpha) / Z, float(zeta(1 + alpha, num_skills + 1)) / Z


def loss_of_size(alpha: float, num_params: Array, params_per_skill: float = 1.0) -> Array:
    """Compute the loss (nats) above the floor with plenty of data: the tail beyond those held."""
    learned = np.floor(np.asarray(num_params) / params_per_skill)
    return np.asarray(zeta(1 + alpha, learned + 1) / zeta(1 + alpha))


def loss_of_data(
    alpha: float,
    unique_tokens: float,
    tau: int,
    random: np.random.Generator,
    num_skills: int = 10**6,
) -> float:
    """Draw a corpus and compute the loss (nats) above the floor of an infinite model that saw it.

    Each skill's count in the corpus is drawn (Poisson, as of many independent tokens); num_skills
    must be so many that the later ones are not seen tau times.
    """
    p, tail = frequencies(alpha, num_skills)
    counts = random.poisson(unique_tokens * p)
    return float(p[counts < tau].sum() + tail)


def exponent(resource: Array, loss: Array) -> tuple[float, float]:
    """Estimate (minus the slope of log loss against log resource, its standard error)."""
    x, y = np.log(resource), np.log(loss)
    slope, intercept = np.polyfit(x, y, 1)
    residual = y - slope * x - intercept
    error = np.sqrt((residual**2).sum() / max(len(x) - 2, 1) / ((x - x.mean()) ** 2).sum())
    return float(-slope), float(error)


def size_exponent(alpha: float) -> tuple[float, float]:
    """Estimate (exponent in N, error) of the simulated model; the paper's is alpha."""
    sizes = np.logspace(3, 7, 17)
    return exponent(sizes, loss_of_size(alpha, sizes))


def data_exponent(
    alpha: float, *, tau: int = 3, seed: int = 0, repeats: int = 4
) -> tuple[float, float]:
    """Estimate (exponent in U, error) of simulated corpora; the paper's is alpha / (1 + alpha)."""
    random = np.random.default_rng(seed)
    tokens = np.repeat(np.logspace(4.5, 6.5, 9), repeats)
    losses = np.array([loss_of_data(alpha, U, tau, random) for U in tokens])
    return exponent(tokens, losses)
