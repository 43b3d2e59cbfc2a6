"""Rotary embedding and QK-norm; on a GPU both in one kernel each way.

A compiler makes three kernels of them, one of which writes the rotated heads for the norm's
backward pass alone. Ours rotates them again instead, so they pass the memory five times a step, not
nine (tests/bench/LOG.md).
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from dcray.model.kernels import HAS_TRITON, on_kernels
from dcray.model.norm import RMSNorm

if HAS_TRITON:
    from dcray.model import rotary_kernel


@lru_cache(maxsize=8)
def rotary_tables(
    seq_len: int, head_dim: int, base: float, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """cos and sin (T, head_dim / 2) of position * base^(-2i / head_dim)."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    angles = torch.outer(torch.arange(seq_len, dtype=torch.float64), base**-exponents)
    return angles.cos().to(device, dtype), angles.sin().to(device, dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x (..., head_dim): halves are the pairs."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


def rotary_norm(x: Tensor, cos: Tensor, sin: Tensor, norm: RMSNorm) -> Tensor:
    """norm(rotate(x)) of heads x (B, T, H, head_dim).

    cos, sin: (T, head_dim / 2), or (B, T, head_dim / 2) where rows differ.
    """
    head_dim = x.shape[-1]
    if on_kernels(x) and cos.ndim == 2 and head_dim & (head_dim - 1) == 0:
        y: Tensor = rotary_kernel.rotary_norm(x, cos, sin, norm.weight, norm.eps)
        return y
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)  # the same for all heads
    out: Tensor = norm(rotate(x, cos, sin))
    return out
