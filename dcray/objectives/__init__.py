"""The objective protocol: the loss, and the meaning of val_loss. One file here is one objective.

A plug-in is a frozen class with the attributes and the two methods of `Objective`; its methods get
a model, a batch and one key per row, and never a rank, a step or a run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from dcray.config.sections import Frozen

if TYPE_CHECKING:
    from torch import Tensor


class Model(Protocol):
    """The interface of a model that an objective may use."""

    def __call__(
        self,
        tokens: Tensor,  # (B, T) int64
        *,
        causal: bool,
        key: Tensor | None = None,  # (B,) int64: dropout is on, keyed by it; None: dropout is off
        targets: Tensor | None = None,  # (B, T) int64
    ) -> Tensor:
        """Compute logits (B, T, V_padded), or with `targets` each one's nats (B, T), float32."""
        ...


@dataclass(frozen=True)
class Batch:
    """The rows of one micro-batch on one rank."""

    tokens: Tensor  # (B, T+1) int64
    real: Tensor  # (B,) float, 1 or 0: a padding row counts for nothing
    mask_id: int
    text_bytes: Tensor | None = None  # (B, T+1): source bytes of each token, -1 for <|endoftext|>

    @property
    def inputs(self) -> Tensor:
        return self.tokens[:, :-1]

    @property
    def targets(self) -> Tensor:
        return self.tokens[:, 1:]

    @property
    def seq_len(self) -> int:
        return int(self.tokens.shape[1]) - 1


@dataclass(frozen=True)
class LossTerm:
    """Summed nats and their number of tokens; divided once, by the global count."""

    name: str
    weight: float
    nats: Tensor  # (): summed over the batch's real rows
    num_tokens: Tensor  # ()
    text_nats: Tensor | None = None  # the same without <|endoftext|> targets, for bits per byte
    text_bytes: Tensor | None = None
    variance: Tensor | None = None  # of nats by the random draws, estimated; None: not drawn


class Objective(Frozen):
    """The base of an objective: a frozen configuration that yields loss terms."""

    kind: ClassVar[str] = "objectives"
    causal: ClassVar[bool] = True
    keeps_best: ClassVar[bool] = (
        False  # val_loss is the best epoch's, scored again with fresh draws
    )
    bound: ClassVar[str | None] = None  # "upper bound" if val_loss is one

    @property
    def num_passes(self) -> float:
        """Count the forward-backward passes over each row, for FLOPs."""
        return 1.0

    @property
    def num_validation_passes(self) -> float:
        """Count the forward passes over each validation row, for FLOPs."""
        return 1.0

    def options(self) -> dict[str, Any]:
        """Return the options as JSON, defaults written out."""
        return self.model_dump(mode="json")

    def final(self) -> Objective:
        """Return the objective for the last scoring of a kept checkpoint (more draws, say)."""
        return self

    def terms(self, model: Model, batch: Batch, key: Tensor) -> Iterator[LossTerm]:
        """Yield the loss terms of a batch in turn, so that each graph is freed before the next.

        key: (B,) int64, one key per (seed, epoch, row id): all randomness is drawn from it.
        """
        raise NotImplementedError

    def validation(self, model: Model, batch: Batch, key: Tensor) -> LossTerm:
        """Compute the term whose nats / num_tokens is val_loss; `key` as in `terms`."""
        raise NotImplementedError


def no_ensemble(objective: Objective) -> str:
    """Say why models of this objective cannot be averaged in an ensemble, "" if they can.

    What each member gives a target must be a probability, of which the loss is the negative log.
    """
    if objective.bound:
        return f"its loss is an {objective.bound}, which knows no probability of a target"
    if objective.keeps_best or not objective.causal:
        return "its loss is not the next-token loss of the final weights"
    return ""


def faults(found: Any) -> list[str]:
    """List what a plug-in lacks of an objective, each as the end of a sentence."""
    return [
        f"must define {method}(self, model, batch, key), as dcray.objectives.Objective says"
        for method in ("terms", "validation")
        if getattr(found, method, None) in (None, getattr(Objective, method))
    ]


def tally(
    name: str,
    nats: Tensor,  # (B, T)
    batch: Batch,
    *,
    weight: float = 1.0,
    text_bytes: Tensor | None = None,  # (B, T): of the tokens that the nats belong to
) -> LossTerm:
    """Sum nats over real rows and count the tokens; with `text_bytes` also over the text alone."""
    rows = batch.real.to(nats.dtype)
    num_tokens = rows.sum() * nats.shape[1]
    if text_bytes is None:
        return LossTerm(name, weight, (nats.sum(1) * rows).sum(), num_tokens)
    nats = nats.double() * rows.double()[:, None]
    is_text = text_bytes >= 0
    return LossTerm(
        name,
        weight,
        nats.sum(),
        num_tokens,
        text_nats=(nats * is_text).sum(),
        text_bytes=(text_bytes * is_text * (rows > 0)[:, None]).sum(),
    )
