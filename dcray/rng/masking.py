"""The random choice of masked inputs: a pure function of each row's key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dcray.rng import keyed

if TYPE_CHECKING:
    from torch import Tensor


def uniform(key: Tensor, salt: int) -> Tensor:
    """Draw one float64 in [0, 1) per key, from the upper 53 bits of its hash."""
    bits = (keyed.derive(key, salt) >> 11) & ((1 << 53) - 1)
    return bits.double() * 2.0**-53


def mask_ratios(key: Tensor, low: float, high: float) -> Tensor:
    """Draw one ratio per row, uniform on [low, high): (B,) float64."""
    return low + (high - low) * uniform(key, keyed.RATIO)


def mask_positions(key: Tensor, ratios: Tensor, seq_len: int, *, mask_from: int = 0) -> Tensor:
    """Draw the masked positions, (B, T) bool: each on its own with its row's ratio (B,)."""
    positions = key.new_ones(seq_len).cumsum(0) - 1
    row = keyed.derive(key, keyed.POSITIONS)
    bits = (keyed.derive(row[:, None], positions[None, :]) >> 11) & ((1 << 53) - 1)
    # A uniform draw bits * 2^-53 lies below r where bits < ceil(r * 2^53): whole numbers compare
    # alike, in fewer passes.
    hidden = bits < (ratios * 2.0**53).ceil().long()[:, None]
    return hidden & (positions >= mask_from)[None, :] if mask_from else hidden
