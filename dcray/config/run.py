"""RunConfig: one frozen, validated tree of all that defines a run; override() makes every change.

Defaults are the paper's 257M AR recipe at 100M unique tokens. No value is defaulted anywhere else.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import Field, ValidationError, field_validator, model_validator

from dcray.config.average import AverageConfig
from dcray.config.plugged import CHOICES, NAMES, PLUGGED, ObjectiveConfig, OptimizerConfig
from dcray.config.sections import (
    DataConfig,
    Frozen,
    ModelConfig,
    OptimConfig,
    RuntimeConfig,
    ScheduleConfig,
    ShapeConfig,
    Size,
    ValidationConfig,
    batch_problems,
)
from dcray.config.sentences import sentences
from dcray.config.sizes import SIZES, Shape
from dcray.errors import ConfigError, did_you_mean

# Fields that change the result by rounding at most, and the seed, are no part of the identity.
# Validation epochs are left out too, unless the objective keeps its best epoch.
NOT_IDENTITY = ("seed", "runtime", "size")
BEST_COST_FRAC = 0.1  # of the training, for validation if the best epoch is kept


class RunConfig(Frozen):
    """One run: a size, an objective, an optimizer, and how it is trained on which tokens."""

    size: Size = "257m"
    objective: ObjectiveConfig = Field(default_factory=ObjectiveConfig)
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    num_epochs: int = Field(16, ge=1)
    batch_size: int = Field(128, ge=1)  # sequences per optimizer step, all ranks
    seed: int = Field(42, ge=0, lt=2**31)
    model: ModelConfig = ModelConfig()
    optim: OptimConfig = OptimConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    data: DataConfig = DataConfig()
    average: AverageConfig = AverageConfig()
    validation: ValidationConfig = ValidationConfig()
    runtime: RuntimeConfig = RuntimeConfig()

    @field_validator("size")
    @classmethod
    def _size_exists(cls, size: str | ShapeConfig) -> str | ShapeConfig:
        if isinstance(size, str) and size not in SIZES:
            raise ValueError(f'no size is called "{size}"{did_you_mean(size, SIZES)}')
        return size

    @model_validator(mode="after")
    def _batches_divide(self) -> RunConfig:
        runtime, unit, problems = self.runtime, self.data.paper_unit, list[str]()
        if runtime.workers != "auto":
            problems += batch_problems(self.batch_size, runtime.workers, runtime.microbatch_size)
            if runtime.workers > 1 and not self.optimizer.build().shards:
                problems.append(
                    f'runtime.workers must be 1 with optimizer = "{self.optimizer.name}", which '
                    f"does not take weights in shards, got {runtime.workers}"
                )
        if unit and self.batch_size % unit:
            problems.append(f"data.paper_unit ({unit}) must divide batch_size ({self.batch_size})")
        if not self.usable_rows:
            problems.append(
                'data.order = "paper" trains whole units alone: data.paper_unit (else batch_size) '
                f"must be at most the {self.data.num_rows} rows, got {unit or self.batch_size}"
            )
        if problems:
            raise ValueError("; ".join(problems))
        return self

    @property
    def shape(self) -> Shape:
        if isinstance(self.size, str):
            return SIZES[self.size]
        return Shape(**self.size.model_dump())

    @property
    def size_name(self) -> str:
        """Return the size's name, or "dim32-layers2-heads2-mlp96" for a shape that has none."""
        shape = self.shape
        named = [name for name, known in SIZES.items() if known == shape]
        return named[0] if named else "dim{}-layers{}-heads{}-mlp{}".format(*shape)

    @property
    def recipe_name(self) -> str:
        """Name the recipe where nobody does: the objective, as "ar-muon" if not with AdamW."""
        known = self.optimizer.name == OptimizerConfig().name
        return self.objective.name + ("" if known else f"-{self.optimizer.name}")

    @property
    def usable_rows(self) -> int:
        """Count the rows that train in every epoch: all, or whole units under order = "paper"."""
        rows = self.data.num_rows
        if self.data.order == "paper":
            unit = self.data.paper_unit or self.batch_size
            return rows // unit * unit
        return rows

    @property
    def unique_tokens(self) -> int:
        """Compute U, the targets of one epoch: rows * T."""
        return self.data.num_rows * self.data.seq_len

    @property
    def num_steps(self) -> int:
        """Compute ceil(E * rows / B): batches run across epoch borders, the last one is short."""
        return -(-self.num_epochs * self.usable_rows // self.batch_size)

    @property
    def train_tokens(self) -> int:
        """Compute D, the targets seen over the whole schedule: E * usable rows * T."""
        return self.num_epochs * self.usable_rows * self.data.seq_len

    @property
    def tau(self) -> float:
        """Compute the decay timescale, batch_tokens / (lr * weight_decay * U) epochs, or inf."""
        product = self.optim.lr * self.optim.weight_decay * self.unique_tokens
        return self.batch_size * self.data.seq_len / product if product else math.inf

    def resolved(self, *, vocab_size: int, longest_epochs: int | None = None) -> RunConfig:
        """Return the configuration with vocabulary, warm-up and validation share written out.

        longest_epochs: of the run that sets the warm-up, else num_epochs. Raises ConfigError if a
        given warm-up or an average is too long.
        """
        self.average.refuse_longer(self.num_epochs)
        schedule, validation = self.schedule, self.validation
        if validation.max_cost_frac is None and self.objective.build().keeps_best:
            validation = validation.model_copy(update={"max_cost_frac": BEST_COST_FRAC})
        if schedule.warmup_steps is None:
            steps = self.warmup_steps(longest_epochs or self.num_epochs)
            schedule = schedule.model_copy(update={"warmup_steps": steps})
        else:
            schedule.refuse_long_warmup(self.num_steps, self.num_epochs)
        model = self.model.model_copy(update={"vocab_size": vocab_size})
        found = {"schedule": schedule, "model": model, "validation": validation}
        return self.model_copy(update=found)

    def warmup_steps(self, num_epochs: int) -> int:
        """Compute the steps of warm-up that schedule.warmup_frac gives a run of so many epochs."""
        run = self.model_copy(update={"num_epochs": num_epochs})
        return max(1, round(self.schedule.warmup_frac * run.num_steps))

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types, from which RunConfig.model_validate gives the same value.

        An average is among them only if one is kept, with its own fields.
        """
        tree, average = self.model_dump(mode="json", exclude={"average"}), self.average.fields()
        return tree | ({"average": average} if average else {})

    def identity(self, reads: str) -> str:
        """Hash the configuration and what it reads (Corpus.reads): 16 hex digits.

        For plug-ins from outside dcray their source is hashed too: a changed one differs.
        """
        sources = filter(None, (self.objective.source, self.optimizer.source))
        parts = [self.identity_fields(), reads, *sources]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]

    def identity_fields(self) -> dict[str, Any]:
        """Return the fields that define the identity; the shape replaces the size's name.

        AdamW, which was the only optimizer once, is not named.
        """
        fields = {k: v for k, v in self.to_dict().items() if k not in NOT_IDENTITY}
        if not self.objective.build().keeps_best:
            del fields["validation"]
        if self.optimizer == OptimizerConfig():
            del fields["optimizer"]
        if self.schedule.warmup_steps is not None:
            del fields["schedule"]["warmup_frac"]  # resolved into warmup_steps
        fields["data"]["row_stride"] = self.data.stride
        return fields | {"shape": self.shape._asdict()}


def override(base: RunConfig, changes: Mapping[str, Any]) -> RunConfig:
    """Apply dotted or nested `changes` to `base`; validate the whole tree once, after all of them.

    Raises ConfigError with every problem at once.
    """
    tree: dict[str, Any] = base.model_dump(mode="json")
    problems: list[str] = []
    for path, value in _flat(changes):
        problem = _put(tree, path, value)
        if problem:
            problems.append(problem)
    try:
        config = RunConfig.model_validate(tree)
    except ValidationError as error:
        problems += sentences(error, field_names())
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    return config


def later_wins(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge several sets of changes field by field; the last set that names a field decides it.

    A size replaces the shape of earlier sets; another objective, optimizer or kind of average drops
    the options of earlier ones.
    """
    changes: dict[str, Any] = {}
    for part in parts:
        flat = _flat(part)
        named = dict(flat)
        if "size" in named:
            changes = {k: v for k, v in changes.items() if not k.startswith("size.")}
        for field, key in CHOICES.items():
            name = named.get(f"{field}.{key}", named.get(field))
            before = changes.get(f"{field}.{key}", changes.get(field))
            if name is not None and before not in (None, name):
                changes = {k: v for k, v in changes.items() if k.split(".")[0] != field}
        for path, value in flat:
            changes.pop(path, None)  # its place is that of the last
            changes[path] = value
    return changes


def field_names() -> list[str]:
    """List every dotted field of the tree, without options of plug-ins (their names set them)."""
    found: list[str] = []
    for name, info in RunConfig.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, Frozen):
            found += [f"{name}.{inner}" for inner in kind.model_fields]
        else:
            found.append(name)
    shape = (f"size.{inner}" for inner in ShapeConfig.model_fields)
    return [*found, *shape, *(f"{field}.name" for field in PLUGGED)]


