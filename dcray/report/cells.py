"""The five rules that turn results into the cells of a grid. Rows in, cells out; no record here.

1. A cell's candidates are its complete results at the search seed.
2. Its winner is the lowest of them, ties to fewer epochs, whatever confirmation says later.
3. Its loss is the mean over the winner's fresh seeds ("confirmed"), or the winner's own, a selected
   minimum ("search").
4. One of the two serves all cells: confirmed where every cell has it, else search.
5. Two recipes are compared on equal seeds, pair by pair (dcray.fit.paired).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from dcray.errors import ConfigError
from dcray.fit.grid import Row as Loss
from dcray.fit.grid import with_bound
from dcray.track.rows import Row, winner

SOURCES = ("confirmed", "search")
Place = tuple[str, int, str]  # size, unique_tokens, recipe


class Left(NamedTuple):
    """A run that no figure counts, and why; row is None where the run could not be read."""

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
        """The size's name."""
        return self.winner.size

    @property
    def num_params(self) -> int:
        """N."""
        assert self.winner.num_params is not None
        return self.winner.num_params

    @property
    def unique_tokens(self) -> int:
        """U, the budget."""
        return self.winner.unique_tokens

    @property
    def recipe(self) -> str:
        """The recipe's name."""
        return self.winner.recipe

    @property
    def place(self) -> Place:
        """(size, unique_tokens, recipe)."""
        return self.size, self.unique_tokens, self.recipe

    @property
    def name(self) -> str:
        """ "226k 64k ar"."""
        return self.winner.cell.label

    @property
    def bound(self) -> str:
        """ "upper bound" where the loss is one, else empty."""
        return self.winner.tags.get("bound", "")

    @property
    def selected(self) -> float:
        """The winner's own loss: the minimum of a selection, so somewhat low."""
        return loss_of(self.winner)

    @property
    def confirmed(self) -> float | None:
        """The mean over the winner's fresh seeds; None where there are none."""
        return float(np.mean([loss_of(row) for row in self.fresh])) if self.fresh else None

    def counted(self, source: str) -> tuple[Row, ...]:
        """The rows whose mean is the cell's loss under this source."""
        return self.fresh if source == "confirmed" else (self.winner,)

    def loss(self, source: str) -> float:
        """The cell's loss in nats; counted(source) must not be empty."""
        return float(np.mean([loss_of(row) for row in self.counted(source)]))

    def spread(self) -> tuple[float, float]:
        """The lowest and the highest loss of the winner's configuration, over all its seeds."""
        losses = [loss_of(row) for row in (self.winner, *self.fresh)]
        return min(losses), max(losses)

    def flags(self, noise: float | None) -> tuple[str, ...]:
        """What to know before leaning on this cell; `noise`: a loss's deviation over seeds."""
        found = []
        edges = [axis for axis in self.tags.get("edges", "").split(",") if axis]
        if edges:
            found.append(f"the winner lies at the edge of {' and '.join(edges)}")
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
    """The loss of a complete, believable result."""
    assert row.val_loss is not None, row.key
    return row.val_loss


@dataclass(frozen=True)
class Choice:
    """The cells of a study, from where their losses come, and what was left out."""

    cells: tuple[Cell, ...]
    source: str
    why: str  # one sentence: why this source
    left: tuple[Left, ...] = ()

    @property
    def recipes(self) -> tuple[str, ...]:
        """The recipes that have cells, sorted."""
        return tuple(sorted({cell.recipe for cell in self.cells}))

    def label(self, recipe: str) -> str:
        """ "mdlm (upper bound)" where its losses are bounds, else the name."""
        bound = next((cell.bound for cell in self.of(recipe) if cell.bound), "")
        return with_bound(recipe, bound)

    def of(self, recipe: str) -> tuple[Cell, ...]:
        """The recipe's cells, by budget and size."""
        return tuple(cell for cell in self.cells if cell.recipe == recipe)

    def noise(self) -> float | None:
        """Pooled standard deviation of a loss over fresh seeds, None where no cell has two."""
        groups = [[loss_of(row) for row in cell.fresh] for cell in self.cells]
        left = sum(len(losses) - 1 for losses in groups if len(losses) > 1)
        squares = sum(float(np.var(losses)) * len(losses) for losses in groups if len(losses) > 1)
        return float(np.sqrt(squares / left)) if left else None

    def losses(self) -> list[Loss]:
        """What a fit reads: one row per cell and counted seed."""
        return [as_loss(row) for cell in self.cells for row in cell.counted(self.source)]

    def fresh_losses(self) -> list[Loss]:
        """Every fresh seed there is, for pairs, whatever the source."""
        return [as_loss(row) for cell in self.cells for row in cell.fresh]


