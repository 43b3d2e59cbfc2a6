"""The types of every layer above training: a cell, and a run before, during and after it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from dcray.config.counts import count_label
from dcray.config.run import RunConfig
from dcray.config.sections import RuntimeConfig
from dcray.config.settings import settings_of
from dcray.cost import training_flops
from dcray.errors import ConfigError
from dcray.objectives import no_ensemble
from dcray.reports import Outcome, Report

KINDS = ("run", "branch", "confirmation", "ensemble")
FAILURES = ("failed", "refused", "lost")  # states of a run that has no loss and may be tried again

_NAME = re.compile(r"[^\x00-\x1f'\"`/\\]+")  # names go into a search filter and into paths


@dataclass(frozen=True)
class Cell:
    """One (size, unique_tokens, recipe) of a study; a parent run of the record."""

    study: str
    size: str
    unique_tokens: int
    recipe: str

    def __post_init__(self) -> None:
        problems = [
            f"a {what} must be a name without quotes, slashes and control characters, got {text!r}"
            for what, text in (("study", self.study), ("size", self.size), ("recipe", self.recipe))
            if not _NAME.fullmatch(text)
        ]
        if problems:
            raise ConfigError(problems)

    @property
    def name(self) -> str:
        """Format "SIZE_BUDGET_RECIPE", unique within the study and fit for a path."""
        return f"{self.size}_{count_label(self.unique_tokens)}_{self.recipe}"

    @property
    def label(self) -> str:
        """Format the cell for people: "226k 64k mir"."""
        return f"{self.size} {count_label(self.unique_tokens)} {self.recipe}"


@dataclass(frozen=True)
class RunKey:
    """The identity of a run: cell, hash of the configuration, and seed.

    `kind` says what a run was made for. It is part of the name on record but is not compared: a
    branch of a trunk and a plain run of one configuration have the same loss.
    """

    cell: Cell
    config_hash: str
    seed: int
    kind: str = field(default="run", compare=False)

    def __post_init__(self) -> None:
        assert self.kind in KINDS, self.kind
        assert re.fullmatch(r"\w+", self.config_hash), self.config_hash

    @property
    def name(self) -> str:
        """Format "SIZE_BUDGET_RECIPE_HASH_seedN_KIND", unique in the study and fit for a path."""
        return f"{self.cell.name}_{self.config_hash}_seed{self.seed}_{self.kind}"

    @property
    def label(self) -> str:
        """Format the run for people: "226k 64k mir seed 42"."""
        return f"{self.cell.label} seed {self.seed}"


@dataclass(frozen=True)
class RunSpec:
    """A run to do: a configuration under the name of a recipe, and where it is computed."""

    key: RunKey
    config: RunConfig  # resolved
    reads: str  # the hash of what it reads: Corpus.reads
    trunk: str | None = None  # the name of the trunk that it branches off from
    save_at_fork: bool = False  # whether a longer branch may follow
    forked_from: int = 0  # the step of the trunk's state that it probably starts from
    place: RuntimeConfig | None = None  # device, workers, micro-batch; None until they are chosen
    answered: float | None = None  # the loss if it is on record: reported again, not trained
    axes: tuple[str, ...] = ()  # fields that its cell searches beside epochs, weight decay and lr
    members: tuple[RunKey, ...] = ()  # of an ensemble: the runs of which it is computed

    @property
    def name(self) -> str:
        """Return the name of the run's key: unique within the study, fit for a path."""
        return self.key.name

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Return the configuration's values on `axes`, by the full names of their fields."""
        found = settings_of(self.config, self.axes)
        return {name: found[name] for name in self.axes if name in found}

    @cached_property
    def flops(self) -> float:
        """Compute the exact training FLOPs of what the run trains itself, without its trunk."""
        if self.members:
            return 0.0
        steps = self.config.num_steps
        return training_flops(self.config) * (steps - self.forked_from) / steps

    @property
    def keeps_nats(self) -> bool:
        """Tell whether the run keeps its nats of validation targets: it may join an ensemble."""
        return self.key.kind == "confirmation" and not no_ensemble(self.config.objective.build())

    @property
    def run(self) -> RunConfig:
        """Return the configuration with `place` as its runtime, if the place is chosen."""
        if self.place is None:
            return self.config
        return self.config.model_copy(update={"runtime": self.place})

    def ended(self, state: str, val_loss: float | None = None, **more: Any) -> RunResult:
        """Build the result of this run: its state, its loss if it has one, and further columns."""
        columns = {
            "num_epochs": self.config.num_epochs,
            "weight_decay": self.config.optim.weight_decay,
            "lr": self.config.optim.lr,
            "num_devices": self.run.runtime.num_devices if self.place else 1.0,
        }
        return RunResult(self.key, state, val_loss, **{**columns, "spec": self, **more})


