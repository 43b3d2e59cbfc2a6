"""The optimizer of a run over its model: built, its learning rate set, its gradients clipped."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dcray.config.run import RunConfig
from dcray.optimizers import Optimizer


def build_optimizer(model: nn.Module, config: RunConfig) -> torch.optim.Optimizer:
    """Build the configured optimizer over the model's parameters."""
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    optimizer: torch.optim.Optimizer = config.optimizer.build().build(named, config.optim)
    return optimizer


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of every group."""
    for group in optimizer.param_groups:
        group["lr"] = lr


def clipped_step(
    optimizer: torch.optim.Optimizer, plugin: Optimizer, lr: Tensor, max_grad_norm: float
) -> Tensor:
    """Update with a learning rate on the device; return the norm of the gradients before.

    plugin: what built the optimizer; its `device_step` divides the gradients by the scale that
    clips them. The settings of the optimizer's groups are left as they were, for checkpoints.
    """
    groups = optimizer.param_groups
    grads = [p.grad for group in groups for p in group["params"] if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(grads)
    scale = ((norm.float() + 1e-6) / max_grad_norm).clamp(min=1.0)  # as clip_grad_norm_ has it
    plugin.device_step(optimizer, lr, scale)
    return norm
