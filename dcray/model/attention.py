"""Windowed causal and bidirectional attention, on CPU and GPU.

On a GPU cuDNN's kernel, which supports windows, is used if its Python package is installed
(`pip install 'dcray[gpu]'`) and the heads are wide enough; else FlexAttention for windows.
tests/bench/bench_kernels.py measures the candidates.

Rows are packed: a token attends to everything before it in its row (within the window), including
other documents, as in the paper.
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
# In rows up to this length gradients are added up in one order, so that a run can be repeated to
# the bit. It costs 1 % of a step at T = 512, and 4 % at 2048 (72m), which is too much.
ONE_ORDER = 1024


@lru_cache(maxsize=16)
def window_mask(seq_len: int, window: int, device: torch.device) -> Tensor:
    """Build the mask, bool (T, T): query i attends to key j if 0 <= i - j <= window."""
    distance = torch.arange(seq_len, device=device)[:, None] - torch.arange(seq_len, device=device)
    return (distance >= 0) & (distance <= window)


@lru_cache(maxsize=16)
def block_mask(seq_len: int, window: int, device: torch.device) -> Any:
    """Build the same window as a FlexAttention block mask, once per (T, window)."""

    def visible(_b: Tensor, _h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (query - key <= window)

    return create_block_mask(visible, None, None, seq_len, seq_len, device=str(device))


class Band(NamedTuple):
    """The mask for cuDNN's kernel: how many tokens back a query attends to; None: all."""

    window: int | None


@lru_cache(maxsize=8)
def has_cudnn(head_dim: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Tell whether cuDNN's attention can be used; it is slower than others for narrow heads."""
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
    """Build the `mask` of `attend` for a layer: None if attention is full (causal or not)."""
    if not causal or window is None or window >= seq_len - 1:
        return Band(None) if cudnn else None
    if cudnn:
        return Band(window)
    build = block_mask if device.type == "cuda" else window_mask
    return build(seq_len, window, device)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Any, *, causal: bool) -> Tensor:
    """Compute softmax attention of (B, H, T, head_dim); `mask` is from `mask_of`."""
    if mask is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    if isinstance(mask, Band):
        left = -1 if mask.window is None else mask.window + 1  # cuDNN counts the query itself
        apply: Any = _Cudnn.apply
        out: Tensor = apply(q, k, v, left, causal)
        return out
    if isinstance(mask, Tensor):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return flex_attention(q, k, v, block_mask=mask)


class _Cudnn(torch.autograd.Function):
    """cuDNN's attention of (B, H, T, head_dim); up to T = ONE_ORDER reproducible to the bit."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, left: int, causal: bool) -> Tensor:
        scale, how = q.shape[-1] ** -0.5, {"is_causal": causal, "window_left": left}
        out, stats = torch.ops.cudnn.sdpa_fwd(q, k, v, scale, return_lse=True, **how)[:2]
        ctx.save_for_backward(q, k, v, out, stats)
        ctx.left, ctx.causal = left, causal
        found: Tensor = out
        return found

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        q, k, v, out, stats = ctx.saved_tensors
        by_q, by_k, by_v = torch.ops.cudnn.sdpa_bwd(
            grad,
            q,
            k,
            v,
            out,
            stats,
            q.shape[-1] ** -0.5,
            is_causal=ctx.causal,
            window_left=ctx.left,
            is_deterministic=q.shape[2] <= ONE_ORDER,
        )
        return by_q, by_k, by_v, None, None
