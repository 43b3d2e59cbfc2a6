"""The sections of a configuration: frozen, validated values, each with its own rules."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)

from dcray.config.counts import parse_count
from dcray.errors import ConfigError

ABSURD_NATS = 100.0  # no language model is worse: a uniform one over 2^144 ids would be

TokenCount = Annotated[int, BeforeValidator(parse_count), Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]


class Frozen(BaseModel):
    """Base of a section: no field can be changed, and unknown fields are refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def _no_boolean_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse a boolean for a number: Python takes true as 1, but here it is a mistake."""
        assert info.field_name is not None
        kind = str(cls.model_fields[info.field_name].annotation)
        if isinstance(value, bool) and "bool" not in kind:
            raise ValueError("input should be no true or false")
        return value


def rows_in(num_tokens: int, seq_len: int, stride: int) -> int:
    """Count the rows of seq_len + 1 tokens, `stride` apart, in a stream of `num_tokens`."""
    return max(0, (num_tokens - seq_len - 1) // stride + 1)


def batch_problems(batch_size: int, workers: int, microbatch_size: int | None) -> list[str]:
    """Explain why this batch cannot be split over workers and micro-batches; name the nearest."""
    unit = workers * (microbatch_size or 1)
    if batch_size % unit == 0:
        return []
    below, above = batch_size // unit * unit, (batch_size // unit + 1) * unit
    nearest = f"{below} or {above}" if below else f"{above}"
    rule = "a multiple of runtime.workers * runtime.microbatch_size"
    product = f"{workers} * {microbatch_size or 1} = {unit}"
    return [f"batch_size ({batch_size}) must be {rule} ({product}); nearest: {nearest}"]


def batch_warning(batch_size: int, num_rows: int) -> str:
    """Format a warning for a batch of more than all rows, with a remedy; "" if it is not."""
    if batch_size <= num_rows:
        return ""
    epoch, smaller = num_rows / batch_size, 1 << max(0, (num_rows // 16).bit_length() - 1)
    return (
        f"batch_size ({batch_size:,}) is more than the {num_rows:,} rows that are trained on: an "
        f"epoch is {epoch:.2g} of a step, and a step sees rows more than once; try batch_size="
        f"{smaller}, or get more rows by a larger data.unique_tokens or a shorter data.seq_len"
    )


class ShapeConfig(Frozen):
    """The shape of the transformer, written out in place of a size's name."""

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


Size = Annotated[
    Annotated[str, Tag("NAME")] | Annotated[ShapeConfig, Tag("TABLE")],
    Discriminator(lambda size: "NAME" if isinstance(size, str) else "TABLE"),
]


class ModelConfig(Frozen):
    """The paper's transformer; its shape is `size`."""

    vocab_size: int | None = Field(None, gt=1)  # None: the corpus's own
    dropout: float = Field(0.1, ge=0, lt=1)  # on the attention output alone
    window_pattern: str = Field("SSSL", pattern=r"^[SL]+$")
    rope_base: float = Field(10_000.0, gt=0)
    norm_eps: float = Field(1e-5, gt=0)


class OptimConfig(Frozen):
    """The settings of every optimizer; only matrices and the head are decayed."""

    lr: float = Field(1e-3, gt=0, allow_inf_nan=False)
    weight_decay: float = Field(1.6, ge=0, allow_inf_nan=False)
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (
        0.9,
        0.95,
    )  # of AdamW, as is eps
    eps: float = Field(1e-8, gt=0)
    max_grad_norm: float = Field(1.0, gt=0)


class ScheduleConfig(Frozen):
    """Warmup, then stable and linear decay ("wsd") or a cosine; lengths are shares of all steps."""

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

    def refuse_long_warmup(self, num_steps: int, num_epochs: int) -> None:
        """Raise ConfigError if the learning rate would still rise when its decay is due."""
        decays_at = round((1 - (self.decay_frac if self.kind == "wsd" else 0.0)) * num_steps)
        if self.warmup_steps is not None and self.warmup_steps > max(1, decays_at):
            raise ConfigError(
                f"schedule.warmup_steps ({self.warmup_steps:,}) must end before the decay begins, "
                f"at step {decays_at:,} of {num_steps:,} (num_epochs = {num_epochs}): lower it, "
                "or leave it out and schedule.warmup_frac gives it"
            )


