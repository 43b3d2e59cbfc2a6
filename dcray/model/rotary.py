"""Rotary embedding and QK-norm; on a GPU both in one kernel each way.

A compiler makes three kernels of them, one of which writes the rotated heads for the norm's
backward pass alone. The kernel here rotates the heads again instead, so they pass the memory five
times a step, not nine (tests/bench/LOG.md).
"""

from __future__ import annotations

import importlib
from functools import lru_cache
from importlib.util import find_spec

import torch
from torch import Tensor

from dcray.model.norm import RMSNorm

HALVES = (torch.bfloat16, torch.float16)


@lru_cache(maxsize=8)
def rotary_tables(
    seq_len: int, head_dim: int, base: float, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Compute cos and sin (T, head_dim / 2) of position * base^(-2i / head_dim)."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    angles = torch.outer(torch.arange(seq_len, dtype=torch.float64), base**-exponents)
    return angles.cos().to(device, dtype), angles.sin().to(device, dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply the rotary embedding to x (..., head_dim), whose two halves form the pairs."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


@lru_cache(maxsize=8)
def has_kernel(head_dim: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Tell whether the kernel can be used; torch comes with Triton on most GPUs, not on all."""
    power_of_two = head_dim & (head_dim - 1) == 0
    if device.type != "cuda" or dtype not in HALVES or not power_of_two:
        return False
    if find_spec("triton") is None:
        return False
    importlib.import_module("dcray.model.rotary_kernel")
    return True


def rotated_norm(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    norm: RMSNorm,
    *,
    kernel: bool = False,  # from `has_kernel`
) -> Tensor:
    """Compute norm(rotate(x)) of heads x (B, T, H, head_dim).

    cos, sin: (T, head_dim / 2), or (B, T, head_dim / 2) if they differ by row: without the kernel.
    """
    if kernel:
        y: Tensor = torch.ops.dcray.rotary_norm(x, cos, sin, norm.weight, norm.eps)
        return y
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)  # the same for all heads
    out: Tensor = norm(rotate(x, cos, sin))
    return out
