"""What a record can tell beforehand: measured runs, winners that are known, another model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dcray.errors import ConfigError
from dcray.search.elsewhere import WITH_WINNER
from dcray.search.wish import CellWish
from dcray.sizes import num_non_embedding_params
from dcray.track import runs
from dcray.track.address import resolve_uri
from dcray.track.corpora import MixedCorporaError
from dcray.track.points import Cell
from dcray.track.rows import Row

MODEL = "num_non_embedding_params"  # of a result: its shape in a number


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


def refuse_other_models(wishes: Sequence[CellWish], rows: Sequence[Row]) -> None:
    """Raise ConfigError where a size's table in the study file was edited since its cell was begun:
    a result of another model would stand there as the winner.
    """
    found = (row for row in rows if row.state == "complete")
    models = {(row.cell, int(row.params.get(MODEL, 0))) for row in found}
    now = {wish.cell: num_non_embedding_params(wish.base().shape) for wish in wishes}
    problems = [
        f"the results on record of {cell.label} are of another model: {then:,} parameters without "
        f'embeddings, and "{cell.size}" has {now[cell]:,} now. Give the size another name, or '
        "--study another"
        for cell, then in sorted(models, key=lambda pair: (pair[0].name, pair[1]))
        if cell in now and then not in (0, now[cell])
    ]
    if problems:
        raise ConfigError(problems)


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
