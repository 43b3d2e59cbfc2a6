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
        """Where the search starts: the neighbor's winner by tau and lr, or what a person wrote."""
        wish = self.wish
        if isinstance(wish.search.warm_start, tuple):
            return [dict(point) for point in wish.search.warm_start]
        if wish.warm_from is None:
            return []
        return [warm_point(self.space, self.winners[wish.warm_from], self.base)]

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


def warm_point(space: Space, neighbor: RunConfig, base: RunConfig) -> dict[str, Any]:
    """The neighbor's winner as a wish for this cell: the same lr and tau, weight decay by tau."""
    wish = {name: value_of(name, neighbor) for name in space.names}
    if "weight_decay" in wish and math.isfinite(neighbor.tau):
        lr = float(wish.get("lr", base.optim.lr))
        wish["weight_decay"] = weight_decay_of(neighbor.tau, lr, base)
    return wish
