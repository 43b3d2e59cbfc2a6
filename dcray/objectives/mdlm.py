"""Masked diffusion: the negative evidence lower bound of a bidirectional model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from dcray.objectives import Batch, LossTerm, Model, Objective, tally
from dcray.rng import keyed
from dcray.rng.masking import mask_positions, uniform

if TYPE_CHECKING:
    from torch import Tensor


class MDLM(Objective):
    """-(1/nT) sum_i (1/r_i) sum_t [x_t is masked] log p(x_t | masked x), paper section 2.2.

    r = (1 - eps) u + eps with u uniform: with r down to 0 the gradient's variance is infinite.
    Targets are the row's inputs, its first token included, so the loss is over other tokens than
    AR's, and an upper bound on their negative log-likelihood. Validation averages `draws` masks a
    row; the kept checkpoint is scored again with `final_draws`. The draws form a few independent
    sets, from which the error of the mean is estimated; in each, the u are stratified over (0, 1].
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
        num_sets = self.num_sets
        sets = [self._set(model, batch, keyed.derive(key, keyed.DRAW + i)) for i in range(num_sets)]
        mean = sum(sets[1:], sets[0]) / num_sets
        term = tally("mdlm", mean, batch, text_bytes=text_bytes)
        if num_sets == 1:
            return term
        squares = [((nats - mean).sum(1) * batch.real).square().sum() for nats in sets]
        return replace(term, variance=sum(squares[1:], squares[0]) / (num_sets - 1) / num_sets)

    @property
    def num_sets(self) -> int:
        """Count the independent sets of draws: of four draws each if that divides, else of more."""
        fours = [n for n in range(self.draws // 4, 1, -1) if self.draws % n == 0]
        return (
            fours[0]
            if fours
            else next((n for n in range(2, self.draws + 1) if self.draws % n == 0), 1)
        )

    def _set(self, model: Model, batch: Batch, key: Tensor) -> Tensor:
        """Average over a set of draws, their u stratified and shifted together: (B, T) float64."""
        size = self.draws // self.num_sets
        offset = uniform(key, keyed.RATIO)
        total = sum(
            self._weighted_nats(model, batch, keyed.derive(key, keyed.DRAW + draw), ratios, None)
            for draw in range(size)
            for ratios in [self.ratios((draw + offset) / size)]
        )
        return total.double() / size  # type: ignore[union-attr]

    def ratios(self, u: Tensor) -> Tensor:
        """Compute mask ratios (B,) from uniform draws (B,): r = (1 - eps) u + eps."""
        return (1 - self.eps) * u + self.eps

    def _weighted_nats(
        self, model: Model, batch: Batch, key: Tensor, ratios: Tensor, dropout: Tensor | None
    ) -> Tensor:
        """Compute nats / r at masked tokens, else 0: (B, T)."""
        hidden = mask_positions(key, ratios, batch.seq_len)
        inputs = batch.inputs.masked_fill(hidden, batch.mask_id)
        nats = model(inputs, causal=False, key=dropout, targets=batch.inputs)
        return nats * hidden / ratios.to(nats.dtype)[:, None]


PLUGIN = MDLM
