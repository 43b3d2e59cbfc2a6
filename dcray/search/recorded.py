"""What a record can tell a plan: measured runs, and winners that are known already."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dcray.search.elsewhere import WITH_WINNER
from dcray.track import runs
from dcray.track.address import resolve_uri
from dcray.track.corpora import MixedCorporaError
from dcray.track.points import Cell
from dcray.track.rows import Row


def studies_on_record(directory: Path, tracking_uri: str | None) -> list[str]:
    """The studies of a record; none where there is no record yet."""
    local = resolve_uri(directory, tracking_uri).startswith("sqlite")
    if local and not (directory / "mlflow.db").exists():
        return []
    return runs.studies(directory, tracking_uri=tracking_uri)


def results_on_record(directory: Path, tracking_uri: str | None) -> tuple[list[Row], list[str]]:
    """Every result of every study of a record; and why a study that holds two corpora is left out:
    it has no winners.
    """
    found: list[Row] = []
    left_out: list[str] = []
    for name in studies_on_record(directory, tracking_uri):
        try:
            found += runs.every_result(directory, study=name, tracking_uri=tracking_uri)
        except MixedCorporaError as error:
            left_out += error.problems
    return found, left_out


def winners_on_record(
    directory: Path, tracking_uri: str | None, rows: Sequence[Row]
) -> dict[Cell, dict[str, Any]]:
    """What the winner of each searched cell sets; `rows` holds the results of all studies."""
    by_id = {row.run_id: row for row in rows}
    found: dict[Cell, dict[str, Any]] = {}
    for study in dict.fromkeys(row.study for row in rows):
        for cell in runs.cells(directory, study=study, tracking_uri=tracking_uri):
            best = by_id.get(cell.tags.get("winner", ""))
            if best is None or cell.tags.get("search_state") not in WITH_WINNER:
                continue
            found[cell.cell] = {
                "num_epochs": best.num_epochs,
                "optim.weight_decay": best.weight_decay,
                "optim.lr": best.lr,
            }
    return found