class DataConfig(Frozen):
    """The tokens that are read, and how they are cut into rows."""

    unique_tokens: TokenCount = 100_000_000
    seq_len: int = Field(2048, ge=2)
    row_stride: int | None = Field(
        None, ge=1
    )  # None: seq_len; seq_len + 1: the authors' disjoint rows
    order: Literal["rows", "documents", "paper"] = "rows"  # what is shuffled every epoch
    paper_unit: int | None = Field(None, ge=1)  # rows that stay together under order = "paper"
    val_tokens: TokenCount | None = None  # None: the whole validation set

    @model_validator(mode="after")
    def _rows_fit(self) -> DataConfig:
        if self.row_stride not in (None, self.seq_len, self.seq_len + 1):
            raise ValueError(
                f"data.row_stride must be data.seq_len ({self.seq_len}) or one more, "
                f"got {self.row_stride}"
            )
        if self.order == "paper" and self.row_stride != self.seq_len + 1:
            raise ValueError(
                'data.order = "paper" needs the authors\' disjoint rows: '
                f"set data.row_stride = {self.seq_len + 1}, got {self.row_stride}"
            )
        if self.paper_unit is not None and self.order != "paper":
            raise ValueError(
                'data.paper_unit is read only under data.order = "paper"; leave it out'
            )
        if self.num_rows < 1:
            raise ValueError(
                "data.unique_tokens must hold one row of data.seq_len + 1 = "
                f"{self.seq_len + 1} tokens, got {self.unique_tokens}"
            )
        return self

    @property
    def stride(self) -> int:
        return self.row_stride or self.seq_len

    @property
    def num_rows(self) -> int:
        """Count an epoch's rows: floor((budget - 1) / T); disjoint: floor(budget / (T + 1))."""
        return rows_in(self.unique_tokens, self.seq_len, self.stride)


def _rising(epochs: Any) -> Any:
    if isinstance(epochs, tuple) and list(epochs) != sorted(set(epochs)):
        raise ValueError("must rise")
    return epochs


class ValidationConfig(Frozen):
    """When the whole validation set is scored; the end of the schedule always is.

    epochs: "auto" (as often as `max_cost_frac` allows), "end", a number (every so many), or a list.
    max_cost_frac: of the training FLOPs; for "auto" alone. None: 0.1 if the best epoch is kept,
    else 0.01, or up to 0.1 for four points of a curve.
    """

    epochs: Annotated[
        Literal["auto", "end"]
        | Annotated[int, Field(ge=1)]
        | tuple[Annotated[int, Field(ge=1)], ...],
        AfterValidator(_rising),
    ] = "auto"
    max_cost_frac: float | None = Field(None, gt=0)


class RuntimeConfig(Frozen):
    """The device and the manner of a run: they change rounding at most, not its identity."""

    workers: Annotated[int, Field(ge=1)] | Literal["auto"] = 1
    # of a GPU, for a run of one process: several runs share the card. "auto": as they fit
    gpu_share: Annotated[float, Field(gt=0, le=1)] | Literal["auto"] = 1.0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["auto", "float32", "bfloat16", "float64"] = "auto"  # bf16 compute on a GPU
    threads: int = Field(1, ge=1)  # of one CPU worker; from the study, never from the machine
    microbatch_size: int | None = Field(None, ge=1)  # None: the largest that fits
    compile: bool | Literal["auto"] = "auto"  # on a GPU
    capture: bool | Literal["auto"] = "auto"  # steps as CUDA graphs, if that measures faster
    stream: Literal["auto", "resident", "pipeline"] = "auto"
    checkpoint_seconds: float = Field(60.0, ge=0)
    hang_seconds: float = Field(600.0, ge=5)  # a silent rank is named and the run tried again
    keep_checkpoints: int = Field(2, ge=1)
    report_seconds: float = Field(2.0, ge=0)
    num_points: int = Field(200, ge=1)  # of the training curve

    @property
    def num_devices(self) -> float:
        """Count the devices that a placed run holds: a share of a GPU counts as such."""
        workers = self.workers if isinstance(self.workers, int) else 1
        if self.device != "cuda" or isinstance(self.gpu_share, str):
            return float(workers)
        return workers * self.gpu_share

    @model_validator(mode="after")
    def _one_process_shares(self) -> RuntimeConfig:
        if self.workers != 1 and self.gpu_share not in (1.0, "auto"):
            raise ValueError(
                f"runtime.gpu_share ({self.gpu_share:g}) is for a run of one process; it must be 1 "
                f"with runtime.workers = {self.workers}"
            )
        return self
