"""One MLflow run as one tidy row; what a column means stands here alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from dcray.sections import ABSURD_NATS
from dcray.track.owner import Owner, heartbeat_of
from dcray.track.points import Cell

T = TypeVar("T")

STATES = ("complete", "running", "interrupted", "failed", "diverged")
_STATUS = {"RUNNING": "running", "SCHEDULED": "running", "FAILED": "failed"}


@dataclass(frozen=True)
class Row:
    """One result; a number that is not there is None, never 0.

    val_loss is in nats per token, val_bpb in bits per byte, started_at in Unix seconds.
    """

    study: str
    size: str
    num_params: int | None
    unique_tokens: int
    recipe: str
    num_epochs: int | None
    weight_decay: float | None
    lr: float | None
    tau: float | None  # epochs
    seed: int
    kind: str
    config_hash: str
    key: str
    state: str
    val_loss: float | None
    val_bpb: float | None
    device_seconds: float | None
    run_id: str
    started_at: float
    reason: str | None  # why it is not complete
    owner: str | None
    heartbeat_at: float | None
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    tags: Mapping[str, str]

    @property
    def cell(self) -> Cell:
        return Cell(self.study, self.size, self.unique_tokens, self.recipe)

    @property
    def all_device_seconds(self) -> float | None:
        """Of all its devices together: what is on record is the time of one."""
        one = self.device_seconds
        return None if one is None else one * int(self.tags.get("world_size", 1))


def state_of(status: str, tags: Mapping[str, str]) -> str:
    """One of STATES. "complete" is our own tag; MLflow says FINISHED of a run that merely ended."""
    if tags.get("dcray.complete") == "true":
        return "complete"
    if tags.get("dcray.state") == "diverged":
        return "diverged"
    return _STATUS.get(status, "interrupted")


def row_of(study: str, run: Any) -> Row:
    """The row of a run that carries our tags; raises KeyError or ValueError where it does not."""
    tags, params, metrics = dict(run.data.tags), dict(run.data.params), dict(run.data.metrics)
    owner = Owner.from_json(tags.get("dcray.owner"))
    return Row(
        study=study,
        size=tags["size"],
        num_params=_parsed(params, "num_params", int),
        unique_tokens=int(tags["unique_tokens"]),
        recipe=tags["recipe"],
        num_epochs=_parsed(params, "num_epochs", int),
        weight_decay=_parsed(params, "weight_decay", float),
        lr=_parsed(params, "lr", float),
        tau=_parsed(params, "tau", float),
        seed=int(tags["seed"]),
        kind=tags["kind"],
        config_hash=tags["config_hash"],
        key=tags["dcray.key"],
        state=state_of(run.info.status, tags),
        val_loss=metrics.get("val_loss"),
        val_bpb=metrics.get("val_bpb"),
        device_seconds=metrics.get("device_seconds"),
        run_id=run.info.run_id,
        started_at=run.info.start_time / 1000,
        reason=tags.get("dcray.reason") or None,
        owner=str(owner) if owner else None,
        heartbeat_at=heartbeat_of(tags),
        params=params,
        metrics=metrics,
        tags=tags,
    )


def why_unusable(row: Row) -> str | None:
    """Why a complete result's loss cannot be believed, None where it can."""
    loss = row.val_loss
    if loss is None:
        return "it is complete but has no val_loss"
    if not math.isfinite(loss) or abs(loss) > 1e300:  # a tracker's database stores inf as 1.797e308
        return f"its val_loss is not finite ({loss:g})"
    if not 0 <= loss <= ABSURD_NATS:
        return f"its val_loss of {loss:g} nats per token is outside 0 to {ABSURD_NATS:g}"
    return None


def newest_complete(rows: list[Row]) -> Row:
    """Which of several rows of one key counts: a complete one before others, then the newest."""
    return max(rows, key=lambda r: (r.state == "complete", r.started_at, r.run_id))


def winner(rows: Iterable[Row], *, seed: int | None = None) -> Row | None:
    """The winner of a cell: its lowest complete loss at the search seed, ties to fewer epochs.

    Confirmations do not take part, nor losses that cannot be believed, nor those of an objective
    whose plug-in was another then: what counts is the plug-in of the run that a search has marked
    as winner, for it knew which one is here, else of the newest run. seed: None takes any.
    """
    candidates = [
        row
        for row in rows
        if row.state == "complete" and row.kind != "confirmation" and why_unusable(row) is None
        if seed is None or row.seed == seed
    ]
    candidates.sort(key=lambda row: (row.tags.get("is_winner") == "true", row.started_at))
    source = {row.tags.get("objective"): source_of(row) for row in candidates}  # the last stays
    current = [row for row in candidates if source_of(row) == source[row.tags.get("objective")]]
    return min(current, key=lambda r: (r.val_loss, r.num_epochs, r.config_hash), default=None)


def source_of(row: Row) -> str | None:
    """The hash of the plug-in that was its objective, None where that was one of ours."""
    return row.tags.get("objective_source")


def _parsed(fields: Mapping[str, str], name: str, kind: Callable[[str], T]) -> T | None:
    text = fields.get(name)
    return None if text is None else kind(text)
