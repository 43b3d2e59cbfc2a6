"""What fits cost and whether their bands are true: python -m tests.bench.bench_fits [PART ...]

coverage   per law 400 planted grids, noise 0.3 %: share of cells whose true loss is in the band
exact      per law 100 noise-free grids: the largest RMSE
point      milliseconds and success of a point fit, all starts together, 1000 planted grids
resample   CPU-seconds of 4 laws x 1000 resamples
scipy      the same optimum from 4500 starts of scipy's L-BFGS-B with its defaults, as a ratio
bias       the three efficiencies of a SoftQ world against itself: 200 grids without noise, 200 with
"""

from __future__ import annotations

import sys
import time

import numpy as np
from scipy.optimize import minimize

from dcray import plugins
from dcray.fit import efficiency, published
from dcray.fit.bootstrap import cell_weights, resample
from dcray.fit.diagnose import diagnose
from dcray.fit.fit import fit_plain
from dcray.fit.grid import grid_of
from tests.fit.planted import planted, random_theta

FOUR = ("chinchilla", "quanta", "softq", "muennighoff")
NOISE = 0.003
AT_ONCE = plugins.load("laws", "muennighoff", at_once=True)


def laws():
    """(label, what to fit, whose thetas): staged Muennighoff cannot return a planted grid."""
    yield from ((name, name, name) for name in ("chinchilla", "quanta", "softq", "muennighoff_c4"))
    yield "muennighoff at once", AT_ONCE, "muennighoff"
    yield "muennighoff in stages", "muennighoff", "muennighoff"


def coverage(sets=400, resamples=200):
    """Of the true losses, and of what the same fit makes of the noise-free grid.

    The two differ where a fit cannot return its own law: in stages, on which see `Law.stages`. The
    flag that says so is counted, and the bands of the fits that it lets pass.
    """
    for label, law, name in laws():
        random, covered, own, flagged = np.random.default_rng(10), [], [], []
        k = len(plugins.load("laws", name).names)
        for seed in range(sets):
            theta = random_theta(name, random)
            truth, points = planted(name, theta), planted(name, theta, random, NOISE)
            fitted = fit_plain(law, points)
            drawn = resample(fitted, cell_weights(points, resamples, k + 1, seed))
            bands = drawn.predict(points.N, points.U, **points.more)
            low, high = np.quantile(bands, (0.025, 0.975), axis=0)
            covered.append((low <= truth.L) & (high >= truth.L))
            if len(fitted.law.stages()) > 1:
                exact = fit_plain(law, truth).predict(points.N, points.U, **points.more)
                own.append((low <= exact) & (high >= exact))
                flagged.append(any("in stages" in flag for flag in diagnose(fitted).flags))
        print(
            f"coverage  {label:22s} {np.mean(covered):.3f} of {np.size(covered)} cells", flush=True
        )
        if own:
            rest = np.array(covered)[~np.array(flagged)]
            print(
                f"coverage  {label:22s} {np.mean(own):.3f} of its own noise-free fits; flagged as "
                f"too narrow {np.mean(flagged):.0%}, {rest.mean():.3f} in the others",
                flush=True,
            )


def exact(sets=100):
    for label, law, name in laws():
        random = np.random.default_rng(11)
        worst = max(
            fit_plain(law, planted(name, random_theta(name, random))).rmse for _ in range(sets)
        )
        print(f"exact     {label:22s} largest RMSE {worst:.1e}", flush=True)


def point(sets=1000):
    """Success: the optimum is not beaten by a fit from the true parameters."""
    for name in FOUR:
        random, good, seconds = np.random.default_rng(12), 0, []
        for _ in range(sets):
            theta = random_theta(name, random)
            points = planted(name, theta, random, NOISE)
            started = time.perf_counter()
            found = fit_plain(name, points)
            seconds.append(time.perf_counter() - started)
            informed = informed_cost(name, points, theta)
            good += found.converged and found.cost <= informed * (1 + 1e-6) + 1e-9
        middle, slow = np.quantile(seconds, (0.5, 0.95)) * 1e3
        print(
            f"point     {name:22s} {middle:.1f} ms (95 %: {slow:.1f}), success {good}/{sets}",
            flush=True,
        )


