"""Whether the winners that a study's cells start from can ever be known."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from dcray.errors import ConfigError
from dcray.search.grid import Study, cells_of
from dcray.search.study import files_named
from dcray.search.wish import CellWish
from dcray.track.points import Cell

OnRecord = Callable[[str], Collection[Cell]]
# the cells of a study whose winner is on record, or comes: somebody searches them now. One that was
# only trained in, by `dcray train`, never gets a winner and is not among them.


def refuse_unreachable(study: Study, wishes: Sequence[CellWish], on_record: OnRecord) -> None:
    """Raise ConfigError where a wish needs the winner of a cell that nothing searches.

    A cell is searched by this study's files, by a file of its own study beside them or among those
    that ship, or its winner is on record.
    """
    folders = folders_of(study)
    known = {wish.cell for wish in study.wishes}
    missing = [(wish, cell) for wish in wishes for cell in wish.needs if cell not in known]
    for name in dict.fromkeys(cell.study for _, cell in missing):
        files, _ = files_named(name, folders)
        known.update(cell for file in files for cell in cells_of(file))
        known.update(on_record(name))
    problems = [
        f"{wish.where}: {nowhere(cell, folders)}" for wish, cell in missing if cell not in known
    ]
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))


def folders_of(study: Study) -> list[Path]:
    """Where the files of a study lie: others are looked for beside them."""
    return list(dict.fromkeys(path.parent for path in study.paths))


def nowhere(cell: Cell, folders: Sequence[Path]) -> str:
    """The sentence for a cell whose winner is needed and that nothing searches."""
    _, broken = files_named(cell.study, folders)
    because = f" ({'; '.join(broken)})" if broken else ""
    return (
        f'it needs the winner of {cell.label}, which no file of the study "{cell.study}" searches '
        f"and no record has{because}: name a cell that is searched, or put the file that searches "
        "it beside this one"
    )
