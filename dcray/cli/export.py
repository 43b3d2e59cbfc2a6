"""`dcray export`: a run as a checkpoint that other tools read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dcray.cli.eval import CorpusOption
from dcray.cli.screen.console import NOTHING, err, out
from dcray.cli.train import DirOption, UriOption
from dcray.errors import ConfigError, did_you_mean

FORMATS = ("hf",)


def export(
    run: Annotated[str, typer.Argument(help="A run id, or STUDY/SIZE/BUDGET/RECIPE.")],
    to: Annotated[str, typer.Option(help="The format: hf.")] = "hf",
    folder: Annotated[
        Path | None, typer.Option("--out", help="A new folder; else DIR/STUDY/export/KEY.")
    ] = None,
    corpus: CorpusOption = None,
    directory: DirOption = Path("dcray-runs"),
    tracking_uri: UriOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Write a run as a Hugging Face checkpoint, compared logit by logit with the run.

    [bold]Examples[/bold]

    dcray export dclm/1.4b/100m/mir --to hf --out mir-1.4b

    lm_eval --model hf --model_args pretrained=mir-1.4b,trust_remote_code=True --tasks arc_easy
    """
    if to not in FORMATS:
        raise ConfigError(f'no format is called "{to}"{did_you_mean(to, FORMATS)}')
    import torch

    from dcray.evals.export.checkpoint import ExportError, check_target
    from dcray.evals.export.checkpoint import export as write
    from dcray.evals.run import find_run

    found = find_run(directory, run, corpus=corpus, tracking_uri=tracking_uri)
    target = folder or directory / found.row.study / "export" / found.row.key
    check_target(target)
    try:
        done = write(found.load(torch.device("cpu"), precision="float32"), target)
    except ExportError as error:
        err.print(f"error: {error}; nothing is left at {target}", markup=False)
        raise typer.Exit(NOTHING) from None
    if as_json:
        out.print_json(json.dumps(vars(done) | {"folder": str(done.folder)}))
        return
    texts = f"{done.num_texts} texts encoded alike" if done.num_texts else "no tokenizer: ids alone"
    out.print(
        f"{done.folder}: {done.auto_class}, logits at most {done.largest_difference:.2g} apart "
        f"over {done.num_logits:,}; {texts}",
        markup=False,
    )
