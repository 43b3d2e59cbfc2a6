"""The five rules that turn results (rows) into the cells of a grid, without access to the record.

1. A cell's candidates are its complete results at the search seed (dcray.track.rows).
2. Its winner is the lowest of them, ties to fewer epochs, whatever confirmation says later.
3. Its loss is the mean over the winner's fresh seeds ("confirmed"), or the winner's own at the
   search seed ("search"): a selected minimum if there were several candidates.
4. Recipes that are compared take the same of the two (dcray.report.basis), comparison by
   comparison: a recipe without fresh seeds does not keep the others from using theirs.
   An ensemble's loss is one of fresh seeds, for its members have such; it has no other.
5. Two recipes are compared on equal seeds, pair by pair (dcray.fit.uncertainty.paired).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from dcray.fit.ensemble import EnsembleLoss
from dcray.fit.grid import Row as Loss
from dcray.track.rows import Row, candidates, winner

Place = tuple[str, int, str]  # size, unique_tokens, recipe


class Left(NamedTuple):
    """A run that no figure counts, and why; row is None if the run could not be read."""

    run_id: str
    name: str
    reason: str
    row: Row | None = None


@dataclass(frozen=True)
class Cell:
    """One cell with its winner; `fresh` are the winner's results at other seeds, by seed.

    tags: what the search wrote on the cell (search_state, planned, edges, ...), if it did.
    """

    winner: Row
    candidates: tuple[Row, ...]
    fresh: tuple[Row, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def size(self) -> str:
        """Return the name of the size."""
        return self.winner.size

    @property
    def num_params(self) -> int:
        """Return the number of parameters N."""
        assert self.winner.num_params is not None
        return self.winner.num_params

    @property
    def unique_tokens(self) -> int:
        """Return the budget U in unique tokens."""
        return self.winner.unique_tokens

    @property
    def recipe(self) -> str:
        """Return the name of the recipe."""
        return self.winner.recipe

    @property
    def place(self) -> Place:
        """Return (size, unique_tokens, recipe)."""
        return self.size, self.unique_tokens, self.recipe

    @property
    def name(self) -> str:
        """Format the cell for people, as in "226k 64k ar"."""
        return self.winner.cell.label

    @property
    def ensemble(self) -> EnsembleLoss | None:
        """Return the losses of 1 ... K members if the cell is an ensemble, else None."""
        return EnsembleLoss.from_metrics(self.winner.metrics)

    @property
    def bound(self) -> str:
        """Return "upper bound" if the loss is one, else ""."""
        return self.winner.tags.get("bound", "")

    @property
    def searched(self) -> float:
        """Return the winner's own loss (nats) at the search seed: somewhat low if selected."""
        return loss_of(self.winner)

    @property
    def num_candidates(self) -> int:
        """Count the configurations of which the winner is the lowest; one alone is no selection."""
        return len({row.config_hash for row in self.candidates})

    @property
    def confirmed(self) -> float | None:
        """Compute the mean loss (nats) over the winner's fresh seeds; None if there are none."""
        return float(np.mean([loss_of(row) for row in self.fresh])) if self.fresh else None

    @property
    def source(self) -> str:
        """Return "confirmed" if the winner has fresh seeds, else "search"."""
        return "confirmed" if self.fresh else "search"

    def counted(self, source: str) -> tuple[Row, ...]:
        """Return the rows whose mean is the cell's loss on this source; () if there is none."""
        return self.fresh if source == "confirmed" else (self.winner,)

    def loss(self, source: str) -> float:
        """Compute the cell's loss in nats on this source; counted(source) must not be empty."""
        return float(np.mean([loss_of(row) for row in self.counted(source)]))

    def spread(self) -> tuple[float, float]:
        """Return the lowest and the highest loss (nats) of the winner's configuration, any seed."""
        losses = [loss_of(row) for row in (self.winner, *self.fresh)]
        return min(losses), max(losses)

    @property
    def edges(self) -> list[str]:
        """List the axes at whose end the winner lies, where a wider space may hold a better one."""
        return [axis for axis in self.tags.get("edges", "").split(",") if axis]

    def flags(self, noise: float | None) -> tuple[str, ...]:
        """List what to know before relying on this cell; `noise`: a loss's deviation over seeds."""
        found = []
        if self.edges:
            found.append(f"the winner lies at the edge of {' and '.join(self.edges)}")
        state = self.tags.get("search_state") or "done"
        if state != "done":
            planned = self.tags.get("planned")
            of = f" of {planned}" if planned else ""
            found.append(
                f"its search is not finished ({state}): {len(self.candidates)}{of} results"
            )
        named = self.tags.get("winner") or self.winner.run_id
        if named != self.winner.run_id:
            found.append(f"its search named run {named} the winner, from what was there then")
        losses = sorted(loss_of(row) for row in self.candidates)
        if noise and len(losses) > 1 and losses[1] - losses[0] < noise:
            lead = losses[1] - losses[0]
            found.append(f"the winner leads by {lead:.4f} nats, less than seeds differ")
        return tuple(found)


