"""The state of each cell of a search as one line, for the live table and for the summary. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dcray.config.settings import settings_of
from dcray.fit.ensemble import EnsembleLoss
from dcray.search.cell import CellState
from dcray.search.state import StudyState
from dcray.study.space import rounded
from dcray.track.points import short_name
from dcray.types import Cell, RunKey

COUNTS = ("finished", "stopped", "diverged", "failed", "answered")
WITH_WINNER = ("confirming", "done")  # states of a search that has chosen
ENDS = {"complete": "finished", "diverged": "diverged"}


@dataclass(frozen=True)
class CellSummary:
    """One cell: its state, its best result, and what became of what was planned.

    planned = finished + stopped + diverged + failed + answered, once the cell is done: trained to
    the end by this command, dropped by the ladder (or interrupted, if no search planned it),
    without a loss, and on record before.
    """

    cell: Cell
    state: str  # waiting, searching, confirming, done, no winner, held; on record: stopped, ...
    num_epochs: int | None = None
    weight_decay: float | None = None
    lr: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)  # the best's others, by full name
    axes: tuple[str, ...] = ()  # which of them the cell searches
    val_loss: float | None = None
    bound: str = ""  # "upper bound" if val_loss is one
    edges: tuple[str, ...] = ()
    planned: int = 0
    counts: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))
    running: int = 0
    device_seconds: float = 0.0
    note: str = ""  # what it waits for, who holds it
    winner_run_id: str = ""
    ensemble: EnsembleLoss | None = None  # the losses of its members' sets, once it is computed

    @property
    def best(self) -> str:
        """Format the best configuration so far in short, "" if there is none."""
        searched = {name: self.settings[name] for name in self.axes if name in self.settings}
        return short_name(vars(self), searched)

    @property
    def left(self) -> int:
        """Count the planned runs that have not ended yet."""
        return self.planned - sum(self.counts.values())


def cell_line(study: StudyState, cell: Cell) -> CellSummary:
    """Build the line of a cell that this command searches."""
    state = study.cell_state(cell)
    counts, seconds, running = _counts(study, cell, state)
    known = study.known.get(cell, {})
    search = study.searches[cell]
    best = search.best(known)  # also for a cell that waits: its result from before
    best = best or (state.winner.result if state.winner else None)
    wd = best.weight_decay if best else None
    return CellSummary(
        cell,
        _word(study, state),
        num_epochs=best.num_epochs if best else None,
        weight_decay=None if wd is None else rounded(wd),
        lr=best.lr if best else None,
        settings=_settings(state, best.key if best else None, search.axes),
        axes=search.axes,
        val_loss=best.val_loss if best else None,
        bound=search.bound,
        edges=state.winner.edges if state.winner else (),
        planned=state.num_planned,
        counts=counts,
        running=running,
        device_seconds=seconds,
        note=_note(study, state),
        winner_run_id=state.winner.result.run_id if state.winner else "",
        ensemble=EnsembleLoss.from_metrics(best.metrics) if best else None,
    )


def _settings(state: CellState, key: RunKey | None, axes: tuple[str, ...]) -> dict[str, Any]:
    """Find the further settings of a result; {} while this command has not asked for it."""
    if state.winner is not None:
        return settings_of(state.winner.config, axes)
    configs = (one.config for one in state.planned if one.key == key)
    config = next(configs, None)
    return settings_of(config, axes) if config else {}


def _counts(study: StudyState, cell: Cell, state: CellState) -> tuple[dict[str, int], float, int]:
    counts = dict.fromkeys(COUNTS, 0)
    known, seconds, running, unknown = study.known.get(cell, {}), 0.0, 0, 0
    for key in dict.fromkeys(one.key for one in state.planned):
        ended = study.ended.get(key)
        if ended is not None:
            seconds += ended.device_seconds * ended.num_devices
        if key in study.running:
            running += 1
        elif ended is not None and ended.state == "dropped":
            counts["stopped"] += 1
        elif ended is not None and ended.state != "stopped":
            counts[ENDS.get(ended.state, "failed")] += 1
        elif key in known:
            counts["stopped" if known[key].state == "dropped" else "answered"] += 1
        else:
            unknown += 1
    counts["stopped"] += min(state.num_dropped, unknown)
    return counts, seconds, running


def _word(study: StudyState, state: CellState) -> str:
    if state.waits_for:
        return "waiting"
    if state.searched and state.winner is None:
        return "no winner"
    if state.done:
        return "done"
    return "confirming" if state.searched else "searching"


def _note(study: StudyState, state: CellState) -> str:
    if not state.waits_for:
        return state.note
    names = []
    for cell in state.waits_for:
        prefix = "" if cell.study == study.study else f"{cell.study}:"
        fate = ", which has no winner" if study.hopeless(cell) else ""
        names.append(f"{prefix}{cell.label}{fate}")
    return f"waits for {' and '.join(names)}"
