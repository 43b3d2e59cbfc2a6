"""Ask the record first, train what is missing, write down what comes back.

One road for `dcray train`, the quickstart and every search: a request that has a result is answered
from the record; the others become trials, and this process alone writes what they say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dcray.cluster import ray_cluster
from dcray.config import RunConfig
from dcray.corpus.manifest import Corpus
from dcray.corpus.stream import publish
from dcray.errors import ConfigError
from dcray.search.place import Machine, place_run, this_machine
from dcray.search.runner import Listener, Trial, run_trials, stop_on_signals
from dcray.sections import count_label, rows_in
from dcray.sizes import num_non_embedding_params, num_params
from dcray.track.lease import CellHeldError
from dcray.track.points import Cell, Key
from dcray.track.result import Result
from dcray.track.rows import Row
from dcray.track.store import Store
from dcray.train.progress import Outcome, Report


@dataclass(frozen=True)
class Request:
    """A result that somebody wants: a configuration under the name of a recipe."""

    recipe: str
    config: RunConfig  # resolved
    key: Key
    reads: str  # the hash of what it reads: Corpus.reads

    @property
    def name(self) -> str:
        return self.key.name


@dataclass(frozen=True)
class Ended:
    """What became of a request: "complete", "answered" (it was on record), or why not."""

    request: Request
    state: str  # complete, answered, stopped, diverged, failed, refused
    val_loss: float | None = None
    val_bpb: float | None = None
    run_id: str | None = None
    reason: str = ""
    traceback: str = ""


class View(Protocol):
    """What a person watches; the command line's live table is one."""

    def note(self, text: str) -> None: ...
    def begin(self, request: Request, run: RunConfig) -> None: ...
    def report(self, request: Request, report: Report) -> None: ...
    def end(self, ended: Ended) -> None: ...


def request(config: RunConfig, corpus: Corpus, *, study: str, recipe: str) -> Request:
    """A configuration resolved on a corpus, and the key its result has on record.

    Raises ConfigError where the corpus is too small or its vocabulary is not the model's.
    """
    wanted = config.model.vocab_size
    if wanted is not None and wanted < corpus.vocab_size:
        raise ConfigError(
            f"model.vocab_size ({wanted}) must hold the corpus's {corpus.vocab_size} ids; "
            "leave it out to take the corpus's"
        )
    corpus.check_budget(config.data.unique_tokens)
    _check_validation(config, corpus)
    resolved = config.resolved(vocab_size=wanted or corpus.vocab_size)
    reads = corpus.reads(config.data.unique_tokens, config.data.val_tokens)
    cell = Cell(study, resolved.size_name, config.data.unique_tokens, recipe)
    return Request(recipe, resolved, Key(cell, resolved.identity(reads), config.seed), reads)


def execute(
    requests: Sequence[Request],
    corpus: Corpus,
    store: Store,
    *,
    directory: Path,
    view: View,
    num_cpus: int | None = None,
) -> list[Ended]:
    """Every request answered, from the record or by training; in the order of `requests`."""
    found = {one.name: store.find(one.key) for one in requests}
    ended: dict[str, Ended] = {}
    for one in requests:
        row = found[one.name]
        if row is not None and row.state in ("complete", "diverged"):
            ended[one.name] = _answered(one, row)
            view.end(ended[one.name])
    missing = [one for one in requests if one.name not in ended]
    if missing:
        corpus.verify(max(one.config.data.unique_tokens for one in missing))
        logs = directory / store.study / "logs"
        with ray_cluster(num_cpus=num_cpus, logs=logs):
            ended |= _train(missing, corpus, store, directory, view)
    return [ended[one.name] for one in requests]


def _train(
    requests: Sequence[Request], corpus: Corpus, store: Store, directory: Path, view: View
) -> dict[str, Ended]:
    machine = this_machine()
    placed = {one.name: place_run(one.config, machine, view.note) for one in requests}
    home = (directory / store.study).absolute()
    (home / "logs").mkdir(parents=True, exist_ok=True)
    book = _Book(requests, store, view)
    with ExitStack() as stack:
        stop = stack.enter_context(
            stop_on_signals(
                lambda: view.note(
                    "stopping: saving a checkpoint; press Ctrl-C again to end at once"
                )
            )
        )
        for cell in dict.fromkeys(one.key.cell for one in requests):
            try:
                stack.enter_context(store.claim(cell))
            except CellHeldError as error:
                raise ConfigError(f"{error}; wait for it, or end that process") from None
        for one in requests:
            run = placed[one.name]
            book.open[one.name] = _begin(store, one, run, corpus, machine)
            view.begin(one, run)
        for group in _groups(requests, placed):
            data = group[0].config.data
            mode = group[0].config.runtime.stream
            refs = publish(corpus, data.unique_tokens, data.val_tokens, mode)
            trials = [
                Trial(one.name, placed[one.name], home / "checkpoints" / one.name) for one in group
            ]
            run_trials(trials, refs, book.listener(), logs=home / "logs", stop=stop)
    return book.ended


