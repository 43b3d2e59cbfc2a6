"""Study files of seconds for the search command, and what its tests look at."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from tests.training import runs

TINY = """
[sizes.tiny]
dim = 16
num_layers = 2
num_heads = 2
mlp_dim = 32
[base]
"data.seq_len" = 16
"""
HEAD = f"""
study = "micro"
budgets = {{budgets}}
{TINY}batch_size = 8
"validation.epochs" = "end"
"runtime.checkpoint_seconds" = 0.5
"""
LADDER = """
[recipes.ar]
space = [{{ num_epochs = {epochs}, lr = {lrs}, tau = [1, 4] }}]
search = {{ sampler = "grid", keep = [1, 0.5] }}
confirm_seeds = [1]
[recipes.mir]
objective = "mir"
inherit = "ar"
"""


def write_study(
    folder: Path,
    *,
    budgets: tuple[str, ...] = ("500",),
    epochs: tuple[int, ...] = (4, 8),
    lrs: tuple[float, ...] = (1e-2, 3e-2),
    body: str = LADDER,
    name: str = "micro.toml",
) -> Path:
    """A study file of one tiny size; `body` holds its recipes."""
    path = folder / name
    text = HEAD.format(budgets=json.dumps(list(budgets)))
    path.write_text(text + body.format(epochs=list(epochs), lrs=list(lrs)))
    return path


def search_words(study: Path, corpus: Path, directory: Path, *more: object) -> list[str]:
    """`search` of a study file."""
    return ["search", str(study), "--corpus", str(corpus), "--dir", str(directory), *map(str, more)]


def final_table(directory: Path, study: str = "micro") -> dict[str, Any]:
    """Every result: its key, state and losses."""
    found = {}
    for run in runs(directory, study):
        key = run.data.tags["dcray.key"]
        assert key not in found, "one run a key"
        loss = run.data.metrics.get("val_loss")
        found[key] = (run.info.status, run.data.tags["dcray.state"], loss)
    return found


def cells_of(out: str) -> dict[str, dict[str, Any]]:
    """The cells of `--json` by "BUDGET RECIPE"."""
    cells = json.loads(out)["cells"]
    return {f"{cell['unique_tokens']} {cell['recipe']}": cell for cell in cells}


def settled(cell: dict[str, Any]) -> bool:
    """planned = finished + stopped + diverged + failed + answered."""
    kinds = ("finished", "stopped", "diverged", "failed", "answered")
    return cell["planned"] == sum(cell[kind] for kind in kinds) and cell["left"] == 0


def call(*words: object) -> tuple[int, str, str]:
    """The command in this process, for fixtures of a whole module: as the fixture `dcray`."""
    from dcray import cli

    out, err = io.StringIO(), io.StringIO()
    argv = ["dcray", *map(str, words)]
    with (
        mock.patch.object(sys, "argv", argv),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            cli.main()
        except SystemExit as stopped:
            return int(stopped.code or 0), out.getvalue(), err.getvalue()
    raise AssertionError("main() ends by SystemExit")
