"""Autoregressive next-token prediction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dcray.objectives import Batch, LossTerm, Model, Objective, tally
from dcray.rng import keyed

if TYPE_CHECKING:
    from torch import Tensor


class AR(Objective):
    """L_NTP(x) = -(1/nT) sum log p(x_t | x_<t), paper section 2.2."""

    def terms(self, model: Model, batch: Batch, key: Tensor) -> Iterator[LossTerm]:
        dropout = keyed.derive(key, keyed.CLEAN_DROPOUT)
        nats = model(batch.inputs, causal=True, key=dropout, targets=batch.targets)
        yield tally("ar", nats, batch)

    def validation(self, model: Model, batch: Batch, key: Tensor) -> LossTerm:
        nats = model(batch.inputs, causal=True, targets=batch.targets)
        text_bytes = None if batch.text_bytes is None else batch.text_bytes[:, 1:]
        return tally("ar", nats.double(), batch, text_bytes=text_bytes)


PLUGIN = AR
