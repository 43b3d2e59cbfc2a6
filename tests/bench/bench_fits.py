"""What fits cost and whether bands are true: python -m tests.bench.bench_fits [PART ...] [LAW ...]

coverage   per law and 1, 3 and 5 seeds a cell, runs differ by 0.3 %: share of planted grids whose
           interval holds the truth, and its width as a ratio to the spread of the estimate over
           grids; of predictions, and of a recipe that is worth 1.15 (finite, joint)
pairs      the interval over pairs of cells and seeds: share of planted tables that it holds
exact      per law 100 noise-free grids: the largest RMSE
point      CPU milliseconds and success of a point fit, all starts together, 1000 planted grids
resample   CPU-seconds of 4 laws x 1000 resamples
scipy      the same optimum from 4500 starts of scipy's L-BFGS-B with its defaults, as a ratio
laws       per truth 100 planted grids of nine cells: how often another law leads, by AIC and AICc
nulls      in 60 worlds without a gain, how often the worth lies in its drawn null
predict    in 200 worlds, how often the intervals hold the law's truth and a new run
bias       the three efficiencies of a SoftQ world against itself: 200 grids without noise, 200 with

The first three take all laws unless some are named; muennighoff is fitted in stages,
muennighoff_at_once is the same law with all seven parameters together.
"""

from __future__ import annotations

import itertools
import sys
import time
from dataclasses import replace

import numpy as np
from scipy.optimize import minimize

from dcray import plugins
from dcray.fit import efficiency
from dcray.fit.fit import DRAW, fit, fit_plain, ranked
from dcray.fit.grid import Grid, grid_of
from dcray.fit.paper import published
from dcray.fit.predictions import new_runs
from dcray.fit.uncertainty.bootstrap import resample
from dcray.fit.uncertainty.null import with_nulls
from dcray.fit.uncertainty.paired import half_width
from tests.fit.planted import (
    DEVIATIONS,
    differences,
    nine_cells,
    planted,
    random_theta,
    with_seeds,
)

FOUR = ("chinchilla", "quanta", "softq", "muennighoff")
AT_ONCE = "muennighoff_at_once"
LAWS = ("chinchilla", "quanta", "softq", "muennighoff_c4", "muennighoff", AT_ONCE)
NOISE = 0.003
GAIN = 1.15  # what the planted recipe is worth
OTHERS = 30  # random starts around the truth, from which a better optimum is looked for


def law_of(label):
    """(a fresh law, whose thetas are planted)."""
    if label == AT_ONCE:
        return plugins.load("laws", "muennighoff", at_once=True), "muennighoff"
    return plugins.load("laws", label), label


def coverage(labels, truths=8, grids=25, resamples=200):
    """Each truth is planted `grids` times: the estimates' spread is what a width should show."""
    for label in labels:
        law, name = law_of(label)
        for num_seeds in (1, 3, 5):
            random, figures = np.random.default_rng(10), {}
            started = time.process_time()
            for theta in [random_theta(name, random) for _ in range(truths)]:
                for what, figure in of_truth(law, name, theta, num_seeds, grids, resamples, random):
                    figures.setdefault(what, []).append(figure)
            said = [
                f"{what} {np.mean([held for held, _ in each]):.3f}, width "
                f"{np.mean([width for _, width in each]):.2f}"
                for what, each in figures.items()
            ]
            seconds = time.process_time() - started
            print(
                f"coverage  {label:20s} {num_seeds} seeds: {'; '.join(said)}; "
                f"{seconds:.0f} CPU-seconds",
                flush=True,
            )


def of_truth(law, name, theta, num_seeds, grids, resamples, random):
    """(what, (share held, width over the spread of the estimate)) of one planted truth."""
    base = planted(name, theta)
    better = replace(base, L=np.asarray(law(theta, base.N, GAIN * base.U, **base.more)))
    truth = {"losses": np.log(base.L), "finite": np.log([GAIN, GAIN]), "joint": np.log([GAIN] * 2)}
    estimates, ends = {what: [] for what in truth}, {what: [] for what in truth}
    for seed in range(grids):
        fits = []
        for grid in (base, better):
            losses = with_seeds(grid, num_seeds, random, NOISE)
            fits.append(fit_plain(law, replace(grid, L=np.mean(losses, axis=-1))))
        drawn = [resample(one, resamples, seed) for one in fits]
        point = logs_of(fits, [np.array(one.theta)[:, None] for one in fits])
        for what, draws in logs_of(fits, [one.theta for one in drawn]).items():
            estimates[what].append(point[what][0])
            ends[what].append(np.quantile(draws, (0.025, 0.975), axis=0))
    for what, true in truth.items():
        low, high = np.moveaxis(ends[what], 1, 0)
        spread = 2 * 1.96 * np.std(estimates[what], axis=0, ddof=1)
        held = np.mean((low <= true) & (true <= high))
        yield what, (held, np.median(np.median(high - low, axis=0) / spread))


