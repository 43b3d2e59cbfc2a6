"""RunConfig: one frozen, validated tree for everything that makes a run; override() is the one door.

Defaults are the paper's 257M AR recipe at 100M unique tokens. No value is defaulted anywhere else.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from dcray import plugins
from dcray.errors import ConfigError, did_you_mean
from dcray.sizes import SIZES, Shape

COUNT_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}

# What changes the result by rounding at most, and the seed: left out of a configuration's identity.
# Validation epochs are left out too, unless the objective keeps its best epoch.
NOT_IDENTITY = ("seed", "runtime", "size")


def parse_count(value: Any) -> Any:
    """100_000_000 from "100m", 64_000 from "64k"; k, m and b are powers of ten. Others pass unchanged."""
    if isinstance(value, str):
        match = re.fullmatch(r"([\d_]+(?:\.\d+)?)\s*([kmb]?)", value.strip().lower())
        if match:
            count = float(match[1].replace("_", "")) * COUNT_UNITS[match[2]]
            if count == round(count):
                return round(count)
        raise ValueError('must be a count such as 64000, "64k", "100m" or "1.5b"')
    return value


def count_label(count: int) -> str:
    """The shortest exact label: 64_000 -> "64k", 100_000_000 -> "100m"."""
    for unit, factor in (("b", 10**9), ("m", 10**6), ("k", 10**3)):
        if count >= factor and count * 1000 % factor == 0:
            return f"{count / factor:g}{unit}"
    return str(count)


TokenCount = Annotated[int, BeforeValidator(parse_count), Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Frozen(BaseModel):
    """A value: no field can be changed, no unknown field is taken."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class ShapeConfig(Frozen):
    """The shape of the transformer, written out; a size's name stands for one."""

    dim: int = Field(gt=0)
    num_layers: int = Field(gt=0)
    num_heads: int = Field(gt=0)
    mlp_dim: int = Field(gt=0)

    @model_validator(mode="after")
    def _heads_fit(self) -> ShapeConfig:
        if self.dim % self.num_heads or self.dim // self.num_heads % 2:
            raise ValueError(
                f"size.dim must be an even multiple of size.num_heads (rotary pairs), "
                f"got {self.dim} and {self.num_heads}"
            )
        return self


class ObjectiveConfig(BaseModel):
    """The objective's name and its options; the plug-in itself says which options there are."""

    model_config = ConfigDict(frozen=True, extra="allow")
    name: str = "ar"

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, value: Any) -> Any:
        """A bare name is a table; options the plug-in defaults are written out, so that they are hashed."""
        if isinstance(value, str):
            value = {"name": value}
        if not isinstance(value, Mapping):
            return value
        name = value.get("name", "ar")
        try:
            built = plugins.load("objectives", name, **{k: v for k, v in value.items() if k != "name"})
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return {"name": name, **built.options()}

    def build(self) -> Any:
        """The objective, ready to be asked for its terms."""
        return plugins.load("objectives", self.name, **(self.model_extra or {}))


class ModelConfig(Frozen):
    """The paper's transformer; its shape is `size`."""

    vocab_size: int | None = Field(None, gt=1)  # None: the corpus's own
    dropout: float = Field(0.1, ge=0, lt=1)  # on the attention output alone
    window_pattern: str = Field("SSSL", pattern=r"^[SL]+$")
    rope_base: float = Field(10_000.0, gt=0)
    norm_eps: float = Field(1e-5, gt=0)


class OptimConfig(Frozen):
    """AdamW; decay applies to matrices and the head, not to the embedding nor the norms."""

    lr: float = Field(1e-3, gt=0, allow_inf_nan=False)
    weight_decay: float = Field(1.6, ge=0, allow_inf_nan=False)
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.95)
    eps: float = Field(1e-8, gt=0)
    max_grad_norm: float = Field(1.0, gt=0)


