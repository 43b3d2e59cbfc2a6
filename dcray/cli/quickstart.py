"""`dcray quickstart`: from nothing to a whole study on real text and its page, in minutes."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dcray.cli.screen.console import DONE, SOME_FAILED, address_line, last_word, out, progress_bar
from dcray.cli.search import exit_code, run_search
from dcray.cli.train import DirOption, QuietOption
from dcray.errors import plural

if TYPE_CHECKING:
    from dcray.corpus.record import Manifest
    from dcray.search.cell_summary import CellSummary
    from dcray.study.study import Study

BUDGETS, VAL_TOKENS = (16_000, 32_000, 64_000), 51_201
CORPUS = "quickstart-corpus"
STUDY = "quickstart"
NEXT = """\
Figures at this scale illustrate and do not prove.

Next: your own text and sizes (docs/tutorial.md); or, on one GPU,
dcray prepare stdlib --out corpora/stdlib4k --tokenizer bpe:4096 --budgets 1m,2m --val-tokens 300k
dcray search mini_gpu
on a cluster,
python jobs/submit.py search STUDY --corpus CORPUS --dir DIR"""

StudyOption = Annotated[
    str, typer.Option("--study", help="Another study file, of the same three budgets.")
]


def quickstart(
    study: StudyOption = STUDY,
    directory: DirOption = Path("dcray-runs"),
    quiet: QuietOption = False,
) -> None:
    """A study of this Python's own library: corpus, searches, analysis, page; in minutes.

    Three model sizes on three budgets, each cell searched for its weight decay and epochs, with
    next-token prediction (ar), with masked inputs beside it (mir), and at the usual weight decay
    with epochs of its own (weak). It can be stopped and run again; when all is there it answers in
    seconds.

    [bold]Example[/bold]

    dcray quickstart
    """
    from dcray.cluster.start import ray_cluster
    from dcray.corpus.record import MANIFEST
    from dcray.study.study import Study

    asked = Study.read(study)

    def say(text: str) -> None:
        if not quiet:
            out.print(text, markup=False)

    corpus = directory / CORPUS
    say(f"1. The standard library of this Python becomes a corpus: {corpus}")
    there = (corpus / MANIFEST).exists()
    with last_word(), nullcontext() if there else ray_cluster():  # one Ray for both steps
        manifest = _prepare(corpus)
        say(
            f"   {manifest.train.tokens:,} tokens to train on, {manifest.validation.tokens:,} to "
            "validate on, split by document."
        )
        say(_plan_text(asked))
        task = run_search(
            asked, asked.select(), corpus, directory=directory, tracking_uri=None, quiet=quiet
        )
    code = exit_code(task)
    if code not in (DONE, SOME_FAILED):
        say("stopped; run the same command again to go on")
        raise typer.Exit(code)
    for text in _findings(task.lines()):
        say(text)
    say("3. What the record says: laws, what MIR is worth in data, and the page")
    say(_analyze(asked.name, directory))
    say(f"\n{address_line(directory, None)}\n\n{NEXT}")
    raise typer.Exit(code)


def _plan_text(asked: Study) -> str:
    sizes = list(dict.fromkeys(cell_spec.size for cell_spec in asked.cell_specs))
    budgets = list(dict.fromkeys(cell_spec.budget for cell_spec in asked.cell_specs))
    return (
        f"2. Models of {', '.join(sizes)} parameters see {', '.join(budgets)} tokens again and "
        "again. In each cell some strengths of weight decay\n   are tried, set by the timescale "
        "tau over which it forgets; runs of different length share their stable part\n   and "
        "branch off. MIR (mir) then starts from each winner; weak is multi-epoch AR: weight decay "
        "0.1,\n   at its own best number of epochs."
    )


def _findings(lines: list[CellSummary]) -> list[str]:
    """Say in sentences what strong weight decay and MIR changed, in nats, over the cells."""
    losses = {
        (x.cell.size, x.cell.unique_tokens, x.cell.recipe): x.val_loss
        for x in lines
        if x.val_loss is not None
    }

    def differences(recipe: str) -> list[float]:
        return [
            loss - losses[size, unique_tokens, "ar"]
            for (size, unique_tokens, name), loss in losses.items()
            if name == recipe and (size, unique_tokens, "ar") in losses
        ]

    found = []
    weak, mir = differences("weak"), differences("mir")
    if weak:
        found.append(
            f"   Weight decay of 0.1, at its own best epochs, costs {min(weak):.2f} to "
            f"{max(weak):.2f} nats per token against tuned decay ({plural(len(weak), 'cell')})."
        )
    if mir:
        lower = sum(one < 0 for one in mir)
        found.append(
            f"   MIR minus AR: {sum(mir) / len(mir):+.4f} nats on average, lower in {lower} of "
            f"{len(mir)} cells; another seed moves a loss by some 0.02."
        )
    return found


def _analyze(name: str, directory: Path) -> str:
    """Write tables, figures and the page; return the answer and where the files are."""
    from dcray.cli.analyze import summary
    from dcray.report import study as studies
    from dcray.report.analysis import Asked

    with progress_bar():
        found = studies.read(directory, name, Asked(None, (), None, 200))
        written = studies.write(found, directory)
    return summary(found, written, quiet=True)


def _prepare(corpus: Path) -> Manifest:
    from dcray.corpus.prepare import prepare
    from dcray.plugins import load

    with progress_bar() as on_progress:
        return prepare(
            load("sources", "stdlib"),
            corpus,
            tokenizer="bpe:512",
            budgets=BUDGETS,
            val_tokens=VAL_TOKENS,
            on_progress=on_progress,
        )
