"""`dcray gap`: where one run is better than another, token by token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dcray.cli.eval import BatchOption, CorpusOption, DeviceOption, PrecisionOption
from dcray.cli.screen.console import err, out, progress_bar
from dcray.cli.train import DirOption, QuietOption, UriOption


def gap(
    run_a: Annotated[
        str, typer.Argument(help="The baseline: a run id or STUDY/SIZE/BUDGET/RECIPE.")
    ],
    run_b: Annotated[str, typer.Argument(help="The other; positive gaps favor it.")],
    corpus: CorpusOption = None,
    directory: DirOption = Path("dcray-runs"),
    tracking_uri: UriOption = None,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "auto",
    batch_size: BatchOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    quiet: QuietOption = False,
) -> None:
    """Find where B predicts better than A: the loss of every validation token under both.

    [bold]Examples[/bold]

    dcray gap dclm/1.4b/100m/ar dclm/1.4b/100m/mir

    dcray gap train/60k/16k/ar train/60k/16k/mir --json
    """
    from dcray.evals.gap.between_runs import token_gap_of
    from dcray.report.folder import replaced
    from dcray.report.gap import as_dict, gap_text, write

    with progress_bar(quiet=quiet):
        found = token_gap_of(
            (run_a, run_b),
            directory=directory,
            corpus=corpus,
            tracking_uri=tracking_uri,
            device=device,
            precision=precision,
            batch_size=batch_size,
            note=lambda text: None if quiet or as_json else err.print(text, markup=False),
        )
    ids = [run.row.run_id[:8] for run in (found.first, found.second)]
    # not below analysis/, which the next dcray analyze replaces as a whole
    place = directory / found.second.row.study / "gaps" / "-".join(ids)
    with replaced(place) as draft:
        write(found, draft)
    if as_json:
        out.print_json(json.dumps(as_dict(found)))
        return
    out.print(gap_text(found), markup=False)
    out.print(f"figures, all top tokens and a section for the page: {place}", markup=False)
