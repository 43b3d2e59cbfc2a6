"""Search policies played over a complete table of one cell, where what they miss is known exactly.

A table holds every trunk at every rung, at one seed. A policy sees the losses that it pays for.
Costs are in epochs of the cell's tokens: a trunk shares its stable part, so a rung at E after one
at P costs E - 0.9 P (the fork lies where the decay of the last tenth begins); a separate run, E.
"""

from __future__ import annotations

import csv
import heapq
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from dcray.search.ladder import Decision, Losses, cohort, generation
from dcray.search.sampler import Target, propose, trunk_value
from dcray.study.axes import parse_space
from dcray.study.space import Space, Trunk, Values, build_space

DATA = Path(__file__).parent / "data" / "mini_cell.csv"
FORK = 0.9  # of an epoch count: where its decay begins
Value = Callable[[Sequence[tuple[int, ...]], Losses, int], float]


@dataclass(frozen=True)
class Table:
    """One cell at one seed: its space of lists, and the loss of every trunk at every rung."""

    unique_tokens: int
    seed: int
    space: Space
    losses: Mapping[tuple[Values, int], float]

    @property
    def trunks(self) -> list[Trunk]:
        return self.space.trunks()

    @property
    def best(self) -> float:
        return min(self.losses.values())

    def winner(self) -> Trunk:
        """The trunk of the lowest loss."""
        values, _ = min(self.losses, key=self.losses.__getitem__)
        return next(trunk for trunk in self.trunks if trunk.values == values)

    def loss_of(self, trunk: Trunk, epochs: int) -> float:
        """The loss at a rung; inf where it diverged."""
        return self.losses[trunk.values, epochs]


@dataclass(frozen=True)
class Played:
    """What a policy trained, and what it missed."""

    table: Table
    trunks: tuple[Trunk, ...]  # that it was given or proposed
    losses: Losses  # of the rungs that it trained, by number of the trunk

    @property
    def epochs(self) -> float:
        """What it trained, in epochs."""
        return sum(cost(self.trunks[trunk], epochs) for trunk, epochs in self.losses)

    @property
    def share_of_own(self) -> float:
        """Its tokens over those of separate runs of its own trunks."""
        return self.epochs / separate(self.trunks)

    @property
    def share_of_table(self) -> float:
        """Its tokens over those of separate runs of the whole table."""
        return self.epochs / separate(self.table.trunks)

    @property
    def regret(self) -> float:
        """Its winner's loss less the table's best, in nats."""
        return min(self.losses.values()) - self.table.best

    @property
    def regret_in_own(self) -> float:
        """The same against the best of its own trunks: what stopping them early cost."""
        best = min(self.table.loss_of(trunk, e) for trunk in self.trunks for e in trunk.rungs)
        return min(self.losses.values()) - best


def cost(trunk: Trunk, epochs: int) -> float:
    """The epochs that a trunk trains for one more rung."""
    index = trunk.rungs.index(epochs)
    return epochs - (FORK * trunk.rungs[index - 1] if index else 0.0)


def separate(trunks: Sequence[Trunk]) -> float:
    """The epochs of a run for every rung of every trunk."""
    return float(sum(sum(trunk.rungs) for trunk in trunks))


def read_tables(path: Path = DATA) -> list[Table]:
    """The tables of the file, by budget and seed."""
    with path.open() as lines:
        rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    found = []
    for budget, seed in sorted({(int(row["unique_tokens"]), int(row["seed"])) for row in rows}):
        ours = [r for r in rows if (int(r["unique_tokens"]), int(r["seed"])) == (budget, seed)]
        axes = {name: sorted({float(row[name]) for row in ours}) for name in ("lr", "tau")}
        rungs = sorted({int(row["num_epochs"]) for row in ours})
        space = build_space(parse_space([{"num_epochs": rungs, **axes}], "table"), rungs[-1])
        losses = {
            ((("lr", float(row["lr"])), ("tau", float(row["tau"]))), int(row["num_epochs"])): float(
                row["val_loss"]
            )
            for row in ours
        }
        assert len(losses) == len(rungs) * len(axes["lr"]) * len(axes["tau"]) == len(ours)
        found.append(Table(budget, seed, space, losses))
    return found