def informed_cost(name, points, theta):
    """The optimum that a fit finds when it starts from the truth alone."""
    law = plugins.load("laws", name)
    law.starts = lambda grid: [theta]
    return fit_plain(law, points).cost


def resampling(resamples=1000):
    points = grid_of(published.rows("dclm_ar"), "ar").points
    fits = [fit_plain(name, points) for name in FOUR]
    resample(fits[0], cell_weights(points, 2, 6))  # torch is imported
    started = time.process_time()
    for one in fits:
        resample(one, cell_weights(points, resamples, len(one.theta) + 1))
    print(
        f"resample  4 laws x {resamples}: {time.process_time() - started:.1f} CPU-seconds",
        flush=True,
    )


def against_scipy(starts=4500):
    """SoftQ on the paper's grid in log A, log B, alpha, rho, E, as the literature fits it."""
    points, law = grid_of(published.rows("dclm_ar"), "ar").points, plugins.load("laws", "softq")
    started = time.process_time()
    ours = fit_plain("softq", points)
    our_seconds = time.process_time() - started

    def cost(free):
        log_A, log_B, alpha, rho, E = free
        theta = (E, np.exp(log_A), np.exp(log_B), alpha, rho)
        size = np.abs(np.log(law(theta, points.N, points.U)) - np.log(points.L))
        return np.where(size <= 1e-3, size**2 / 2, 1e-3 * (size - 5e-4)).sum()

    random, reached, best = np.random.default_rng(13), 0, np.inf
    bounds = ((-10, 15), (-10, 15), (0.02, 5), (0.05, 5), (0, 2.9))
    started = time.process_time()
    with np.errstate(all="ignore"):
        for _ in range(starts):
            begin = random.uniform((-2, -2, 0.05, 0.3, 0), (8, 8, 1.0, 2.0, 2.5))
            value = minimize(cost, begin, method="L-BFGS-B", bounds=bounds).fun * 1e6
            best, reached = min(best, value), reached + (value <= ours.cost * 1.001)
    seconds = time.process_time() - started
    print(
        f"scipy     {starts} starts {seconds:.0f} s, {reached} within 0.1 % of our optimum, "
        f"best {best:.4f} against {ours.cost:.4f}; ours {our_seconds * 1e3:.0f} ms: ratio "
        f"{seconds / our_seconds:.0f}",
        flush=True,
    )


def bias(sets=200):
    """Two recipes with one truth: what each method makes of them. 1 would be no bias."""
    for noise in (0.0, NOISE):
        random, ratios = np.random.default_rng(14), {}
        for _ in range(sets):
            theta = random_theta("softq", random)
            one, two = (planted("softq", theta, random, noise) for _ in range(2))
            first, second = fit_plain("softq", one), fit_plain("softq", two)
            answers = (
                *efficiency.joint(first, second),
                *efficiency.finite(first, second),
                *efficiency.by_asymptote(first, two),
            )
            for answer in answers:
                key = answer.method, answer.unique_tokens / 1e6
                ratios.setdefault(key, []).append(answer.data_efficiency or np.nan)
        for (method, U), values in ratios.items():
            low, middle, high = np.nanquantile(values, (0.05, 0.5, 0.95))
            print(
                f"bias      noise {noise:.1%} {method:9s} {U:.0f}M: median {middle:.3f}, "
                f"90 % in [{low:.3f}, {high:.3f}], no answer {np.isnan(values).mean():.1%}",
                flush=True,
            )


PARTS = {
    "exact": exact,
    "point": point,
    "resample": resampling,
    "bias": bias,
    "scipy": against_scipy,
    "coverage": coverage,
}

if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
