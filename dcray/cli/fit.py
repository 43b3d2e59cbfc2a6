"""`dcray fit` and `dcray reproduce`: parse, call one function, print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dcray.cli.console import NOTHING, err, progress_bar

if TYPE_CHECKING:
    from dcray.fit.answer import Answer

Grid = Annotated[
    Path,
    typer.Argument(
        help="CSV: num_params, unique_tokens, val_loss (or loss); optional num_epochs, recipe, seed"
    ),
]
Baseline = Annotated[str | None, typer.Option(help="the recipe that others are compared with")]
Recipes = Annotated[
    list[str] | None, typer.Option(help="a recipe to compare; all others by default")
]
Laws = Annotated[
    str, typer.Option(help="names, separated by commas; by default all that the columns allow")
]
HoldOut = Annotated[
    list[str] | None, typer.Option(help="unique_tokens=400m, num_params=1.4b, or each (cell)")
]
Bootstrap = Annotated[int, typer.Option(min=0, help="resamples for intervals; 0 for none")]
Predict = Annotated[
    list[str] | None, typer.Option(help="num_params=3b,unique_tokens=400m[,num_epochs=16]")
]
Seed = Annotated[int, typer.Option(help="of the resampling")]
Figures = Annotated[
    Path | None, typer.Option(help="a folder for the figures, as PNG and SVG", metavar="DIR")
]
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON document")]
Theory = Annotated[bool, typer.Option("--theory", help="also check the appendix numerically")]


def fit(
    grid: Grid,
    baseline: Baseline = None,
    recipe: Recipes = None,
    laws: Laws = "",
    hold_out: HoldOut = None,
    bootstrap: Bootstrap = 0,
    predict: Predict = None,
    seed: Seed = 0,
    figures: Figures = None,
    as_json: AsJson = False,
) -> None:
    """Fit scaling laws to a grid of losses: what is a recipe worth in unique data?

    [bold]Examples[/bold]

    dcray fit losses.csv --baseline ar --recipe mir

    dcray fit losses.csv --laws softq,chinchilla --bootstrap 1000 --hold-out unique_tokens=400m

    dcray fit losses.csv --figures figures
    """
    from dcray.fit import answer as answers
    from dcray.fit.grid import read_csv

    question = answers.Question(
        baseline=baseline,
        recipes=tuple(recipe or ()),
        laws=tuple(name.strip() for name in laws.split(",") if name.strip()),
        hold_out=tuple(hold_out or ()),
        bootstrap=bootstrap,
        predict=tuple(predict or ()),
        seed=seed,
    )
    with progress_bar():
        found = answers.answer(read_csv(grid), question)
        if figures is not None:
            _draw(found, figures)
    if as_json:
        from dcray.fit.as_json import as_json as plain

        print(json.dumps(plain(found), indent=1, allow_nan=False))
    else:
        from dcray.fit.text import answer_text

        print(answer_text(found))


def _draw(found: Answer, folder: Path) -> None:
    """Every figure of the answer into the folder; where, and why not others, on standard error."""
    from dcray.errors import ConfigError, plural
    from dcray.report.figures import of_answer, save_all, why_absent

    pictures, absent = of_answer(found)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_all(pictures, folder)
    except OSError as error:
        raise ConfigError(
            f"--figures must be a folder that can be written, got {folder} ({error.strerror})"
        ) from None
    drawn = plural(len(pictures), "figure")
    err.print(f"{drawn}, each as PNG and SVG: {folder}", markup=False)
    for names, reason in why_absent(absent):
        err.print(f"no figure {names}: {reason}", markup=False)


def reproduce(theory: Theory = False, as_json: AsJson = False) -> None:
    """Print every table of the paper's scaling section beside our figures and their nulls.

    [bold]Example[/bold]

    dcray reproduce --theory
    """
    from dataclasses import asdict

    from dcray.fit import reproduce as tables

    checks, lines = tables.reproduce(), tables.like_for_like()
    if theory:
        from dcray.theory.checks import checks as theory_checks

        checks += [tables.Check("theory", *figures) for figures in theory_checks()]
    if as_json:
        listed = [{**asdict(check), "ok": check.ok} for check in checks]
        print(json.dumps({"checks": listed, "like_for_like": lines}, indent=1))
    else:
        from dcray.fit.text import reproduce_text

        print(reproduce_text(checks, lines))
    if not all(check.ok for check in checks):
        raise typer.Exit(NOTHING)
