"""`dcray eval`: tasks of lm-eval or the validation loss, of one run or two side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dcray.cli.screen.console import err, names, out, progress_bar
from dcray.cli.train import DirOption, QuietOption, UriOption
from dcray.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dcray.evals.evaluate import Answer

RunsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN [RUN_B]",
        help="An MLflow run id, or STUDY/SIZE/BUDGET/RECIPE for that cell's winner.",
    ),
]
CorpusOption = Annotated[
    Path | None, typer.Option(help="The corpus it was trained on, where that has moved.")
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
PrecisionOption = Annotated[str, typer.Option(help="auto, float32 or bfloat16.")]
BatchOption = Annotated[
    int | None, typer.Option(help="Contexts (or validation rows) in one pass; changes no result.")
]


def eval(
    runs: RunsArgument,
    tasks: Annotated[
        str, typer.Option(help="Tasks of lm-eval, by commas; without: the validation loss.")
    ] = "",
    include: Annotated[
        list[Path] | None, typer.Option(help="A folder of your own lm-eval tasks; repeatable.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="Documents a task, for a quick look; not recorded.")
    ] = None,
    by_bound: Annotated[
        bool, typer.Option("--by-bound", help="Rank answers of an mdlm run by its bound.")
    ] = False,
    draws: Annotated[
        int | None, typer.Option(help="Masks a row (or answer) of an mdlm run.")
    ] = None,
    corpus: CorpusOption = None,
    directory: DirOption = Path("dcray-runs"),
    tracking_uri: UriOption = None,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "auto",
    batch_size: BatchOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    quiet: QuietOption = False,
) -> None:
    """Score a run: tasks of lm-eval beside what a guess gets, or its validation loss again.

    [bold]Examples[/bold]

    dcray eval dclm/1.4b/100m/mir --tasks arc_easy,boolq,hellaswag,piqa,race,sciq,lambada_openai

    dcray eval train/60k/16k/ar train/60k/16k/mir --tasks offline_choice,offline_yesno

    dcray eval train/60k/16k/mdlm --draws 128
    """
    if len(runs) > 2:
        raise ConfigError(f"one run, or two side by side, got {len(runs)}: {', '.join(runs)}")
    from dcray.evals.evaluate import Request, evaluate_runs

    asked = Request(
        tasks=tuple(names(tasks)),
        include=tuple(include or ()),
        limit=limit,
        batch_size=batch_size,
        device=device,
        precision=precision,
        draws=draws,
        by_bound=by_bound,
    )
    with progress_bar(quiet=quiet):
        answers = evaluate_runs(
            runs,
            asked,
            directory=directory,
            corpus=corpus,
            tracking_uri=tracking_uri,
            note=lambda text: None if quiet or as_json else err.print(text, markup=False),
        )
    _print(answers, as_json=as_json)


def _print(answers: Sequence[Answer], *, as_json: bool) -> None:
    """Print each run's scores, and the comparison if there are two runs."""
    from dcray.evals.compare import compare
    from dcray.evals.text import answer_text, as_dict, comparison_text

    pairs = compare(answers[0].scores, answers[1].scores) if len(answers) == 2 else []
    if as_json:
        out.print_json(json.dumps(as_dict(answers, pairs)))
        return
    for answer in answers:
        out.print(answer_text(answer), markup=False)
    if pairs:
        labels = [answer.found.label for answer in answers]
        out.print(comparison_text(pairs, *labels), markup=False)
