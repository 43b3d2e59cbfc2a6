"""The trunks of a cell, and the runs of each trunk, once the cells that the cell needs are done.

A cell that inherits takes its parent's winner; one that starts warm takes its neighbor's tau and
learning rate; if runs do not branch, every epoch count is a plain run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dcray.config.run import RunConfig, override
from dcray.search.specs import Fingerprint, branch_runs, plain_run
from dcray.study.schema import DEFAULT_TRUNKS
from dcray.study.space import (
    Space,
    Trunk,
    Values,
    changes_of,
    value_at,
    warms_up_alone,
    weight_decay_of,
)
from dcray.study.spec import CellSpec, value_of
from dcray.types import Cell, RunSpec

CROSS = ((1, 1), (0.5, 1), (2, 1), (1, 2), (1, 0.5))  # factors of a neighbor's lr and tau, in turn


class Candidates:
    """The source of a cell's trunks: its base, its space, its parent's winner."""

    def __init__(
        self, cell_spec: CellSpec, fingerprint: Fingerprint, winners: Mapping[Cell, RunConfig]
    ) -> None:
        self.cell_spec, self.fingerprint, self.winners = cell_spec, fingerprint, winners
        self.parent = winners[cell_spec.inherits] if cell_spec.inherits else None
        self.base = cell_spec.base(inherited(self.parent) if self.parent else None)
        self.space = cell_spec.space(self.base.num_epochs, winners)
        self.branches = cell_spec.branches(self.base)
        self._specs: dict[Trunk, list[RunSpec]] = {}

    @property
    def number(self) -> int:
        """Count the trunks that a model-based sampler proposes."""
        search = self.cell_spec.search
        warm = self.cell_spec.warm_from is not None and search.warm_trunks
        return warm or search.trunks or DEFAULT_TRUNKS

    def specs(self, trunk: Trunk) -> list[RunSpec]:
        """Build one run for each rung of a trunk."""
        if trunk not in self._specs:
            self._specs[trunk] = self._built(trunk)
        return self._specs[trunk]

    def grid(self) -> list[Trunk]:
        """List all points of the grid, or the `trunks` nearest to the warm start or the middle."""
        trunks, warm, config = self.space.trunks(), self.warm(), self.cell_spec.search
        number = (config.warm_trunks if warm else None) or config.trunks
        if number is None or number >= len(trunks):
            return trunks
        middle = {name: value_at(axis, 0.5) for name, axis in self.space.envelope().items()}
        cell_specs = warm or [middle]
        chosen: list[Values] = []
        while len(chosen) < number:
            point = self.space.snap(cell_specs[len(chosen) % len(cell_specs)], chosen)
            assert point is not None
            chosen.append(point)
        return [trunk for trunk in trunks if trunk.values in chosen]

    def warm(self) -> list[dict[str, Any]]:
        """List where the search starts: around the neighbor's winner, or what a person wrote."""
        cell_spec = self.cell_spec
        if isinstance(cell_spec.search.warm_start, tuple):
            return [dict(point) for point in cell_spec.search.warm_start]
        if cell_spec.warm_from is None:
            return []
        return warm_points(self.space, self.winners[cell_spec.warm_from], self.base)

    def _built(self, trunk: Trunk) -> list[RunSpec]:
        longest = self.space.longest
        changes = changes_of(trunk.values, self.base)
        config = override(self.base, {**changes, "num_epochs": trunk.rungs[-1]})
        if self.space.rungs == trunk.rungs[-1:]:
            config = self._with_parents_warmup(config)
        own = self.cell_spec.search.own_warmup or config.schedule.kind != "wsd"
        alone = [e for e in trunk.rungs if own or warms_up_alone(config, e, longest)]
        shared = trunk.rungs[len(alone) :]  # the short ones come first
        specs = [self._plain(config, epochs, None) for epochs in alone]
        if self.branches and len(shared) > 1:
            return specs + branch_runs(
                config,
                shared,
                self.cell_spec.cell,
                self.fingerprint,
                longest_epochs=longest,
                axes=self.cell_spec.axes,
            )
        return specs + [self._plain(config, epochs, longest) for epochs in shared]

    def _plain(self, config: RunConfig, epochs: int, longest: int | None) -> RunSpec:
        """Build a run of its own; it shares the warm-up of the longest one, if that is given."""
        run = config.model_copy(update={"num_epochs": epochs})
        return plain_run(
            run,
            self.cell_spec.cell,
            self.fingerprint,
            longest_epochs=longest,
            axes=self.cell_spec.axes,
        )

    def _with_parents_warmup(self, config: RunConfig) -> RunConfig:
        """Keep the warm-up of the inherited winner if length and schedule stay the same."""
        parent = self.parent
        same = parent is not None and (
            parent.num_steps == config.num_steps and parent.schedule.kind == config.schedule.kind
        )
        if not same or parent is None or config.schedule.warmup_steps is not None:
            return config
        return override(config, {"schedule.warmup_steps": parent.schedule.warmup_steps})


def inherited(winner: RunConfig) -> dict[str, Any]:
    """Return the fields that a cell takes from the winner that it inherits from."""
    return {
        "num_epochs": winner.num_epochs,
        "optim.weight_decay": winner.optim.weight_decay,
        "optim.lr": winner.optim.lr,
    }


def warm_points(space: Space, neighbor: RunConfig, base: RunConfig) -> list[dict[str, Any]]:
    """Make targets for this cell from the neighbor's winner, by lr and tau, and a cross around it.

    A winner moves with its cell. Replayed over complete tables (tests/bench/bench_replay.py), its
    neighbor's point alone missed 0.05 and 0.15 nats after six trunks; the cross, 0 at the median.
    """
    targets = [_target(space, neighbor, base, lr, tau) for lr, tau in CROSS]
    return [target for number, target in enumerate(targets) if target not in targets[:number]]


def _target(
    space: Space, neighbor: RunConfig, base: RunConfig, lr: float, tau: float
) -> dict[str, Any]:
    """Scale lr and tau of the neighbor's point by these factors; weight decay follows from both."""
    target = {name: value_of(name, neighbor) for name in space.names}
    for name, factor in (("lr", lr), ("tau", tau)):
        if name in target:
            target[name] = float(target[name]) * factor
    if "weight_decay" in target and math.isfinite(neighbor.tau):
        here = float(target.get("lr", base.optim.lr))
        target["weight_decay"] = weight_decay_of(neighbor.tau * tau, here, base)
    return target
