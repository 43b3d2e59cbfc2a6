"""`dcray search`: the best (epochs, weight decay, lr) of every cell of a study; restartable."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dcray.cli.screen.console import (
    DONE,
    NOTHING,
    SOME_FAILED,
    STOPPED,
    address_line,
    err,
    follow_up,
    last_word,
    names,
    out,
    print_wide,
    say,
)
from dcray.cli.train import DirOption, UriOption
from dcray.errors import ConfigError, plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dcray.driver.study import StudyDriver
    from dcray.study.spec import CellSpec
    from dcray.study.study import Study

StudyArgument = Annotated[
    str, typer.Argument(metavar="STUDY", help="A study file, or a study that ships with dcray.")
]
SizesOption = Annotated[str, typer.Option(help="Only these sizes, with commas between them.")]
BudgetsOption = Annotated[str, typer.Option(help="Only these budgets: 100m,200m.")]
RecipesOption = Annotated[str, typer.Option(help="Only these recipes: ar,mir.")]


def search(
    study: StudyArgument,
    corpus: Annotated[
        Path | None, typer.Option(help="The corpus folder; else the study file's.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--study", help="Record it under this name: a study has one corpus."),
    ] = None,
    sizes: SizesOption = "",
    budgets: BudgetsOption = "",
    recipes: RecipesOption = "",
    directory: DirOption = Path("dcray-runs"),
    tracking_uri: UriOption = None,
    max_device_hours: Annotated[
        float | None,
        typer.Option(min=0.0, help="Stop before what will not fit; run again to go on."),
    ] = None,
    max_concurrent: Annotated[
        int | None,
        typer.Option(min=1, help="Trials at once; else what the cluster holds when it starts."),
    ] = None,
    keep_weights: Annotated[
        str, typer.Option(help="winner: of each cell's best run; all: of every run.")
    ] = "winner",
    as_json: Annotated[bool, typer.Option("--json", help="Print the cells as JSON.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Say when a run starts.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the cells alone.")] = False,
) -> None:
    """Search every cell of a study. The same command again goes on; what exists is not repeated.

    [bold]Examples[/bold]

    dcray search mini_cpu --corpus corpora/stdlib

    dcray search dclm --budgets 100m --sizes 72m,140m --corpus corpora/dclm --max-device-hours 50
    """
    if keep_weights not in ("winner", "all"):
        raise ConfigError(f'--keep-weights must be "winner" or "all", got "{keep_weights}"')
    from dcray.study.study import Study

    asked = Study.read(study, name=name)
    task = run_search(
        asked,
        asked.select(sizes=names(sizes), budgets=names(budgets), recipes=names(recipes)),
        _corpus_of(asked, corpus),
        directory=directory,
        tracking_uri=tracking_uri,
        max_device_hours=max_device_hours,
        max_concurrent=max_concurrent,
        keep_all=keep_weights == "all",
        quiet=quiet or as_json,
        verbose=verbose,
    )
    _print(task, asked, directory, tracking_uri, as_json=as_json, quiet=quiet)
    raise typer.Exit(exit_code(task))


def run_search(
    asked: Study,
    cell_specs: Sequence[CellSpec],
    corpus: Path,
    *,
    directory: Path,
    tracking_uri: str | None,
    max_device_hours: float | None = None,
    max_concurrent: int | None = None,
    keep_all: bool = False,
    quiet: bool = False,
    verbose: bool = False,
) -> StudyDriver:
    """Search these cells of a study, watched on the screen; return the driver as it ended."""
    from dcray.corpus.manifest import Corpus
    from dcray.search.specs import fingerprints

    opened = Corpus.open(corpus)
    reads = fingerprints(opened, cell_specs)
    address = address_line(directory, tracking_uri)
    cells = plural(len(cell_specs), "cell")
    say(f"searching {cells} of {asked.name} on {corpus}; what is on record is read", quiet=quiet)
    from dcray.cli.screen.live import live_view  # takes seconds: errors are reported before
    from dcray.driver.external import ExternalWinners
    from dcray.driver.limits import ComputeLimit
    from dcray.driver.session import Session
    from dcray.driver.study import StudyDriver
    from dcray.plan.remaining import Outlook
    from dcray.search.sampler import check_samplers
    from dcray.study.dependencies import refuse_unreachable
    from dcray.track.store import Store

    check_samplers({cell_spec.search.sampler for cell_spec in cell_specs})
    with ExitStack() as stack:
        store = Store.open(directory, study=asked.name, tracking_uri=tracking_uri)
        stack.enter_context(store)
        refuse_unreachable(asked, cell_specs, ExternalWinners(store).promised)
        show = live_view(quiet=quiet, verbose=verbose, address=address, transient=True)
        view = stack.enter_context(show)
        stack.enter_context(last_word())
        for warning in dict.fromkeys(w for cell_spec in cell_specs for w in cell_spec.warnings()):
            view.note(f"warning: {warning}")
        session = Session(opened, store, directory, view, max_concurrent=max_concurrent)
        limit = ComputeLimit(max_device_hours)
        task = StudyDriver(cell_specs, reads, session, limit, view.watch, keep_all)
        val_tokens = opened.manifest.validation.tokens
        view.outlook = Outlook(lambda: task.state, limit.prices.device_seconds, val_tokens)
        task.run()
        return task


def _corpus_of(study: Study, corpus: Path | None) -> Path:
    if corpus is not None:
        return corpus
    beside = corpus_beside(study)
    if beside is None:
        raise ConfigError(
            "--corpus must name a folder that dcray prepare made: the study file names none"
        )
    return beside


def corpus_beside(study: Study) -> Path | None:
    """Find the corpus that a study file names: relative to that file, else to the current folder.

    Returns None if the study names no corpus.
    """
    if study.corpus is None:
        return None
    beside = study.paths[0].parent / study.corpus if study.paths else Path(study.corpus)
    return beside if beside.exists() else Path(study.corpus)


def _print(
    task: StudyDriver,
    study: Study,
    directory: Path,
    tracking_uri: str | None,
    *,
    as_json: bool,
    quiet: bool,
) -> None:
    from dcray.cli.screen.cell_table import as_dicts, cells_table, notes, tally

    lines = task.lines()
    if as_json:
        out.print_json(json.dumps({"study": study.name, "cells": as_dicts(lines)}))
        return
    print_wide(cells_table(lines))
    out.print(tally(lines), markup=False)
    if quiet:
        return
    for note in notes(lines):
        out.print(note, markup=False)
    failure = task.first_failure
    if failure is not None and failure.spec is not None:
        from dcray.cli.screen.live import run_label

        err.print(f"the first failure, {run_label(failure.spec)}:", markup=False)
        err.print((failure.traceback or failure.reason).rstrip(), markup=False)
    if any(line.state == "done" for line in lines):
        command = follow_up("analyze", study.name, directory=directory, tracking_uri=tracking_uri)
        out.print(f"next: {command}", markup=False)
    if task.stopped_by:
        out.print(f"{task.stopped_by}; run the same command again to go on", markup=False)


def exit_code(task: StudyDriver) -> int:
    """Return 0 if all cells are done; 3 stopped; 1 no cell has a winner; 4 a cell or run failed."""
    lines = task.lines()
    states = {line.state for line in lines}
    if task.stopped_by or states & {"searching", "confirming", "held"}:
        return STOPPED
    if not any(line.val_loss is not None for line in lines):
        return NOTHING
    failed = any(line.counts["failed"] for line in lines)
    return SOME_FAILED if failed or states & {"no winner", "waiting"} else DONE
