"""Rotation and RMSNorm of heads as one Triton kernel each way; imported only if Triton is there.

r = rotate(x), s = rsqrt(mean(r^2) + eps), y = r s gain. Backward, with u = r s and g = dy gain:
dr = s (g - u mean(g u)), dgain = sum(dy u), dx = dr rotated back.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

ELEMENTS, WARPS = 2048, 1  # of a program; the fastest of those tried (tests/bench/LOG.md)


@triton.jit  # type: ignore[untyped-decorator]
def _rotated(  # type: ignore[no-untyped-def]
    x, cos, sin, first, num_rows, seq_len, num_heads, ROWS: tl.constexpr, HALF: tl.constexpr
):
    """Load and rotate heads: both halves, the tables' rows, offsets, mask, each (ROWS, HALF)."""
    rows = first * ROWS + tl.arange(0, ROWS)  # of 32 bits: they are divided
    columns = tl.arange(0, HALF)
    at = rows.to(tl.int64)[:, None] * (2 * HALF) + columns[None, :]
    real = (rows < num_rows)[:, None] & (columns >= 0)[None, :]
    table = ((rows // num_heads) % seq_len)[:, None] * HALF + columns[None, :]
    c = tl.load(cos + table, mask=real, other=0.0).to(tl.float32)
    s = tl.load(sin + table, mask=real, other=0.0).to(tl.float32)
    a = tl.load(x + at, mask=real, other=0.0).to(tl.float32)
    b = tl.load(x + at + HALF, mask=real, other=0.0).to(tl.float32)
    return a * c - b * s, a * s + b * c, c, s, at, real


@triton.jit  # type: ignore[untyped-decorator]
def _forward(  # type: ignore[no-untyped-def]
    x, cos, sin, gain, y, num_rows, seq_len, num_heads, eps, ROWS: tl.constexpr, HALF: tl.constexpr
):
    a, b, _c, _s, at, real = _rotated(
        x, cos, sin, tl.program_id(0), num_rows, seq_len, num_heads, ROWS, HALF
    )
    mean = (tl.sum(a * a, 1) + tl.sum(b * b, 1)) / (2 * HALF)
    scale = tl.rsqrt(mean + eps)[:, None]
    columns = tl.arange(0, HALF)
    low = tl.load(gain + columns).to(tl.float32)[None, :]
    high = tl.load(gain + HALF + columns).to(tl.float32)[None, :]
    tl.store(y + at, (a * scale * low).to(y.dtype.element_ty), mask=real)
    tl.store(y + at + HALF, (b * scale * high).to(y.dtype.element_ty), mask=real)


@triton.jit  # type: ignore[untyped-decorator]
def _backward(  # type: ignore[no-untyped-def]
    x,
    cos,
    sin,
    gain,
    grad,
    by_x,
    by_gain,
    num_rows,
    seq_len,
    num_heads,
    eps,
    ROWS: tl.constexpr,
    HALF: tl.constexpr,
):
    a, b, c, s, at, real = _rotated(
        x, cos, sin, tl.program_id(0), num_rows, seq_len, num_heads, ROWS, HALF
    )
    scale = tl.rsqrt((tl.sum(a * a, 1) + tl.sum(b * b, 1)) / (2 * HALF) + eps)[:, None]
    a, b = a * scale, b * scale
    columns = tl.arange(0, HALF)
    low = tl.load(gain + columns).to(tl.float32)[None, :]
    high = tl.load(gain + HALF + columns).to(tl.float32)[None, :]
    by_a = tl.load(grad + at, mask=real, other=0.0).to(tl.float32)
    by_b = tl.load(grad + at + HALF, mask=real, other=0.0).to(tl.float32)
    part = by_gain + tl.program_id(0).to(tl.int64) * (2 * HALF)
    tl.store(part + columns, tl.sum(by_a * a, 0))
    tl.store(part + HALF + columns, tl.sum(by_b * b, 0))
    by_a, by_b = by_a * low, by_b * high
    mean = ((tl.sum(by_a * a, 1) + tl.sum(by_b * b, 1)) / (2 * HALF))[:, None]
    by_a, by_b = scale * (by_a - a * mean), scale * (by_b - b * mean)
    tl.store(by_x + at, (by_a * c + by_b * s).to(by_x.dtype.element_ty), mask=real)
    tl.store(by_x + at + HALF, (by_b * c - by_a * s).to(by_x.dtype.element_ty), mask=real)


@torch.library.custom_op("dcray::rotary_norm", mutates_args=())
def rotary_norm(x: Tensor, cos: Tensor, sin: Tensor, gain: Tensor, eps: float) -> Tensor:
    """Compute RMSNorm of rotated heads x (B, T, H, d), d a power of two; cos, sin (T, d / 2)."""
    x = x.contiguous()
    y = torch.empty_like(x)
    grid, sizes, blocks = _grid(x)
    _forward[grid](x, cos, sin, gain, y, *sizes, eps, *blocks, num_warps=WARPS)
    return y


@torch.library.custom_op("dcray::rotary_norm_backward", mutates_args=())
def rotary_norm_backward(
    grad: Tensor, x: Tensor, cos: Tensor, sin: Tensor, gain: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Compute the gradients by x (B, T, H, d) and by the gain (d,)."""
    x, grad = x.contiguous(), grad.contiguous()
    by_x = torch.empty_like(x)
    grid, sizes, blocks = _grid(x)
    parts = torch.empty((grid[0], x.shape[-1]), dtype=torch.float32, device=x.device)
    how = (*sizes, eps, *blocks)
    _backward[grid](x, cos, sin, gain, grad, by_x, parts, *how, num_warps=WARPS)
    return by_x, parts.sum(0).to(gain.dtype)


@rotary_norm.register_fake
def _(x: Tensor, cos: Tensor, sin: Tensor, gain: Tensor, eps: float) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


@rotary_norm_backward.register_fake
def _(
    grad: Tensor, x: Tensor, cos: Tensor, sin: Tensor, gain: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device), torch.empty_like(gain)


def _grid(x: Tensor) -> tuple[tuple[int], tuple[int, int, int], tuple[int, int]]:
    """Return (programs,), (rows = B T H, T, H) and (rows of a program, d / 2)."""
    _, seq_len, heads, dim = x.shape
    num_rows, rows = x.numel() // dim, max(1, ELEMENTS // dim)
    return (triton.cdiv(num_rows, rows),), (num_rows, seq_len, heads), (rows, dim // 2)


def _keep(ctx: Any, inputs: Any, output: Tensor) -> None:
    x, cos, sin, gain, ctx.eps = inputs
    ctx.save_for_backward(x, cos, sin, gain)


def _by_inputs(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, Tensor, None]:
    by_x, by_gain = rotary_norm_backward(grad, *ctx.saved_tensors, ctx.eps)
    return by_x, None, None, by_gain, None


rotary_norm.register_autograd(_by_inputs, setup_context=_keep)
