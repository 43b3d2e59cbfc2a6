"""What fits cost and whether bands are true: python -m tests.bench.bench_fits [PART ...] [LAW ...]

coverage   per law 400 planted grids, noise 0.3 %: share of cells whose true loss is in the band
exact      per law 100 noise-free grids: the largest RMSE
point      CPU milliseconds and success of a point fit, all starts together, 1000 planted grids
resample   CPU-seconds of 4 laws x 1000 resamples
scipy      the same optimum from 4500 starts of scipy's L-BFGS-B with its defaults, as a ratio
bias       the three efficiencies of a SoftQ world against itself: 200 grids without noise, 200 with

The first three take all laws unless some are named; muennighoff is fitted in stages,
muennighoff_at_once is the same law with all seven parameters together.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from scipy.optimize import minimize

from dcray import plugins
from dcray.fit import efficiency, published
from dcray.fit.bootstrap import cell_weights, resample
from dcray.fit.fit import fit_plain
from dcray.fit.grid import grid_of
from tests.fit.planted import planted, random_theta

FOUR = ("chinchilla", "quanta", "softq", "muennighoff")
AT_ONCE = "muennighoff_at_once"
LAWS = ("chinchilla", "quanta", "softq", "muennighoff_c4", "muennighoff", AT_ONCE)
NOISE = 0.003
OTHERS = 30  # random starts around the truth, from which a better optimum is looked for


def law_of(label):
    """(a fresh law, whose thetas are planted)."""
    if label == AT_ONCE:
        return plugins.load("laws", "muennighoff", at_once=True), "muennighoff"
    return plugins.load("laws", label), label


def coverage(labels, sets=400, resamples=200):
    """Of a law in stages also what the draws in stages hold alone: noise without their bias."""
    for label in labels:
        law, name = law_of(label)
        random, covered, alone = np.random.default_rng(10), [], []
        started = time.process_time()
        for seed in range(sets):
            theta = random_theta(name, random)
            truth, points = planted(name, theta), planted(name, theta, random, NOISE)
            counts = cell_weights(points, resamples, len(law.names) + 1, seed)
            drawn = resample(fit_plain(law, points), counts)
            losses = drawn.predict(points.N, points.U, **points.more)
            covered.append(holds(losses, truth.L))
            if law.whole() is not None:
                alone.append(holds(losses[::2], truth.L))
        by_cell = np.mean(covered, axis=0)
        text = (
            f"coverage  {label:20s} {np.mean(covered):.3f} of {np.size(covered)} cells, by place "
            f"in the grid {by_cell.min():.2f} to {by_cell.max():.2f}"
        )
        text += f"; draws in stages alone {np.mean(alone):.3f}" if alone else ""
        print(f"{text}; {time.process_time() - started:.0f} CPU-seconds", flush=True)


def holds(draws, truth):
    """Which cells' true losses lie in the pointwise 95 % band."""
    low, high = np.quantile(draws, (0.025, 0.975), axis=0)
    return (low <= truth) & (high >= truth)


def exact(labels, sets=100):
    for label in labels:
        law, name = law_of(label)
        random = np.random.default_rng(11)
        rmses = [
            fit_plain(law, planted(name, random_theta(name, random))).rmse for _ in range(sets)
        ]
        within = sum(rmse <= 1e-4 for rmse in rmses)
        print(
            f"exact     {label:20s} largest RMSE {max(rmses):.1e}, {within}/{sets} within 1e-4",
            flush=True,
        )


def point(labels, sets=1000):
    """Success: converged, and in no stage worse than the best of the truth, our starts and more."""
    for label in labels:
        law, name = law_of(label)
        random, good, seconds = np.random.default_rng(12), 0, []
        others = np.random.default_rng(15)
        for _ in range(sets):
            theta = random_theta(name, random)
            points = planted(name, theta, random, NOISE)
            started = time.process_time()
            found = fit_plain(law, points)
            seconds.append(time.process_time() - started)
            best = stage_costs(best_known(label, points, theta, others))
            costs = stage_costs(found)
            good += found.converged and bool((costs <= best * (1 + 1e-6) + 1e-9).all())
        middle, slow = np.quantile(seconds, (0.5, 0.95)) * 1e3
        print(
            f"point     {label:20s} {np.mean(seconds) * 1e3:.1f} ms (median {middle:.1f}, "
            f"95 % {slow:.1f}), success {good}/{sets}",
            flush=True,
        )


def best_known(label, points, theta, random):
    """The fit from the truth, from the law's own starts and from OTHERS around the truth."""
    law, _ = law_of(label)
    low, high = (np.array(side, float) for side in law.box(points))
    span = np.minimum(high - low, 1.0)
    free = np.array(law.to_free(theta, points), float)
    free = free + 0.5 * span * random.standard_normal((OTHERS, len(free)))
    inside = np.clip(free, low + 1e-6 * span, high - 1e-6 * span)
    starts = [theta, *law.starts(points), *(law.from_free(tuple(row), points) for row in inside)]
    law.starts = lambda grid: starts
    return fit_plain(law, points)


def stage_costs(fit):
    """The objective after each stage, by its definition: later parameters neutral, (stages,)."""
    law, points, costs, later = fit.law, fit.points, [], set(fit.law.names)
    for stage in law.stages():
        later -= set(stage)
        theta = [
            law.neutral()[name] if name in later else value
            for name, value in zip(law.names, fit.theta, strict=True)
        ]
        size = abs(np.log(law(theta, points.N, points.U, **points.more) / points.L)) / 1e-3
        costs.append(np.where(size <= 1, size**2 / 2, size - 0.5).sum())
    return np.array(costs)


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


BY_LAW = {"exact": exact, "point": point, "coverage": coverage}
PARTS = {"resample": resampling, "bias": bias, "scipy": against_scipy}

if __name__ == "__main__":
    words = sys.argv[1:]
    if unknown := {*words} - {*BY_LAW, *PARTS, *LAWS}:
        sys.exit(f"no part and no law is called {', '.join(sorted(unknown))}\n\n{__doc__}")
    parts = [word for word in words if word not in LAWS] or [*BY_LAW, *PARTS]
    chosen = [word for word in words if word in LAWS] or LAWS
    for part in parts:
        BY_LAW[part](chosen) if part in BY_LAW else PARTS[part]()