def _flat(changes: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for key, value in changes.items():
        if isinstance(value, Mapping) and f"{prefix}{key}" != "size":
            pairs += _flat(value, f"{prefix}{key}.")
        else:
            pairs.append((f"{prefix}{key}", value))
    return sorted(pairs, key=lambda pair: pair[0] not in {*NAMES, "size"})


def _put(tree: dict[str, Any], path: str, value: Any) -> str | None:
    """Write one change into the tree; return an error sentence if there is no such field."""
    *parents, leaf = path.split(".")
    field = path.split(".")[0]
    if path in NAMES:
        key = CHOICES[field]
        if value != tree[field][key]:
            tree[field] = {key: value}  # another choice's options do not carry over
        return None
    if parents == ["size"]:
        if leaf not in ShapeConfig.model_fields:
            return f'"{path}" is not a field{did_you_mean(path, field_names())}'
        if isinstance(tree["size"], str) and tree["size"] in SIZES:
            tree["size"] = SIZES[tree["size"]]._asdict()
        if isinstance(tree["size"], Mapping):  # else the size itself is refused, once
            tree["size"] = {**tree["size"], leaf: value}
        return None
    if len(parents) == 1 and field in PLUGGED:
        tree[field][leaf] = value
        return None
    if path not in field_names():
        return f'"{path}" is not a field{did_you_mean(path, field_names())}'
    node = tree
    for part in parents:
        node = node[part]
    node[leaf] = value
    return None
