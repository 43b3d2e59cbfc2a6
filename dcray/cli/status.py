"""`dcray status`: where each cell of a study stands, read from the record alone."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dcray.cli.screen.console import out, print_wide
from dcray.cli.train import DirOption, UriOption

if TYPE_CHECKING:
    from dcray.search.cell_summary import CellSummary
    from dcray.types import Cell

WATCH_SECONDS = 2.0


def status(
    study: Annotated[
        str, typer.Argument(metavar="STUDY", help="A study on record, or a study file.")
    ],
    directory: DirOption = Path("dcray-runs"),
    tracking_uri: UriOption = None,
    watch: Annotated[bool, typer.Option("--watch", help="Go on until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the cells as JSON.")] = False,
) -> None:
    """One table of a study's cells: state, best result, trials, device-hours. Needs no cluster.

    It works while a search runs and after it. A cell whose driver is gone, or silent for two
    minutes, is "lost": run the search again.

    [bold]Examples[/bold]

    dcray status mini_cpu

    dcray status dclm --watch --tracking-uri http://mlflow.example:5000
    """
    from dcray.cli.screen.cell_table import as_dicts, cells_table, notes

    name, wished = _asked(study)

    def lines() -> list[CellSummary]:
        return _lines(name, wished, directory, tracking_uri)

    if as_json:
        out.print_json(json.dumps({"study": name, "cells": as_dicts(lines())}))
        return
    if not watch or not out.is_terminal:
        found = lines()
        if not found:
            text = f"{name}: no cell is on record yet; dcray search and dcray train begin one"
            out.print(text, markup=False)
            return
        print_wide(cells_table(found))
        for note in notes(found):
            out.print(note, markup=False)
        return
    from rich.live import Live

    with Live(cells_table(lines(), out.width), console=out, refresh_per_second=2) as live:
        while True:
            time.sleep(WATCH_SECONDS)
            live.update(cells_table(lines(), out.width))


def _asked(study: str) -> tuple[str, list[Cell]]:
    """Return the study's name, and the cells of its file if one is given."""
    if not study.endswith(".toml"):
        return study, []
    from dcray.study.study import Study

    asked = Study.read(study)
    return asked.name, [cell_spec.cell for cell_spec in asked.cell_specs]


def _lines(
    name: str, wished: list[Cell], directory: Path, tracking_uri: str | None
) -> list[CellSummary]:
    from dcray.search.status import record_lines
    from dcray.track import runs

    cells = runs.cells(directory, study=name, tracking_uri=tracking_uri)
    rows = runs.every_result(directory, study=name, tracking_uri=tracking_uri)
    return record_lines(cells, rows, wished)