def _groups(requests: Sequence[Request], placed: Mapping[str, RunConfig]) -> list[list[Request]]:
    """Requests that read the same tokens and have the same kind of place run side by side."""
    groups: dict[Any, list[Request]] = {}
    for one in requests:
        data, runtime = one.config.data, placed[one.name].runtime
        kind = (data.unique_tokens, data.val_tokens, runtime.stream, runtime.workers == 1)
        groups.setdefault(kind, []).append(one)
    return list(groups.values())


class _Book:
    """What the driver writes down while trials run."""

    def __init__(self, requests: Sequence[Request], store: Store, view: View) -> None:
        self.requests = {one.name: one for one in requests}
        self.store, self.view = store, view
        self.open: dict[str, Result] = {}
        self.ended: dict[str, Ended] = {}
        self.last: dict[str, Report] = {}

    def listener(self) -> Listener:
        return Listener(self.on_report, self.on_end)

    def on_report(self, name: str, report: Report) -> None:
        points = list(report.points)
        if points:
            rate = {"perf/tokens_per_second": report.tokens_per_second}
            points.append(points[-1]._replace(values=rate))
        self.open[name].log(points)
        self.last[name] = report
        self.view.report(self.requests[name], report)

    def on_end(self, name: str, outcome: Outcome, traceback: str) -> None:
        one, result = self.requests[name], self.open[name]
        if outcome.state == "complete":
            result.finish(_metrics(outcome, self.last.get(name)))
        elif outcome.state == "diverged":
            result.diverge(outcome.reason)
        elif outcome.state in ("failed", "refused"):
            result.fail(traceback or outcome.reason)
        else:
            result.interrupt(outcome.reason or "stopped")
        ended = Ended(
            one,
            outcome.state,
            outcome.val_loss,
            outcome.val_bpb,
            result.run_id,
            outcome.reason,
            traceback,
        )
        self.ended[name] = ended
        self.view.end(ended)


def _metrics(outcome: Outcome, last: Report | None) -> dict[str, float]:
    assert outcome.val_loss is not None
    metrics = {"val_loss": outcome.val_loss, "device_seconds": outcome.seconds}
    if outcome.val_bpb is not None:
        metrics["val_bpb"] = outcome.val_bpb
    if outcome.val_loss_stderr is not None:
        metrics["val_loss_stderr"] = outcome.val_loss_stderr
    if outcome.peak_bytes is not None:
        metrics["peak_memory_bytes"] = float(outcome.peak_bytes)
    if outcome.best_epoch is not None:
        metrics["best_epoch"] = float(outcome.best_epoch)
    if last is not None and last.seconds > 0:
        metrics["tokens_per_second"] = last.tokens_seen / last.seconds
    return metrics


def _begin(store: Store, one: Request, run: RunConfig, corpus: Corpus, machine: Machine) -> Result:
    config = one.config
    assert config.model.vocab_size is not None
    params = {
        "objective": config.objective.name,
        **{
            f"objective.{name}": value
            for name, value in (config.objective.model_extra or {}).items()
        },
        "num_epochs": config.num_epochs,
        "weight_decay": config.optim.weight_decay,
        "lr": config.optim.lr,
        "tau": float(f"{config.tau:.6g}"),
        "batch_size": config.batch_size,
        "seq_len": config.data.seq_len,
        "schedule": config.schedule.kind,
        "dropout": config.model.dropout,
        "num_params": num_params(config.shape, config.model.vocab_size),
        "num_non_embedding_params": num_non_embedding_params(config.shape),
        "train_tokens": config.train_tokens,
        "num_rows": config.data.num_rows,
        "targets_per_epoch": config.unique_tokens,
        "num_steps": config.num_steps,
    }
    workers = run.runtime.workers
    tags = {
        "objective": config.objective.name,
        "budget": count_label(one.key.cell.unique_tokens),
        "bound": config.objective.build().bound,
        "device": machine.gpu_name if run.runtime.device == "cuda" else machine.cpu_name,
        "device_type": run.runtime.device,
        "threads": run.runtime.threads,
        "world_size": workers,
        "microbatch_size": run.runtime.microbatch_size,
        "corpus_hash": one.reads,
        "corpus": corpus.path.absolute(),
    }
    manifest = corpus.manifest.model_dump(mode="json")
    return store.begin(
        one.key, config=config.to_dict(), params=params, tags=tags, manifest=manifest
    )


def _check_validation(config: RunConfig, corpus: Corpus) -> None:
    have = corpus.manifest.validation.tokens
    wanted = config.data.val_tokens
    if wanted is not None and wanted > have:
        raise ConfigError(
            f"data.val_tokens ({wanted:,}) must be at most the corpus's {have:,} validation tokens"
        )
    if rows_in(wanted or have, config.data.seq_len, config.data.seq_len) < 1:
        raise ConfigError(
            f"the validation set of {wanted or have:,} tokens holds no row of "
            f"data.seq_len + 1 = {config.data.seq_len + 1}; prepare more with --val-tokens"
        )


def _answered(one: Request, row: Row) -> Ended:
    """What the record says; a divergence is as final as a loss: the run is deterministic."""
    if row.state == "diverged":
        return Ended(one, "diverged", run_id=row.run_id, reason=row.reason or "on record")
    return Ended(one, "answered", row.val_loss, row.val_bpb, row.run_id)
