"""Reading MLflow as one tidy row a result. The only reader of the record; it writes nothing.

    rows, exclusions = results(Path("dcray-runs"), study="dclm")

It pages (MLflow stops at 1,000 runs a page), keeps one run of each key, and gives a reason for
every result that is left out.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dcray.errors import ConfigError, did_you_mean
from dcray.track.locks.corpus_fingerprint import refuse_two
from dcray.track.locks.owner import Owner, heartbeat_of
from dcray.track.mlflow.connection import Connection, connect
from dcray.track.mlflow.retry import waiting_helps
from dcray.track.points import FORMAT, REMARKS, Point
from dcray.track.rows import Row, newest_complete, row_of, why_unusable
from dcray.types import Cell

PAGE = 1000
PATIENCE_SECONDS = 20.0  # of a reader: a person waits for the answer


class Exclusion(NamedTuple):
    """A run that is not among the rows, and why; row is None if the run could not be read."""

    run_id: str
    name: str
    reason: str
    row: Row | None


class Results(NamedTuple):
    """The complete, believable results, one a key, and every other run."""

    rows: list[Row]
    exclusions: list[Exclusion]


@dataclass(frozen=True)
class CellRow:
    """One cell on record: the parent run, and the owner of its lease."""

    study: str
    size: str
    unique_tokens: int
    recipe: str
    run_id: str
    status: str  # MLflow's: SCHEDULED (nobody began), RUNNING, FINISHED, KILLED, FAILED
    owner: Owner | None
    heartbeat_at: float | None
    held: bool  # RUNNING, and the owner lives
    tags: Mapping[str, str]  # search_state, planned, winner, ...: the state of its search

    @property
    def cell(self) -> Cell:
        return Cell(self.study, self.size, self.unique_tokens, self.recipe)


def results(directory: Path, *, study: str, tracking_uri: str | None = None) -> Results:
    """Read what analyze uses: complete results with a believable loss; the rest with reasons.

    Raises ConfigError if there is no such record or study, if a newer dcray wrote it, and if its
    results are of two corpora.
    """
    rows, exclusions = _one_corpus(connect(directory, tracking_uri, create=False), study)
    usable: list[Row] = []
    for row in rows:
        reason = why_unusable(row) if row.state == "complete" else _why_unfinished(row)
        if reason is None:
            usable.append(row)
        else:
            exclusions.append(Exclusion(row.run_id, row.key, reason, row))
    return Results(usable, exclusions)


def every_result(directory: Path, *, study: str, tracking_uri: str | None = None) -> list[Row]:
    """Read what status shows: one row a key, in whatever state it is; oldest first."""
    return _one_corpus(connect(directory, tracking_uri, create=False), study)[0]


def _one_corpus(connection: Connection, study: str) -> tuple[list[Row], list[Exclusion]]:
    rows, exclusions = latest(connection, study)
    experiment = experiment_of(connection, study)
    connection.patiently(
        lambda: refuse_two(study, experiment, rows, connection.client), seconds=PATIENCE_SECONDS
    )
    return rows, exclusions


def cells(directory: Path, *, study: str, tracking_uri: str | None = None) -> list[CellRow]:
    """Read the cells that are on record, oldest first."""
    return cells_of(connect(directory, tracking_uri, create=False), study)


def cells_of(connection: Connection, study: str) -> list[CellRow]:
    """Read the cells as `cells` does, over an open connection."""
    experiment = experiment_of(connection, study)
    found = search(connection, experiment.experiment_id, "tags.`dcray.role` = 'cell'")
    return [_cell_row(study, run) for run in found]


def studies(directory: Path, *, tracking_uri: str | None = None) -> list[str]:
    """List the names of the studies on record, sorted; without MLflow's other experiments."""
    connection = connect(directory, tracking_uri, create=False)
    names: list[str] = []
    token = None
    while True:
        page = connection.client.search_experiments(max_results=PAGE, page_token=token)
        names += [e.name for e in page if "dcray.format" in e.tags]
        token = page.token
        if not token:
            return sorted(names)


def curve(directory: Path, run_id: str, *, tracking_uri: str | None = None) -> list[Point]:
    """Read the points of one result, by step; a metric recorded twice at a step counts once.

    Raises ConfigError if there is no such run.
    """
    connection = connect(directory, tracking_uri, create=False)
    try:
        run = connection.client.get_run(run_id)
    except Exception as error:
        if getattr(error, "error_code", None) != "RESOURCE_DOES_NOT_EXIST":
            raise
        raise ConfigError(f'RUN must be the id of a run on record, got "{run_id}"') from None
    keys = [key for key in run.data.metrics if "/" in key and not key.startswith(REMARKS)]
    return points_of(history(connection, run_id, keys))


def curves(
    directory: Path, run_ids: Iterable[str], key: str, *, tracking_uri: str | None = None
) -> dict[str, list[tuple[float, float]]]:
    """Read {run id: [(epoch, value of the metric `key`)]} by step, for many runs at once."""
    connection = connect(directory, tracking_uri, create=False)
    found = {}
    for run_id in run_ids:
        points = points_of(history(connection, run_id, [key, "progress/epoch"]))
        found[run_id] = [(p.epoch, p.values[key]) for p in points if key in p.values]
    return found


