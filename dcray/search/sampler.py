"""The choice of the next trunks: Optuna's samplers on the complete results, or a spread-out start.

A pure function of the history and the seed: Optuna's own study lives in memory and is rebuilt at
every call, so there is no second storage, no abandoned trial and no repeat.
"""

from __future__ import annotations

import hashlib
import logging
import math
import statistics
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dcray.errors import ConfigError, first_line
from dcray.search.ladder import Losses
from dcray.study.axes import Range, Value
from dcray.study.space import Space, Values, value_at

STARTUP = 4  # trunks before a model is asked; Optuna's default, 10, would hardly use the model
TRIES = 64  # spread-out points tried instead of a target whose nearest points are taken
Target = Mapping[str, Value]


def propose(
    space: Space,
    sampler: str,
    history: Sequence[tuple[Values, float]],
    number: int,
    *,
    seed: int,
    first: Sequence[Target] = (),
) -> list[Values]:
    """Propose up to `number` points of the space that are not in the history, none twice.

    history: the trunks so far, each with the loss that it ended or would have ended with; inf if it
    diverged. first: targets for the very first points (a warm start), counted with the history.
    Fewer points come back only if the space has no more.
    """
    found: list[Values] = []
    for _ in range(number):
        taken = [values for values, _ in history] + found
        count = len(taken)
        if count < len(first):
            target: Target = first[count]
        elif sampler == "random" or len(history) < STARTUP:
            target = _spread(space, count, seed)
        else:
            target = _ask(space, sampler, history, found, seed + count)
        point = space.snap(target, taken) or _elsewhere(space, taken, seed)
        if point is None:
            return found
        found.append(point)
    return found


def check_samplers(samplers: Iterable[str]) -> None:
    """Raise ConfigError, before any trial, if a sampler needs what cannot be imported."""
    needed = sorted({"gp", "tpe"} & set(samplers))
    if not needed:
        return
    try:
        import optuna  # noqa: F401
    except Exception as error:  # a broken installation raises what it likes
        raise ConfigError(
            f'the sampler "{needed[0]}" needs optuna, which cannot be imported here '
            f'({type(error).__name__}: {first_line(error)}); mend that, or use sampler = "grid" '
            'or "random"'
        ) from None


def trunk_value(rungs: Sequence[tuple[int, ...]], losses: Losses, trunk: int) -> float:
    """Estimate the loss that a trunk ends with: its last loss plus the mean drop from there.

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
    """Derive a seed (below 2^31) from names and numbers: the same on every machine."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4], "big") % 2**31


def _spread(space: Space, index: int, seed: int) -> dict[str, Value]:
    """Compute point `index` of a scrambled Halton sequence over the space's envelope."""
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


def _elsewhere(space: Space, taken: Sequence[Values], seed: int) -> Values | None:
    """Find a spread-out point of ranges if a target finds none that is free; None if none is left.

    A model that presses against the end of a range asks for the same point again. A discrete space
    has none left if its nearest point is missing: `snap` has looked at them all.
    """
    if space.discrete:
        return None
    targets = (_spread(space, len(taken) + extra, seed) for extra in range(TRIES))
    points = (space.snap(target, taken) for target in targets)
    return next((point for point in points if point is not None), None)


def _ask(
    space: Space,
    sampler: str,
    history: Sequence[tuple[Values, float]],
    flying: Sequence[Values],
    seed: int,
) -> dict[str, Value]:
    """Ask an Optuna sampler for a point; a trunk without a loss yet counts with the mean loss."""
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
    """Replace each divergence by a finite loss: worse than the worst by the others' spread."""
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
