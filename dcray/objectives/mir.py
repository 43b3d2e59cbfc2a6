"""Masked-input regularization: next-token prediction, and the same on randomly masked inputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import Field, model_validator

from dcray.objectives import Batch, LossTerm, Model, Objective, tally
from dcray.objectives.ar import AR
from dcray.rng import keyed
from dcray.rng.masking import mask_positions, mask_ratios

if TYPE_CHECKING:
    from torch import Tensor


class MIR(Objective):
    """L = L_NTP(x) + weight * L_NTP(masked x), r ~ U(mask_ratio_min, mask_ratio_max), section 3.2.

    Targets are never masked and the masked term is averaged over all T positions. With `mixed` the
    clean term is weighted by 1 - weight. Inputs before `mask_from` are never masked (the paper: 0;
    the released trainer: 8).
    """

    weight: float = Field(0.4, ge=0, allow_inf_nan=False)
    mask_ratio_min: float = Field(0.0, ge=0, le=1)
    mask_ratio_max: float = Field(0.5, ge=0, le=1)
    mixed: bool = False
    mask_from: int = Field(0, ge=0)

    @model_validator(mode="after")
    def _ranges_fit(self) -> MIR:
        if self.mask_ratio_min > self.mask_ratio_max:
            raise ValueError(
                "objective.mask_ratio_min must be <= objective.mask_ratio_max, "
                f"got {self.mask_ratio_min} and {self.mask_ratio_max}"
            )
        if self.mixed and self.weight > 1:
            raise ValueError(
                f"objective.weight must be <= 1 with objective.mixed, got {self.weight}"
            )
        return self

    @property
    def num_passes(self) -> float:
        return 1.0 + (self.weight > 0)

    def terms(self, model: Model, batch: Batch, key: Tensor) -> Iterator[LossTerm]:
        dropout = keyed.derive(key, keyed.CLEAN_DROPOUT)
        nats = model(batch.inputs, causal=True, key=dropout, targets=batch.targets)
        yield tally("ar", nats, batch, weight=1 - self.weight if self.mixed else 1.0)
        if self.weight == 0:
            return
        inputs = self.masked_inputs(batch, key)
        dropout = keyed.derive(key, keyed.MASKED_DROPOUT)
        nats = model(inputs, causal=True, key=dropout, targets=batch.targets)
        yield tally("masked", nats, batch, weight=self.weight)

    def masked_inputs(self, batch: Batch, key: Tensor) -> Tensor:
        """Replace a share r of each row's inputs by [MASK]: (B, T)."""
        ratios = mask_ratios(key, self.mask_ratio_min, self.mask_ratio_max)
        hidden = mask_positions(key, ratios, batch.seq_len, mask_from=self.mask_from)
        return batch.inputs.masked_fill(hidden, batch.mask_id)

    def validation(self, model: Model, batch: Batch, key: Tensor) -> LossTerm:
        return AR().validation(model, batch, key)


PLUGIN = MIR
