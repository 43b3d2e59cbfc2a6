"""The optimizer protocol: how gradients change weights. One file here is one optimizer.

A plug-in is a frozen class whose `build` makes a torch optimizer. The loop sets the learning rate
of every group before each step and clips the gradients; lr, weight_decay and max_grad_norm are
those of `optim` for every optimizer, and `is_decayed` says what is decayed.

Weight decay is decoupled: a step multiplies every decayed weight by 1 - lr * weight_decay and adds
the update. So what a step added is down to 1/e after 1 / (lr * weight_decay) steps, whatever the
update was; a step is batch_tokens / unique_tokens epochs, and in epochs that makes

    tau = batch_tokens / (lr * weight_decay * unique_tokens)

for every optimizer. `faults` refuses a plug-in of which it would not be true.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from dcray.config.sections import Frozen, OptimConfig
from dcray.optimizers._faults import faults

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

__all__ = [
    "Named",
    "Optimizer",
    "decay_groups",
    "faults",
    "is_decayed",
    "is_matrix",
    "lr_on_device",
]

Named = Sequence[tuple[str, "nn.Parameter"]]  # the trained parameters of a model, by name


class Optimizer(Frozen):
    """The base of an optimizer: a frozen configuration that builds a torch optimizer."""

    kind: ClassVar[str] = "optimizers"
    shards: ClassVar[bool] = False  # its update is right on DTensor shards: it takes many workers
    capturable: ClassVar[bool] = False  # its step takes lr as a tensor and never waits for a device

    def options(self) -> dict[str, Any]:
        """Return the options as JSON, defaults written out."""
        return self.model_dump(mode="json")

    def build(self, named: Named, optim: OptimConfig) -> torch.optim.Optimizer:
        """Build the torch optimizer of these parameters; each is in one group, which has an lr."""
        raise NotImplementedError

    def num_moments(self, matrices: int, others: int) -> int:
        """Count the float32 values kept from step to step; two a parameter if it is not said.

        matrices, others: parameters in the matrices of the blocks, and all the others.
        """
        return 2 * (matrices + others)

    def update_flops(self, matrices: Sequence[tuple[int, int]]) -> float:
        """Count the FLOPs of one update, without those that are a few a parameter.

        matrices: the shapes of all matrices of the blocks.
        """
        return 0.0

    def device_step(self, optimizer: torch.optim.Optimizer, lr: Tensor, scale: Tensor) -> None:
        """Divide all gradients by `scale` (), then step with `lr` (); both are on the device.

        One that is not capturable steps with the same learning rate as a number.
        """
        import torch

        groups = optimizer.param_groups
        grads = [p.grad for group in groups for p in group["params"] if p.grad is not None]
        torch._foreach_div_(grads, scale)
        if not self.capturable:
            optimizer.step()
            return
        with lr_on_device(optimizer, lr):
            optimizer.step()


def is_decayed(name: str, parameter: nn.Parameter) -> bool:
    """Tell whether weight decay applies: to matrices and the head, not to the embedding."""
    return parameter.ndim >= 2 and not name.endswith("embed.weight")


def is_matrix(name: str, parameter: nn.Parameter) -> bool:
    """Tell whether this is a matrix of a block: a linear map from hidden state to hidden state."""
    return parameter.ndim == 2 and name.startswith("blocks.")


def decay_groups(named: Named, weight_decay: float) -> list[dict[str, Any]]:
    """Split parameters into two groups for torch: those that are decayed, and the others."""
    return [
        {
            "params": [p for name, p in named if is_decayed(name, p)],
            "weight_decay": weight_decay,
        },
        {"params": [p for name, p in named if not is_decayed(name, p)], "weight_decay": 0.0},
    ]


@contextmanager
def lr_on_device(optimizer: torch.optim.Optimizer, lr: Tensor) -> Iterator[None]:
    """Give every group a learning rate on the device, and for checkpoints the number again."""
    groups = optimizer.param_groups
    kept = [(group["lr"], group.get("capturable")) for group in groups]
    for group in groups:
        group["lr"] = lr
        if "capturable" in group:
            group["capturable"] = True
    try:
        yield
    finally:
        for group, (rate, capturable) in zip(groups, kept, strict=True):
            group["lr"] = rate
            if capturable is not None:
                group["capturable"] = capturable
