"""Checkpoints that nobody needs any more: a search keeps the winner's weights alone."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from dcray.search.queue import StudyQueue
from dcray.search.request import Request
from dcray.track.points import Cell


@dataclass(frozen=True)
class Tidy:
    """Deletes what is over: trunks that are out, their states that a newer one stands for, and runs
    that are complete and not the best.
    """

    queue: StudyQueue
    folder: Path
    keep_all: bool = False

    def all(self) -> None:
        """Every cell of the search."""
        for cell in self.queue.searches:
            self.cell(cell)

    def cell(self, cell: Cell) -> None:
        """One cell: after each of its results."""
        state, known = self.queue.state(cell), self.queue.known.get(cell, {})
        if state.waits_for:
            return
        ended = {slot for slot, found in known.items() if found.state != "failed"}  # that goes on
        best = self.queue.searches[cell].best(known)
        trunks: dict[str, list[Request]] = {}
        wanted = {one.slot for chain in state.ready for one in chain}
        for one in state.planned:
            if one.trunk:
                trunks.setdefault(one.trunk, []).append(one)
            over = one.slot in ended and one.slot != best and one.spot not in self.queue.flying
            if over and not self.keep_all:
                self._delete(one.name)
        for trunk, branches in trunks.items():
            settled = {*ended, *state.dropped} - wanted
            left = [branch for branch in branches if branch.slot not in settled]
            if left:
                self._prune(trunk, left[0].forked_from)
            else:
                self._delete(trunk)

    def _prune(self, trunk: str, step: int) -> None:
        """The state that the next branch starts from stands for all before it."""
        newest = self.folder / trunk / f"step-{step:08d}"
        if (newest / "meta.json").is_file():
            for state in newest.parent.glob("step-*"):
                if state.name < newest.name:
                    self._delete(f"{trunk}/{state.name}")

    def _delete(self, name: str) -> None:
        shutil.rmtree(self.folder / name, ignore_errors=True)
