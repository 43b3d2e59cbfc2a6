"""Keyed dropout: a hash of (row, layer, pass) and the element's index decides what is dropped.

So a row is treated alike on every rank, in every micro-batch and after every resume. A compiler
fuses the hash into a kernel that is there already.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from dcray.rng import keyed


def layer_keys(key: Tensor, num_layers: int) -> Tensor:
    """Derive int32 keys (num_layers, B) from row keys (B,) int64."""
    layers = torch.arange(num_layers, device=key.device)
    return keyed.fold(keyed.derive(key[None, :], layers[:, None]))


@lru_cache(maxsize=8)
def element_hashes(seq_len: int, dim: int, device: torch.device) -> Tensor:
    """Hash each element's index: int32 (T, D), the same for every row."""
    index = torch.arange(seq_len * dim, dtype=torch.int32, device=device)
    return keyed.mix32(index).view(seq_len, dim)


def dropped(hashes: Tensor, key: Tensor, rate: float) -> Tensor:
    """Draw what is dropped: bool (B, T, D), True with probability `rate`, by (row key, element)."""
    threshold = round(rate * 2**32) - 2**31
    return keyed.mix32(hashes[None] ^ key[:, None, None]) < threshold


def keyed_dropout(x: Tensor, hashes: Tensor, key: Tensor, rate: float) -> Tensor:
    """Zero a share `rate` of x (B, T, D) and scale the rest by 1 / (1 - rate).

    hashes: `element_hashes(T, D)`; key: (B,) int32, one of `layer_keys`.
    """
    return x.masked_fill(dropped(hashes, key, rate), 0.0) * (1.0 / (1.0 - rate))