def logs_of(fits, thetas):
    """Log losses (P, n) of the baseline, and log worth (P, 2) at its least and largest budget."""
    (base, recipe), (first, second) = fits, thetas
    points, N = base.points, base.points.N.max()
    columns = [column.reshape(-1, 1) for column in first]
    found = {"losses": np.log(base.law(columns, points.N[None], points.U[None], **points.more))}
    finite, joint = [], []
    for U in (points.U.min(), points.U.max()):
        loss = recipe.law(second, N, U, **efficiency.epochs_at(recipe.points, N, U))
        finite.append(efficiency.by_size(base, loss, N, U, first) / U)
        joint.append(efficiency.by_limit(base, recipe.law.limit(second, U), first) / U)
    with np.errstate(divide="ignore"):
        return found | {"finite": np.log(finite).T, "joint": np.log(joint).T}


def pairs(sets=4000):
    for num_cells, num_seeds in itertools.product((5, 9, 20), (1, 3, 5)):
        random, said = np.random.default_rng(16), []
        cells, seeds = zip(*itertools.product(range(num_cells), range(num_seeds)), strict=True)
        for case in DEVIATIONS:
            held = 0
            for _ in range(sets):
                values, truth = differences(case, num_cells, num_seeds, random)
                held += abs(values.mean() - truth) <= half_width(values.ravel(), cells, seeds)
            said.append(f"{case} {held / sets:.3f}")
        print(f"pairs     {num_cells:2d} cells x {num_seeds} seeds: {', '.join(said)}", flush=True)


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
    resample(fits[0], 2)  # torch is imported
    started = time.process_time()
    for one in fits:
        resample(one, resamples)
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


def leading_laws(sets=100):
    """The issue's count: nine cells, noise 0.3 %, which law leads."""
    laws = ("chinchilla", "quanta", "softq")
    for truth in laws:
        random, wrong = np.random.default_rng(21), {"AIC": 0, "AICc": 0, "AICc, no draw": 0}
        for _ in range(sets):
            points = nine_cells(planted(truth, random_theta(truth, random), random, NOISE))
            fits = {law: fit_plain(law, points) for law in laws}
            lead = ranked(fits)[0]
            wrong["AIC"] += min(fits, key=lambda law: fits[law].aic) != truth
            wrong["AICc"] += lead != truth
            wrong["AICc, no draw"] += fits[truth].aicc - fits[lead].aicc >= DRAW
        counts = ", ".join(f"{name} {count}" for name, count in wrong.items())
        print(f"laws      truth {truth:10s} another leads in {counts} of {sets}", flush=True)


def nulls(sets=60, draws=100):
    """A SoftQ world in which the recipe is the baseline."""
    random, inside = np.random.default_rng(23), []
    for seed in range(sets):
        theta = random_theta("softq", random)
        one, two = (fit("softq", planted("softq", theta, random, NOISE)) for _ in range(2))
        answers = efficiency.finite(one, two)
        for answer in with_nulls(answers, {"softq": (one, two)}, "softq", draws, seed):
            worth, low, high = answer.data_efficiency, answer.null_low, answer.null_high
            inside.append(worth is not None and (low or 0) <= worth <= (high or np.inf))
    print(f"nulls     {np.mean(inside):.3f} of {len(inside)} worths in their null", flush=True)


def predict(sets=200, draws=200):
    """Twice the largest size at the largest budget, each law's own worlds."""
    for name in ("chinchilla", "quanta", "softq"):
        random, mean, run = np.random.default_rng(24), [], []
        for seed in range(sets):
            theta = random_theta(name, random)
            fitted = fit_plain(name, planted(name, theta, random, NOISE))
            grid = Grid("ar", fitted.points, tuple((float(loss),) for loss in fitted.points.L))
            N, U = 2 * fitted.points.N.max(), fitted.points.U.max()
            truth = float(fitted.law(theta, N, U))
            means = resample(fitted, draws, seed).predict(N, U)
            new = truth * np.exp(NOISE * random.standard_normal())
            runs = new_runs(grid, fitted, means, seed)
            for held, drawn, value in ((mean, means, truth), (run, runs, new)):
                low, high = np.quantile(drawn, (0.025, 0.975))
                held.append(low <= value <= high)
        print(
            f"predict   {name:10s} mean {np.mean(mean):.3f}, new run {np.mean(run):.3f} of {sets}",
            flush=True,
        )


BY_LAW = {"exact": exact, "point": point, "coverage": coverage}
PARTS = {
    "pairs": pairs, "resample": resampling, "bias": bias, "scipy": against_scipy,
    "laws": leading_laws, "nulls": nulls, "predict": predict,
}  # fmt: skip

if __name__ == "__main__":
    words = sys.argv[1:]
    if unknown := {*words} - {*BY_LAW, *PARTS, *LAWS}:
        sys.exit(f"no part and no law is called {', '.join(sorted(unknown))}\n\n{__doc__}")
    parts = [word for word in words if word not in LAWS] or [*BY_LAW, *PARTS]
    chosen = [word for word in words if word in LAWS] or LAWS
    for part in parts:
        BY_LAW[part](chosen) if part in BY_LAW else PARTS[part]()
