"""Plays a study without Ray: losses are a function, ends come in any order, it may be killed."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

from dcray.search.ensemble import search_of
from dcray.search.specs import Fingerprint
from dcray.search.state import GivenWinners, StudyState
from dcray.study.schema import StudyFile
from dcray.study.study import Study
from dcray.types import Cell, RunResult, RunSpec

MINI: dict[str, Any] = {
    "study": "toy",
    "sizes": ["60k", "119k"],
    "budgets": ["8k", "16k"],
    "base": {"data.seq_len": 128, "batch_size": 8},
    "recipes": {
        "ar": {
            "objective": "ar",
            "space": [{"num_epochs": [4, 8, 16], "lr": [1e-3, 3e-3, 1e-2], "tau": [0.5, 1, 2]}],
            "search": {"sampler": "grid", "keep": [9, 5, 3]},
            "confirm_seeds": [1],
        },
        "mir": {"objective": "mir", "inherit": "ar", "confirm_seeds": [1]},
    },
}


def study_of(*tables: dict[str, Any]) -> Study:
    """A study of tables as files hold them."""
    files = [StudyFile.model_validate(table) for table in tables]
    return Study.of(files, [Path(f"{number}.toml") for number in range(len(files))])


def state_of(study: Study, known: dict | None = None, winners: dict | None = None, cell_specs=None):
    """The state of a study's cells, on a corpus that is made up."""
    reading = Fingerprint(512, "corpus")
    searches = {
        cell_spec.cell: search_of(cell_spec, reading)
        for cell_spec in (cell_specs or study.cell_specs)
    }
    return StudyState(study.name, searches, GivenWinners(winners or {}), known=known or {})


def bowl(spec: RunSpec, seed: int = 0, diverge: float = 0.0) -> float:
    """A loss that has a best lr and tau, falls with size and epochs, and is a little noisy."""
    config = spec.config
    rng = random.Random(f"{seed} {spec.key.config_hash} {config.seed}")
    if rng.random() < diverge:
        return math.inf
    far = math.log(config.optim.lr / 4e-3) ** 2 + math.log(config.tau / 1.2) ** 2
    return 5 + 0.1 * far - 0.2 * math.log(config.num_epochs) + 0.01 * rng.random()


def play(
    state: StudyState,
    loss=bowl,
    *,
    concurrency: int = 1,
    order: random.Random | None = None,
    stop_after: int | None = None,
) -> list[RunSpec]:
    """Start what is ready and end it in some order until all is done; what was started."""
    order = order or random.Random(0)
    flying: list[RunSpec] = []
    started: list[RunSpec] = []
    while True:
        while len(flying) < concurrency and (ready := state.ready()):
            (spec,) = state.start(ready[0])
            flying.append(spec)
            started.append(spec)
        if stop_after is not None and len(started) >= stop_after:
            return started
        if not flying:
            assert state.finished()
            return started
        spec = flying.pop(order.randrange(len(flying)))
        value = loss(spec)
        if math.isfinite(value):
            state.apply(spec.ended("complete", value, run_id=spec.name))
        else:
            state.apply(spec.ended("diverged"))


def table(state: StudyState) -> dict[tuple[Cell, str, int], tuple[str, float | None]]:
    """Everything that is known, and of each cell the winner."""
    rows = {
        (cell, key.config_hash, key.seed): (result.state, result.val_loss)
        for cell, known in state.known.items()
        for key, result in known.items()
    }
    for cell in state.searches:
        winner = state.cell_state(cell).winner
        rows[cell, "winner", 0] = (winner.result.key.config_hash if winner else "none", None)
    return rows


def on_record(state: StudyState) -> dict[Cell, dict[Any, RunResult]]:
    """What a restart finds."""
    return {cell: dict(known) for cell, known in state.known.items()}
