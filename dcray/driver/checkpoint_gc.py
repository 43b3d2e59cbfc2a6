"""Deletion of checkpoints that are no longer needed.

Of a search the weights of the winner stay, and those of the members of ensembles.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from dcray.search.state import StudyState
from dcray.types import FAILURES, Cell, RunSpec


@dataclass(frozen=True)
class CheckpointCollector:
    """Deletes trunks that are out of the search, states of a trunk that a newer one replaces, and
    runs that are complete and neither the best nor a member of an ensemble.
    """

    study: StudyState
    folder: Path
    keep_all: bool = False

    def collect(self, cell: Cell) -> None:
        """Delete the checkpoints that a cell no longer needs; called after each of its results."""
        state, known = self.study.cell_state(cell), self.study.known.get(cell, {})
        if state.waits_for:
            return
        ended = {key for key, one in known.items() if one.state not in FAILURES}  # others go on
        best = self.study.searches[cell].best(known)
        trunks: dict[str, list[RunSpec]] = {}
        wanted = {one.key for chain in state.ready for one in chain}
        for one in state.planned:
            if one.trunk:
                trunks.setdefault(one.trunk, []).append(one)
            is_best = best is not None and one.key == best.key
            is_kept = is_best or one.key in state.kept
            over = one.key in ended and not is_kept and one.key not in self.study.running
            if over and not self.keep_all:
                self._delete(one.name)
        for trunk, branches in trunks.items():
            settled = {*ended, *state.dropped} - wanted
            left = [branch for branch in branches if branch.key not in settled]
            if left:
                self._prune(trunk, left[0].forked_from)
            else:
                self._delete(trunk)

    def _prune(self, trunk: str, step: int) -> None:
        """Delete a trunk's states before `step`, from which its next branch starts."""
        newest = self.folder / trunk / f"step-{step:08d}"
        if (newest / "meta.json").is_file():
            for state in newest.parent.glob("step-*"):
                if state.name < newest.name:
                    self._delete(f"{trunk}/{state.name}")

    def _delete(self, name: str) -> None:
        shutil.rmtree(self.folder / name, ignore_errors=True)