class ScheduleConfig(Frozen):
    """Warmup, then stable and linear decay ("wsd") or a cosine; lengths are fractions of all steps."""

    kind: Literal["wsd", "cosine"] = "wsd"
    warmup_frac: Fraction = 0.01
    warmup_steps: int | None = Field(None, ge=1)  # None: from warmup_frac, resolved before hashing
    decay_frac: Fraction = 0.10
    min_lr_frac: Fraction = 0.01

    @model_validator(mode="after")
    def _fractions_fit(self) -> ScheduleConfig:
        if self.warmup_frac + self.decay_frac > 1:
            raise ValueError(
                "schedule.warmup_frac + schedule.decay_frac must be <= 1, "
                f"got {self.warmup_frac} + {self.decay_frac}"
            )
        return self


class DataConfig(Frozen):
    """Which tokens are read, and how they are cut into rows."""

    unique_tokens: TokenCount = 100_000_000
    seq_len: int = Field(2048, ge=2)
    row_stride: int | None = Field(None, ge=1)  # None: seq_len; seq_len + 1: the authors' disjoint rows
    order: Literal["rows", "paper"] = "rows"
    paper_unit: int | None = Field(None, ge=1)  # rows that stay together under order = "paper"
    val_tokens: TokenCount | None = None  # None: the whole validation set

    @model_validator(mode="after")
    def _rows_fit(self) -> DataConfig:
        if self.row_stride not in (None, self.seq_len, self.seq_len + 1):
            raise ValueError(
                f"data.row_stride must be data.seq_len ({self.seq_len}) or one more, got {self.row_stride}"
            )
        if self.order == "paper" and self.row_stride != self.seq_len + 1:
            raise ValueError(
                'data.order = "paper" needs the authors\' disjoint rows: '
                f"set data.row_stride = {self.seq_len + 1}, got {self.row_stride}"
            )
        if self.paper_unit is not None and self.order != "paper":
            raise ValueError('data.paper_unit is read only under data.order = "paper"; leave it out')
        if self.num_rows < 1:
            raise ValueError(
                f"data.unique_tokens must hold one row of data.seq_len + 1 = {self.seq_len + 1} tokens, "
                f"got {self.unique_tokens}"
            )
        return self

    @property
    def stride(self) -> int:
        return self.row_stride or self.seq_len

    @property
    def num_rows(self) -> int:
        """Rows of a training epoch: floor((budget - 1) / T), or floor(budget / (T + 1)) for disjoint rows."""
        return rows_in(self.unique_tokens, self.seq_len, self.stride)


def _rising(epochs: Any) -> Any:
    if isinstance(epochs, tuple) and list(epochs) != sorted(set(epochs)):
        raise ValueError(f"must rise, got {list(epochs)}")
    return epochs


class ValidationConfig(Frozen):
    """When the whole validation set is scored; the end of the schedule always is.

    epochs: "auto" (as often as `max_cost_frac` allows), "end", a number (every so many epochs), or a list.
    """

    epochs: Annotated[
        Literal["auto", "end"] | Annotated[int, Field(ge=1)] | tuple[Annotated[int, Field(ge=1)], ...],
        AfterValidator(_rising),
    ] = "auto"
    max_cost_frac: float = Field(0.1, gt=0)  # of the training FLOPs; read by "auto" alone


class RuntimeConfig(Frozen):
    """Where and how a run is computed; changes its result by rounding at most, so no part of its identity."""

    workers: Annotated[int, Field(ge=1)] | Literal["auto"] = 1
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["auto", "float32", "bfloat16", "float64"] = "auto"  # bf16 compute on a GPU
    threads: int = Field(1, ge=1)  # of one CPU worker; from the study, never from the machine
    microbatch_size: int | None = Field(None, ge=1)  # None: the largest that fits
    compile: bool | Literal["auto"] = "auto"  # on a GPU
    stream: Literal["auto", "resident", "pipeline"] = "auto"
    checkpoint_seconds: float = Field(60.0, ge=0)
    keep_checkpoints: int = Field(2, ge=1)
    report_seconds: float = Field(2.0, ge=0)
    num_points: int = Field(200, ge=1)  # of the training curve


