"""AdamW with decay on matrices and the head, none on the embedding nor the norms."""

from __future__ import annotations

import torch
from torch import nn

from dcray.sections import OptimConfig


def is_decayed(name: str, parameter: nn.Parameter) -> bool:
    """Whether weight decay applies to this parameter."""
    return parameter.ndim >= 2 and not name.endswith("embed.weight")


def build_optimizer(model: nn.Module, optim: OptimConfig) -> torch.optim.AdamW:
    """AdamW over two groups, "decayed" and "plain"; fused where all parameters allow it."""
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
