"""The choice of the next segments to run: a pure function of the losses on record.

ASHA in its original, promoting form, made replayable: trunks are compared at rungs, by fully
decayed losses at equal epoch counts, and a decision waits until all that it compares is there. So
the results do not depend on which run came first: on timing, concurrency, kills or restarts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

Rung = tuple[int, int]  # (number of the trunk, epochs)
Losses = Mapping[Rung, float]  # complete results; inf if a run diverged or failed


@dataclass(frozen=True)
class Decision:
    """The decision that follows from the losses so far."""

    due: tuple[Rung, ...]  # without a result, and nothing stands before them
    dropped: frozenset[Rung]  # will never run: their trunk was stopped
    awaited: frozenset[Rung]  # cannot be decided before what is due has ended

    @property
    def done(self) -> bool:
        return not self.due and not self.awaited


def cohort(rungs: Sequence[tuple[int, ...]], keep: Sequence[float], losses: Losses) -> Decision:
    """Decide the next segments of trunks judged together, of which an exact number goes on.

    rungs: the epoch counts of each trunk, rising. keep: how many trunks run at the first, second,
    ... rung of their own, as counts (9, 5, 3) or as shares of the trunks with the same rungs (1,
    0.56, 0.34); the last stands for all further ones. At each epoch count the trunks there are
    compared once all their losses are in, and as many of the best go on as `keep` says.
    """
    quotas = _quotas(rungs, keep)
    here: dict[int, set[int]] = {}  # epochs: the trunks that run there
    unsure: dict[int, set[int]] = {}  # epochs: those that may
    for trunk, own in enumerate(rungs):
        here.setdefault(own[0], set()).add(trunk)
    due: list[Rung] = []
    gone: set[Rung] = set()
    awaited: set[Rung] = set()
    for epochs in sorted({e for own in rungs for e in own}):
        present, maybe = here.get(epochs, set()), unsure.get(epochs, set())
        due += [(t, epochs) for t in sorted(present) if (t, epochs) not in losses]
        going_on = {t for t in present | maybe if epochs < rungs[t][-1]}
        if maybe or any((t, epochs) not in losses for t in present):
            for trunk in going_on:
                unsure.setdefault(_after(rungs[trunk], epochs), set()).add(trunk)
            awaited |= {(t, epochs) for t in maybe}
            continue
        chosen = _best(going_on, epochs, losses, quotas.get(epochs, 0))
        for trunk in going_on:
            if trunk in chosen:
                here.setdefault(_after(rungs[trunk], epochs), set()).add(trunk)
            else:
                gone |= {(trunk, e) for e in rungs[trunk] if e > epochs}
    return Decision(tuple(due), frozenset(gone), frozenset(awaited))


def generation(
    rungs: Sequence[tuple[int, ...]], first: int, share: float, losses: Losses
) -> Decision:
    """Decide the next segments of the newest generation: the trunks from number `first` on.

    All earlier generations are complete. At each rung, once all trunks of this generation that run
    there have their losses, a trunk goes on if it is among the best ceil(share) of all that were
    ever there.
    """
    due: list[Rung] = []
    gone: set[Rung] = set()
    awaited: set[Rung] = set()
    present = {t: rungs[t][0] for t in range(first, len(rungs))}  # where each stands next
    for epochs in sorted({e for own in rungs for e in own}):
        here = {t for t, next_rung in present.items() if next_rung == epochs}
        missing = {t for t in here if (t, epochs) not in losses}
        due += [(t, epochs) for t in sorted(missing)]
        going_on = {t for t in here if epochs < rungs[t][-1]}
        if missing:
            awaited |= {(t, e) for t in going_on for e in rungs[t] if e > epochs}
            continue
        ever = {t for t, e in losses if e == epochs and epochs < rungs[t][-1]}
        chosen = _best(ever, epochs, losses, math.ceil(share * len(ever)))
        for trunk in going_on:
            if trunk in chosen:
                present[trunk] = _after(rungs[trunk], epochs)
            else:
                gone |= {(trunk, e) for e in rungs[trunk] if e > epochs}
    return Decision(tuple(due), frozenset(gone), frozenset(awaited))


def _quotas(rungs: Sequence[tuple[int, ...]], keep: Sequence[float]) -> dict[int, int]:
    """Count the trunks that go on from each epoch count, over all families of equal rungs."""
    quotas: dict[int, int] = {}
    counts = any(number > 1 for number in keep)
    for own in dict.fromkeys(rungs):
        size = sum(1 for other in rungs if other == own)
        for index, epochs in enumerate(own[:-1]):
            number = keep[min(index + 1, len(keep) - 1)]
            quota = number if counts else max(1, math.floor(number * size + 0.5))
            quotas[epochs] = quotas.get(epochs, 0) + min(int(quota), size)
    return quotas


def _best(trunks: Iterable[int], epochs: int, losses: Losses, number: int) -> set[int]:
    """Find the trunks of the `number` lowest finite losses at this rung; ties to the earlier."""
    finite = [t for t in trunks if math.isfinite(losses[t, epochs])]
    return set(sorted(finite, key=lambda t: (losses[t, epochs], t))[:number])


def _after(rungs: tuple[int, ...], epochs: int) -> int:
    return rungs[rungs.index(epochs) + 1]