class RunConfig(Frozen):
    """One run: a size, an objective, and how it is trained on which tokens."""

    size: str | ShapeConfig = "257m"
    objective: ObjectiveConfig = Field(default_factory=ObjectiveConfig)
    num_epochs: int = Field(16, ge=1)
    batch_size: int = Field(128, ge=1)  # sequences per optimizer step, all ranks
    seed: int = Field(42, ge=0, lt=2**31)
    model: ModelConfig = ModelConfig()
    optim: OptimConfig = OptimConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    data: DataConfig = DataConfig()
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
        runtime = self.runtime
        if runtime.workers == "auto":
            return self
        problems = batch_problems(self.batch_size, runtime.workers, runtime.microbatch_size)
        unit = self.data.paper_unit
        if unit and self.batch_size % unit:
            problems.append(
                f"data.paper_unit ({unit}) must divide batch_size ({self.batch_size}): a batch is whole units"
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
        """The size's name, or "dim32-layers2-heads2-mlp96" for a shape that has none."""
        shape = self.shape
        named = [name for name, known in SIZES.items() if known == shape]
        return named[0] if named else "dim{}-layers{}-heads{}-mlp{}".format(*shape)

    @property
    def usable_rows(self) -> int:
        """Rows that train in every epoch: all, or whole units under order = "paper"."""
        rows = self.data.num_rows
        if self.data.order == "paper":
            unit = self.data.paper_unit or self.batch_size
            return rows // unit * unit
        return rows

    @property
    def unique_tokens(self) -> int:
        """U: the targets of one epoch."""
        return self.data.num_rows * self.data.seq_len

    @property
    def num_steps(self) -> int:
        """ceil(E * rows / B): batches run across epoch borders, the last one is short."""
        return -(-self.num_epochs * self.usable_rows // self.batch_size)

    @property
    def train_tokens(self) -> int:
        """D: targets seen over the whole schedule."""
        return self.num_epochs * self.usable_rows * self.data.seq_len

    @property
    def tau(self) -> float:
        """The decay timescale in epochs: batch_tokens / (lr * weight_decay * unique_tokens)."""
        product = self.optim.lr * self.optim.weight_decay * self.unique_tokens
        return self.batch_size * self.data.seq_len / product if product else math.inf

    def resolved(self, *, vocab_size: int, longest_epochs: int | None = None) -> RunConfig:
        """The same with what the corpus and the space decide written out: vocabulary and warm-up steps."""
        schedule = self.schedule
        if schedule.warmup_steps is None:
            longest = self.model_copy(update={"num_epochs": longest_epochs or self.num_epochs})
            steps = max(1, round(schedule.warmup_frac * longest.num_steps))
            schedule = schedule.model_copy(update={"warmup_steps": steps})
        model = self.model.model_copy(update={"vocab_size": vocab_size})
        return self.model_copy(update={"schedule": schedule, "model": model})

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; RunConfig.model_validate of it gives the same value."""
        return self.model_dump(mode="json")

    def identity(self, reads: str) -> str:
        """The hash (16 hex digits) of the configuration and of what it reads (Corpus.reads)."""
        return hashlib.sha256(
            json.dumps([self.identity_fields(), reads], sort_keys=True).encode()
        ).hexdigest()[:16]

    def identity_fields(self) -> dict[str, Any]:
        """What makes this configuration another one; the shape stands for the size's name."""
        fields = {k: v for k, v in self.to_dict().items() if k not in NOT_IDENTITY}
        if not self.objective.build().keeps_best:
            del fields["validation"]
        return fields | {"shape": self.shape._asdict()}


def rows_in(num_tokens: int, seq_len: int, stride: int) -> int:
    """How many rows of seq_len + 1 tokens, `stride` apart, a stream of `num_tokens` holds."""
    return max(0, (num_tokens - seq_len - 1) // stride + 1)


def batch_problems(batch_size: int, workers: int, microbatch_size: int | None) -> list[str]:
    """Why this batch cannot be cut over workers and micro-batches; names the nearest sizes that can."""
    unit = workers * (microbatch_size or 1)
    if batch_size % unit == 0:
        return []
    below, above = batch_size // unit * unit, (batch_size // unit + 1) * unit
    nearest = f"{below} or {above}" if below else f"{above}"
    return [
        f"batch_size ({batch_size}) must be a multiple of runtime.workers * runtime.microbatch_size "
        f"({workers} * {microbatch_size or 1} = {unit}); nearest: {nearest}"
    ]


def override(base: RunConfig, changes: Mapping[str, Any]) -> RunConfig:
    """`base` with dotted or nested `changes`, the whole tree validated once, after all of them.

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
        problems += [_sentence(detail) for detail in error.errors()]
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    return config


def parse_assignments(assignments: list[str]) -> dict[str, Any]:
    """{"optim.lr": 0.003} from ["optim.lr=3e-3"]: the value is TOML, or a plain string where it is none."""
    changes: dict[str, Any] = {}
    for text in assignments:
        path, equals, value = text.partition("=")
        if not equals or not path.strip():
            raise ConfigError(f'an override is written field=value, got "{text}"')
        try:
            changes[path.strip()] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            changes[path.strip()] = value.strip()
    return changes


def read_toml(path: str | Path) -> dict[str, Any]:
    """A TOML file's table; a ConfigError that names the file and the line where it cannot be read."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def field_names() -> list[str]:
    """Every dotted field of the tree; the objective's options depend on its name and are not among them."""
    found: list[str] = []
    for name, info in RunConfig.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, Frozen):
            found += [f"{name}.{inner}" for inner in kind.model_fields]
        else:
            found.append(name)
    return [*found, *(f"size.{inner}" for inner in ShapeConfig.model_fields), "objective.name"]


def _flat(changes: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for key, value in changes.items():
        if isinstance(value, Mapping) and f"{prefix}{key}" != "size":
            pairs += _flat(value, f"{prefix}{key}.")
        else:
            pairs.append((f"{prefix}{key}", value))
    return sorted(pairs, key=lambda pair: pair[0] not in ("objective", "objective.name", "size"))


def _put(tree: dict[str, Any], path: str, value: Any) -> str | None:
    """Write one change into the tree; returns a sentence where there is no such field."""
    *parents, leaf = path.split(".")
    if path in ("objective", "objective.name"):
        name = value if path == "objective.name" or not isinstance(value, Mapping) else value.get("name")
        if name != tree["objective"]["name"]:
            tree["objective"] = {"name": name}  # another objective's options do not carry over
        return None
    if parents == ["size"]:
        if isinstance(tree["size"], str):
            tree["size"] = SIZES[tree["size"]]._asdict() if tree["size"] in SIZES else {}
        if leaf not in ShapeConfig.model_fields:
            return f'"{path}" is not a field{did_you_mean(path, field_names())}'
        tree["size"][leaf] = value
        return None
    if parents == ["objective"]:
        tree["objective"][leaf] = value
        return None
    if path not in field_names():
        return f'"{path}" is not a field{did_you_mean(path, field_names())}'
    node = tree
    for part in parents:
        node = node[part]
    node[leaf] = value
    return None


def _sentence(detail: Any) -> str:
    """One pydantic error as a sentence that names the field, the rule and the value."""
    steps = [str(step) for step in detail["loc"]]
    path = ".".join(step for step in steps if re.fullmatch(r"[a-z_]+|\d+", step))
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] == "extra_forbidden":
        return f'"{path}" is not a field{did_you_mean(path, field_names())}'
    if not path or message.startswith((path, path.split(".")[0] + ".")) or "is called" in message:
        return message
    return f"{path}: {message[:1].lower()}{message[1:]}, got {detail['input']!r}"
