"""`dcray analyze`: parse, call two functions, print."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dcray.cli.screen.console import out, progress_bar
from dcray.cli.train import DirOption, QuietOption, UriOption
from dcray.errors import plural

if TYPE_CHECKING:
    from dcray.report.analysis import Analysis
    from dcray.report.study import Written

Study = Annotated[str, typer.Argument(help="A study's name in the record, or its TOML file.")]
Baseline = Annotated[str | None, typer.Option(help="The recipe to compare with; ar by default.")]
Recipes = Annotated[
    list[str] | None,
    typer.Option(help="A recipe to compare, several times for several; by default all others."),
]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        help="Losses of winners: confirmed (means over fresh seeds) or search (the search seed's); "
        "by default each comparison takes confirmed if enough cells of both recipes have it.",
    ),
]
Against = Annotated[str | None, typer.Option(help="Another study to set beside this one.")]
Bootstrap = Annotated[int, typer.Option(min=0, help="Resamples for intervals; 0 for none.")]


def analyze(
    study: Study,
    baseline: Baseline = None,
    recipe: Recipes = None,
    source: From = None,
    against: Against = None,
    bootstrap: Bootstrap = 200,
    directory: DirOption = Path("dcray-runs"),
    tracking_uri: UriOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print fit.json.")] = False,
    quiet: QuietOption = False,
) -> None:
    """Tables, figures and fits of a study, from its record into DIR/STUDY/analysis.

    [bold]Examples[/bold]

    dcray analyze mine

    dcray analyze mine --baseline ar --recipe mir --recipe muon

    dcray analyze dclm --baseline ar --recipe mir --from confirmed --against stack_v2
    """
    from dcray.report import study as studies
    from dcray.report.analysis import Asked

    asked = Asked(baseline, tuple(recipe or ()), source, bootstrap)
    name = studies.study_name(study)
    other = studies.study_name(against) if against is not None else None
    with progress_bar(quiet=quiet):
        found = studies.read(directory, name, asked, against=other, tracking_uri=tracking_uri)
        written = studies.write(found, directory, tracking_uri=tracking_uri)
    if as_json:
        from dcray.report.data import fit_json

        print(fit_json(found))
    else:
        out.print(summary(found, written, quiet=quiet), markup=False)


def summary(found: Analysis, written: Written, *, quiet: bool) -> str:
    """Format what the command prints: the answer, then the tables, then where the files are."""
    from dcray.report.tables.contents import brief

    lines = [found.no_law] if found.no_law else []
    if quiet:
        lines += found.headlines
    else:
        lines += [table.plain() for table in brief(found)]
        left = plural(len(found.left), "run")
        lines += [f"left out: {left}; tables.md says why"] if found.left else []
    if written.unlogged:
        lines.append(f"not among the study's artifacts: {written.unlogged}")
    drawn = plural(len(written.pictures), "figure")
    lines.append(f"tables, {drawn} and the data: {written.folder}")
    lines.append(f"the page: {(written.folder / 'page.html').as_uri()}")
    return "\n\n".join(lines)
