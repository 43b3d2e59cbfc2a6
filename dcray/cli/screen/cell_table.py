"""The table of a study's cells: the same while a search runs, at its end, and in `dcray status`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dcray.cli.screen.console import fitted_table
from dcray.config.settings import short_names, value_text, varied
from dcray.fit.ensemble import EnsembleLoss
from dcray.search.cell_summary import COUNTS, CellSummary

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
LEAST_NEEDED = (  # dropped in this order if a screen is narrow; other columns stay
    *("edge", "wd", "lr", "epochs"),  # then the further settings
    *("hours", "ans", "stop", "div", "fail", "done", "run"),
)
SHORT_EDGES = {"num_epochs": "epochs", "weight_decay": "wd"}
MAX_NAMES = 6  # cells named in one note


def cells_table(lines: Sequence[CellSummary], width: int | None = None) -> Any:
    """Make a rich table of the cells, one row each; its columns fit into `width` if that is given.

    What varies in the study besides epochs, weight decay and lr has columns behind those.
    """
    heads = {head: text for head, _, text in HEADS}
    further = short_names(shown_settings(lines), heads)
    at = list(heads).index("lr") + 1
    ordered = [*list(heads)[:at], *further.values(), *list(heads)[at:]]
    rows = []
    for line in lines:
        texts = cell_texts(line)
        texts[at:at] = [value_text(line.settings.get(name)) for name in further]
        rows.append(texts)
    return fitted_table(
        {head: heads.get(head, False) for head in ordered},
        rows,
        width=width,
        least_needed=(*LEAST_NEEDED[:4], *further.values(), *LEAST_NEEDED[4:]),
    )


def shown_settings(lines: Sequence[CellSummary]) -> tuple[str, ...]:
    """Find the further settings that a cell searches or that differ between cells, by full name."""
    axes = {name for line in lines for name in line.axes}
    return tuple(sorted(axes.union(varied(line.settings for line in lines))))


def cell_texts(line: CellSummary) -> list[str]:
    """Format the columns of one cell, in the order of HEADS."""
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


def notes(lines: Sequence[CellSummary]) -> list[str]:
    """List what a person should know beside the table, a sentence each."""
    found = [f"{line.cell.label} {line.note}" for line in lines if line.note]
    found += [f"{line.cell.label}: {_members(line.ensemble)}" for line in lines if line.ensemble]
    if any(line.bound and line.val_loss is not None for line in lines):
        found.append("a loss after <= is an upper bound, over other tokens than a next-token loss")
    found += [
        f"{line.cell.label} has no winner: no run of it ended with a loss. Lower its lr, or mend "
        "what failed, and search again; what diverged is on record and is not repeated as it was"
        for line in lines
        if line.state == "no winner" and not line.note
    ]
    if stopped := _names([line for line in lines if line.state == "stopped"]):
        found.append(f"interrupted: {stopped}; the same command again goes on where it stopped")
    if edges := _names([x for x in lines if x.edges and x.state in ("done", "confirming")]):
        found.append(f"winners at an edge of their space: {edges}; a wider space may hold better")
    return found


def _names(lines: Sequence[CellSummary]) -> str:
    names = [line.cell.label for line in lines[:MAX_NAMES]]
    more = [f"{len(lines) - MAX_NAMES} more"] if len(lines) > MAX_NAMES else []
    return ", ".join(names + more)


def _members(found: EnsembleLoss) -> str:
    """Format an ensemble's losses: "1.8276 of one member, 1.7959 of 3, 1.7803 without end"."""
    ends = "" if found.low is None else f" (95 %: {found.low:.4f} to {found.high:.4f})"
    return (
        f"{found.losses[0]:.4f} of one member, {found.loss:.4f} of {found.num_members}, "
        f"{found.limit:.4f} without end{ends}"
    )


def tally(lines: Sequence[CellSummary]) -> str:
    """Sum up: "planned 54 = 30 finished + 18 stopped + 0 diverged + 0 failed + 6 answered"."""
    sums = {name: sum(line.counts[name] for line in lines) for name in COUNTS}
    planned = sum(line.planned for line in lines)
    left = planned - sum(sums.values())
    parts = " + ".join(f"{number} {name}" for name, number in sums.items())
    return f"planned {planned} = {parts}" + (f" + {left} left" if left else "")


def as_dicts(lines: Sequence[CellSummary]) -> list[dict[str, Any]]:
    """Convert the cells to plain JSON types; "settings" holds what varies but epochs, wd and lr."""
    further = shown_settings(lines)
    return [_as_dict(line, further) for line in lines]


def _as_dict(line: CellSummary, further: Sequence[str]) -> dict[str, Any]:
    cell = line.cell
    return {
        "size": cell.size,
        "unique_tokens": cell.unique_tokens,
        "recipe": cell.recipe,
        "state": line.state,
        "num_epochs": line.num_epochs,
        "weight_decay": line.weight_decay,
        "lr": line.lr,
        "settings": {name: line.settings.get(name) for name in further},
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
        "ensemble": vars(line.ensemble) if line.ensemble else None,
    }


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
