"""The loss of an ensemble, which predicts by the mean of its members' probabilities. Pure.

From the nats that each member gives each validation target: nats = -log(mean_k exp(-nats_k)), never
above the mean of the members' nats (Jensen). L_k is the mean loss over sets of k members, so no
order of the members enters. Without end: L_k = limit + a / k, the leading term of the expansion in
1 / k, by least squares over k >= 2. Without k = 1, where the next term is largest, the limit's bias
was half as large on simulated models, and no noisier; what is left makes the limit somewhat high.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_SUBSETS_OF = 6  # members of which every set is scored; of more: K neighbors in a circle a size
CHUNK = 1 << 16  # targets at a time
LEVEL = 0.95
PREFIX = "ensemble/"  # of the metrics on record

Floats = NDArray[np.floating[Any]]
Members = tuple[int, ...]


@dataclass(frozen=True)
class EnsembleLoss:
    """The losses (nats per token) of 1, 2, ... K members, and that of members without end.

    low, high: the limit's 95 % interval for other seeds, by the jackknife over members with
    Student's t; None for fewer than three members.
    """

    losses: tuple[float, ...]
    limit: float
    low: float | None = None
    high: float | None = None

    @property
    def num_members(self) -> int:
        return len(self.losses)

    @property
    def loss(self) -> float:
        """Return the loss of all members together."""
        return self.losses[-1]

    def as_metrics(self) -> dict[str, float]:
        """Return the losses under the names that the record gives them."""
        named = {f"{PREFIX}val_loss_{k}": loss for k, loss in enumerate(self.losses, 1)}
        limits = {"limit": self.limit, "limit_low": self.low, "limit_high": self.high}
        named |= {
            f"{PREFIX}val_loss_{n}": value for n, value in limits.items() if value is not None
        }
        return named

    @classmethod
    def from_metrics(cls, metrics: Mapping[str, float]) -> EnsembleLoss | None:
        """Read the losses from the metrics of a result; None if it is no ensemble."""
        losses: list[float] = []
        while (name := f"{PREFIX}val_loss_{len(losses) + 1}") in metrics:
            losses.append(metrics[name])
        limit = metrics.get(f"{PREFIX}val_loss_limit")
        if not losses or limit is None:
            return None
        ends = (metrics.get(f"{PREFIX}val_loss_limit_{end}") for end in ("low", "high"))
        return cls(tuple(losses), limit, *ends)


def mean_nats(nats: Sequence[Floats]) -> NDArray[np.float64]:
    """Compute the nats (n,) of each target under the mean of K members' probabilities.

    nats: K arrays (n,), one for each member.
    """
    total = -nats[0].astype(np.float64)
    for one in nats[1:]:
        total = np.logaddexp(total, -one.astype(np.float64))
    return math.log(len(nats)) - total


def ensemble_loss(nats: Sequence[Floats]) -> EnsembleLoss:
    """Compute the losses of an ensemble of K >= 2 members from their nats, K arrays (n,)."""
    number = len(nats)
    assert number > 1, "an ensemble has two members at least"
    assert len({len(one) for one in nats}) == 1, "members are scored on the same targets"
    sets = list(subsets(number))
    sums = np.zeros(len(sets))
    for start in range(0, len(nats[0]), CHUNK):
        part = [one[start : start + CHUNK] for one in nats]
        sums += [float(mean_nats([part[i] for i in members]).sum()) for members in sets]
    by_set = dict(zip(sets, (sums / len(nats[0])).tolist(), strict=True))
    losses = curve(by_set, number)
    limit = fitted_limit(losses)
    if number < 3:
        return EnsembleLoss(losses, limit)
    half = _half_width([fitted_limit(curve(by_set, number, without=i)) for i in range(number)])
    return EnsembleLoss(losses, limit, limit - half, limit + half)


def subsets(number: int) -> Iterator[Members]:
    """Yield the sets of members that are scored: every set of few, neighbors in a circle of more.

    At each size, each member is in as many sets as any other.
    """
    for size in range(1, number + 1):
        if number <= MAX_SUBSETS_OF:
            yield from combinations(range(number), size)
            continue
        for first in range(number if size < number else 1):
            yield tuple(sorted((first + i) % number for i in range(size)))


def curve(
    by_set: Mapping[Members, float], number: int, without: int | None = None
) -> tuple[float, ...]:
    """Average the losses of the sets of each size: of 1 ... K members, or as if one were not there.

    by_set: the loss of each set of `subsets`.
    """
    found = []
    for size in range(1, number + (without is None)):
        its = [loss for one, loss in by_set.items() if len(one) == size and without not in one]
        found.append(math.fsum(its) / len(its))
    return tuple(found)


def fitted_limit(losses: Sequence[float]) -> float:
    """Fit L_k = limit + a / k to the losses of 1 ... K >= 2 members; return the limit (nats)."""
    first = 1 if len(losses) == 2 else 2
    x = 1 / np.arange(first, len(losses) + 1)
    y = np.asarray(losses[first - 1 :], float)
    slope = float((x - x.mean()) @ (y - y.mean()) / ((x - x.mean()) @ (x - x.mean())))
    return float(y.mean() - slope * x.mean())


def _half_width(left_out: Sequence[float]) -> float:
    """Compute half the jackknife interval's width from the estimates without each member."""
    from scipy.stats import t

    number = len(left_out)
    values = np.asarray(left_out, float)
    error = math.sqrt((number - 1) / number * float(((values - values.mean()) ** 2).sum()))
    return float(t.ppf((1 + LEVEL) / 2, number - 1)) * error
