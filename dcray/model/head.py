"""The head and its loss; on a GPU each logit is written once and then replaced by its gradient.

The gradient of a target's nats by the logits is softmax minus one-hot, whatever weight the nats get
later. So the kernel that computes the nats leaves that gradient in place of the logits, and the
weight of each target multiplies rows of `dim` instead of rows of the vocabulary: logits are held in
bfloat16, once, with a third of the memory traffic of the framework's cross-entropy.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

HALVES = (torch.bfloat16, torch.float16)
# Columns of a row at a time and warps, up to a width: the fastest of those tried on an H100 and an
# H200 (tests/bench/LOG.md).
NARROW = 8192
PIECES = {True: (1024, 2), False: (8192, 16)}


def head_nats(x: Tensor, weight: Tensor, targets: Tensor, vocab_size: int) -> Tensor:
    """Compute -log softmax of each target (B, T) over the first `vocab_size` logits x @ weight.T.

    x (B, T, D), weight (V_padded, D) in x's dtype; the nats are at least float32.
    """
    if x.is_cuda and x.dtype in HALVES and has_triton():
        apply: Any = _HeadNats.apply
        train = torch.is_grad_enabled()
        nats: Tensor = apply(x.flatten(0, 1), weight, targets.reshape(-1), vocab_size, train)
        return nats.view(targets.shape).clone()  # FSDP2 hooks the output: it must be no view
    return target_nats(F.linear(x, weight), targets, vocab_size)


def target_nats(logits: Tensor, targets: Tensor, vocab_size: int) -> Tensor:
    """Compute the nats of `head_nats` from logits (B, T, V_padded), without the kernel."""
    logits = logits.float() if logits.dtype in HALVES else logits
    if vocab_size < logits.shape[-1]:
        padding = torch.arange(logits.shape[-1], device=logits.device) >= vocab_size
        logits = logits.masked_fill(padding, -torch.inf)
    rows, flat = logits.flatten(0, 1), targets.reshape(-1)
    if logits.is_cuda:
        nats = F.cross_entropy(rows, flat, reduction="none")
    else:
        apply: Any = _PlainNats.apply
        nats = apply(rows, flat)
    return nats.view(targets.shape).clone()


@lru_cache(maxsize=1)
def has_triton() -> bool:
    """Tell whether the kernel can be built: torch comes with Triton on most GPUs, not on all."""
    return find_spec("triton") is not None


class _PlainNats(torch.autograd.Function):
    """Cross-entropy (n,) of logits (n, V) with one pass less over the gradient: for CPUs."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        log_p = torch.log_softmax(logits, -1)
        ctx.save_for_backward(log_p, targets)
        return -log_p.gather(1, targets[:, None])[:, 0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        log_p, targets = ctx.saved_tensors
        by_logit = log_p.exp()
        minus_one = torch.tensor(-1.0, dtype=log_p.dtype).expand(len(targets), 1)
        by_logit.scatter_add_(1, targets[:, None], minus_one)
        return by_logit.mul_(grad[:, None]), None


class _HeadNats(torch.autograd.Function):
    """Nats (n,) float32 of targets (n,) under x (n, D) @ weight.T; with `train` their gradient."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, targets: Tensor, vocab_size: int, train: bool
    ) -> Tensor:
        logits = x @ weight.T
        nats = torch.empty(len(x), dtype=torch.float32, device=x.device)
        columns, warps = PIECES[logits.shape[1] <= NARROW]
        how = {"GRADIENT": train, "COLUMNS": columns, "num_warps": warps}
        _kernel()[(len(x),)](logits, targets, nats, logits.shape[1], vocab_size, **how)
        if train:
            ctx.save_for_backward(x, weight, logits)
        return nats

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        x, weight, by_logit = ctx.saved_tensors
        of_row = grad[:, None].to(x.dtype)
        return (by_logit @ weight) * of_row, by_logit.T @ (x * of_row), None, None, None


@lru_cache(maxsize=1)
def _kernel() -> Any:
    """Build the kernel of each row's nats; with GRADIENT it replaces the logits by softmax
    minus one-hot, 0 in the padding.
    """
    import triton
    import triton.language as tl

    @triton.jit  # type: ignore[untyped-decorator]
    def nats_and_gradient(  # type: ignore[no-untyped-def]
        logits, targets, nats, width, vocab_size, GRADIENT: tl.constexpr, COLUMNS: tl.constexpr
    ):
        row = tl.program_id(0).to(tl.int64)
        base = logits + row * width
        target = tl.load(targets + row)
        chosen = tl.load(base + target).to(tl.float32)
        offsets = tl.arange(0, COLUMNS)
        top = -float("inf")  # in units of ln 2, as all below: exp2 is the hardware's
        sums = tl.zeros((COLUMNS,), tl.float32)
        for start in tl.range(0, vocab_size, COLUMNS):
            columns = start + offsets
            x = tl.load(base + columns, mask=columns < vocab_size, other=-float("inf"))
            x = x.to(tl.float32) * 1.4426950408889634
            new = tl.maximum(top, tl.max(x, 0))
            sums = sums * tl.exp2(top - new) + tl.exp2(x - new)
            top = new
        log_sum = top + tl.log2(tl.sum(sums, 0))
        tl.store(nats + row, log_sum * 0.6931471805599453 - chosen)
        if GRADIENT:
            for start in tl.range(0, width, COLUMNS):
                columns = start + offsets
                x = tl.load(base + columns, mask=columns < vocab_size, other=-float("inf"))
                p = tl.exp2(x.to(tl.float32) * 1.4426950408889634 - log_sum)
                tl.store(base + columns, p.to(logits.dtype.element_ty), mask=columns < width)
            tl.debug_barrier()  # the target's own comes last
            p = tl.exp2(chosen * 1.4426950408889634 - log_sum)
            tl.store(base + target, (p - 1).to(logits.dtype.element_ty))

    return nats_and_gradient