def loss_of(row: Row) -> float:
    """Return the loss (nats per token) of a complete, believable result."""
    assert row.val_loss is not None, row.key
    return row.val_loss


def as_loss(row: Row) -> Loss:
    """Convert a result to a row of a grid; an ensemble is of no one seed."""
    assert row.num_params is not None
    return Loss(
        num_params=row.num_params,
        unique_tokens=row.unique_tokens,
        val_loss=loss_of(row),
        num_epochs=float("nan") if row.num_epochs is None else float(row.num_epochs),
        recipe=row.recipe,
        seed=None if row.kind == "ensemble" else row.seed,
        where=row.key,
        bound=row.tags.get("bound", ""),
    )


def cells_of(
    rows: Sequence[Row], tags: Mapping[Place, Mapping[str, str]]
) -> tuple[list[Cell], list[Left]]:
    """Build the cells of complete, believable results, and list the results that are in no cell.

    The cells are sorted by recipe, budget and size. `tags` are those of the cells' parent runs.
    """
    by_place: dict[Place, list[Row]] = {}
    left: list[Left] = []
    for row in rows:
        if row.num_params is None:
            left.append(left_out(row, "it does not say num_params"))
        else:
            by_place.setdefault((row.size, row.unique_tokens, row.recipe), []).append(row)
    seed = _common_seed(rows)
    cells = []
    for place, its in by_place.items():
        marks = tags.get(place, {})
        cell, aside = _cell(its, marks, int(marks.get("search_seed") or seed))
        cells += [cell] if cell else []
        left += aside
    return sorted(cells, key=lambda cell: (cell.recipe, cell.unique_tokens, cell.num_params)), left


def left_out(row: Row, reason: str) -> Left:
    """Turn the row into one that no figure counts, for this reason."""
    return Left(row.run_id, row.key, reason, row)


def _common_seed(rows: Iterable[Row]) -> int:
    """Guess the search seed if no search recorded it: the commonest one, ties to the lowest.

    Confirmations do not count; without other results the seed is 42.
    """
    counts = Counter(row.seed for row in rows if row.kind != "confirmation")
    return min(counts, key=lambda seed: (-counts[seed], seed), default=42)


def _cell(
    rows: Sequence[Row], tags: Mapping[str, str], seed: int
) -> tuple[Cell | None, list[Left]]:
    """Apply rules 1 to 3 to the rows of one cell."""
    competing = candidates(rows, seed=seed)
    best = winner(competing)
    if best is None:
        reason = f"its cell has no complete result at the search seed {seed}"
        return None, [left_out(row, reason) for row in rows]
    fresh: dict[int, Row] = {}
    left = []
    for row in sorted(rows, key=lambda row: (row.kind != "confirmation", row.key)):
        if row in competing:
            continue
        if row.kind == "ensemble":
            reason = "an ensemble of other members"
        elif row.seed == seed and row.kind != "confirmation":
            reason = "a plug-in of its recipe was another then"
        elif row.config_hash != best.config_hash:
            reason = f"seed {row.seed} of a configuration that is not its cell's winner"
        elif row.seed == seed:
            reason = f"a confirmation at the search seed {seed}: not fresh"
        elif row.seed in fresh:
            reason = f"run {fresh[row.seed].run_id} is the same configuration and seed, and counts"
        else:
            fresh[row.seed] = row
            continue
        left.append(left_out(row, reason))
    seeds = tuple(fresh[seed] for seed in sorted(fresh))
    if best.kind == "ensemble":
        seeds = (best,)
    return Cell(best, tuple(competing), seeds, dict(tags)), left
