"""RUN on a command line: an MLflow run id, or STUDY/SIZE/BUDGET/RECIPE for that cell's winner."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from dcray.config.counts import count_label, parse_count
from dcray.errors import ConfigError, did_you_mean
from dcray.track.mlflow.connection import Connection, connect
from dcray.track.rows import Row, row_of, why_unusable, winner
from dcray.track.runs import PATIENCE_SECONDS, artifact, experiment_of, results, search
from dcray.types import Cell

FORM = "RUN must be an MLflow run id or STUDY/SIZE/BUDGET/RECIPE"


def find(directory: Path, name: str, *, tracking_uri: str | None = None) -> Row:
    """Find the complete result that `name` means.

    Raises ConfigError if there is none, and says what there is.
    """
    connection = connect(directory, tracking_uri, create=False)
    if re.fullmatch(r"[0-9a-f]{32}", name):
        return _by_id(connection, name)
    parts = name.split("/")
    if len(parts) != 4 or not all(parts):
        raise ConfigError(f'{FORM}, got "{name}"')
    study, size, budget, recipe = parts
    try:
        cell = Cell(study, size, int(parse_count(budget)), recipe)
    except ValueError as error:
        raise ConfigError(f'{FORM}, got "{name}": the budget {error}') from None
    return _winner(connection, directory, cell, tracking_uri)


def manifest(directory: Path, row: Row, *, tracking_uri: str | None = None) -> dict[str, Any]:
    """Load the manifest of the corpus that a result was trained on, as it was then."""
    connection = connect(directory, tracking_uri, create=False)
    return connection.patiently(
        lambda: artifact(connection, row.run_id, "manifest.json"), seconds=PATIENCE_SECONDS
    )


def member_rows(directory: Path, row: Row, *, tracking_uri: str | None = None) -> list[Row]:
    """Read the results of an ensemble's members, in their order; of a run alone, itself.

    Raises ConfigError for a member that is no longer on record.
    """
    names = [name for name in row.tags.get("members", "").split(",") if name]
    if not names:
        return [row]
    found = results(directory, study=row.study, tracking_uri=tracking_uri).rows
    by_key = {one.key: one for one in found}
    lost = [name for name in names if name not in by_key]
    if lost:
        raise ConfigError(
            f"the ensemble {row.key} has members that are no longer on record: {', '.join(lost)}; "
            "search its study again"
        )
    return [by_key[name] for name in names]


def _by_id(connection: Connection, run_id: str) -> Row:
    try:
        run = connection.client.get_run(run_id)
    except Exception as error:
        if getattr(error, "error_code", None) != "RESOURCE_DOES_NOT_EXIST":
            raise
        raise ConfigError(f'{FORM}, got "{run_id}": {connection.address} has no such run') from None
    if run.data.tags.get("dcray.role") != "result":
        raise ConfigError(
            f"run {run_id} is no result of dcray but {run.data.tags.get('dcray.role', 'another')}"
            "'s; take a run nested under a cell, or STUDY/SIZE/BUDGET/RECIPE"
        )
    row = row_of(run.data.tags["study"], run)
    reason = why_unusable(row) if row.state == "complete" else f"it is {row.state}, not complete"
    if reason:
        raise ConfigError(
            f"run {run_id} has no result: {reason}. Run the command that trains it again"
        )
    return row


def _winner(connection: Connection, directory: Path, cell: Cell, tracking_uri: str | None) -> Row:
    """Find a cell's winner by `rows.winner`, at the seed of the cell's search if it has one."""
    found = results(directory, study=cell.study, tracking_uri=tracking_uri)
    here = [row for row in found.rows if names_of(row) == names_of(cell)]
    best = winner(here, seed=_search_seed(connection, cell))
    if best is not None:
        return best
    rows = sorted(found.rows, key=lambda row: (row.num_params or 0, row.unique_tokens, row.recipe))
    known = list(dict.fromkeys("/".join(names_of(row)) for row in rows))
    wanted = "/".join(names_of(cell))
    if wanted in known:
        raise ConfigError(f"the cell {wanted} has no result at its search's seed yet; run it again")
    reasons = [e.reason for e in found.exclusions if e.row and names_of(e.row) == names_of(cell)]
    if reasons:
        raise ConfigError(f"the cell {wanted} has no result that counts: {reasons[-1]}")
    raise ConfigError(f'{FORM}, got "{wanted}"{did_you_mean(wanted, known)}')


def names_of(cell: Cell | Row) -> tuple[str, ...]:
    """Return study, size, budget and recipe: joined by slashes, the cell as RUN names it."""
    return cell.study, cell.size, count_label(cell.unique_tokens), cell.recipe


def _search_seed(connection: Connection, cell: Cell) -> int | None:
    experiment = experiment_of(connection, cell.study)
    wanted = f"tags.`dcray.role` = 'cell' and tags.`dcray.cell` = '{cell.name}'"
    for run in search(connection, experiment.experiment_id, wanted):
        if "search_seed" in run.data.tags:
            return int(run.data.tags["search_seed"])
    return None
