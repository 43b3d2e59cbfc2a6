"""Which trunks to try next: Optuna's samplers on the complete results, or a spread-out start.

A pure function of the history and the seed: Optuna's own study lives in memory and is rebuilt at
every call, so there is no second storage, no zombie and no repeat.
"""

from __future__ import annotations

import hashlib
import logging
import math
import statistics
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from dcray.search.boxes import Range, Value
from dcray.search.ladder import Losses
from dcray.search.space import Space, Values, value_at

STARTUP = 4  # trunks before a model is asked; Optuna's own default, 10, would leave it no say
Wish = Mapping[str, Value]


def propose(
    space: Space,
    sampler: str,
    history: Sequence[tuple[Values, float]],
    number: int,
    *,
    seed: int,
    first: Sequence[Wish] = (),
) -> list[Values]:
    """Up to `number` points of the space that are not in the history, none twice.

    history: the trunks so far, each with the loss that it ended or would have ended with; inf where
    it diverged. first: wishes that come before all others where there is no history (a warm
    start). Fewer points come back only where the space has no more.
    """
    found: list[Values] = []
    for _ in range(number):
        taken = [values for values, _ in history] + found
        count = len(taken)
        if count < len(first):
            wish: Wish = first[count]
        elif sampler == "random" or len(history) < STARTUP:
            wish = _spread(space, count, seed)
        else:
            wish = _ask(space, sampler, history, found, seed + count)
        point = space.snap(wish, taken)
        if point is None:
            return found
        found.append(point)
    return found


def trunk_value(rungs: Sequence[tuple[int, ...]], losses: Losses, trunk: int) -> float:
    """The loss that a trunk ended with, or would have: its last one and the mean drop from there.

    The drop from an epoch count to the trunk's last is the mean over trunks that have both.
    """
    own = [e for e in rungs[trunk] if (trunk, e) in losses]
    last, top = own[-1], rungs[trunk][-1]
    loss = losses[trunk, last]
    if last == top or not math.isfinite(loss):
        return loss
    drops = [
        losses[t, top] - losses[t, last]
        for t in range(len(rungs))
        if math.isfinite(losses.get((t, top), math.inf)) and (t, last) in losses
    ]
    return loss + (statistics.fmean(drops) if drops else 0.0)


def seed_of(*parts: Any) -> int:
    """A seed (below 2^31) from names and numbers: the same on every machine."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4], "big") % 2**31


def _spread(space: Space, index: int, seed: int) -> dict[str, Value]:
    """Point `index` of a scrambled Halton sequence over the space's envelope."""
    from scipy.stats import qmc

    axes = space.envelope()
    if not axes:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        halton = qmc.Halton(len(axes), scramble=True, rng=seed)
        unit = halton.random(index + 1)[index]
    return {
        name: value_at(axis, float(u)) for (name, axis), u in zip(axes.items(), unit, strict=True)
    }


def _ask(
    space: Space,
    sampler: str,
    history: Sequence[tuple[Values, float]],
    flying: Sequence[Values],
    seed: int,
) -> dict[str, Value]:
    """What an Optuna sampler suggests; a trunk without a loss yet stands in with the mean one."""
    import optuna

    optuna.logging.set_verbosity(logging.ERROR)
    axes = space.envelope()
    optuna_study = optuna.create_study(sampler=_sampler(sampler, seed), direction="minimize")
    spread = {name: _distribution(axis) for name, axis in axes.items()}
    mean = statistics.fmean(_settled([loss for _, loss in history]))
    told = list(zip([v for v, _ in history], _settled([x for _, x in history]), strict=True))
    for values, loss in [*told, *((values, mean) for values in flying)]:
        params = {name: value for name, value in values if name in axes}
        optuna_study.add_trial(
            optuna.trial.create_trial(params=params, distributions=spread, value=loss)
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return dict(optuna_study.ask(fixed_distributions=spread).params)


def _settled(losses: Sequence[float]) -> list[float]:
    """Losses with a finite one for each divergence: worse than the worst by the others' spread."""
    finite = [loss for loss in losses if math.isfinite(loss)] or [0.0]
    worst = max(finite) + max(max(finite) - min(finite), 0.1)
    return [loss if math.isfinite(loss) else worst for loss in losses]


def _sampler(name: str, seed: int) -> Any:
    import optuna

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # GPSampler is marked experimental
        if name == "gp":
            return optuna.samplers.GPSampler(
                seed=seed, n_startup_trials=0, deterministic_objective=False
            )
        return optuna.samplers.TPESampler(seed=seed, n_startup_trials=0, multivariate=True)


def _distribution(axis: Range | tuple[Value, ...]) -> Any:
    import optuna

    if isinstance(axis, tuple):
        return optuna.distributions.CategoricalDistribution(axis)
    return optuna.distributions.FloatDistribution(axis.low, axis.high, log=axis.log)
