"""Winners of cells that this command does not search, read from the record repeatedly."""

from __future__ import annotations

import time

from dcray.config.run import RunConfig
from dcray.search.cell_summary import WITH_WINNER
from dcray.track.runs import CellRow
from dcray.track.store import Store
from dcray.types import Cell

LOOK_SECONDS = 10.0  # between two looks at what other jobs do


class ExternalWinners:
    """The winners of other commands according to the record, read at most every LOOK_SECONDS."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._cells: dict[str, dict[Cell, CellRow]] = {}  # by study
        self._looked: dict[str, float] = {}
        self._configs: dict[str, RunConfig] = {}  # by run id

    def winner(self, cell: Cell) -> RunConfig | None:
        """Load the configuration of the winner that the record names; None if it names none."""
        row = self._rows(cell.study).get(cell)
        run_id = _winner_of(row) if row is not None else ""
        if not run_id:
            return None
        if run_id not in self._configs:
            self._configs[run_id] = RunConfig.model_validate(self.store.config(run_id))
        return self._configs[run_id]

    def coming(self, cell: Cell) -> bool:
        """Tell whether a living driver holds the cell."""
        row = self._rows(cell.study).get(cell)
        return row is not None and row.held

    def promised(self, study: str) -> set[Cell]:
        """Return the cells of a study that have a winner, or that a living driver holds."""
        return {cell for cell, row in self._rows(study).items() if row.held or _winner_of(row)}

    def refresh(self) -> bool:
        """Forget what was read if LOOK_SECONDS have passed; tell whether they have."""
        due = any(time.monotonic() - at > LOOK_SECONDS for at in self._looked.values())
        if due:
            self._looked.clear()
        return due

    def _rows(self, study: str) -> dict[Cell, CellRow]:
        if study not in self._looked:
            self._looked[study] = time.monotonic()
            self._cells[study] = {row.cell: row for row in self.store.cells(study)}
        return self._cells[study]


def _winner_of(row: CellRow) -> str:
    """Return the id of the run that a search chose, "" for none, as in a cell only trained in."""
    chosen = row.tags.get("search_state") in WITH_WINNER
    return row.tags.get("winner", "") if chosen else ""
