"""runs.csv, cells.csv, recipes.csv and fit.json: the analysis as data, with every digit."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from dcray.config.counts import count_label
from dcray.config.settings import recorded_settings
from dcray.fit.output.as_json import as_json
from dcray.fit.ranking import lines
from dcray.report.analysis import Analysis
from dcray.report.cells import Cell, as_loss
from dcray.track.provenance import provenance
from dcray.track.rows import Row

SETTING = ("num_epochs", "weight_decay", "lr", "tau")


def runs_csv(found: Analysis) -> str:
    """Format runs.csv: one line per run of the study, with its part, or with why it has none.

    part: winner, fresh seed, candidate, or left out (with the reason).
    """
    parts = _parts(found)
    table = [
        _run_line(row, parts[row.run_id], "", found.varied)
        for row in found.rows
        if row.run_id in parts
    ]
    for one in found.left:
        if one.row is not None:
            table.append(_run_line(one.row, "left out", one.reason, found.varied))
        else:
            table.append(
                {"part": "left out", "reason": one.reason, "run_id": one.run_id, "key": one.name}
            )
    return _csv(table)


def _parts(found: Analysis) -> dict[str, str]:
    parts: dict[str, str] = {}
    for cell in found.cells:
        parts |= {row.run_id: "candidate" for row in cell.candidates}
        parts |= {row.run_id: "fresh seed" for row in cell.fresh}
        parts[cell.winner.run_id] = "winner"
    return parts


def _run_line(row: Row, part: str, reason: str, varied: Sequence[str]) -> dict[str, Any]:
    return {
        **_where(row), **_setting(row, varied),
        "seed": row.seed, "kind": row.kind, "state": row.state,
        "val_loss": row.val_loss, "val_bpb": row.val_bpb, "bound": row.tags.get("bound"),
        "device_seconds": row.all_device_seconds, "part": part, "reason": reason,
        "run_id": row.run_id, "config_hash": row.config_hash, "key": row.key,
    }  # fmt: skip


def cells_csvs(found: Analysis) -> dict[str, str]:
    """Format the files that `dcray fit` reads, {name: text}: one line per cell and counted seed.

    cells.csv has the recipes that are compared on the source that leads; cells_search.csv has the
    baseline and the others on the search seed, if fresh seeds lead and some recipe has too few.
    """
    groups = {found.source: found.choice.recipes}
    if found.baseline is not None:
        others = [recipe for recipe in found.choice.recipes if recipe != found.baseline]
        groups = found.choice.comparisons(found.baseline, others)
    leading = {"cells.csv": groups.pop(found.source, ())}
    rest = {f"cells_{source}.csv": recipes for source, recipes in groups.items()}
    sources = dict(zip([*leading, *rest], [found.source, *groups], strict=True))
    own = (found.baseline,) if found.baseline is not None else ()
    return {
        name: _cells_csv(found, (*own, *recipes), sources[name])
        for name, recipes in {**leading, **rest}.items()
    }


def _cells_csv(found: Analysis, recipes: Sequence[str], source: str) -> str:
    return _csv(
        {
            **_where(row), **_setting(row, found.varied),
            "seed": as_loss(row).seed, "val_loss": row.val_loss,
            "val_bpb": row.val_bpb, "bound": row.tags.get("bound"), "source": source,
            "search_val_loss": None if cell.ensemble else cell.searched,
            "num_candidates": cell.num_candidates,
            "run_id": row.run_id, "config_hash": row.config_hash,
            **found.spending.columns(cell, row),
        }
        for cell in found.choice.of(*recipes)
        for row in cell.counted(source)
    )  # fmt: skip


def recipes_csv(found: Analysis) -> str:
    """Format recipes.csv: every recipe's worth, a line for each thing that is equal and budget."""
    return _csv(lines(found.standings))


def _where(row: Row) -> dict[str, Any]:
    return {
        "recipe": row.recipe, "size": row.size, "num_params": row.num_params,
        "unique_tokens": row.unique_tokens,
    }  # fmt: skip


def _setting(row: Row, varied: Sequence[str]) -> dict[str, Any]:
    """Return epochs, weight decay, lr and tau, and what else varies, by full field names."""
    further = recorded_settings(row.params)
    found = {name: getattr(row, name) for name in SETTING}
    return found | {name: further.get(name) for name in varied}


def _csv(table: Iterable[Mapping[str, Any]]) -> str:
    """Format the lines as CSV; the columns are those of all lines, in order of first appearance."""
    table = list(table)
    columns = list(dict.fromkeys(name for line in table for name in line))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)  # floats by repr: they read back as the same numbers
    return text.getvalue()


def fit_json(found: Analysis) -> str:
    """Format what --json prints and fit.json holds: figures in full precision, with the run ids."""
    return json.dumps(as_dict(found), indent=1, allow_nan=False)


def as_dict(found: Analysis) -> dict[str, Any]:
    """Convert the analysis to plain JSON values; a number that is missing or not finite is None."""
    fits = as_json(found.answer) if found.answer else {"laws": {}, "efficiency": []}
    excluded = [*fits.pop("excluded", []), *(f"{one.name}: {one.reason}" for one in found.left)]
    noise = found.choice.noise()
    cells = [
        _cell(cell, found.choice.shown(cell.recipe), noise, found.varied) for cell in found.cells
    ]
    whole: dict[str, Any] = {
        "study": found.study,
        "source": found.source,
        "why_source": found.choice.why,
        "baseline": found.baseline,
        "seed_noise": None,
        **fits,
        "cells": len(found.cells) if not found.answer else fits["cells"],
        "by_worth": lines(found.standings),
        "why_no_fit": list(found.why_no_fit),
        "pairs": [
            {
                "recipe": one.recipe,
                "seeds": one.seeds,
                "bias": one.bias or None,
                **asdict(pair),
                "population": pair.population or None,
            }
            for one in found.pairs
            for pair in one.found
        ],
        "fresh_seed_noise": noise,  # over all recipes; seed_noise: of the rows that the fit reads
        "grid": cells,
        "excluded": excluded,
        "left_out": [
            {"run_id": one.run_id, "name": one.name, "reason": one.reason} for one in found.left
        ],
        "versions": provenance(),
    }
    if found.second is not None and found.second.answer is not None:
        whole["second"] = {"source": found.second.source, **as_json(found.second.answer)}
    if found.other is not None:
        whole["against"] = {
            "study": found.other.study,
            "source": found.other.source,
            "cells": [asdict(one) for one in found.beside()],
            "efficiency": as_json(found.other.answer)["efficiency"] if found.other.answer else [],
        }
    return {key: _finite(value) for key, value in whole.items()}


def _cell(cell: Cell, source: str, noise: float | None, varied: Sequence[str]) -> dict[str, Any]:
    return {
        "name": cell.name, "size": cell.size, "num_params": cell.num_params,
        "unique_tokens": cell.unique_tokens, "budget": count_label(cell.unique_tokens),
        "recipe": cell.recipe, "bound": cell.bound or None, "val_loss": cell.loss(source),
        "source": source, "searched": None if cell.ensemble else cell.searched,
        "confirmed": cell.confirmed,
        **_setting(cell.winner, varied), "candidates": len(cell.candidates),
        "num_candidates": cell.num_candidates, "flags": list(cell.flags(noise)),
        "winner": cell.winner.run_id,
        "fresh": {} if cell.ensemble else {str(row.seed): row.run_id for row in cell.fresh},
        "ensemble": asdict(cell.ensemble) if cell.ensemble else None,
    }  # fmt: skip


def _finite(value: Any) -> Any:
    """Return the value with None for every number in it that is not finite."""
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
