"""`dcray train`: one configuration on a corpus, recorded, restartable; and its dry run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dcray.cli.screen.console import (
    BAD_INPUT,
    DONE,
    NOTHING,
    SOME_FAILED,
    STOPPED,
    address_line,
    err,
    last_word,
    out,
    say,
)
from dcray.errors import ConfigError, plural

if TYPE_CHECKING:
    from dcray.config.run import RunConfig
    from dcray.types import RunResult

DirOption = Annotated[Path, typer.Option("--dir", help="Where the record and checkpoints live.")]
UriOption = Annotated[
    str | None,
    typer.Option(help="MLflow's tracking URI; else MLFLOW_TRACKING_URI, else DIR/mlflow.db."),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print the result alone.")]


def train(
    items: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE.toml] [FIELD=VALUE ...]",
            help="Configuration files and overrides, applied in this order.",
        ),
    ] = None,
    corpus: Annotated[
        Path | None, typer.Option(help="The corpus folder that dcray prepare made.")
    ] = None,
    study: Annotated[str, typer.Option(help="The study to record it in.")] = "train",
    recipe: Annotated[
        str | None, typer.Option(help="The recipe's name; else ar, mir, ar-muon, ...")
    ] = None,
    directory: DirOption = Path("dcray-runs"),
    tracking_uri: UriOption = None,
    workers: Annotated[
        str | None, typer.Option(help="GPUs (or CPU processes) for FSDP2: a number, or auto.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the cost and train nothing; needs no corpus.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    quiet: QuietOption = False,
) -> None:
    """Train one model, recorded in MLflow. The same command again goes on, or answers at once.

    [bold]Examples[/bold]

    dcray train size=60k data.unique_tokens=16k data.seq_len=128 batch_size=8 optim.lr=5e-3
    optim.weight_decay=12.8 --corpus corpora/stdlib

    dcray train mine.toml objective=mir optimizer=muon seed=1 --corpus corpora/dclm --workers auto

    dcray train size=1.4b optim.weight_decay=3.2 --dry-run
    """
    from dcray.config.sections import batch_warning

    config = _config(items or [], workers)
    if (warning := batch_warning(config.batch_size, config.usable_rows)) and not (quiet or as_json):
        err.print(f"warning: {warning}", markup=False)
    if dry_run:
        _dry_run(config, corpus, directory, tracking_uri, as_json=as_json)
        return
    if corpus is None:
        raise ConfigError(
            "--corpus must name a folder that dcray prepare made; --dry-run needs none"
        )
    ended = run_all(
        [(recipe or config.recipe_name, config)],
        corpus,
        study=study,
        directory=directory,
        tracking_uri=tracking_uri,
        quiet=quiet or as_json,
    )
    if as_json:
        out.print_json(json.dumps(_as_dict(ended[0])))
    else:
        print_results(ended, directory, tracking_uri, quiet=quiet)
    raise typer.Exit(exit_code(ended))


def run_all(
    wanted: Sequence[tuple[str, RunConfig]],
    corpus: Path,
    *,
    study: str,
    directory: Path,
    tracking_uri: str | None,
    quiet: bool,
) -> list[RunResult]:
    """Answer every (recipe, configuration) from the record or train it, watched on the screen."""
    from dcray.corpus.manifest import Corpus
    from dcray.search.specs import single_run

    opened = Corpus.open(corpus)
    specs = [single_run(config, opened, study=study, recipe=name) for name, config in wanted]
    cells = ", ".join(dict.fromkeys(one.key.cell.label for one in specs))
    say(f"training {cells} on {corpus}, recorded in {directory} as {study}", quiet=quiet)
    from dcray.cli.screen.live import live_view  # these take seconds: errors are reported before
    from dcray.driver.driver import train_runs
    from dcray.driver.session import Session
    from dcray.track.store import Store

    with (
        Store.open(directory, study=study, tracking_uri=tracking_uri) as store,
        live_view(quiet=quiet) as view,
        last_word(),
    ):
        return train_runs(specs, Session(opened, store, directory, view))


def exit_code(ended: Sequence[RunResult]) -> int:
    """Return 0 if all are done; 3 any stopped; 2 all refused; 1 nothing usable; 4 some failed."""
    states = {one.state for one in ended}
    if "stopped" in states:
        return STOPPED
    if states <= {"complete", "answered"}:
        return DONE
    if states & {"complete", "answered"}:
        return SOME_FAILED
    return BAD_INPUT if states == {"refused"} else NOTHING


def print_results(
    ended: Sequence[RunResult], directory: Path, tracking_uri: str | None, *, quiet: bool = False
) -> None:
    """Print how each run ended; unless quiet, also what went wrong and how to open the record."""
    from dcray.cli.screen.live import outcome_line

    for one in ended:
        out.print(outcome_line(one), markup=False)
        if one.traceback and not quiet:
            err.print(one.traceback.rstrip(), markup=False)
    if quiet:
        return
    if any(one.state == "stopped" for one in ended):
        out.print("stopped; run the same command again to go on", markup=False)
    out.print(address_line(directory, tracking_uri), markup=False)


def _config(items: list[str], workers: str | None) -> RunConfig:
    """Build the configuration of files and overrides; raise ConfigError with all problems."""
    from dcray.config.run import RunConfig, later_wins, override
    from dcray.config.toml import parse_assignments, read_toml

    parts: list[dict[str, Any]] = []
    for is_file, group in groupby(items, lambda item: item.endswith(".toml") and "=" not in item):
        together = list(group)
        parts += [read_toml(p) for p in together] if is_file else [parse_assignments(together)]
    if workers is not None:
        parts.append({"runtime.workers": int(workers) if workers.isdigit() else workers})
    return override(RunConfig(), later_wins(parts))


def _dry_run(
    config: RunConfig,
    corpus: Path | None,
    directory: Path,
    tracking_uri: str | None,
    *,
    as_json: bool,
) -> None:
    from dcray.corpus.record import read_manifest
    from dcray.plan.estimate import estimate, planned_vocab_size
    from dcray.plan.history import results_on_record

    of_corpus = read_manifest(corpus).tokenizer.vocab_size if corpus else None
    vocab_size, source = planned_vocab_size(config, of_corpus)
    resolved = config.resolved(vocab_size=vocab_size)
    measured, left_out = results_on_record(directory, tracking_uri)
    for reason in left_out:
        say(f"left out: {reason}")
    found = estimate(resolved, device=_device(config), measured=measured)
    if as_json:
        record = found.to_dict() | {"vocab_size": vocab_size, "config": resolved.to_dict()}
        out.print_json(json.dumps(record))
        return
    from dcray.cli.screen.live import duration

    f, gib = found.fields, 2**30
    rows = {
        "model": f"{f['size']}, {f['num_params']:,} parameters, {f['num_non_embedding_params']:,} "
        f"without embeddings; vocabulary {vocab_size:,} ({source})",
        "data": f"{f['unique_tokens']:,} unique tokens in {plural(f['num_rows'], 'row')} x "
        f"{plural(f['num_epochs'], 'epoch')} = {f['train_tokens']:,} tokens seen",
        "objective": ", ".join([config.objective.name, *_options(config.objective.model_extra)]),
        "optimizer": ", ".join([config.optimizer.name, *_options(config.optimizer.model_extra)]),
        "steps": f"{f['num_steps']:,} of {plural(f['batch_size'], 'sequence')} = "
        f"{f['num_workers']} x {f['num_microbatches']} x {f['microbatch_size']} "
        "(workers x micro-batches x sequences); "
        f"warm-up {f['warmup_steps']:,}",
        "tau": f"{f['tau']:.3g} epochs (decay timescale)",
        "FLOPs": f"{f['training_flops']:.3e} exact causal, {f['flops_6nd']:.3e} by 6ND",
        "memory": f"{f['memory_bytes'] / gib:.2f} GiB a device: {f['state_bytes'] / gib:.2f} of "
        f"weights and optimizer, {f['activation_bytes'] / gib:.2f} of activations",
        "checkpoint": f"{_on_disk(f['checkpoint_bytes'])} on disk",
        "time": f"{duration(found.seconds)} of training on {f['num_workers']} x {found.device} "
        f"(from {found.seconds_from})",
    }
    for name, text in rows.items():
        out.print(f"{name:<11} {text}", markup=False)


def _options(options: Mapping[str, Any] | None) -> list[str]:
    """Format a plug-in's options for people: "mask_ratio_min 0.1"."""
    return [f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in (options or {}).items()]  # fmt: skip


def _on_disk(size: float) -> str:
    """Format bytes for people: "17.3 GB", "0.715 MB"."""
    return f"{size / 1e9:.3g} GB" if size >= 0.9995e9 else f"{size / 1e6:.3g} MB"


def _device(config: RunConfig) -> str:
    import torch

    from dcray.plan.estimate import planned_device

    here = config.runtime.device == "auto" and torch.cuda.is_available()
    return "cuda" if here else planned_device(config)


def _as_dict(ended: RunResult) -> dict[str, Any]:
    return {
        "key": ended.key.name,
        "state": ended.state,
        "val_loss": ended.val_loss,
        "val_bpb": ended.val_bpb,
        "run_id": ended.run_id,
        "reason": ended.reason,
    }
