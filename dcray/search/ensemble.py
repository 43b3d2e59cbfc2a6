"""The search of an ensemble's cell: nothing is trained there, its members are runs of another cell.

They are the confirmations of the inherited winner at the ensemble's seeds. As soon as all of them
have a loss, the one result of this cell can be computed from their nats of validation targets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from dcray.config.run import RunConfig
from dcray.search.cell import CellSearch, CellState, Known, Winner
from dcray.search.specs import Fingerprint, confirmation
from dcray.study.spec import CellSpec
from dcray.types import FAILURES, Cell, RunKey, RunResult, RunSpec

HASH_CHARACTERS = 8  # of the seeds, behind the members' hash


def search_of(
    cell_spec: CellSpec, fingerprint: Fingerprint, load: Callable[[str], RunConfig] | None = None
) -> CellSearch | EnsembleSearch:
    """Build the plan of a cell that a study file asks for; `load` is CellSearch's."""
    if cell_spec.member_seeds:
        return EnsembleSearch(cell_spec, fingerprint)
    return CellSearch(cell_spec, fingerprint, load)


@dataclass(frozen=True)
class EnsembleSearch:
    """The plan of an ensemble's cell: wait for the members, then one result."""

    cell_spec: CellSpec
    fingerprint: Fingerprint
    axes: tuple[str, ...] = ()
    bound: str = ""

    @property
    def needs(self) -> Sequence[Cell]:
        """Return the cell whose winner the members are."""
        return self.cell_spec.needs

    @property
    def member_cell(self) -> Cell:
        """Return the cell whose runs the members are."""
        assert self.cell_spec.inherits is not None
        return self.cell_spec.inherits

    def state(self, known: Known, winners: Mapping[Cell, RunConfig]) -> CellState:
        """Derive the state from the results of this cell and of its members' cell together."""
        if self.member_cell not in winners:
            return CellState(num_planned=1, waits_for=(self.member_cell,))
        config = winners[self.member_cell]
        spec = self.spec(config)
        found, asked = known.get(spec.key), CellState(planned=(spec,), num_planned=1)
        if found is not None:
            won = found.state == "complete"
            winner = Winner(spec.config, found) if won else None
            return replace(asked, searched=True, done=True, winner=winner)
        lost = [key for key in spec.members if key in known and known[key].state != "complete"]
        if lost:
            said = f"has no loss: its member {lost[0].label} {_fate(known[lost[0]])}"
            return replace(asked, searched=True, done=True, note=said)
        if all(key in known for key in spec.members):
            return replace(asked, ready=((spec,),))
        return replace(asked, waits_for=(self.member_cell,))

    def spec(self, config: RunConfig) -> RunSpec:
        """Build the result to compute, of the members that this winner has."""
        seeds, cell = self.cell_spec.member_seeds, self.member_cell
        members = [confirmation(config, seed, cell, self.fingerprint) for seed in seeds]
        own = self.cell_spec.file.seed  # on record it stands at the seed of its study's search
        of_seeds = hashlib.sha256(repr(seeds).encode()).hexdigest()[:HASH_CHARACTERS]
        key = RunKey(
            self.cell_spec.cell,
            f"{members[0].key.config_hash}_{of_seeds}",
            own,
            "ensemble",
        )
        resolved = members[0].config.model_copy(update={"seed": own})
        keys = tuple(member.key for member in members)
        return RunSpec(key, resolved, members[0].reads, members=keys)

    def best(self, known: Known) -> RunResult | None:
        """Return None: nothing is chosen here."""
        return None


def _fate(result: RunResult) -> str:
    """Say what became of a member without a loss, and what can be done."""
    if result.state in FAILURES:
        return f"{result.state}; the same command tries it again"
    return f"{result.state}; name other seeds in confirm_seeds"