def as_loss(row: Row) -> Loss:
    """A result as a row of a grid."""
    assert row.num_params is not None
    return Loss(
        num_params=row.num_params,
        unique_tokens=row.unique_tokens,
        val_loss=loss_of(row),
        num_epochs=float("nan") if row.num_epochs is None else float(row.num_epochs),
        recipe=row.recipe,
        seed=row.seed,
        where=row.key,
        bound=row.tags.get("bound", ""),
    )


def choose(
    rows: Sequence[Row],
    *,
    source: str | None = None,
    tags: Mapping[Place, Mapping[str, str]] | None = None,
) -> Choice:
    """The cells of complete, believable results; `tags` are those of the cells' parent runs.

    Raises ConfigError for an unknown source, and for "confirmed" where no cell has a fresh seed.
    """
    if source not in (None, *SOURCES):
        raise ConfigError(f'--from must be one of {", ".join(SOURCES)}, got "{source}"')
    by_place: dict[Place, list[Row]] = {}
    left: list[Left] = []
    for row in rows:
        if row.num_params is None:
            left.append(_left(row, "it does not say num_params"))
        else:
            by_place.setdefault((row.size, row.unique_tokens, row.recipe), []).append(row)
    seed = _common_seed(rows)
    cells = []
    for place, its in by_place.items():
        marks = (tags or {}).get(place, {})
        cell, aside = _cell(its, marks, int(marks.get("search_seed") or seed))
        cells += [cell] if cell else []
        left += aside
    cells.sort(key=lambda cell: (cell.recipe, cell.unique_tokens, cell.num_params))
    return _sourced(cells, source, left)


def _left(row: Row, reason: str) -> Left:
    return Left(row.run_id, row.key, reason, row)


def _common_seed(rows: Iterable[Row]) -> int:
    """Where no search says it: the seed of most results that are no confirmations, the lowest."""
    counts = Counter(row.seed for row in rows if row.kind != "confirmation")
    return min(counts, key=lambda seed: (-counts[seed], seed), default=42)


def _cell(
    rows: Sequence[Row], tags: Mapping[str, str], seed: int
) -> tuple[Cell | None, list[Left]]:
    """Rules 1 to 3 for the rows of one cell."""
    candidates = [row for row in rows if row.seed == seed and row.kind != "confirmation"]
    best = winner(candidates)
    if best is None:
        reason = f"its cell has no complete result at the search seed {seed}"
        return None, [_left(row, reason) for row in rows]
    fresh: dict[int, Row] = {}
    left = []
    for row in sorted(rows, key=lambda row: (row.kind != "confirmation", row.key)):
        if row in candidates:
            continue
        if row.config_hash != best.config_hash:
            reason = f"seed {row.seed} of a configuration that is not its cell's winner"
        elif row.seed == seed:
            reason = f"a confirmation at the search seed {seed}: not fresh"
        elif row.seed in fresh:
            reason = f"run {fresh[row.seed].run_id} is the same configuration and seed, and counts"
        else:
            fresh[row.seed] = row
            continue
        left.append(_left(row, reason))
    seeds = tuple(fresh[seed] for seed in sorted(fresh))
    return Cell(best, tuple(candidates), seeds, dict(tags)), left


def _minima(cells: Sequence[Cell]) -> str:
    """What the winners' own losses are."""
    if all(len(cell.candidates) == 1 for cell in cells):
        return "each loss is that of its cell's only candidate"
    return "all losses are selected minima, which are somewhat low"


def _sourced(cells: list[Cell], source: str | None, left: list[Left]) -> Choice:
    """Rule 4."""
    without = [cell for cell in cells if not cell.fresh]
    some = f"{len(cells) - len(without)} of {len(cells)} cells have fresh seeds of their winner"
    if source is None:
        source = "search" if without else "confirmed"
        why = (
            "every cell has fresh seeds of its winner: losses are means over those"
            if source == "confirmed"
            else f"{some}, so {_minima(cells)}"
            + (" (--from confirmed counts those cells alone)" if len(without) < len(cells) else "")
        )
        return Choice(tuple(cells), source, why, tuple(left))
    if source == "search":
        why = f"asked for: {_minima(cells)}"
        return Choice(tuple(cells), source, why, tuple(left))
    if cells and len(without) == len(cells):
        raise ConfigError(
            "--from confirmed needs fresh seeds of winners, and no cell has one; "
            "set confirm_seeds and search again, or leave --from away"
        )
    left = left + [
        _left(row, "its cell has no fresh seed of its winner (--from confirmed)")
        for cell in without
        for row in cell.candidates
    ]
    kept = tuple(cell for cell in cells if cell.fresh)
    return Choice(kept, source, f"asked for: means over fresh seeds; {some}", tuple(left))
