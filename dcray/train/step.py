"""One optimizer step: every term's backward pass as it arrives, then clip and update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from dcray.objectives import Batch, Objective
from dcray.train.shard import sync_gradients


@dataclass(frozen=True)
class StepSums:
    """What one rank saw in one step, still on the device."""

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


def accumulate(
    model: nn.Module,
    objective: Objective,
    microbatches: Sequence[tuple[Batch, Tensor]],
    *,
    step_tokens: int,
    world_size: int,
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Gradients of sum(weight * nats) / step_tokens; FSDP averages ranks, hence * world_size."""
    scale = world_size / step_tokens
    nats: dict[str, Tensor] = {}
    weights: dict[str, float] = {}
    for number, (batch, key) in enumerate(microbatches, start=1):
        sync_gradients(model, sync=number == len(microbatches))
        for term in objective.terms(model, batch, key):
            loss = term.weight * term.nats * scale
            torch.autograd.backward(loss)  # frees this term's graph before the next
            seen = term.nats.detach().double()
            nats[term.name] = nats[term.name] + seen if term.name in nats else seen
            weights[term.name] = term.weight
    return nats, weights
