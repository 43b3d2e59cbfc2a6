"""A check that the winners from which a study's cells start can become known."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from dcray.errors import ConfigError
from dcray.study.schema import files_named
from dcray.study.spec import CellSpec
from dcray.study.study import Study, cells_of
from dcray.types import Cell

OnRecord = Callable[[str], Collection[Cell]]
# the cells of a study whose winner is on record, or is being searched by another command. One that
# has runs of `dcray train` alone never gets a winner and is not among them.


def refuse_unreachable(study: Study, cell_specs: Sequence[CellSpec], on_record: OnRecord) -> None:
    """Raise ConfigError if a cell needs the winner of a cell that nothing searches.

    A cell is searched if it is in this study's files, or in a file of its own study beside them or
    among those that ship; a winner on record counts too.
    """
    folders = folders_of(study)
    known = {cell_spec.cell for cell_spec in study.cell_specs}
    missing = [
        (cell_spec, cell)
        for cell_spec in cell_specs
        for cell in cell_spec.needs
        if cell not in known
    ]
    for name in dict.fromkeys(cell.study for _, cell in missing):
        files, _ = files_named(name, folders)
        known.update(cell for file in files for cell in cells_of(file))
        known.update(on_record(name))
    problems = [
        f"{cell_spec.where}: {nowhere(cell, folders)}"
        for cell_spec, cell in missing
        if cell not in known
    ]
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))


def folders_of(study: Study) -> list[Path]:
    """Find the folders of a study's files, in which files of other studies are looked for."""
    return list(dict.fromkeys(path.parent for path in study.paths))


def nowhere(cell: Cell, folders: Sequence[Path]) -> str:
    """Format the error for a cell whose winner is needed and that nothing searches."""
    _, broken = files_named(cell.study, folders)
    because = f" ({'; '.join(broken)})" if broken else ""
    return (
        f'it needs the winner of {cell.label}, which no file of the study "{cell.study}" searches '
        f"and no record has{because}: name a cell that is searched, or put the file that searches "
        "it beside this one"
    )