def play_cohort(table: Table, trunks: Sequence[Trunk], keep: Sequence[float]) -> Played:
    """A grid, of which as many go on as `keep` says."""
    rungs = [trunk.rungs for trunk in trunks]
    losses: dict[tuple[int, int], float] = {}
    _settle(table, trunks, losses, lambda: cohort(rungs, keep, losses))
    return Played(table, tuple(trunks), losses)


def play_generations(
    table: Table,
    sampler: str,
    *,
    number: int,
    size: int,
    share: float,
    seed: int,
    first: Sequence[Target] = (),
    value: Value = trunk_value,
) -> Played:
    """`number` trunks, `size` at a time, each generation proposed from the earlier ones."""
    trunks: list[Trunk] = []
    losses: dict[tuple[int, int], float] = {}
    while len(trunks) < number:
        rungs = [trunk.rungs for trunk in trunks]
        history = [(t.values, value(rungs, losses, i)) for i, t in enumerate(trunks)]
        wanted = min(size, number - len(trunks))
        new = propose(table.space, sampler, history, wanted, seed=seed, first=first)
        if not new:
            break
        start = len(trunks)
        trunks += [Trunk(values, table.space.rungs_of(values)) for values in new]
        rungs = [trunk.rungs for trunk in trunks]
        _settle(table, trunks, losses, lambda r=rungs, s=start: generation(r, s, share, losses))
    return Played(table, tuple(trunks), losses)


def play_asha(table: Table, trunks: Sequence[Trunk], *, seed: int, concurrent: int = 2) -> Played:
    """Ray's own stopping rule, judged on arrival; times are the tokens, 20 % up or down."""
    from ray.tune.experiment import Trial
    from ray.tune.schedulers import TrialScheduler
    from ray.tune.schedulers.async_hyperband import _Bracket

    rungs = trunks[0].rungs
    bracket = _Bracket(rungs[0], rungs[-1], rungs[1] / rungs[0], 0)
    trials = [Trial("replay", trial_id=str(number), stub=True) for number in range(len(trunks))]
    rng = random.Random(seed)
    waiting = list(range(len(trunks)))
    losses: dict[tuple[int, int], float] = {}
    events: list[tuple[float, int, int]] = []  # when, which trunk, which rung

    def start(now: float, trunk: int, rung: int) -> None:
        seconds = cost(trunks[trunk], rungs[rung]) * rng.uniform(0.8, 1.2)
        heapq.heappush(events, (now + seconds, trunk, rung))

    for _ in range(min(concurrent, len(waiting))):
        start(0.0, waiting.pop(0), 0)
    while events:
        now, trunk, rung = heapq.heappop(events)
        loss = losses[trunk, rungs[rung]] = table.loss_of(trunks[trunk], rungs[rung])
        action = bracket.on_result(trials[trunk], rungs[rung], -loss)
        if action == TrialScheduler.CONTINUE and rung + 1 < len(rungs):
            start(now, trunk, rung + 1)
        elif waiting:
            start(now, waiting.pop(0), 0)
    return Played(table, tuple(trunks), losses)


def sub_grids(table: Table, size: int) -> list[list[Trunk]]:
    """Every `size` x `size` grid of equally far levels of both axes."""
    axes = {
        name: sorted({float(dict(t.values)[name]) for t in table.trunks}) for name in ("lr", "tau")
    }
    picks = {name: _even(levels, size) for name, levels in axes.items()}
    return [
        [t for t in table.trunks if dict(t.values)["lr"] in lrs and dict(t.values)["tau"] in taus]
        for lrs, taus in product(picks["lr"], picks["tau"])
    ]


def last_loss(rungs: Sequence[tuple[int, ...]], losses: Losses, trunk: int) -> float:
    """A trunk's value as stock ASHA tells it: the loss at which it was stopped."""
    return losses[trunk, max(e for e in rungs[trunk] if (trunk, e) in losses)]


def _settle(
    table: Table,
    trunks: Sequence[Trunk],
    losses: dict[tuple[int, int], float],
    decide: Callable[[], Decision],
) -> None:
    while due := decide().due:
        losses.update({(t, e): table.loss_of(trunks[t], e) for t, e in due})


def _even(levels: Sequence[float], size: int) -> list[tuple[float, ...]]:
    strides = range(1, math.ceil(len(levels) / (size - 1)))
    runs = (levels[start::stride][:size] for stride in strides for start in range(len(levels)))
    return [tuple(run) for run in runs if len(run) == size]
