"""The cost of a run: FLOPs, memory, and the micro-batch that fits."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dcray.config.run import BEST_COST_FRAC, RunConfig
from dcray.config.sizes import Pass, forward_flops, num_params, pad_vocab
from dcray.objectives import Objective

BACKWARD = 2.0  # a backward pass costs two forward passes
CHECKPOINT_BYTES = 12  # a parameter: its float32 weight and two moments
WEIGHT_BYTES = 4  # a parameter: of a best epoch, which is kept beside the checkpoints
STATE_BYTES = 16  # float32 weight, gradient and two moments a parameter
AVERAGE_BYTES = 4  # a parameter: of an average of the weights, in memory and in a checkpoint
SCORING = 1.07  # time of a scoring over that of its FLOPs in a training step (on an H200)
LAST_COST_FRAC, FEWEST = 0.01, 4  # validation if no best epoch is kept
HEADROOM = 0.85  # of a device's memory; the rest is for fragmentation and what is not counted


def row_flops(config: RunConfig) -> float:
    """Compute the exact FLOPs of one forward pass over one row; only attended pairs are counted."""
    assert config.model.vocab_size is not None, "resolve the configuration first"
    objective: Objective = config.objective.build()
    a_pass = Pass(config.data.seq_len, objective.causal, config.model.window_pattern)
    per_token = forward_flops(config.shape, config.model.vocab_size, a_pass)
    return per_token * config.data.seq_len


def training_flops_per_epoch(config: RunConfig) -> float:
    """Compute the exact training FLOPs of one epoch, every pass of the objective counted."""
    passes: float = config.objective.build().num_passes
    return (1 + BACKWARD) * passes * row_flops(config) * config.usable_rows


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


def checkpoint_bytes(config: RunConfig) -> int:
    """Count the bytes of a checkpoint, a parameter: CHECKPOINT_BYTES and those of an average."""
    return CHECKPOINT_BYTES + (AVERAGE_BYTES if config.average.kept else 0)


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
    each = STATE_BYTES + (AVERAGE_BYTES if config.average.kept else 0)
    state = each * count / world_size + (2 * count if half else 0)
    if world_size > 1:
        state += 4 * count  # gathered gradients of one step
    tokens = microbatch_size * config.data.seq_len
    layer = width * (10 * shape.dim + 3 * shape.mlp_dim) + shape.dim
    head = pad_vocab(config.model.vocab_size) * (width if half else 3 * width)
    return Memory(state, float(tokens * (shape.num_layers * layer + head)))


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
