"""Checks that a plug-in is an optimizer, made before anything is trained."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dcray.config.sections import OptimConfig

if TYPE_CHECKING:
    from torch import nn

    from dcray.optimizers import Optimizer

SHAPES = {  # a transformer's names
    "embed.weight": (8, 4),
    "blocks.0.attn_norm.weight": (4,),
    "blocks.0.attn.query.weight": (4, 4),
    "blocks.0.mlp.up.weight": (6, 4),
    "norm.weight": (4,),
    "head.weight": (8, 4),
}
OPTIM = OptimConfig(lr=0.1, weight_decay=0.5)
STEPS = 3  # the first step of a momentum tells nothing


def faults(build: Callable[[], Optimizer]) -> list[str]:
    """Check the optimizer that `build` makes: sentences that continue its name, one for each fault.

    The list is empty if it takes every parameter once, lets its learning rate be set, and decays by
    1 - lr * weight_decay in a step.
    """
    import torch

    named = [(name, torch.nn.Parameter(torch.ones(shape))) for name, shape in SHAPES.items()]
    try:
        built: Any = build().build(named, OPTIM)
        if not isinstance(built, torch.optim.Optimizer):
            return [f"must build a torch.optim.Optimizer, got {type(built).__name__}"]
        taken = [id(p) for group in built.param_groups for p in group["params"]]
        wrong = [name for name, parameter in named if taken.count(id(parameter)) != 1]
        if wrong:
            return [f"must take every parameter in one group, and does not take {', '.join(wrong)}"]
        if not all("lr" in group for group in built.param_groups):
            return ['must have an "lr" in every group: the schedule sets it before each step']
        for _ in range(STEPS):
            for _, parameter in named:
                parameter.grad = torch.zeros_like(parameter)
            built.step()
    except Exception as error:
        said = f": {error}" if str(error) else ""
        return [f"fails with its default options ({type(error).__name__}{said})"]
    return _decay_faults(named)


def _decay_faults(named: list[tuple[str, nn.Parameter]]) -> list[str]:
    """Compare the weights, which began at 1, with those of decoupled decay alone."""
    from dcray.optimizers import is_decayed

    for name, parameter in named:
        left = (1 - OPTIM.lr * OPTIM.weight_decay) ** STEPS if is_decayed(name, parameter) else 1.0
        found = float(parameter.detach().flatten()[0])
        if abs(found - left) > 1e-5:
            fault = (
                "must multiply a decayed weight by 1 - lr * weight_decay in a step and leave the "
                "embedding and the norms, or tau would mean something else: without gradients "
                f"{name} came to {found:.4g} of itself in {STEPS} steps, and not to {left:.4g}. "
                "Give torch's optimizer no weight_decay, and decay in a step of your own"
            )
            return [fault]
    return []
