"""Half-precision copies of a model's matrices: cast together once a step, not each at each use.

The gradients of the copies are in half precision, as those of the casts were; they are summed
over terms and micro-batches in the precision of the weights.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dcray.model.transformer import Linear


class LowPrecisionWeights:
    """The copies of all linear maps of a model; the model computes with them from now on."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        self._linears = [module for module in model.modules() if isinstance(module, Linear)]
        self.weights: list[Tensor] = [module.weight for module in self._linears]
        self.copies = [weight.detach().to(dtype).requires_grad_() for weight in self.weights]
        for module, copy in zip(self._linears, self.copies, strict=True):
            module.half_weight = copy

    @torch.no_grad()
    def cast(self) -> None:
        """Copy the current weights into the copies."""
        torch._foreach_copy_(self.copies, self.weights)

    @torch.no_grad()
    def collect(self) -> None:
        """Add the gradients of the copies to those of the weights, and drop the former."""
        pairs = [
            (weight, copy.grad)
            for weight, copy in zip(self.weights, self.copies, strict=True)
            if copy.grad is not None
        ]
        wide = [torch.empty_like(weight) for weight, _ in pairs]
        torch._foreach_copy_(wide, [grad for _, grad in pairs])
        sums: list[tuple[Tensor, Tensor]] = []
        for (weight, _), grad in zip(pairs, wide, strict=True):
            if weight.grad is None:
                weight.grad = grad
            else:
                sums.append((weight.grad, grad))
        if sums:
            torch._foreach_add_([total for total, _ in sums], [grad for _, grad in sums])
        for copy in self.copies:
            copy.grad = None
