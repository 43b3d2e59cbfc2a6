"""Where each cell of a search stands, as one line: for the live table and for the summary. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dcray.search.cells import State
from dcray.search.queue import StudyQueue
from dcray.search.space import rounded
from dcray.track.points import Cell, short_name

COUNTS = ("finished", "stopped", "diverged", "failed", "answered")
ENDS = {"complete": "finished", "diverged": "diverged"}


@dataclass(frozen=True)
class CellLine:
    """One cell: its state, its best result, and what became of what was planned.

    planned = finished + stopped + diverged + failed + answered, once the cell is done: trained to
    the end by this command, dropped by the ladder (or interrupted, where no search planned it),
    without a loss, and on record before.
    """

    cell: Cell
    state: str  # waiting, searching, confirming, done, no winner, held; on record: stopped, ...
    num_epochs: int | None = None
    weight_decay: float | None = None
    lr: float | None = None
    val_loss: float | None = None
    bound: str = ""  # "upper bound" where val_loss is one
    edges: tuple[str, ...] = ()
    planned: int = 0
    counts: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))
    running: int = 0
    device_seconds: float = 0.0
    note: str = ""  # what it waits for, who holds it
    winner_run_id: str = ""

    @property
    def best(self) -> str:
        """The best configuration so far in short, "" where there is none."""
        return short_name(vars(self))

    @property
    def left(self) -> int:
        """What has not ended yet."""
        return self.planned - sum(self.counts.values())


def cell_line(queue: StudyQueue, cell: Cell) -> CellLine:
    """The line of a cell that this command searches."""
    state = queue.state(cell)
    counts, seconds, running = _counts(queue, cell, state)
    known = queue.known.get(cell, {})
    slot = queue.searches[cell].best(known)
    best = known[slot] if slot else None  # of a cell that waits, too: what it had before
    wd = best.weight_decay if best else None
    return CellLine(
        cell,
        _word(queue, state),
        num_epochs=best.num_epochs if best else None,
        weight_decay=None if wd is None else rounded(wd),
        lr=best.lr if best else None,
        val_loss=best.val_loss if best else None,
        bound=queue.searches[cell].wish.bound,
        edges=state.winner.edges if state.winner else (),
        planned=state.num_planned,
        counts=counts,
        running=running,
        device_seconds=seconds,
        note=_note(queue, state),
        winner_run_id=state.winner.found.run_id if state.winner else "",
    )


def _counts(queue: StudyQueue, cell: Cell, state: State) -> tuple[dict[str, int], float, int]:
    counts = dict.fromkeys(COUNTS, 0)
    known, seconds, running, unknown = queue.known.get(cell, {}), 0.0, 0, 0
    for slot in dict.fromkeys(one.slot for one in state.planned):
        ended = queue.trained.get((cell, *slot))
        if ended is not None:
            seconds += ended.device_seconds * ended.num_devices
        if (cell, *slot) in queue.flying:
            running += 1
        elif ended is not None and ended.state == "dropped":
            counts["stopped"] += 1
        elif ended is not None and ended.state != "stopped":
            counts[ENDS.get(ended.state, "failed")] += 1
        elif slot in known:
            counts["stopped" if known[slot].state == "dropped" else "answered"] += 1
        else:
            unknown += 1
    counts["stopped"] += min(state.num_dropped, unknown)
    return counts, seconds, running


def _word(queue: StudyQueue, state: State) -> str:
    if state.waits_for:
        return "waiting"
    if state.searched and state.winner is None:
        return "no winner"
    if state.done:
        return "done"
    return "confirming" if state.searched else "searching"


def _note(queue: StudyQueue, state: State) -> str:
    if not state.waits_for:
        return ""
    names = []
    for cell in state.waits_for:
        study = "" if cell.study == queue.study else f"{cell.study}:"
        fate = ", which has no winner" if queue.hopeless(cell) else ""
        names.append(f"{study}{cell.label}{fate}")
    return f"waits for {' and '.join(names)}"
