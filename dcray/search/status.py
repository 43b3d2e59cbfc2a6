"""The state of each cell of a study, by the record alone: while a search runs or after it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from dcray.config.settings import recorded_settings, varied
from dcray.config.sizes import size_order
from dcray.fit.ensemble import EnsembleLoss
from dcray.search.cell_summary import COUNTS, CellSummary
from dcray.track.rows import Row, winner
from dcray.track.runs import CellRow
from dcray.types import Cell

RUNNING = ("searching", "confirming")


def record_lines(
    cells: Sequence[CellRow], rows: Sequence[Row], wished: Collection[Cell] = ()
) -> list[CellSummary]:
    """Build one line for each cell on record, and for each cell that only a study file names.

    The lines are sorted by size (in parameters), budget and recipe. A cell whose search is under
    way and whose driver is gone, or silent for two minutes, is "lost".
    """
    by_cell: dict[Cell, list[Row]] = {}
    for row in rows:
        by_cell.setdefault(row.cell, []).append(row)
    known = {one.cell: one for one in cells}
    order = [*known, *(cell for cell in wished if cell not in known)]
    settings = {row.run_id: recorded_settings(row.params) for row in rows}
    axes = varied(settings.values())
    params = {row.cell.size: float(row.num_params) for row in rows if row.num_params}
    order.sort(
        key=lambda cell: (
            params.get(cell.size, size_order(cell.size)),
            cell.unique_tokens,
            cell.size,
            cell.recipe,
        )
    )
    return [
        _line(cell, known[cell], by_cell.get(cell, []), settings, axes) if cell in known
        else CellSummary(cell, "not begun")
        for cell in order
    ]  # fmt: skip


def _line(
    cell: Cell,
    parent: CellRow,
    rows: Sequence[Row],
    settings: Mapping[str, Mapping[str, Any]],
    axes: tuple[str, ...],
) -> CellSummary:
    tags = parent.tags
    seed = int(tags["search_seed"]) if tags.get("search_seed") else None
    best = winner(rows, seed=seed)
    states = [row.state for row in rows]
    answered = min(
        int(tags.get("answered", 0)), states.count("complete") + states.count("diverged")
    )
    interrupted = 0 if tags.get("search_state") else states.count("interrupted")
    counts = dict.fromkeys(COUNTS, 0) | {
        "finished": max(0, states.count("complete") - answered),
        "stopped": int(tags.get("stopped", 0)) + interrupted,
        "diverged": states.count("diverged"),
        "failed": states.count("failed"),
        "answered": answered,
    }
    running = states.count("running") if parent.held else 0
    alone = "done" if best else "stopped" if interrupted else "no winner"
    word = tags.get("search_state") or alone
    if not parent.held and (word in RUNNING or "running" in states):
        word = "lost" if parent.status == "RUNNING" else "stopped"
    elif parent.held and not tags.get("search_state"):
        word = "training"
    return CellSummary(
        cell,
        word,
        num_epochs=best.num_epochs if best else None,
        weight_decay=best.weight_decay if best else None,
        lr=best.lr if best else None,
        settings=settings[best.run_id] if best else {},
        axes=axes,
        val_loss=best.val_loss if best else None,
        bound=best.tags.get("bound", "") if best else "",
        edges=tuple(filter(None, tags.get("edges", "").split(","))),
        planned=int(tags.get("planned", 0)) or len(rows),
        counts=counts,
        running=running,
        device_seconds=sum(row.all_device_seconds or 0.0 for row in rows),
        note=tags.get("waits_for", "") if word in ("waiting", "no winner") else "",
        ensemble=EnsembleLoss.from_metrics(best.metrics) if best else None,
        winner_run_id=tags.get("winner", "") or (best.run_id if best else ""),
    )
