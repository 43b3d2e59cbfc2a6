"""The part of a record that a plan reads: measured runs, winners, results of another model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dcray.config.sizes import num_non_embedding_params
from dcray.errors import ConfigError
from dcray.search.cell_summary import WITH_WINNER
from dcray.study.spec import CellSpec
from dcray.track import runs
from dcray.track.locks.corpus_fingerprint import MixedCorporaError
from dcray.track.mlflow.address import resolve_uri
from dcray.track.rows import Row
from dcray.types import Cell

MODEL = "num_non_embedding_params"  # of a result: the number that stands for its shape


def studies_on_record(directory: Path, tracking_uri: str | None) -> list[str]:
    """List the studies of a record; [] if there is no record yet."""
    local = resolve_uri(directory, tracking_uri).startswith("sqlite")
    if local and not (directory / "mlflow.db").exists():
        return []
    return runs.studies(directory, tracking_uri=tracking_uri)


def results_on_record(directory: Path, tracking_uri: str | None) -> tuple[list[Row], list[str]]:
    """Read every result of every study of a record; say why a study is left out.

    A study that holds two corpora is left out: it has no winners.
    """
    found: list[Row] = []
    left_out: list[str] = []
    for name in studies_on_record(directory, tracking_uri):
        try:
            found += runs.every_result(directory, study=name, tracking_uri=tracking_uri)
        except MixedCorporaError as error:
            left_out += error.problems
    return found, left_out


def refuse_other_models(cell_specs: Sequence[CellSpec], rows: Sequence[Row]) -> None:
    """Raise ConfigError if a size's table in the study file was edited since its cell was begun.

    Else a result of another model would stand there as the winner.
    """
    found = (row for row in rows if row.state == "complete")
    models = {(row.cell, int(row.params.get(MODEL, 0))) for row in found}
    now = {
        cell_spec.cell: num_non_embedding_params(cell_spec.base().shape) for cell_spec in cell_specs
    }
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
    """Collect what the winner of each searched cell sets; `rows`: the results of all studies."""
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
