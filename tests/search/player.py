"""Plays a study without Ray: losses are a function, ends come in any order, it may be killed."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

from dcray.config import RunConfig
from dcray.search.cells import CellSearch, Found
from dcray.search.grid import Study
from dcray.search.queue import Ended, StudyQueue
from dcray.search.request import Reading, Request
from dcray.search.study import StudyFile
from dcray.track.points import Cell

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


class Alone:
    """Nobody else has a record."""

    def __init__(self, winners: dict[Cell, RunConfig] | None = None) -> None:
        self.winners = winners or {}

    def winner(self, cell: Cell) -> RunConfig | None:
        return self.winners.get(cell)

    def coming(self, cell: Cell) -> bool:
        return False

    def stale(self) -> bool:
        return False

    def look_again(self) -> None:
        pass


def study_of(*tables: dict[str, Any]) -> Study:
    """A study of tables as files hold them."""
    files = [StudyFile.model_validate(table) for table in tables]
    return Study.of(files, [Path(f"{number}.toml") for number in range(len(files))])


def queue_of(study: Study, known: dict | None = None, elsewhere: Alone | None = None, wishes=None):
    """The queue of a study's cells, on a corpus that is made up."""
    reading = Reading(512, "corpus")
    searches = {wish.cell: CellSearch(wish, reading) for wish in (wishes or study.wishes)}
    return StudyQueue(study.name, searches, known or {}, elsewhere or Alone())


def bowl(request: Request, seed: int = 0, diverge: float = 0.0) -> float:
    """A loss that has a best lr and tau, falls with size and epochs, and is a little noisy."""
    config = request.config
    rng = random.Random(f"{seed} {request.key.config_hash} {config.seed}")
    if rng.random() < diverge:
        return math.inf
    far = math.log(config.optim.lr / 4e-3) ** 2 + math.log(config.tau / 1.2) ** 2
    return 5 + 0.1 * far - 0.2 * math.log(config.num_epochs) + 0.01 * rng.random()


def play(
    queue: StudyQueue,
    loss=bowl,
    *,
    concurrency: int = 1,
    order: random.Random | None = None,
    stop_after: int | None = None,
) -> list[Request]:
    """Start what is ready and end it in some order until all is done; what was started."""
    order = order or random.Random(0)
    flying: list[Request] = []
    started: list[Request] = []
    while True:
        while len(flying) < concurrency and (ready := queue.ready()):
            (request,) = ready[0]
            queue.start(ready[0])
            flying.append(request)
            started.append(request)
        if stop_after is not None and len(started) >= stop_after:
            return started
        if not flying:
            assert queue.finished()
            return started
        request = flying.pop(order.randrange(len(flying)))
        value = loss(request)
        if math.isfinite(value):
            queue.end(Ended(request, "complete", value, run_id=request.name))
        else:
            queue.end(Ended(request, "diverged"))


def table(queue: StudyQueue) -> dict[tuple[Cell, str, int], tuple[str, float | None]]:
    """Everything that is known, and of each cell the winner."""
    rows = {
        (cell, *slot): (found.state, found.val_loss)
        for cell, known in queue.known.items()
        for slot, found in known.items()
    }
    for cell in queue.searches:
        winner = queue.state(cell).winner
        rows[cell, "winner", 0] = (winner.slot[0] if winner else "none", None)
    return rows


def on_record(queue: StudyQueue) -> dict[Cell, dict[Any, Found]]:
    """What a restart finds."""
    return {cell: dict(known) for cell, known in queue.known.items()}
