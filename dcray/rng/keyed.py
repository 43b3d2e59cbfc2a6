"""Keyed random numbers: every draw is a hash of its coordinates, at any place and time.

A row's key is 64 bits of (seed, epoch, row id). A salt separates the draws of one key. The 64-bit
hash is SplitMix64's finalizer; the 32-bit one is lowbias32 (hash-prospector). Integers wrap;
torch shifts signed integers arithmetically, so every right shift is masked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor

# Salts: one stream of draws each. Dropout adds the layer, DRAW the number of the draw.
RATIO = 1
POSITIONS = 2
CLEAN_DROPOUT = 1_000
MASKED_DROPOUT = 2_000
DRAW = 3_000

_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


def row_keys(seed: int, epochs: ArrayLike, row_ids: ArrayLike) -> NDArray[np.int64]:
    """Compute one int64 key per row, shape (n,): a hash of (seed, epoch, row id)."""
    with np.errstate(over="ignore"):
        key = _mix(np.uint64(seed) * np.uint64(_GOLDEN) + np.uint64(1))
        key = _mix(key + np.asarray(epochs, dtype=np.uint64) * np.uint64(_GOLDEN))
        key = _mix(key + np.asarray(row_ids, dtype=np.uint64) * np.uint64(_GOLDEN))
    return np.atleast_1d(key).view(np.int64)


def _mix(z: NDArray[np.uint64] | np.uint64) -> NDArray[np.uint64]:
    z = np.asarray(z, dtype=np.uint64) + np.uint64(_GOLDEN)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_MIX_1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_MIX_2)
    return np.asarray(z ^ (z >> np.uint64(31)))


def derive(key: Tensor, salt: int | Tensor) -> Tensor:
    """Derive another int64 key, nearly independent, of key's shape (or broadcast with `salt`)."""
    if isinstance(salt, int):
        z = key + _signed((salt + 1) * _GOLDEN % 2**64)
    else:
        z = key + (salt + 1) * _signed(_GOLDEN)
    z = (z ^ _shift(z, 30)) * _signed(_MIX_1)
    z = (z ^ _shift(z, 27)) * _signed(_MIX_2)
    return z ^ _shift(z, 31)


def fold(key: Tensor) -> Tensor:
    """Return the upper half of int64 keys as int32."""
    return (key >> 32).int()


def mix32(x: Tensor) -> Tensor:
    """Hash int32 values elementwise by lowbias32."""
    x = x ^ ((x >> 16) & 0xFFFF)
    x = x * 0x7FEB352D
    x = x ^ ((x >> 15) & 0x1FFFF)
    x = x * (0x846CA68B - 2**32)
    return x ^ ((x >> 16) & 0xFFFF)


def _shift(z: Tensor, bits: int) -> Tensor:
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value
