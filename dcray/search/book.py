"""What the driver writes down while trials run; it alone writes the record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from dcray import plugins
from dcray.config import RunConfig
from dcray.corpus.manifest import Corpus
from dcray.search.place import Machine
from dcray.search.queue import Ended
from dcray.search.request import Request
from dcray.search.runner import Listener
from dcray.sections import count_label
from dcray.sizes import num_non_embedding_params, num_params
from dcray.track.result import Result
from dcray.track.store import Store
from dcray.train.progress import Outcome, Report


class View(Protocol):
    """What a person watches; the command line's live table is one."""

    def note(self, text: str) -> None: ...
    def begin(self, request: Request, run: RunConfig) -> None: ...
    def report(self, request: Request, report: Report) -> None: ...
    def end(self, ended: Ended) -> None: ...


class Book:
    """Opens a result when its trial starts, keeps its points, ends it as the trial says.

    on_end hears of every end, after it is on record.
    """

    def __init__(
        self,
        store: Store,
        corpus: Corpus,
        machine: Machine,
        view: View,
        on_end: Callable[[Ended], None],
    ) -> None:
        self.store, self.machine, self.view, self.heard = store, machine, view, on_end
        self.manifest = corpus.manifest.model_dump(mode="json")
        self.corpus = {"corpus": corpus.path.absolute()}  # where `dcray eval` finds the tokenizer
        self.placed: dict[str, tuple[Request, RunConfig]] = {}
        self.open: dict[str, Result] = {}
        self.last: dict[str, Report] = {}

    def listener(self) -> Listener:
        """What the runner tells."""
        return Listener(self.on_report, self.on_end)

    def expect(self, one: Request, run: RunConfig) -> None:
        """A request is going to be trained in this place."""
        self.placed[one.name] = one, run

    def begin(self, name: str) -> Result:
        """The open result of a request, begun where it is not yet."""
        if name not in self.open:
            one, run = self.placed[name]
            self.open[name] = self.store.begin(
                one.key,
                config=one.config.to_dict(),
                params=columns(one.config),
                tags=_tags(one, run, self.machine) | self.corpus,
                manifest=self.manifest,
            )
            self.view.begin(one, run)
        return self.open[name]

    def on_report(self, name: str, report: Report) -> None:
        """Points of a run, how fast it is, and what it has to say."""
        for note in report.notes:
            self.view.note(f"{name}: {note}")
        points = list(report.points)
        if points and report.tokens_per_second:
            rate = {"perf/tokens_per_second": report.tokens_per_second}
            points.append(points[-1]._replace(values=rate))
        self.begin(name).log(points)
        self.last[name] = report
        self.view.report(self.placed[name][0], report)

    def on_end(self, name: str, outcome: Outcome, traceback: str) -> None:
        """How a run ended."""
        one, run = self.placed[name]
        result, last = self.open.get(name), self.last.pop(name, None)
        spent = outcome if outcome.seconds or last is None else last
        if outcome.state != "dropped" or result is not None:  # else it never began
            result = self.begin(name)
            if spent.seconds and outcome.state != "complete":  # else it is among its metrics
                result.spent(spent.seconds)
            _settle(result, outcome, traceback)
        self.open.pop(name, None)
        ended = Ended(
            one,
            outcome.state,
            outcome.val_loss,
            outcome.val_bpb,
            result.run_id if result else None,
            outcome.reason,
            traceback,
            outcome.step,
            spent.seconds,
            spent.earlier_seconds,
            int(run.runtime.workers),
        )
        self.heard(ended)  # before it is shown: the view says how far the whole is
        self.view.end(ended)


def _settle(result: Result, outcome: Outcome, traceback: str) -> None:
    if outcome.state == "complete":
        result.finish(_metrics(outcome))
    elif outcome.state == "diverged":
        result.diverge(outcome.reason)
    elif outcome.state in ("failed", "refused"):
        result.fail(traceback or outcome.reason)
    else:
        result.interrupt(outcome.reason or "stopped")


def _metrics(outcome: Outcome) -> dict[str, float]:
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
    metrics["trained_tokens"] = float(outcome.trained_tokens)
    if outcome.seconds > 0:
        metrics["tokens_per_second"] = outcome.trained_tokens / outcome.seconds
    return metrics


def columns(config: RunConfig) -> dict[str, Any]:
    """What the record shows of a configuration, as flat columns."""
    assert config.model.vocab_size is not None
    return {
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


def _tags(one: Request, run: RunConfig, machine: Machine) -> dict[str, Any]:
    config = one.config
    return {
        "objective": config.objective.name,
        "objective_source": plugins.source_hash("objectives", config.objective.name),
        "budget": count_label(one.key.cell.unique_tokens),
        "bound": config.objective.build().bound,
        "device": machine.gpu_name if run.runtime.device == "cuda" else machine.cpu_name,
        "device_type": run.runtime.device,
        "threads": run.runtime.threads,
        "world_size": run.runtime.workers,
        "microbatch_size": run.runtime.microbatch_size,
        "corpus_hash": one.reads,
        "trunk": one.trunk,
    }
