"""Masked diffusion: the negative evidence lower bound of a bidirectional model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from dcray.objectives import Batch, LossTerm, Model, Objective, tally
from dcray.train import keyed
from dcray.train.masking import mask_positions, uniform

if TYPE_CHECKING:
    from torch import Tensor


class MDLM(Objective):
    """-(1/nT) sum_i (1/r_i) sum_t [x_t is masked] log p(x_t | masked x), paper section 2.2.

    r = (1 - eps) u + eps with u uniform: with r down to 0 the gradient's variance is infinite.
    Targets are the row's inputs, its first token included, so the loss is over other tokens than
    AR's, and an upper bound on their negative log-likelihood. Validation averages `draws` masks a
    row, their u stratified over (0, 1]; the kept checkpoint is scored again with `final_draws`.
    """

    causal: ClassVar[bool] = False
    keeps_best: ClassVar[bool] = True
    bound: ClassVar[str | None] = "upper bound"

    eps: float = Field(1e-3, gt=0, lt=1)
    draws: int = Field(4, ge=1)
    final_draws: int = Field(32, ge=1)

    @property
    def num_validation_passes(self) -> float:
        return float(self.draws)

    def final(self) -> MDLM:
        return self.model_copy(update={"draws": self.final_draws})

    def terms(self, model: Model, batch: Batch, key: Tensor) -> Iterator[LossTerm]:
        ratios = self.ratios(uniform(key, keyed.RATIO))
        dropout = keyed.derive(key, keyed.MASKED_DROPOUT)
        yield tally("mdlm", self._weighted_nats(model, batch, key, ratios, dropout), batch)

    def validation(self, model: Model, batch: Batch, key: Tensor) -> LossTerm:
        text_bytes = None if batch.text_bytes is None else batch.text_bytes[:, :-1]
        offset = uniform(key, keyed.RATIO)
        nats = sum(
            self._weighted_nats(model, batch, keyed.derive(key, keyed.DRAW + draw), ratios, None)
            for draw in range(self.draws)
            for ratios in [self.ratios((draw + offset) / self.draws)]
        )
        return tally("mdlm", nats.double() / self.draws, batch, text_bytes=text_bytes)  # type: ignore[union-attr]

    def ratios(self, u: Tensor) -> Tensor:
        """Mask ratios (B,) of uniform draws (B,)."""
        return (1 - self.eps) * u + self.eps

    def _weighted_nats(
        self, model: Model, batch: Batch, key: Tensor, ratios: Tensor, dropout: Tensor | None
    ) -> Tensor:
        """(B, T): nats / r where a token is masked, else 0."""
        hidden = mask_positions(key, ratios, batch.seq_len)
        inputs = batch.inputs.masked_fill(hidden, batch.mask_id)
        nats = model(inputs, causal=False, key=dropout, targets=batch.inputs)
        return nats * hidden / ratios.to(nats.dtype)[:, None]


PLUGIN = MDLM
