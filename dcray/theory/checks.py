"""The appendix's statements as numbers: (what, expected, ours, tolerance)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.optimize import minimize

from dcray.theory import noise_model as model
from dcray.theory import quanta
from dcray.theory.noise_model import Array, MaskMoments, Sample

Figure = tuple[str, float, float, float]

CLOSED_FORM = 1e-6
HUGE = 1e10  # the m at which limits are compared; b differs from them by about log(m)**2 / m


def checks(seed: int = 0) -> list[Figure]:
    """Compute all figures; takes some ten seconds."""
    random = np.random.default_rng(seed)
    return [
        *_minimizers(random),
        *_limits(random),
        *_validation(random),
        *_gains(random),
        *_signal(random),
        *_quanta(),
    ]


def numerical_minimizer(sample: Sample, features: Array, masks: MaskMoments, kind: str) -> Array:
    """Find b (d,) that minimizes the objective as the definition writes it, without algebra."""
    z = np.zeros(features.shape[1] + sample.S.shape[1])
    arguments = (sample, features, masks, kind)
    for _ in range(3):  # restarted, as the approximate Hessian gets poor near the optimum
        z = minimize(
            model.masked_objective,
            z,
            arguments,
            method="BFGS",
            jac="3-point",
            options={"gtol": 1e-10},
        ).x
    return np.asarray(z[features.shape[1] :])


def _minimizers(random: np.random.Generator) -> Iterator[Figure]:
    sample = model.random_sample(random, n=6, d=2)
    features = random.standard_normal((6, 8))
    G, masks, none = features @ features.T, MaskMoments(0.8, 0.0, 0.9), MaskMoments(0.0)
    pairs = {
        "clean squared": (model.clean_squared(sample, G), "squared", none),
        "MIR squared": (model.mir_squared(sample, G, masks), "squared", masks),
        "clean logistic": (model.logistic_minimizer(sample, G, None), "logistic", none),
        "MIR logistic": (model.logistic_minimizer(sample, G, masks), "logistic", masks),
    }
    for name, (ours, kind, moments) in pairs.items():
        numeric = numerical_minimizer(sample, features, moments, kind)
        yield f"{name}: b against a numerical minimizer", 0.0, _gap(ours, numeric), CLOSED_FORM


def _limits(random: np.random.Generator) -> Iterator[Figure]:
    sample, masks = model.random_sample(random, n=12, d=4), MaskMoments(0.4, 0.0, 0.5)
    G = HUGE * np.eye(12)
    limit = model.mir_squared_limit(sample, masks)
    zero, log_limit = 0 * limit, model.logistic_minimizer(sample, None, masks)
    ends = {
        "clean squared b to 0": (model.clean_squared(sample, G), zero),
        "MIR squared b to its closed form": (model.mir_squared(sample, G, masks), limit),
        "clean logistic b to 0": (model.logistic_minimizer(sample, G, None), zero),
        "MIR logistic b to its minimizer": (model.logistic_minimizer(sample, G, masks), log_limit),
    }
    for name, (ours, there) in ends.items():
        yield f"m = {HUGE:.0e}: {name}", 0.0, _gap(ours, there), CLOSED_FORM
    excess = float(np.linalg.norm(log_limit)) - masks.beta * sample.bound / sample.rho_b
    yield "excess of |b_log| over beta B / rho_b", 0.0, max(excess, 0.0), 0.0


def _validation(random: np.random.Generator, instances: int = 100) -> Iterator[Figure]:
    """Yield the counts of instances in which masking lowers the risk.

    It does if the sufficient conditions hold, and with exact moments they hold.
    """
    held = squared = logistic = 0
    for _ in range(instances):
        sample, masks = model.random_sample(random, n=40, d=3), MaskMoments(0.4, 0.0, 0.5)
        b = model.mir_squared_limit(sample, masks)
        condition = 2 * sample.mu @ b - b @ sample.sigma @ b > 0
        held += bool(condition)
        squared += model.risk_squared(b, sample.mu, sample.sigma) < 1.0
        weak = Sample(sample.S, sample.Y, sample.rho_w, rho_b=50.0)
        b = model.logistic_minimizer(weak, None, masks)
        enough = sample.mu @ b > sample.bound**2 / 4 * b @ b
        logistic += bool(enough) and model.risk_logistic(b, sample.S, sample.Y) < float(np.log(2))
    yield f"squared condition holds with exact moments, of {instances}", instances, held, 0
    yield f"MIR lowers the squared risk, of {instances}", instances, squared, 0
    yield (
        f"small beta / rho_b: condition and lower logistic risk, of {instances}",
        instances,
        logistic,
        0,
    )


def _gains(random: np.random.Generator, instances: int = 100) -> Iterator[Figure]:
    """Yield the checks of the gain in risk that masking brings.

    The key-ablating objective's gain rises with m in every instance; the full one's need not.
    """
    falls, full_falls = 0, 0
    for _ in range(instances):
        rho = np.exp(random.uniform((-1, -4), (2, 0)))
        sample = model.random_sample(random, n=10, d=3, rho_w=float(rho[0]), rho_b=float(rho[1]))
        masks = MaskMoments(random.uniform(0.1, 1), 0.0, random.uniform(0.2, 1))
        key, full = gains(sample, masks, np.logspace(-1, 4, 30))
        falls += bool((np.diff(key) <= 0).any())
        full_falls += bool((np.diff(full) <= 0).any())
    key, _ = gains(sample, masks, np.array([HUGE]))
    limit = model.key_gain_limit(sample, masks.beta)
    yield f"key-ablating gain not monotone in m, of {instances}", 0, falls, 0
    yield "key-ablating gain at m = 1e10 against its closed form", limit, float(key[0]), CLOSED_FORM
    yield (
        "full MIR gain monotone in every instance (the paper does not claim it)",
        0,
        full_falls == 0,
        0,
    )


def gains(sample: Sample, masks: MaskMoments, sizes: Array) -> tuple[Array, Array]:
    """Compute risk of clean minus risk of (key-ablating, full MIR) at G = m I, exact moments.

    Both have a value for each m in `sizes`.
    """

    def risk(b: Array) -> float:
        return model.risk_squared(b, sample.mu, sample.sigma)

    key, full = [], []
    for m in sizes:
        G = m * np.eye(len(sample.Y))
        clean = risk(model.clean_squared(sample, G))
        key.append(clean - risk(model.key_squared(sample, G, masks.beta)))
        full.append(clean - risk(model.mir_squared(sample, G, masks)))
    return np.array(key), np.array(full)


def _signal(random: np.random.Generator, draws: int = 20000) -> Iterator[Figure]:
    """Yield by how much P(mu . mu_hat > 0) falls short of 1 - exp(-n |mu|**2 / 2 B**2).

    The bound is cor:hp-empirical-signal.
    """
    for n, lean in ((5, 0.3), (20, 0.2), (50, 0.15)):
        signs = np.where(random.random((draws, n)) < 0.5 + lean, 1.0, -1.0)  # Y S, |S| = B = 1
        bound = 1 - np.exp(-n * (2 * lean) ** 2 / 2)
        short = bound - float((signs.mean(-1) > 0).mean())
        yield f"n = {n}: probability below its bound", 0.0, max(short, 0.0), 0.0


def _quanta() -> Iterator[Figure]:
    for alpha in (0.2, 0.4, 0.8):
        size, _ = quanta.size_exponent(alpha)
        data, error = quanta.data_exponent(alpha)
        expected = alpha / (1 + alpha)
        yield f"alpha = {alpha}: exponent in N", alpha, size, 0.02 * alpha
        yield f"alpha = {alpha}: exponent in U", expected, data, max(0.02 * expected, 3 * error)


def _gap(first: Array, second: Array) -> float:
    return float(np.linalg.norm(first - second))
