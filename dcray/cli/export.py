"""`dcray export`: a run as a checkpoint that other tools read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dcray.cli.eval import CorpusOption
from dcray.cli.screen.console import NOTHING, err, out
from dcray.cli.train import DirOption, UriOption
from dcray.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dcray.evals.export.checkpoint import Export

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

    Of an ensemble each member becomes a checkpoint, OUT/seed1 and so on; OUT/ensemble.json names
    them.

    [bold]Examples[/bold]

    dcray export dclm/1.4b/100m/mir --to hf --out mir-1.4b

    lm_eval --model hf --model_args pretrained=mir-1.4b,trust_remote_code=True --tasks arc_easy
    """
    if to not in FORMATS:
        raise ConfigError(f'no format is called "{to}"{did_you_mean(to, FORMATS)}')
    import torch

    from dcray.evals.export.checkpoint import ExportError, check_target
    from dcray.evals.export.checkpoint import export as write
    from dcray.evals.export.ensemble import export_members
    from dcray.evals.run import find_run

    found = find_run(directory, run, corpus=corpus, tracking_uri=tracking_uri)
    target = folder or directory / found.row.study / "export" / found.row.key
    check_target(target)
    try:
        if len(found.members) > 1:
            done = export_members(found, target)
        else:
            done = [write(found.load(torch.device("cpu"), precision="float32"), target)]
    except ExportError as error:
        err.print(f"error: {error}; nothing is left at {target}", markup=False)
        raise typer.Exit(NOTHING) from None
    _print(done, target, as_json=as_json)


def _print(done: Sequence[Export], target: Path, *, as_json: bool) -> None:
    """Print what was written and how it was checked: of a run, or of each member of an ensemble."""
    if as_json:
        each = [vars(one) | {"folder": str(one.folder)} for one in done]
        several = {"folder": str(target), "members": each}
        out.print_json(json.dumps(each[0] if len(each) == 1 else several))
        return
    for one in done:
        texts = (
            f"{one.num_texts} texts encoded alike" if one.num_texts else "no tokenizer: ids alone"
        )
        out.print(
            f"{one.folder}: {one.auto_class}, logits at most {one.largest_difference:.2g} apart "
            f"over {one.num_logits:,}; {texts}",
            markup=False,
        )
    if len(done) > 1:
        out.print(
            f"{target}/ensemble.json names the members: average their softmax probabilities",
            markup=False,
        )
