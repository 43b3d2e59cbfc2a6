"""`dcray quickstart`: from nothing to two trained models on real text, in minutes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dcray.cli.console import out
from dcray.cli.train import DirOption, QuietOption, exit_code, print_results, run_all

if TYPE_CHECKING:
    from dcray.config import RunConfig
    from dcray.corpus.record import Manifest

SIZE, BUDGET = "226k", 32_000
BUDGETS, VAL_TOKENS = (16_000, 32_000, 64_000), 51_201
CORPUS = "quickstart-corpus"


def quickstart(
    directory: DirOption = Path("dcray-runs"),
    quiet: QuietOption = False,
) -> None:
    """Prepare this Python's own library as a corpus; train one AR and one MIR model on it.

    About three minutes on two CPU cores. It can be stopped and run again; when all is there it
    answers at once.

    [bold]Example[/bold]

    dcray quickstart
    """
    from dcray.config import override

    corpus, base = directory / CORPUS, _baseline()

    def say(text: str) -> None:
        if not quiet:
            out.print(text, markup=False)

    say(f"1. The standard library of this Python becomes a corpus: {corpus}")
    manifest = _prepare(corpus)
    say(
        f"   {manifest.train.tokens:,} tokens to train on, {manifest.validation.tokens:,} to "
        "validate on, split by document."
    )
    say(
        f"2. A model of {SIZE} parameters sees the same {BUDGET:,} tokens for 16 epochs, twice: "
        "once with next-token prediction (ar),\n   once with masked inputs beside it (mir). The "
        f"weight decay is strong: its timescale is {base.tau:.2g} epochs."
    )
    ended = run_all(
        [("ar", base), ("mir", override(base, {"objective": "mir"}))],
        corpus,
        study="quickstart",
        directory=directory,
        tracking_uri=None,
        quiet=quiet,
    )
    print_results(ended, directory, None)
    losses = [one.val_loss for one in ended if one.val_loss is not None]
    if len(losses) == 2:
        say(
            f"MIR minus AR: {losses[1] - losses[0]:+.4f} nats per token. At this scale two seeds "
            "differ by 0.01 to 0.02, so one pair illustrates and does not prove."
        )
    raise typer.Exit(exit_code(ended))


def _prepare(corpus: Path) -> Manifest:
    from dcray.cli.prepare import progress
    from dcray.corpus.prepare import prepare
    from dcray.plugins import load

    with progress() as on_progress:
        return prepare(
            load("sources", "stdlib"),
            corpus,
            tokenizer="bpe:512",
            budgets=BUDGETS,
            val_tokens=VAL_TOKENS,
            on_progress=on_progress,
        )


def _baseline() -> RunConfig:
    from dcray.config import RunConfig, override

    return override(
        RunConfig(),
        {
            "size": SIZE,
            "data.unique_tokens": BUDGET,
            "data.seq_len": 128,
            "batch_size": 8,
            "num_epochs": 16,
            "optim.lr": 5e-3,
            "optim.weight_decay": 6.4,  # tau = 1 epoch
        },
    )