Chain = tuple[RunSpec, ...]  # what one trial trains, one after the other


@dataclass(frozen=True)
class RunReport:
    """A report of a run while it trains; the first, at its start, has no report of the loop."""

    spec: RunSpec
    report: Report | None = None


@dataclass(frozen=True)
class RunResult:
    """The end of a run: in this command, or as read from the record."""

    key: RunKey
    state: str  # complete, stopped, diverged, dropped (by a scheduler), or one of FAILURES
    val_loss: float | None = None
    num_epochs: int = 0
    weight_decay: float | None = None
    lr: float | None = None
    run_id: str = ""  # "" until it is on record
    val_bpb: float | None = None
    reason: str = ""
    out_of_memory: bool = False  # with state "lost"
    traceback: str = ""
    step: int = 0
    device_seconds: float = 0.0  # of each of its devices, over all attempts
    earlier_seconds: float = 0.0  # of them, before this attempt
    num_devices: float = 1.0  # 0.5: it had half of a GPU
    metrics: Mapping[str, float] = field(default_factory=dict)  # what else the record keeps
    spec: RunSpec | None = None  # None: it was read from the record

    @property
    def confirms(self) -> bool:
        """Tell whether the run repeats a winner with a fresh seed."""
        return self.key.kind == "confirmation"

    def on_record(self, run_id: str) -> RunResult:
        """Return the result with the id of its run in MLflow."""
        return replace(self, run_id=run_id)


Event = RunReport | RunResult


def result_of(
    spec: RunSpec, fields: Mapping[str, Any], traceback: str, last: Report | None
) -> RunResult:
    """Build the result of a run from the fields that it reported at its end.

    If they hold no time, it is that of the last report.
    """
    outcome = Outcome(**{"step": last.step if last else 0, "seconds": 0.0, **fields})
    spent = outcome if outcome.seconds or last is None else last
    return spec.ended(
        outcome.state,
        outcome.val_loss,
        val_bpb=outcome.val_bpb,
        reason=outcome.reason,
        out_of_memory=outcome.out_of_memory,
        traceback=traceback,
        step=outcome.step,
        device_seconds=spent.seconds,
        earlier_seconds=spent.earlier_seconds,
        metrics=_metrics(outcome) if outcome.state == "complete" else {},
    )


def _metrics(outcome: Outcome) -> dict[str, float]:
    """Return the metrics of a complete run that the record keeps."""
    values: dict[str, float | None] = {
        "val_loss": outcome.val_loss,
        "device_seconds": outcome.seconds,
        "val_bpb": outcome.val_bpb,
        "val_loss_stderr": outcome.val_loss_stderr,
        "val_loss_raw": outcome.val_loss_raw,
        "peak_memory_bytes": outcome.peak_bytes,
        "best_epoch": outcome.best_epoch,
        "trained_tokens": outcome.trained_tokens,
        "tokens_per_second": outcome.trained_tokens / outcome.seconds if outcome.seconds else None,
    }
    return {name: float(value) for name, value in values.items() if value is not None}
