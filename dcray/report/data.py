"""runs.csv, cells.csv and fit.json: the analysis as data, every digit of every number."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from dcray.fit.as_json import as_json
from dcray.report.analysis import Analysis
from dcray.report.cells import Cell
from dcray.sections import count_label
from dcray.track.provenance import provenance
from dcray.track.rows import Row

SETTING = ("num_epochs", "weight_decay", "lr", "tau")


def runs_csv(found: Analysis) -> str:
    """One line per run of the study: what it is, which part it has, and why none where it has none.

    part: winner, fresh seed, candidate, or left out (with the reason).
    """
    parts = _parts(found)
    lines = [_run_line(row, parts[row.run_id], "") for row in found.rows if row.run_id in parts]
    for one in found.left:
        if one.row is not None:
            lines.append(_run_line(one.row, "left out", one.reason))
        else:
            lines.append(
                {"part": "left out", "reason": one.reason, "run_id": one.run_id, "key": one.name}
            )
    return _csv(lines)


def _parts(found: Analysis) -> dict[str, str]:
    parts: dict[str, str] = {}
    for cell in found.cells:
        parts |= {row.run_id: "candidate" for row in cell.candidates}
        parts |= {row.run_id: "fresh seed" for row in cell.fresh}
        parts[cell.winner.run_id] = "winner"
    return parts


def _run_line(row: Row, part: str, reason: str) -> dict[str, Any]:
    return {
        **_where(row), **_setting(row), "seed": row.seed, "kind": row.kind, "state": row.state,
        "val_loss": row.val_loss, "val_bpb": row.val_bpb, "bound": row.tags.get("bound"),
        "device_seconds": row.all_device_seconds, "part": part, "reason": reason,
        "run_id": row.run_id, "config_hash": row.config_hash, "key": row.key,
    }  # fmt: skip


def cells_csv(found: Analysis) -> str:
    """One line per cell and counted seed: what `dcray fit` reads."""
    return _csv(
        {
            **_where(row), **_setting(row), "seed": row.seed, "val_loss": row.val_loss,
            "val_bpb": row.val_bpb, "bound": row.tags.get("bound"), "source": found.source,
            "selected_val_loss": cell.selected, "run_id": row.run_id,
            "config_hash": row.config_hash,
        }
        for cell in found.cells
        for row in cell.counted(found.source)
    )  # fmt: skip


def _where(row: Row) -> dict[str, Any]:
    return {
        "recipe": row.recipe, "size": row.size, "num_params": row.num_params,
        "unique_tokens": row.unique_tokens,
    }  # fmt: skip


def _setting(row: Row) -> dict[str, Any]:
    return {name: getattr(row, name) for name in SETTING}


def _csv(lines: Iterable[Mapping[str, Any]]) -> str:
    """The lines under the columns of all of them, in the order in which they come up."""
    lines = list(lines)
    columns = list(dict.fromkeys(name for line in lines for name in line))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)  # repr of a float: it reads back as the same number
    return text.getvalue()


def fit_json(found: Analysis) -> str:
    """What --json prints and fit.json holds: figures in full precision, with the run ids."""
    return json.dumps(as_dict(found), indent=1, allow_nan=False)


def as_dict(found: Analysis) -> dict[str, Any]:
    """The analysis as plain values; a number that is not there is null."""
    fits = as_json(found.answer) if found.answer else {"laws": {}, "efficiency": []}
    excluded = [*fits.pop("excluded", []), *(f"{one.name}: {one.reason}" for one in found.left)]
    noise = found.choice.noise()
    cells = [_cell(cell, found.source, noise) for cell in found.cells]
    whole: dict[str, Any] = {
        "study": found.study,
        "source": found.source,
        "why_source": found.choice.why,
        "baseline": found.baseline,
        **fits,
        "cells": len(found.cells) if not found.answer else fits["cells"],
        "why_no_fit": list(found.why_no_fit),
        "pairs": [
            {"recipe": one.recipe, "seeds": one.seeds, **asdict(pair)}
            for one in found.pairs
            for pair in one.found
        ],
        "seed_noise": noise,
        "grid": cells,
        "excluded": excluded,
        "left_out": [
            {"run_id": one.run_id, "name": one.name, "reason": one.reason} for one in found.left
        ],
        "versions": provenance(),
    }
    if found.other is not None:
        whole["against"] = {
            "study": found.other.study,
            "source": found.other.source,
            "cells": [asdict(one) for one in found.beside()],
            "efficiency": as_json(found.other.answer)["efficiency"] if found.other.answer else [],
        }
    return {key: _finite(value) for key, value in whole.items()}


def _cell(cell: Cell, source: str, noise: float | None) -> dict[str, Any]:
    return {
        "name": cell.name, "size": cell.size, "num_params": cell.num_params,
        "unique_tokens": cell.unique_tokens, "budget": count_label(cell.unique_tokens),
        "recipe": cell.recipe, "bound": cell.bound or None, "val_loss": cell.loss(source),
        "selected": cell.selected, "confirmed": cell.confirmed, **_setting(cell.winner),
        "candidates": len(cell.candidates), "flags": list(cell.flags(noise)),
        "winner": cell.winner.run_id,
        "fresh": {str(row.seed): row.run_id for row in cell.fresh},
    }  # fmt: skip


def _finite(value: Any) -> Any:
    """The same with null for a number that is none."""
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
