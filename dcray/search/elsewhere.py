"""Winners of cells that this command does not search: read from the record, again and again."""

from __future__ import annotations

import time

from dcray.config import RunConfig
from dcray.track.points import Cell
from dcray.track.runs import CellRow
from dcray.track.store import Store

LOOK_SECONDS = 10.0  # between two looks at what other jobs do
WITH_WINNER = ("confirming", "done")  # states of a search that has chosen


class RecordElsewhere:
    """What other commands have found, as the record has it; asked at most every ten seconds."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._cells: dict[str, dict[Cell, CellRow]] = {}  # by study
        self._looked: dict[str, float] = {}
        self._configs: dict[str, RunConfig] = {}  # by run id

    def winner(self, cell: Cell) -> RunConfig | None:
        """The configuration of the winner that the record names; None where it names none."""
        row = self._rows(cell.study).get(cell)
        run_id = _winner_of(row) if row is not None else ""
        if not run_id:
            return None
        if run_id not in self._configs:
            self._configs[run_id] = RunConfig.model_validate(self.store.config(run_id))
        return self._configs[run_id]

    def coming(self, cell: Cell) -> bool:
        """Whether a living driver holds that cell."""
        row = self._rows(cell.study).get(cell)
        return row is not None and row.held

    def promised(self, study: str) -> set[Cell]:
        """The cells of a study that have a winner, or that a living driver holds."""
        return {cell for cell, row in self._rows(study).items() if row.held or _winner_of(row)}

    def stale(self) -> bool:
        """Whether a new look is due."""
        return any(time.monotonic() - at > LOOK_SECONDS for at in self._looked.values())

    def look_again(self) -> None:
        """Forget what was read."""
        self._looked.clear()

    def _rows(self, study: str) -> dict[Cell, CellRow]:
        if study not in self._looked:
            self._looked[study] = time.monotonic()
            self._cells[study] = {row.cell: row for row in self.store.cells(study)}
        return self._cells[study]


def _winner_of(row: CellRow) -> str:
    """The run that a search has chosen, "" where none has: a cell that was only trained in."""
    chosen = row.tags.get("search_state") in WITH_WINNER
    return row.tags.get("winner", "") if chosen else ""
