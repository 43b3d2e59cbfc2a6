"""The average of a model's weights over the steps of a run, in the precision of the weights.

    average += share * (weights - average), after each step

The share is a pure function of the step (schedule.average_share), so that the averaged tensors are
all that a checkpoint must keep. The update is that of torch.optim.swa_utils, whose functions fix
the share when they are built: here a step that is captured as a graph reads it from a buffer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from dcray.config.run import RunConfig


class Average:
    """The averaged weights of a model; on several ranks each holds its own shards of them.

    tensors: the averages by the names of their parameters, all zero before the first update.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._weights = dict(model.named_parameters())  # FSDP's shards, as the optimizer has them
        self.tensors = {name: torch.zeros_like(weight) for name, weight in self._weights.items()}

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of the average, and of a share on the device."""
        return next(iter(self.tensors.values())).dtype

    @torch.no_grad()
    def update(self, share: float | Tensor) -> None:
        """Move the average to the current weights by this share of the way; never waits.

        share: 1 replaces the average. A graph reads a tensor () of `dtype` on the device.
        """
        averages, weights = _local(self.tensors), _local(self._weights)
        if isinstance(share, Tensor):
            torch._foreach_lerp_(averages, weights, [share] * len(averages))
        else:
            torch._foreach_lerp_(averages, weights, share)

    @torch.no_grad()
    def exchange(self) -> None:
        """Exchange the values of the average and of the model's weights, bit for bit.

        One tensor after the other; all of them stay where they lie in memory.
        """
        for module in self._model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()  # else gathered copies of the other weights would be computed with
        for average, weight in zip(_local(self.tensors), _local(self._weights), strict=True):
            kept = weight.clone()
            weight.copy_(average)
            average.copy_(kept)


def build_average(model: nn.Module, config: RunConfig) -> Average | None:
    """Build the average that the configuration asks for, None if it asks for none."""
    return Average(model) if config.average.kept else None


@contextmanager
def in_place(average: Average | None) -> Iterator[None]:
    """Have the model compute with its average within a block, if one is kept, then as before."""
    if average is None:
        yield
        return
    average.exchange()
    try:
        yield
    finally:
        average.exchange()


def _local(tensors: Mapping[str, Tensor]) -> list[Tensor]:
    """Return this rank's shards; FSDP may have moved them since the last look."""
    return [one.to_local() if isinstance(one, DTensor) else one for one in tensors.values()]
