"""RMSNorm: the framework's on a GPU, where a compiler fuses it; on a CPU one of fewer passes.

On a CPU the framework takes some eight passes over the activations forward and sixteen backward,
which is a tenth of a small model's step (tests/bench/bench_eager.py).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

WHOLE = (torch.float32, torch.float64)


class RMSNorm(nn.Module):
    """x / rms(x) * gain over the last axis."""

    def __init__(self, dim: int, eps: float, device: torch.device | None) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim, device=device))

    def forward(self, x: Tensor, more: Tensor | None = None) -> Tensor:
        """Normalize x, or x + more: a compiler then adds the two in the same kernel."""
        x = x if more is None else x + more
        gain = self.weight.to(x.dtype)
        if x.is_cuda or x.dtype not in WHOLE:
            return F.rms_norm(x, (x.shape[-1],), gain, self.eps)
        apply: Any = _RMSNorm.apply
        y: Tensor = apply(x, gain, self.eps)
        return y


class _RMSNorm(torch.autograd.Function):
    """y = x r gain with r = 1 / rms(x); dx = r (g - u mean(g u)) with u = x r and g = dy gain."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, eps: float) -> Tensor:
        square = torch.linalg.vecdot(x, x).unsqueeze(-1)
        r = square.div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, gain, r)
        y: Tensor = (x * r).mul_(gain)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, gain, r = ctx.saved_tensors
        unit, by_unit = x * r, grad * gain
        mean = torch.linalg.vecdot(by_unit, unit).unsqueeze(-1).div_(x.shape[-1])
        by_x = by_unit.addcmul_(unit, mean, value=-1.0).mul_(r)
        by_gain = unit.mul_(grad).reshape(-1, x.shape[-1]).sum(0)
        return by_x, by_gain, None
