"""One MLflow run as one tidy row; this module alone defines what a column means."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from dcray.config.sections import ABSURD_NATS
from dcray.track.locks.owner import Owner, heartbeat_of
from dcray.types import Cell

T = TypeVar("T")

STATES = ("complete", "running", "interrupted", "failed", "diverged")
_STATUS = {"RUNNING": "running", "SCHEDULED": "running", "FAILED": "failed"}


@dataclass(frozen=True)
class Row:
    """One result; a number that is missing is None, never 0.

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
    def num_members(self) -> int:
        """Return the number of runs that an ensemble averages, 1 for a run by itself.

        So many times the training FLOPs of its configuration were spent, and inference takes so
        many times those of one model.
        """
        return int(self.tags.get("ensemble", 1))

    @property
    def all_device_seconds(self) -> float | None:
        """Multiply device_seconds, which is of one device, by the number of devices."""
        one = self.device_seconds
        return None if one is None else one * self.num_devices

    @property
    def num_devices(self) -> float:
        """Count the devices that the run held: a share of a GPU counts as such."""
        return int(self.tags.get("world_size", 1)) * float(self.tags.get("gpu_share", 1))


def state_of(status: str, tags: Mapping[str, str]) -> str:
    """Return one of STATES; "complete" is dcray's tag, as MLflow's FINISHED means only an end."""
    if tags.get("dcray.complete") == "true":
        return "complete"
    if tags.get("dcray.state") == "diverged":
        return "diverged"
    return _STATUS.get(status, "interrupted")


def row_of(study: str, run: Any) -> Row:
    """Build the row of a run with dcray's tags; raises KeyError or ValueError if it has none."""
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
    """Say why a complete result's loss cannot be believed, None if it can."""
    return why_absurd(row.val_loss)


def why_absurd(loss: float | None) -> str | None:
    """Say why a complete result's `loss` cannot be believed, None if it can."""
    if loss is None:
        return "it is complete but has no val_loss"
    if not math.isfinite(loss) or abs(loss) > 1e300:  # a tracker's database stores inf as 1.797e308
        return f"its val_loss is not finite ({loss:g})"
    if not 0 <= loss <= ABSURD_NATS:
        return f"its val_loss of {loss:g} nats per token is outside 0 to {ABSURD_NATS:g}"
    return None


def newest_complete(rows: list[Row]) -> Row:
    """Choose which of several rows of one key counts: a complete one first, then the newest."""
    return max(rows, key=lambda r: (r.state == "complete", r.started_at, r.run_id))


def competes(state: str, val_loss: float | None, *, confirmation: bool) -> bool:
    """Tell whether a result may win its cell: complete, believable, not a confirmation."""
    return state == "complete" and not confirmation and why_absurd(val_loss) is None


def winning_order(val_loss: float, num_epochs: int | None, config_hash: str) -> tuple[Any, ...]:
    """Return the sort key by which the lowest wins: loss, then fewer epochs, then the hash."""
    return val_loss, num_epochs is None, num_epochs or 0, config_hash


def candidates(rows: Iterable[Row], *, seed: int | None = None) -> list[Row]:
    """Select the rows of a cell that compete for the win, at the search seed (None: any).

    Results of an earlier version of a plug-in do not compete: the version that counts is the one
    of the run that a search has marked as winner, else the one of the newest run. In the same way
    one ensemble counts, and alone: it competes with nothing.
    """
    found = [
        row
        for row in rows
        if competes(row.state, row.val_loss, confirmation=row.kind == "confirmation")
        if seed is None or row.seed == seed
    ]
    found.sort(key=lambda row: (row.tags.get("is_winner") == "true", row.started_at))
    if found and found[-1].kind == "ensemble":
        return [found[-1]]
    found = [row for row in found if row.kind != "ensemble"]
    source = {plugged(row): sources_of(row) for row in found}  # the last stays
    return [row for row in found if sources_of(row) == source[plugged(row)]]


def winner(rows: Iterable[Row], *, seed: int | None = None) -> Row | None:
    """Find the winner of a cell: the first of its candidates in the winning order."""

    def order(row: Row) -> tuple[Any, ...]:
        assert row.val_loss is not None, row.key
        return winning_order(row.val_loss, row.num_epochs, row.config_hash)

    return min(candidates(rows, seed=seed), key=order, default=None)


def plugged(row: Row) -> tuple[str, str]:
    """Return the names of a result's objective and optimizer; there was AdamW alone at first."""
    return row.tags.get("objective", ""), row.tags.get("optimizer", "adamw")


def sources_of(row: Row) -> tuple[str | None, str | None]:
    """Return the hashes of the plug-ins that `plugged` names, None for those of dcray's own."""
    return row.tags.get("objective_source"), row.tags.get("optimizer_source")


def _parsed(fields: Mapping[str, str], name: str, kind: Callable[[str], T]) -> T | None:
    text = fields.get(name)
    return None if text is None else kind(text)
