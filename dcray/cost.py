"""The cost of a run: FLOPs, memory, the micro-batch that fits, and the share of a GPU."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dcray.config.run import BEST_COST_FRAC, RunConfig
from dcray.config.sizes import Pass, Shape, forward_flops, num_params, pad_vocab
from dcray.objectives import Objective
from dcray.optimizers import Optimizer

BACKWARD = 2.0  # a backward pass costs two forward passes
WEIGHT_BYTES = 4  # a parameter: its float32 weight; gradient, moment and average take as many
SCORING = 1.07  # time of a scoring over that of its FLOPs in a training step (on an H200)
LAST_COST_FRAC, FEWEST = 0.01, 4  # validation if no best epoch is kept
SHORT_SECONDS = 100.0  # a trial that trains longer loses less than 3 % of a GPU to its start
MOST = 4  # short trials on one GPU
CONTEXT_BYTES = 2e9  # of a process on a GPU besides its tensors: CUDA's context, libraries, graphs
HEADROOM = 0.85  # of a device's memory; the rest is for fragmentation and what is not counted


def row_flops(config: RunConfig) -> float:
    """Compute the exact FLOPs of one forward pass over one row; only attended pairs are counted."""
    assert config.model.vocab_size is not None, "resolve the configuration first"
    objective: Objective = config.objective.build()
    a_pass = Pass(config.data.seq_len, objective.causal, config.model.window_pattern)
    per_token = forward_flops(config.shape, config.model.vocab_size, a_pass)
    return per_token * config.data.seq_len


def training_flops_per_epoch(config: RunConfig) -> float:
    """Compute the exact training FLOPs of one epoch: passes of the objective, updates of weights.

    A few FLOPs a parameter and update, as AdamW's, are not counted.
    """
    passes: float = config.objective.build().num_passes
    optimizer: Optimizer = config.optimizer.build()
    update = optimizer.update_flops(_matrices(config.shape)) / config.batch_size
    return ((1 + BACKWARD) * passes * row_flops(config) + update) * config.usable_rows


def training_flops(config: RunConfig) -> float:
    """Compute the exact training FLOPs of the whole schedule, without validation."""
    return training_flops_per_epoch(config) * config.num_epochs


def validation_flops(config: RunConfig, num_rows: int) -> float:
    """Compute the FLOPs of a validation on `num_rows` rows, which an average makes two scorings."""
    passes: float = config.objective.build().num_validation_passes
    return passes * row_flops(config) * num_rows * (2 if config.average.kept else 1)


def final_flops(config: RunConfig, num_rows: int) -> float:
    """Compute the FLOPs of scoring the kept checkpoint once more, 0 if the objective keeps none."""
    objective: Objective = config.objective.build()
    passes = objective.final().num_validation_passes if objective.keeps_best else 0.0
    return passes * row_flops(config) * num_rows


def validation_epochs(config: RunConfig, *, num_rows: int) -> set[int]:
    """Choose the epochs after which the validation set is scored; the last is always among them.

    "auto": every n-th, so that scoring takes at most max_cost_frac of the training; the last one
    of an objective that keeps its best epoch is paid from the same share. By default LAST_COST_FRAC
    if the last epoch alone counts, or up to BEST_COST_FRAC for FEWEST points of a curve.
    """
    asked, last = config.validation.epochs, config.num_epochs
    if asked == "end":
        return {last}
    if isinstance(asked, tuple):
        return {*asked, last}
    if isinstance(asked, int):
        return {*range(asked, last + 1, asked), last}
    final, share = SCORING * final_flops(config, num_rows), config.validation.max_cost_frac
    training, cost = training_flops(config), SCORING * validation_flops(config, num_rows) * last

    def every_for(share: float) -> int:
        allowed = share * training - final
        return max(1, math.ceil(cost / allowed)) if allowed > 0 else last

    if share is None:
        few = max(every_for(BEST_COST_FRAC), last // FEWEST)
        every = min(every_for(LAST_COST_FRAC), few)
    else:
        every = every_for(share)
    stop = last - every + 1 if final else last + 1
    return {*range(every, stop, every), last}


@dataclass(frozen=True)
class Memory:
    """Bytes on a device: weights, gradients, moments, average; activations of a micro-batch."""

    state: float
    activations: float

    @property
    def total(self) -> float:
        return self.state + self.activations


def memory(config: RunConfig, *, world_size: int, microbatch_size: int, half: bool) -> Memory:
    """Estimate the peak bytes on each of `world_size` devices; `half`: bfloat16 compute.

    Activations kept for the backward pass, a token and layer: 10 times dim (the residual and its
    branch, two norms, q, k, v before and q, k after their norm, the attention's output), a byte of
    dropout a channel, and 3 times mlp_dim. In bfloat16 the head keeps its logits once, since their
    gradient takes their place; in float32 twice, with a copy between. A test compares the estimate
    with peaks measured on an H100.
    """
    assert config.model.vocab_size is not None, "resolve the configuration first"
    shape, width = config.shape, 2 if half else 4
    count = num_params(shape, config.model.vocab_size)
    kept = checkpoint_bytes(config, config.model.vocab_size)
    state = (kept + WEIGHT_BYTES * count) / world_size + (2 * count if half else 0)
    if world_size > 1:
        state += 4 * count  # gathered gradients of one step
    tokens = microbatch_size * config.data.seq_len
    layer = width * (10 * shape.dim + 3 * shape.mlp_dim) + shape.dim
    head = pad_vocab(config.model.vocab_size) * (width if half else 3 * width)
    return Memory(state, float(tokens * (shape.num_layers * layer + head)))


def checkpoint_bytes(config: RunConfig, vocab_size: int) -> int:
    """Compute the bytes of a checkpoint: weights, what the optimizer keeps of them, an average."""
    optimizer: Optimizer = config.optimizer.build()
    count = num_params(config.shape, vocab_size)
    matrices = sum(rows * columns for rows, columns in _matrices(config.shape))
    kept = count * (2 if config.average.kept else 1)
    return WEIGHT_BYTES * (kept + optimizer.num_moments(matrices, count - matrices))


def _matrices(shape: Shape) -> list[tuple[int, int]]:
    """List the shapes of the matrices of all blocks."""
    square, wide = (shape.dim, shape.dim), (shape.mlp_dim, shape.dim)
    return [*[square] * 4, *[wide] * 3] * shape.num_layers


def fitting_microbatch(config: RunConfig, *, world_size: int, available: float, half: bool) -> int:
    """Find the largest divisor of a rank's share of the batch whose peak fits; at least 1."""
    share = config.batch_size // world_size
    divisors = [size for size in range(1, share + 1) if share % size == 0]
    fits = [
        size
        for size in divisors
        if memory(config, world_size=world_size, microbatch_size=size, half=half).total
        <= HEADROOM * available
    ]
    return max(fits, default=1)


def smaller_microbatch(config: RunConfig) -> int | None:
    """Find the next smaller micro-batch of a placed run that divides its batch; None below 1."""
    micro, workers = config.runtime.microbatch_size, config.runtime.workers
    assert micro is not None, "place the run first"
    assert isinstance(workers, int), "place the run first"
    share = config.batch_size // workers
    return next((size for size in range(micro - 1, 0, -1) if share % size == 0), None)


def gpu_share(config: RunConfig, *, available: float, cpus: float, seconds: float) -> float:
    """Choose the share of a GPU that a run of one process takes: as configured, or by "auto".

    available: bytes of the GPU; cpus: of its node, for this GPU; seconds: that the run would train
    on the whole GPU. With "auto" a run of SHORT_SECONDS or more has a GPU alone. Shorter ones leave
    it idle while they start and end, so MOST of them share it, or as many as memory and CPUs allow.
    """
    share = config.runtime.gpu_share
    if isinstance(share, float):
        return share
    if seconds >= SHORT_SECONDS:
        return 1.0
    half = config.runtime.precision in ("auto", "bfloat16")
    whole = config.runtime.microbatch_size or fitting_microbatch(
        config, world_size=1, available=available, half=half
    )
    need = memory(config, world_size=1, microbatch_size=whole, half=half).total + CONTEXT_BYTES
    number = min(MOST, int(HEADROOM * available / need), int(cpus / config.runtime.threads))
    return math.floor(1e4 / max(1, number)) / 1e4  # Ray counts shares in ten-thousandths
