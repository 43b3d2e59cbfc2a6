"""One optimizer step: the backward pass of each term as it arrives, then clip and update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from dcray.objectives import Batch, Objective
from dcray.optimizers import Optimizer
from dcray.train.launch.low_precision import LowPrecisionWeights
from dcray.train.optim import clipped_step
from dcray.train.shard import sync_gradients


@dataclass(frozen=True)
class StepSums:
    """The sums of one rank in one step, still on the device."""

    nats: dict[str, Tensor]  # summed nats of each term, this rank's rows
    weights: dict[str, float]
    grad_norm: Tensor  # of all ranks, before clipping


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    objective: Objective,
    microbatches: Sequence[tuple[Batch, Tensor]],  # with the rows' keys
    *,
    step_tokens: int,  # targets of the whole batch, all ranks
    world_size: int,
    max_grad_norm: float,
) -> StepSums:
    """Back-propagate each loss term as it arrives, clip, update. Never waits for the device."""
    nats, weights = accumulate(
        model, objective, microbatches, step_tokens=step_tokens, world_size=world_size
    )
    grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
    if isinstance(grad_norm, DTensor):
        grad_norm = grad_norm.full_tensor()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return StepSums(nats, weights, grad_norm)


def device_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    plugin: Optimizer,
    objective: Objective,
    microbatches: Sequence[tuple[Batch, Tensor]],
    *,
    step_tokens: Tensor,  # () float64, on the device as all that follows
    lr: Tensor,  # () float32
    max_grad_norm: float,
    halves: LowPrecisionWeights | None,
) -> StepSums:
    """Do a step on one device with nothing that the host must know: a graph can hold it.

    plugin: what built the optimizer; if it is not capturable, no graph can.
    """
    optimizer.zero_grad(set_to_none=True)
    if halves is not None:
        halves.cast()
    nats, weights = accumulate(
        model, objective, microbatches, step_tokens=step_tokens, world_size=1, halves=halves
    )
    grad_norm = clipped_step(optimizer, plugin, lr, max_grad_norm)
    optimizer.zero_grad(set_to_none=True)
    return StepSums(nats, weights, grad_norm)


def accumulate(
    model: nn.Module,
    objective: Objective,
    microbatches: Sequence[tuple[Batch, Tensor]],
    *,
    step_tokens: int | Tensor,
    world_size: int,
    halves: LowPrecisionWeights | None = None,
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Add up the gradients of sum(weight * nats) / step_tokens; return nats and weights by term.

    The gradients are multiplied by world_size, since FSDP averages them over ranks.
    """
    scale = world_size / step_tokens
    nats: dict[str, Tensor] = {}
    weights: dict[str, float] = {}
    for number, (batch, key) in enumerate(microbatches, start=1):
        sync_gradients(model, sync=number == len(microbatches))
        for term in objective.terms(model, batch, key):
            share = scale.to(term.nats.dtype) if isinstance(scale, Tensor) else scale
            loss = term.weight * term.nats * share
            torch.autograd.backward(loss)  # frees this term's graph before the next
            if halves is not None:
                halves.collect()
            seen = term.nats.detach().double()
            nats[term.name] = nats[term.name] + seen if term.name in nats else seen
            weights[term.name] = term.weight
    return nats, weights
