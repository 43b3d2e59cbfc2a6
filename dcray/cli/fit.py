"""`dcray fit`: parse, call one function, print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dcray.cli.screen.console import err, progress_bar

if TYPE_CHECKING:
    from dcray.fit.answer import Answer

Grid = Annotated[
    Path,
    typer.Argument(
        help="CSV with num_params, unique_tokens, val_loss (or known aliases, such as N, params, "
        "D, tokens, loss); optional num_epochs, recipe, seed"
    ),
]
Baseline = Annotated[str | None, typer.Option(help="the recipe that others are compared with")]
Recipes = Annotated[
    list[str] | None,
    typer.Option(help="a recipe to compare, several times for several; all others by default"),
]
Floors = Annotated[
    list[str] | None,
    typer.Option("--floor", help="a simpler recipe: what is the baseline worth in its data?"),
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
Columns = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        metavar="FIELD=NAME",
        help="the column of a field, such as num_params=parameter_count; train_tokens=NAME is "
        "divided by num_epochs, flops=NAME gives tokens as FLOPs / (6 num_params)",
    ),
]
Units = Annotated[
    list[str] | None,
    typer.Option(
        "--unit",
        metavar="FIELD=UNIT",
        help="k, m, b, t or 1e6 for counts (num_params=m); bits or perplexity for val_loss",
    ),
]
Keep = Annotated[
    str | None,
    typer.Option(help="lowest: of a search, the lowest loss of each cell", metavar="lowest"),
]
Seed = Annotated[int, typer.Option(help="of the resampling")]
Figures = Annotated[
    Path | None, typer.Option(help="a folder for the figures, as PNG and SVG", metavar="DIR")
]
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON document")]


def fit(
    grid: Grid,
    baseline: Baseline = None,
    recipe: Recipes = None,
    floor: Floors = None,
    laws: Laws = "",
    hold_out: HoldOut = None,
    bootstrap: Bootstrap = 0,
    predict: Predict = None,
    seed: Seed = 0,
    figures: Figures = None,
    column: Columns = None,
    unit: Units = None,
    keep: Keep = None,
    as_json: AsJson = False,
) -> None:
    """Fit scaling laws to a grid of losses: what is a recipe worth in unique data?

    [bold]Examples[/bold]

    dcray fit losses.csv --baseline ar --recipe mir

    dcray fit losses.csv --baseline ar --floor weak

    dcray fit losses.csv --laws softq,chinchilla --bootstrap 1000 --hold-out unique_tokens=400m

    dcray fit losses.csv --figures figures

    dcray fit sweep.csv --column num_params=size --unit num_params=m --keep lowest
    """
    from dcray.fit import answer as answers
    from dcray.fit.compare import Floor
    from dcray.fit.table.columns import pairs_of
    from dcray.fit.table.reader import read_table

    told = {"columns": pairs_of("--column", column or ()), "units": pairs_of("--unit", unit or ())}
    question = answers.Question(
        baseline=baseline,
        recipes=tuple(recipe or ()),
        floors=tuple(Floor(name) for name in floor or ()),
        laws=tuple(name.strip() for name in laws.split(",") if name.strip()),
        hold_out=tuple(hold_out or ()),
        bootstrap=bootstrap,
        predict=tuple(predict or ()),
        seed=seed,
    )
    with progress_bar():
        table = read_table(grid, **told, keep=keep)
        found = answers.answer_table(table, question)
        if figures is not None:
            _draw(found, figures)
    if as_json:
        from dcray.fit.output.as_json import as_json as plain

        print(json.dumps(plain(found), indent=1, allow_nan=False))
    else:
        from dcray.fit.output.text import answer_text

        print(answer_text(found))


def _draw(found: Answer, folder: Path) -> None:
    """Draw every figure of the answer into the folder; print where to standard error.

    The lines also say why other figures are absent. Raises ConfigError if the folder cannot be
    written.
    """
    from dcray.errors import ConfigError, plural
    from dcray.report.figures.draw import of_answer, save_all, why_absent

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
