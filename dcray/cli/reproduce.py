"""`dcray reproduce`: parse, call one function for each part, print."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from dcray.cli.screen.console import NOTHING

AsJson = Annotated[bool, typer.Option("--json", help="print one JSON document")]
Cells = Annotated[
    list[str] | None,
    typer.Option(
        metavar="STUDY=CSV",
        help="the analysis/cells.csv of a finished study (seeds, stack_v2_100m, recipes): its "
        "figures stand beside the printed ones that only runs can tell",
    ),
]
Theory = Annotated[bool, typer.Option("--theory", help="also check the appendix numerically")]


def reproduce(theory: Theory = False, cells: Cells = None, as_json: AsJson = False) -> None:
    """Print the paper's figures beside ours, how independent each is, and the nulls it lacks.

    [bold]Examples[/bold]

    dcray reproduce --theory

    dcray reproduce --cells seeds=dcray-runs/seeds/analysis/cells.csv
    """
    from dcray.fit.paper import reproduce as tables
    from dcray.fit.paper.only_runs import only_runs
    from dcray.fit.table.columns import pairs_of
    from dcray.fit.table.reader import read_table
    from dcray.report import run_times

    given = {study: read_table(path) for study, path in pairs_of("--cells", cells or ()).items()}
    untold = only_runs({study: table.rows for study, table in given.items()})
    checks = [*tables.reproduce(), *run_times.checks()]
    lines = tables.like_for_like()
    if theory:
        from dcray.theory.checks import checks as theory_checks

        checks += [tables.Check("theory", *figures) for figures in theory_checks()]
    if as_json:
        document = {
            "checks": [{**asdict(check), "ok": check.ok} for check in checks],
            "counts": tables.counts(checks),
            "like_for_like": lines,
            "only_runs": [asdict(one) for one in untold],
        }
        print(json.dumps(document, indent=1))
    else:
        from dcray.fit.paper.text import reproduce_text

        print(reproduce_text(checks, lines, untold))
    if not all(check.ok for check in checks):
        raise typer.Exit(NOTHING)
