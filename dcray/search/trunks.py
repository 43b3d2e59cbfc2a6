"""The trunks of a cell, and the requests that each of them means, once the cells it needs are done.

A cell that inherits takes its parent's winner; one that starts warm takes its neighbor's tau and
learning rate; where runs do not branch, every epoch count is a plain run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dcray.config import RunConfig, override
from dcray.search.request import Reading, Request, branch_requests, plain_request
from dcray.search.space import Space, Trunk, Values, changes_of, value_at, weight_decay_of
from dcray.search.study import DEFAULT_TRUNKS
from dcray.search.wish import CellWish, value_of
from dcray.track.points import Cell

CROSS = ((1, 1), (0.5, 1), (2, 1), (1, 2), (1, 0.5))  # factors of a neighbor's lr and tau, in turn


class Trunks:
    """What a cell's trunks are made from: its base, its space, its parent's winner."""

    def __init__(self, wish: CellWish, found: Reading, winners: Mapping[Cell, RunConfig]) -> None:
        self.wish, self.found, self.winners = wish, found, winners
        self.parent = winners[wish.inherits] if wish.inherits else None
        self.base = wish.base(inherited(self.parent) if self.parent else None)
        self.space = wish.space(self.base.num_epochs, winners)
        self.branches = wish.branches(self.base)
        self._requests: dict[Trunk, list[Request]] = {}

    @property
    def number(self) -> int:
        """How many trunks a model-based sampler proposes."""
        search = self.wish.search
        warm = self.wish.warm_from is not None and search.warm_trunks
        return warm or search.trunks or DEFAULT_TRUNKS

    def requests(self, trunk: Trunk) -> list[Request]:
        """One request for each rung of a trunk."""
        if trunk not in self._requests:
            self._requests[trunk] = self._built(trunk)
        return self._requests[trunk]

    def grid(self) -> list[Trunk]:
        """All points of the grid, or the `trunks` nearest to the warm start, else to its middle."""
        trunks, warm, config = self.space.trunks(), self.warm(), self.wish.search
        number = (config.warm_trunks if warm else None) or config.trunks
        if number is None or number >= len(trunks):
            return trunks
        middle = {name: value_at(axis, 0.5) for name, axis in self.space.envelope().items()}
        wishes = warm or [middle]
        chosen: list[Values] = []
        while len(chosen) < number:
            point = self.space.snap(wishes[len(chosen) % len(wishes)], chosen)
            assert point is not None
            chosen.append(point)
        return [trunk for trunk in trunks if trunk.values in chosen]

    def warm(self) -> list[dict[str, Any]]:
        """Where the search starts: around the neighbor's winner, or what a person wrote."""
        wish = self.wish
        if isinstance(wish.search.warm_start, tuple):
            return [dict(point) for point in wish.search.warm_start]
        if wish.warm_from is None:
            return []
        return warm_points(self.space, self.winners[wish.warm_from], self.base)

    def _built(self, trunk: Trunk) -> list[Request]:
        longest = self.space.longest
        changes = changes_of(trunk.values, self.base)
        config = override(self.base, {**changes, "num_epochs": trunk.rungs[-1]})
        config = self._with_parents_warmup(config)
        if self.branches and len(trunk.rungs) > 1:
            return branch_requests(
                config, trunk.rungs, self.wish.cell, self.found, longest_epochs=longest
            )
        wsd = config.schedule.kind == "wsd"
        return [
            plain_request(
                config.model_copy(update={"num_epochs": epochs}),
                self.wish.cell,
                self.found,
                longest_epochs=longest if wsd else None,
            )
            for epochs in trunk.rungs
        ]

    def _with_parents_warmup(self, config: RunConfig) -> RunConfig:
        """The winner that a cell inherits comes with its warm-up, as long as its length stays."""
        parent = self.parent
        same = parent is not None and (
            parent.num_steps == config.num_steps
            and parent.schedule.kind == config.schedule.kind
            and self.space.longest == config.num_epochs
        )
        if not same or parent is None or config.schedule.warmup_steps is not None:
            return config
        return override(config, {"schedule.warmup_steps": parent.schedule.warmup_steps})


def inherited(winner: RunConfig) -> dict[str, Any]:
    """What a cell takes from the winner that it inherits from."""
    return {
        "num_epochs": winner.num_epochs,
        "optim.weight_decay": winner.optim.weight_decay,
        "optim.lr": winner.optim.lr,
    }


def warm_points(space: Space, neighbor: RunConfig, base: RunConfig) -> list[dict[str, Any]]:
    """The neighbor's winner as wishes for this cell, by lr and tau, and a cross around it.

    A winner moves with its cell. Replayed over complete tables (tests/bench/bench_replay.py), its
    neighbor's point alone missed 0.05 and 0.15 nats after six trunks; the cross, 0 at the median.
    """
    wishes = [_wish(space, neighbor, base, lr, tau) for lr, tau in CROSS]
    return [wish for number, wish in enumerate(wishes) if wish not in wishes[:number]]


def _wish(
    space: Space, neighbor: RunConfig, base: RunConfig, lr: float, tau: float
) -> dict[str, Any]:
    """The neighbor's point with these factors on its lr and tau; weight decay follows from both."""
    wish = {name: value_of(name, neighbor) for name in space.names}
    for name, factor in (("lr", lr), ("tau", tau)):
        if name in wish:
            wish[name] = float(wish[name]) * factor
    if "weight_decay" in wish and math.isfinite(neighbor.tau):
        here = float(wish.get("lr", base.optim.lr))
        wish["weight_decay"] = weight_decay_of(neighbor.tau * tau, here, base)
    return wish
