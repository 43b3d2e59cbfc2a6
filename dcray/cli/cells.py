"""The table of a study's cells: the same while a search runs, at its end, and in `dcray status`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dcray.cli.console import fitted_table
from dcray.search.standing import COUNTS, CellLine

HEADS = (  # head, what it stands for, whether it is text
    ("cell", "size, unique tokens, recipe", True),
    ("state", "", True),
    ("epochs", "of the best result", False),
    ("wd", "its weight decay", False),
    ("lr", "", False),
    ("loss", "nats per token", False),
    ("edge", "axes at whose end the winner lies", True),
    ("done", "trained by the last command", False),
    ("run", "running", False),
    ("stop", "dropped by the ladder, or interrupted", False),
    ("div", "diverged", False),
    ("fail", "", False),
    ("ans", "answered from the record", False),
    ("hours", "device-hours", False),
)
LEAST_NEEDED = (  # the first goes first where a screen is narrow; what is not here never goes
    *("edge", "wd", "lr", "epochs"),
    *("hours", "ans", "stop", "div", "fail", "done", "run"),
)
SHORT_EDGES = {"num_epochs": "epochs", "weight_decay": "wd"}
MAX_NAMES = 6  # cells named in one note


def cells_table(lines: Sequence[CellLine], width: int | None = None) -> Any:
    """The cells as a rich table, one row each; where it must fit into `width`, its columns do."""
    return fitted_table(
        {head: text for head, _, text in HEADS},
        [cell_texts(line) for line in lines],
        width=width,
        least_needed=LEAST_NEEDED,
    )


def cell_texts(line: CellLine) -> list[str]:
    """The columns of one cell."""
    done, stopped, *rest = (str(line.counts[name] or "") for name in COUNTS)
    return [
        line.cell.label,
        line.state,
        _number(line.num_epochs),
        _number(line.weight_decay),
        _number(line.lr),
        "" if line.val_loss is None else ("<=" if line.bound else "") + f"{line.val_loss:.4f}",
        " ".join(SHORT_EDGES.get(name, name.split(".")[-1]) for name in line.edges),
        done,
        str(line.running or ""),
        stopped,
        *rest,
        f"{line.device_seconds / 3600:.3f}" if line.device_seconds else "",
    ]


def notes(lines: Sequence[CellLine]) -> list[str]:
    """What a person should know beside the table."""
    found = [f"{line.cell.label} {line.note}" for line in lines if line.note]
    if any(line.bound and line.val_loss is not None for line in lines):
        found.append("a loss after <= is an upper bound, over other tokens than a next-token loss")
    found += [
        f"{line.cell.label} has no winner: no run of it ended with a loss. Lower its lr, or mend "
        "what failed, and search again; what diverged is on record and is not repeated as it was"
        for line in lines
        if line.state == "no winner"
    ]
    if stopped := _names([line for line in lines if line.state == "stopped"]):
        found.append(f"interrupted: {stopped}; the same command again goes on where it stopped")
    if edges := _names([x for x in lines if x.edges and x.state in ("done", "confirming")]):
        found.append(f"winners at an edge of their space: {edges}; a wider space may hold better")
    return found


def _names(lines: Sequence[CellLine]) -> str:
    names = [line.cell.label for line in lines[:MAX_NAMES]]
    more = [f"{len(lines) - MAX_NAMES} more"] if len(lines) > MAX_NAMES else []
    return ", ".join(names + more)


def tally(lines: Sequence[CellLine]) -> str:
    """ "planned 54 = 30 finished + 18 stopped + 0 diverged + 0 failed + 6 answered"."""
    sums = {name: sum(line.counts[name] for line in lines) for name in COUNTS}
    planned = sum(line.planned for line in lines)
    left = planned - sum(sums.values())
    parts = " + ".join(f"{number} {name}" for name, number in sums.items())
    return f"planned {planned} = {parts}" + (f" + {left} left" if left else "")


def as_dict(line: CellLine) -> dict[str, Any]:
    """One cell as plain JSON types."""
    cell = line.cell
    return {
        "size": cell.size,
        "unique_tokens": cell.unique_tokens,
        "recipe": cell.recipe,
        "state": line.state,
        "num_epochs": line.num_epochs,
        "weight_decay": line.weight_decay,
        "lr": line.lr,
        "val_loss": line.val_loss,
        "bound": line.bound or None,
        "edges": list(line.edges),
        "planned": line.planned,
        **line.counts,
        "running": line.running,
        "left": line.left,
        "device_hours": line.device_seconds / 3600,
        "winner_run_id": line.winner_run_id or None,
        "note": line.note,
    }


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
