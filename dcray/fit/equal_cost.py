"""The worth of a recipe at equal cost: as many FLOPs to train, or as many for a token read.

No law is fitted. The envelope of a recipe at a budget U is the lowest loss that any of its runs
reached with at most C FLOPs; between runs log loss is linear in log C, so that a power law comes
back exactly. Outside of the FLOPs that were spent there is no envelope: two recipes are compared at
the most FLOPs that both of them spent on this budget, and where they have none in common, not at
all. Like for like, U_eq is the number of unique tokens with which the baseline has the recipe's
loss at the same C: log loss is linear in log U between those budgets at which the baseline spent
as much and as little as C. Beyond these budgets a bound stands in place of a number.

An interval is that of new noise in each loss, of the size in which log losses differ between seeds;
which runs lie on an envelope is not drawn anew. The null puts the baseline in the recipe's place:
two draws of the baseline's own envelopes, one with the recipe's number of seeds, by the same
method. In 400 simulated tables of independent noise the intervals held the planted worth in 0.945
and the null a twin of the baseline in 0.94 (tests/fit/test_equal_cost.py has 60 of them). Noise
that two recipes share on equal seeds counts in both draws, and then intervals are somewhat wide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dcray.config.counts import count_label
from dcray.fit.efficiency import AT_LEAST, AT_MOST, Equivalence
from dcray.fit.uncertainty.bootstrap import noise_sizes
from dcray.fit.uncertainty.intervals import ends
from dcray.laws._law import Array

SAME = 1e-9  # difference of log FLOPs below which two runs cost the same
NO_LAW = "none"  # the name of the law of these worths: the runs themselves


@dataclass(frozen=True)
class Spent:
    """A loss in nats and the FLOPs that it cost; num_seeds: the runs of which it is the mean."""

    unique_tokens: int
    flops: float
    loss: float
    num_seeds: int = 1


@dataclass(frozen=True)
class Noise:
    """The noise of a single run: squares of deviations of log losses, and their freedom."""

    squares: float
    freedom: int


@dataclass(frozen=True)
class EqualCost:
    """Hold a recipe's worth at equal cost, budget by budget, and the difference of losses there.

    flops: {budget: FLOPs at which the two are compared}; why: a sentence for each budget without
    a comparison or without a number. difference: recipe minus baseline in nats, the mean over
    the budgets that are compared, with its 95 % interval if noise is known; None without any.
    """

    worths: tuple[Equivalence, ...] = ()
    flops: tuple[tuple[int, float], ...] = ()
    why: tuple[str, ...] = ()
    difference: float | None = None
    low: float | None = None
    high: float | None = None


def seed_noise(groups: Sequence[Sequence[float]]) -> Noise | None:
    """Pool the deviations of log losses from their mean within groups of seeds (nats).

    Returns None if no group has two losses.
    """
    logs = [np.log(group) for group in groups if len(group) > 1]
    freedom = sum(len(group) - 1 for group in logs)
    squares = sum(float(((group - group.mean()) ** 2).sum()) for group in logs)
    return Noise(squares, freedom) if freedom else None


def at_equal_cost(
    baseline: Sequence[Spent],
    recipe: Sequence[Spent],
    names: tuple[str, str],
    noise: Noise | None = None,
    *,
    num_draws: int = 0,
    seed: int = 0,
) -> EqualCost:
    """Compare two recipes, `names` (baseline, recipe), at each budget that both have.

    num_draws: of intervals and nulls; none are drawn without `noise`.
    """
    random = np.random.default_rng((seed, 6))
    sizes = np.empty(0)
    if noise is not None and num_draws:
        sizes = noise_sizes(noise.squares, noise.freedom, num_draws, random)
    mean_seeds = float(np.mean([one.num_seeds for one in recipe])) if recipe else None
    own, other = _curves(baseline, sizes, random), _curves(recipe, sizes, random)
    again = _curves(baseline, sizes, random, mean_seeds)
    worths, flops, why, gaps = [], [], [], []
    for U in sorted(own.keys() & other.keys()):
        cost = _most_in_common(own[U], other[U])
        if cost is None:
            why.append(_apart(names, U, own[U], other[U]))
            continue
        flops.append((U, float(np.exp(cost))))
        losses, null = other[U].at(cost), again[U].at(cost)
        gaps.append(np.exp(losses) - np.exp(own[U].at(cost)))
        worth = _worth(own, U, cost, losses, null)
        worths += [worth] if worth else []
        if worth is None or worth.beyond:
            why.append(_no_number(names[0], U, cost, own, worth))
    if not gaps:
        missing = () if why else (f"{names[0]} and {names[1]} have no budget in common",)
        return EqualCost(why=(*why, *missing))
    mean = np.mean(gaps, axis=0)
    low, high = np.quantile(mean[1:], [0.025, 0.975]) if len(sizes) else (None, None)
    return EqualCost(tuple(worths), tuple(flops), tuple(why), float(mean[0]), _plain(low),
                     _plain(high))  # fmt: skip


@dataclass(frozen=True)
class _Envelope:
    """x (m,): log FLOPs in order; y (1 + P, m): log losses, the first row as they were measured."""

    x: Array
    y: Array

    def reaches(self, cost: float) -> bool:
        return bool(self.x[0] - SAME <= cost <= self.x[-1] + SAME)

    def at(self, cost: float) -> Array:
        """Interpolate the log loss (1 + P,) at a log cost within reach."""
        if len(self.x) == 1:
            return self.y[:, 0]
        right = int(np.clip(np.searchsorted(self.x, cost), 1, len(self.x) - 1))
        left = right - 1
        share = np.clip((cost - self.x[left]) / (self.x[right] - self.x[left]), 0.0, 1.0)
        return np.asarray((1 - share) * self.y[:, left] + share * self.y[:, right])


_Curves = dict[int, _Envelope]  # by budget


def _curves(
    spent: Sequence[Spent],
    sizes: Array,
    random: np.random.Generator,
    num_seeds: float | None = None,
) -> _Curves:
    """Build the envelopes of the losses, and of a draw of them for each size of noise (P,).

    num_seeds: of each loss; None: its own.
    """
    budgets = sorted({one.unique_tokens for one in spent})
    groups = {U: [one for one in spent if one.unique_tokens == U] for U in budgets}
    return {U: _envelope(its, sizes, random, num_seeds) for U, its in groups.items()}


def _envelope(
    spent: Sequence[Spent], sizes: Array, random: np.random.Generator, num_seeds: float | None
) -> _Envelope:
    spent = sorted(spent, key=lambda one: (one.flops, one.loss))
    x, logs = (np.log([getattr(one, name) for one in spent]) for name in ("flops", "loss"))
    scale = 1 / np.sqrt([num_seeds or one.num_seeds for one in spent])
    noise = sizes[:, None] * scale * random.standard_normal((len(sizes), len(spent)))
    y = np.concatenate([logs[None], logs + noise])
    last = np.append(np.diff(x) > SAME, True)  # of the runs that cost the same
    lowest = [int(np.argmin(logs[: i + 1])) for i in np.flatnonzero(last)]
    return _Envelope(x[last], y[:, lowest])


def _most_in_common(first: _Envelope, second: _Envelope) -> float | None:
    """Find the highest log cost that both envelopes reach; None if there is none."""
    cost = float(min(first.x[-1], second.x[-1]))
    return cost if first.reaches(cost) and second.reaches(cost) else None


def _worth(own: _Curves, U: int, cost: float, losses: Array, null: Array) -> Equivalence | None:
    """Compute the worth of log losses (1 + P,) at a budget and a log cost.

    Returns None if the baseline spent as much on this budget alone.
    """
    budgets = np.array([tokens for tokens, one in own.items() if one.reaches(cost)], float)
    if len(budgets) < 2:
        return None
    falling = np.stack([own[int(tokens)].at(cost) for tokens in budgets], axis=1)
    falling = np.minimum.accumulate(falling, axis=1)  # budgets are nested: more cannot be worse
    ratios = _tokens_at(budgets, falling, losses) / U
    ratio, draws = float(ratios[0]), ratios[1:]
    answered = 0 < ratio < np.inf
    found = Equivalence(
        method="", law=NO_LAW, unique_tokens=float(U), status="within" if answered else "none",
        equivalent_tokens=ratio * U if answered else None,
        data_efficiency=ratio if answered else None, null=None,
        beyond=None if answered else AT_LEAST if ratio else AT_MOST,
        supported_low=float(budgets[0] / U), supported_high=float(budgets[-1] / U),
    )  # fmt: skip
    if not len(draws):
        return found
    own_ratios = _tokens_at(budgets, falling, null)[1:] / U
    middle, (low, high), (null_low, null_high) = (
        np.median(own_ratios),
        ends(draws),
        ends(own_ratios),
    )
    return replace(
        found, low=low, high=high, null_low=null_low, null_high=null_high,
        null=float(middle) if 0 < middle < np.inf else None,
        answered_frac=float(np.mean((draws > 0) & np.isfinite(draws))),
    )  # fmt: skip


def _tokens_at(budgets: Array, falling: Array, losses: Array) -> Array:
    """Interpolate the tokens (P,) at which log losses (P, m) that fall over budgets are `losses`.

    Returns 0 for a loss above all of a row, infinity for one below.
    """
    logs, last = np.log(budgets), len(budgets) - 1
    above = (falling > losses[:, None] + 1e-12).sum(axis=1)  # how many budgets do not suffice
    right = np.clip(above, 1, last)
    rows = np.arange(len(losses))
    high, low = falling[rows, right - 1], falling[rows, right]
    with np.errstate(all="ignore"):
        share = np.clip(np.where(high > low, (high - losses) / (high - low), 0.0), 0.0, 1.0)
    tokens = np.exp(logs[right - 1] + share * (logs[right] - logs[right - 1]))
    too_bad = losses > falling[:, 0] + 1e-12
    return np.where(above > last, np.inf, np.where(too_bad, 0.0, tokens))


def _apart(names: tuple[str, str], U: int, own: _Envelope, other: _Envelope) -> str:
    spent = [f"{name} spent {_reach(one.x)}" for name, one in zip(names, (own, other), strict=True)]
    return f"at {count_label(U)} {' and '.join(spent)} FLOPs: no compute in common"


def _reach(x: Array) -> str:
    return " to ".join(dict.fromkeys(f"{flops:.2g}" for flops in np.exp(x[[0, -1]])))


def _no_number(baseline: str, U: int, cost: float, own: _Curves, worth: Equivalence | None) -> str:
    where = f"at {count_label(U)}"
    if worth is None:
        return f"{where} {baseline} has no other budget at {np.exp(cost):.2g} FLOPs"
    end = "larger" if worth.beyond == AT_LEAST else "smaller"
    return (
        f"{where} {worth.beyond} {worth.ratio_or_bound:.2f} times, as {baseline} has no {end} "
        f"budget at {np.exp(cost):.2g} FLOPs"
    )


def _plain(value: float | None) -> float | None:
    return None if value is None else float(value)