def artifact(connection: Connection, run_id: str, name: str) -> dict[str, Any]:
    """Load a JSON artifact of a run, leaving no copy; raises ConfigError if it cannot be read."""
    with tempfile.TemporaryDirectory() as place:
        try:
            path = connection.client.download_artifacts(run_id, name, place)
        except Exception as error:
            if waiting_helps(error):
                raise
            raise ConfigError(
                f"the artifacts of run {run_id} cannot be read ({error}); they belong beside the "
                "record: copy DIR as a whole"
            ) from None
        found: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    return found


def points_of(rows: dict[str, dict[int, tuple[float, float]]]) -> list[Point]:
    """Build points from {key: {step: (value, instant)}}."""
    steps = sorted({step for by_step in rows.values() for step in by_step})
    points: list[Point] = []
    for step in steps:
        here = {key: by_step[step] for key, by_step in rows.items() if step in by_step}
        tokens = here.pop("progress/tokens_seen", (0.0, 0.0))[0]
        epoch = here.pop("progress/epoch", (0.0, 0.0))[0]
        at = min((instant for _, instant in here.values()), default=0.0)
        values = {key: value for key, (value, _) in sorted(here.items())}
        points.append(Point(step, int(tokens), epoch, values, at))
    return points


def history(
    connection: Connection, run_id: str, keys: list[str]
) -> dict[str, dict[int, tuple[float, float]]]:
    """Read {key: {step: (value, instant)}}; of several rows of one step the earliest counts."""
    found: dict[str, dict[int, tuple[float, float]]] = {}
    for key in keys:
        rows = connection.client.get_metric_history(run_id, key)
        found[key] = {
            row.step: (row.value, row.timestamp / 1000)
            for row in sorted(rows, key=lambda row: -row.timestamp)
        }
    return found


def search(connection: Connection, experiment_id: str, filter_string: str) -> Iterator[Any]:
    """Yield every run that matches, oldest first, each once, over all pages."""
    seen: set[str] = set()
    token = None
    while True:
        page = connection.client.search_runs(
            [experiment_id],
            filter_string=filter_string,
            max_results=PAGE,
            order_by=["attributes.start_time ASC"],  # what comes in while we page comes last
            page_token=token,
        )
        for run in page:
            if run.info.run_id not in seen:
                seen.add(run.info.run_id)
                yield run
        token = page.token
        if not token:
            return


def experiment_of(connection: Connection, study: str) -> Any:
    """Find a study's experiment; raises ConfigError if it is missing, deleted, or newer."""
    experiment = connection.client.get_experiment_by_name(study)
    if experiment is None:
        known = [e.name for e in connection.client.search_experiments() if "dcray.format" in e.tags]
        raise ConfigError(
            f'STUDY must be on record, got "{study}"{did_you_mean(study, known)}'
            f"; the record is {connection.address}"
        )
    check_format(study, experiment)
    return experiment


def check_format(study: str, experiment: Any) -> None:
    """Raise ConfigError for an experiment that was deleted, or that a newer dcray wrote."""
    if experiment.lifecycle_stage != "active":
        raise ConfigError(
            f'the study "{study}" was deleted in MLflow (experiment {experiment.experiment_id}); '
            f"restore that experiment, or give the study another name"
        )
    _check_newer(study, experiment.tags)


def _check_newer(study: str, tags: Mapping[str, str]) -> None:
    written = int(tags.get("dcray.format", FORMAT))
    if written > FORMAT:
        raise ConfigError(
            f'the record of study "{study}" was written by a newer dcray (format {written}, this '
            f"one reads up to {FORMAT}); install that version or a later one"
        )


def latest(connection: Connection, study: str) -> tuple[list[Row], list[Exclusion]]:
    """Read one row a key, and dcray's runs that are not that row or cannot be read."""
    experiment = experiment_of(connection, study)
    by_key: dict[str, list[Row]] = {}
    exclusions: list[Exclusion] = []
    for run in search(connection, experiment.experiment_id, "tags.`dcray.role` = 'result'"):
        _check_newer(study, run.data.tags)
        try:
            row = row_of(study, run)
        except (KeyError, ValueError) as error:
            reason = f"it cannot be read: {type(error).__name__} {error}"
            exclusions.append(Exclusion(run.info.run_id, run.info.run_name, reason, None))
            continue
        by_key.setdefault(row.key, []).append(row)
    latest = []
    for rows in by_key.values():
        best = newest_complete(rows)
        latest.append(best)
        exclusions += [
            Exclusion(r.run_id, r.key, f"run {best.run_id} has the same key and counts", r)
            for r in rows
            if r is not best
        ]
    return latest, exclusions


def _why_unfinished(row: Row) -> str:
    because = f": {row.reason}" if row.reason else ""
    return f"it is {row.state}, not complete{because}"


def _cell_row(study: str, run: Any) -> CellRow:
    tags = run.data.tags
    owner = Owner.from_json(tags.get("dcray.owner"))
    heartbeat = heartbeat_of(tags)
    running = run.info.status == "RUNNING"
    return CellRow(
        study=study,
        size=tags["size"],
        unique_tokens=int(tags["unique_tokens"]),
        recipe=tags["recipe"],
        run_id=run.info.run_id,
        status=run.info.status,
        owner=owner,
        heartbeat_at=heartbeat,
        held=running and owner is not None and owner.alive(heartbeat),
        tags=dict(tags),
    )
