"""AdamW: torch's, fused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from dcray.config.sections import OptimConfig
from dcray.optimizers import Named, Optimizer, decay_groups, lr_on_device

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class AdamW(Optimizer):
    """Decoupled weight decay and two moments a parameter; betas and eps are those of `optim`."""

    shards: ClassVar[bool] = True
    capturable: ClassVar[bool] = True

    def build(self, named: Named, optim: OptimConfig) -> torch.optim.AdamW:
        import torch

        groups = decay_groups(named, optim.weight_decay)
        return torch.optim.AdamW(groups, lr=optim.lr, betas=optim.betas, eps=optim.eps, fused=True)

    def device_step(self, optimizer: torch.optim.Optimizer, lr: Tensor, scale: Tensor) -> None:
        """Step with `lr`; the fused kernel itself divides by `scale`, as it does a scaled loss."""
        fused: Any = optimizer
        fused.grad_scale = scale
        try:
            with lr_on_device(optimizer, lr):
                optimizer.step()
        finally:
            del fused.grad_scale


PLUGIN = AdamW
