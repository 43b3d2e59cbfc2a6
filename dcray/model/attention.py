"""Windowed causal and bidirectional attention, on CPU and GPU.

On a GPU cuDNN's kernel, which knows windows, where its Python package is installed
(`pip install 'dcray[gpu]'`) and the heads are wide enough; else FlexAttention for windows.
tests/bench/bench_kernels.py measures the candidates.

Rows are packed: a token sees everything before it in its row (within the window), other documents
too, as in the paper.
"""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

CUDNN_DTYPES = (torch.bfloat16, torch.float16)
CUDNN_HEAD_DIMS = (64, 128)


@lru_cache(maxsize=8)
def rotary_tables(
    seq_len: int, head_dim: int, base: float, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """cos and sin (T, head_dim / 2) of position * base^(-2i / head_dim)."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    angles = torch.outer(torch.arange(seq_len, dtype=torch.float64), base**-exponents)
    return angles.cos().to(device, dtype), angles.sin().to(device, dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x (B, H, T, head_dim): halves are the pairs."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


@lru_cache(maxsize=16)
def window_mask(seq_len: int, window: int, device: torch.device) -> Tensor:
    """bool (T, T): query i sees key j where 0 <= i - j <= window."""
    distance = torch.arange(seq_len, device=device)[:, None] - torch.arange(seq_len, device=device)
    return (distance >= 0) & (distance <= window)


@lru_cache(maxsize=16)
def block_mask(seq_len: int, window: int, device: torch.device) -> Any:
    """The same window as a FlexAttention block mask, built once per (T, window)."""

    def visible(_b: Tensor, _h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (query - key <= window)

    return create_block_mask(visible, None, None, seq_len, seq_len, device=str(device))


class Band(NamedTuple):
    """What cuDNN's kernel is told instead of a mask: how far back a query sees, None: all."""

    window: int | None


@lru_cache(maxsize=8)
def has_cudnn(head_dim: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether cuDNN's attention can be used here; it is slower than others for narrow heads."""
    if device.type != "cuda" or dtype not in CUDNN_DTYPES or head_dim not in CUDNN_HEAD_DIMS:
        return False
    try:
        importlib.import_module("cudnn.sdpa.fwd.torch_op")
    except ImportError:
        return False
    return True


def mask_of(
    seq_len: int,
    window: int | None,
    device: torch.device,
    *,
    causal: bool,
    cudnn: bool = False,  # from `has_cudnn`
) -> Any:
    """What `attend` needs for this layer: None where attention is full (causal or not)."""
    if not causal or window is None or window >= seq_len - 1:
        return Band(None) if cudnn else None
    if cudnn:
        return Band(window)
    build = block_mask if device.type == "cuda" else window_mask
    return build(seq_len, window, device)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Any, *, causal: bool) -> Tensor:
    """Softmax attention of (B, H, T, head_dim); `mask` from `mask_of`."""
    if mask is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    if isinstance(mask, Band):
        left = -1 if mask.window is None else mask.window + 1  # cuDNN counts the query itself
        out: Tensor = torch.ops.cudnn.sdpa_fwd(
            q, k, v, q.shape[-1] ** -0.5, is_causal=causal, window_left=left, return_lse=True
        )[0]
        return out
    if isinstance(mask, Tensor):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    # Laid head by head in memory, as q and k came before: with heads that lie (B, T, H, head_dim)
    # FlexAttention was never run on a GPU.
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    return flex_attention(q, k, v, block_mask=mask)
