"""AdamW with weight decay on matrices and the head, none on the embedding or the norms."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dcray.config.sections import OptimConfig


def is_decayed(name: str, parameter: nn.Parameter) -> bool:
    """Tell whether weight decay applies to this parameter."""
    return parameter.ndim >= 2 and not name.endswith("embed.weight")


def build_optimizer(model: nn.Module, optim: OptimConfig) -> torch.optim.AdamW:
    """Build AdamW over two groups, decayed parameters and the others; fused."""
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    groups = [
        {
            "params": [p for n, p in named if is_decayed(n, p)],
            "weight_decay": optim.weight_decay,
        },
        {"params": [p for n, p in named if not is_decayed(n, p)], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=optim.lr, betas=optim.betas, eps=optim.eps, fused=True)


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of every group."""
    for group in optimizer.param_groups:
        group["lr"] = lr


def clipped_step(optimizer: torch.optim.AdamW, lr: Tensor, max_grad_norm: float) -> Tensor:
    """Update with a learning rate on the device; return the norm of the gradients before.

    The update itself clips the gradients: it divides them by a scale, as it does for a scaled loss.
    The settings of the optimizer's groups are left as they were, for checkpoints.
    """
    groups = optimizer.param_groups
    grads = [p.grad for group in groups for p in group["params"] if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(grads)
    scale = ((norm.float() + 1e-6) / max_grad_norm).clamp(min=1.0)  # as clip_grad_norm_ has it
    kept = [(group["lr"], group["capturable"]) for group in groups]
    for group in groups:
        group["lr"], group["capturable"] = lr, True
    optimizer.grad_scale = scale  # type: ignore[attr-defined]
    try:
        optimizer.step()
    finally:
        del optimizer.grad_scale  # type: ignore[attr-defined]
        for group, (rate, capturable) in zip(groups, kept, strict=True):
            group["lr"], group["capturable"] = rate, capturable
    return norm
