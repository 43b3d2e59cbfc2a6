"""Muon for the matrices of the blocks, AdamW for the embedding, the head and the norms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate
from torch.optim._muon import _adjust_lr, _zeropower_via_newtonschulz

from dcray.config.sections import OptimConfig
from dcray.optimizers import Named, Optimizer, decay_groups, is_matrix


class Muon(Optimizer):
    """W <- (1 - lr wd) W - lr s O, with O the orthogonalized momentum of W's gradient.

    O = U V^T of the momentum U S V^T, by five Newton-Schulz iterations in bfloat16 that bring the
    singular values near 1 (about 0.7 to 1.2). For an n x m matrix its root mean square is then near
    1 / sqrt(max(n, m)). `adjust_lr_fn` names s, as in torch.optim.Muon:

    "match_rms_adamw": s = 0.2 sqrt(max(n, m)), so that the update's root mean square is near 0.2 lr
    for every shape, as AdamW's is (arXiv 2502.16982). One learning rate then suits matrices and the
    others, and lr, weight decay and tau are on the axes of an AdamW recipe.
    "original": s = sqrt(max(1, n / m)); a d x d matrix then wants 0.2 sqrt(d) times the lr, and the
    others get that, too.

    Decay takes lr and never lr s, in torch's step too: so tau = batch_tokens / (lr wd U) holds for
    the matrices and for the head as it does for AdamW. betas and eps of `optim` are those of the
    others.
    """

    shards: ClassVar[bool] = True
    capturable: ClassVar[bool] = True

    momentum: float = Field(0.95, ge=0, lt=1)
    nesterov: bool = True
    ns_steps: int = Field(5, ge=1, lt=100)
    adjust_lr_fn: Literal["match_rms_adamw", "original"] = "match_rms_adamw"

    def build(self, named: Named, optim: OptimConfig) -> Together:
        matrices = MatrixMuon(
            [parameter for name, parameter in named if is_matrix(name, parameter)],
            lr=optim.lr,
            weight_decay=optim.weight_decay,
            **self.options(),
        )
        others = torch.optim.AdamW(
            decay_groups([pair for pair in named if not is_matrix(*pair)], optim.weight_decay),
            lr=optim.lr,
            betas=optim.betas,
            eps=optim.eps,
            fused=True,
        )
        return Together(matrices, others)

    def num_moments(self, matrices: int, others: int) -> int:
        return matrices + 2 * others

    def update_flops(self, matrices: Sequence[tuple[int, int]]) -> float:
        """Count ns_steps * (4 n^2 m + 2 n^3) for each n x m matrix, n <= m, on one device."""
        sides = [sorted(shape) for shape in matrices]
        return float(sum(self.ns_steps * (4 * n * n * m + 2 * n**3) for n, m in sides))


class MatrixMuon(torch.optim.Muon):
    """torch's Muon, whose step also takes shards of matrices and a learning rate on the device.

    A matrix in shards is gathered for its orthogonalization, which every rank computes whole; its
    momentum stays in shards. Without shards, and with lr as a number, the step is torch's, bit for
    bit.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        assert closure is None, "no closure is evaluated"
        for group in self.param_groups:
            weights: list[Tensor] = []
            grads: list[Tensor] = []
            buffers: list[Tensor] = []
            self._init_group(group, weights, grads, buffers)
            for weight, grad, buffer in zip(weights, grads, buffers, strict=True):
                _update(weight, grad, buffer, group)


class Together(torch.optim.Optimizer):
    """Optimizers of different parameters as one, with the groups and the state of all of them."""

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        self.parts = parts
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._share()

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        assert closure is None, "no closure is evaluated"
        for part in self.parts:
            part.step()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # a loaded state replaces groups and state by new objects
        self._share()

    def _share(self) -> None:
        first = 0
        for part in self.parts:
            last = first + len(part.param_groups)
            part.param_groups, part.state = self.param_groups[first:last], self.state
            first = last


def _update(weight: Tensor, grad: Tensor, buffer: Tensor, group: dict[str, Any]) -> None:
    """Do one matrix's step; weight, grad and buffer are whole, or all in the same shards."""
    lr, momentum = group["lr"], group["momentum"]
    buffer.lerp_(grad, 1 - momentum)
    direction = grad.lerp(buffer, momentum) if group["nesterov"] else buffer
    update = _orthogonalized(direction, group)
    size = _adjust_lr(lr, group["adjust_lr_fn"], weight.shape)
    weight.mul_(1 - lr * group["weight_decay"])
    if isinstance(size, Tensor):
        weight.addcmul_(update.to(weight.dtype), size, value=-1)
    else:
        weight.add_(update, alpha=-size)


def _orthogonalized(direction: Tensor, group: dict[str, Any]) -> Tensor:
    """Orthogonalize a whole matrix, whether it is here whole or in shards: bfloat16, n x m."""
    settings = group["ns_coefficients"], group["ns_steps"], group["eps"]
    if not isinstance(direction, DTensor):
        return _zeropower_via_newtonschulz(direction, *settings)
    whole = _zeropower_via_newtonschulz(direction.full_tensor(), *settings)
    mesh = direction.device_mesh
    everywhere = DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return everywhere.redistribute(placements=direction.placements)


PLUGIN = Muon
