"""A model on its device: keyed initial weights, FSDP2 on several ranks, compiled on a GPU."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from dcray.config.run import RunConfig
from dcray.model.transformer import Transformer
from dcray.train.launch.compiling import compile_model

RESHARD_FROM = 2_000_000_000  # parameters: below, gathered weights stay until the backward pass


@dataclass(frozen=True)
class RankContext:
    """The place of one rank: its device and, with several ranks, the mesh of all."""

    device: torch.device
    rank: int = 0
    world_size: int = 1
    mesh: DeviceMesh | None = None

    def total(self, values: Tensor) -> Tensor:
        """Sum a tensor over all ranks, in place; every rank gets the sum."""
        if self.mesh is not None:
            dist.all_reduce(values)
        return values

    def put(self, array: NDArray[Any]) -> Tensor:
        """Copy the array to this rank's device."""
        return to_device(array, self.device)

    def wait(self) -> None:
        """Wait for this rank's device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    @contextmanager
    def own_stream(self) -> Iterator[None]:
        """Work on a stream of the device that is not the default one, alone: graphs need it.

        On several ranks, and on a CPU, nothing changes.
        """
        if self.device.type != "cuda" or self.mesh is not None:
            yield
            return
        self.wait()
        with torch.cuda.stream(_stream(self.device)):
            yield
        self.wait()

    def barrier(self) -> None:
        """Wait for all ranks."""
        if self.mesh is not None:
            dist.barrier()


@lru_cache(maxsize=8)
def _stream(device: torch.device) -> torch.cuda.Stream:
    """Make one stream for all runs of a process: libraries keep workspaces for each stream."""
    stream: Any = torch.cuda.Stream
    found: torch.cuda.Stream = stream(device)
    return found


def this_place(device: torch.device) -> RankContext:
    """Find the place of this process in the default process group, alone if there is none."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return RankContext(device)
    world_size = dist.get_world_size()
    mesh = init_device_mesh(device.type, (world_size,))
    return RankContext(device, dist.get_rank(), world_size, mesh)


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Copy the array to `device`; the host waits neither for the copy nor for earlier work."""
    host = torch.from_numpy(np.ascontiguousarray(array))
    if device.type == "cuda":
        host = host.pin_memory()
    return host.to(device, non_blocking=True)


def compute_dtype(precision: str, device: torch.device) -> torch.dtype:
    """Choose the dtype of the arithmetic: "auto" is bfloat16 on a GPU, float32 on a CPU."""
    if precision == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    dtype: torch.dtype = getattr(torch, precision)
    return dtype


def build_model(config: RunConfig, place: RankContext) -> Transformer:
    """Build the model of a resolved configuration, its weights drawn by (seed, name) alone."""
    model = blank_model(config, place)
    init_weights(model, seed=config.seed)
    return model


def blank_model(config: RunConfig, place: RankContext) -> Transformer:
    """Build the same model without weights, for a caller that loads all of them.

    Drawing weights takes a second at 72M parameters, half a minute at 1.4B.
    """
    dtype = compute_dtype(config.runtime.precision, place.device)
    model = Transformer(
        config.shape,
        config.model,
        seq_len=config.data.seq_len,
        dtype=dtype,
        device=torch.device("meta"),
    )
    if dtype == torch.float64:
        model.double()
    compiled = config.runtime.compile
    if compiled is True or (compiled == "auto" and place.device.type == "cuda"):
        compile_model(model, alone=place.mesh is None)
    if place.mesh is not None:
        _shard(model, place.mesh, dtype)
    model.to_empty(device=place.device)
    return model


def _shard(model: Transformer, mesh: DeviceMesh, dtype: torch.dtype) -> None:
    reduce_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=reduce_dtype, output_dtype=None)
    reshard = _is_large(model)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)


@torch.no_grad()
def init_weights(model: nn.Module, *, seed: int) -> None:
    """Draw the weights from a truncated normal (+-2 sigma); gains are 1.

    sigma = 1/sqrt(fan_in) for matrices and the head, 1/dim for the embedding (SCIENCE, "Exact
    facts"). They are drawn on the CPU by (seed, name), so that every device, world size and order
    of construction gets the same weights.
    """
    for name, parameter in model.named_parameters():
        full = _initial(name, parameter, seed)
        if isinstance(parameter, DTensor):
            sharded = distribute_tensor(
                full.to(parameter.device),
                parameter.device_mesh,
                parameter.placements,
                src_data_rank=None,
            )
            parameter.to_local().copy_(sharded.to_local())
        else:
            parameter.copy_(full)


def _initial(name: str, parameter: nn.Parameter, seed: int) -> Tensor:
    if parameter.ndim < 2:
        return torch.ones(parameter.shape, dtype=torch.float32)
    fan_in = parameter.shape[1]
    sigma = 1 / fan_in if name.endswith("embed.weight") else fan_in**-0.5
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    bits = int.from_bytes(digest[:4], "little")  # the CPU generator reads 32 bits of a seed
    generator = torch.Generator().manual_seed(bits)
    full = torch.empty(parameter.shape, dtype=torch.float32)
    return nn.init.trunc_normal_(full, 0.0, sigma, -2 * sigma, 2 * sigma, generator=generator)


def sync_gradients(model: nn.Module, *, sync: bool) -> None:
    """Set whether the next backward passes reduce gradients over ranks: the last one's do.

    Before the last micro-batch, gathered weights stay for the next one if memory allows.
    """
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(sync)
        model.set_reshard_after_backward(sync or _is_large(model))


def _is_large(model: nn.Module) -> bool:
    """Tell whether the model's gathered weights are freed as soon as a pass has used them."""
    return sum(parameter.numel() for parameter in model.parameters()) >= RESHARD_FROM
