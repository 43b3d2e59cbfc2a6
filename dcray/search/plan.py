"""What a run will take, before anything is trained: parameters, steps, FLOPs, memory, time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dcray.config import RunConfig
from dcray.errors import plural
from dcray.search.place import CPU_BATCH_BYTES, CPU_CORE_FLOPS
from dcray.sizes import PAPER_SIZES, num_non_embedding_params, num_params, usual_vocab_size
from dcray.track.rows import Row
from dcray.train.cost import CHECKPOINT_BYTES, fitting_microbatch, memory, training_flops

H100_FLOPS, H100_BYTES = 989e12, 80e9  # dense bfloat16
# The useful share of the FLOP/s at so many parameters, a twentieth below what bench_gpu measured.
SHARE_AT = {72e6: 0.38, 1.44e9: 0.49}
USUAL = "assumed: usual for this size"
TABLE = (
    "the table in search/plan.py: 40 GFLOP/s a CPU thread; 376 TFLOP/s an H100 at 72m, 485 at 1.4b"
)


@dataclass(frozen=True)
class Estimate:
    """A run's cost; `seconds_from` says where the expected time comes from."""

    device: str
    fields: dict[str, Any]
    seconds: float
    seconds_from: str

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            **self.fields,
            "device": self.device,
            "expected_seconds": self.seconds,
            "expected_seconds_from": self.seconds_from,
        }


def estimate(config: RunConfig, *, device: str, measured: Iterable[Row] = ()) -> Estimate:
    """The cost of a resolved configuration on `device` ("cpu" or "cuda").

    measured: results of this store; one of the same size, objective and kind of device gives the
    expected time, else the stated table does.
    """
    assert config.model.vocab_size is not None, "resolve the configuration first"
    half = device == "cuda"
    workers = config.runtime.workers if isinstance(config.runtime.workers, int) else 1
    micro = config.runtime.microbatch_size or fitting_microbatch(
        config,
        world_size=workers,
        available=H100_BYTES if half else CPU_BATCH_BYTES,
        half=half,
    )
    shape, vocab_size = config.shape, config.model.vocab_size
    bytes_needed = memory(config, world_size=workers, microbatch_size=micro, half=half)
    count, flops = num_params(shape, vocab_size), training_flops(config)
    seconds, source = expected_seconds(config, device, workers, measured)
    fields = {
        "size": config.size_name,
        "objective": config.objective.name,
        "num_params": count,
        "num_non_embedding_params": num_non_embedding_params(shape),
        "unique_tokens": config.unique_tokens,
        "num_rows": config.data.num_rows,
        "num_epochs": config.num_epochs,
        "num_steps": config.num_steps,
        "warmup_steps": config.schedule.warmup_steps,
        "batch_size": config.batch_size,
        "num_workers": workers,
        "microbatch_size": micro,
        "num_microbatches": config.batch_size // (workers * micro),
        "train_tokens": config.train_tokens,
        "tau": config.tau,
        "training_flops": flops,
        "flops_6nd": 6.0 * count * config.train_tokens,
        "state_bytes": bytes_needed.state,
        "activation_bytes": bytes_needed.activations,
        "memory_bytes": bytes_needed.total,
        "checkpoint_bytes": float(CHECKPOINT_BYTES * count),
    }
    return Estimate(device, fields, seconds, source)


def expected_seconds(
    config: RunConfig, device: str, workers: int, measured: Iterable[Row]
) -> tuple[float, str]:
    """The expected time of a run on `workers` devices, and where that figure comes from."""
    rates = [rate for row in measured if (rate := _rate(row, config, device, workers))]
    if rates:
        rates.sort()
        rate = rates[len(rates) // 2]
        many = plural(len(rates), "run")
        return config.train_tokens / rate, f"{many} of this store, {rate:,.0f} tokens/s"
    per_device = CPU_CORE_FLOPS * config.runtime.threads
    if device == "cuda":
        assert config.model.vocab_size is not None, "resolve the configuration first"
        per_device = gpu_flops(num_params(config.shape, config.model.vocab_size))
    return training_flops(config) / (per_device * workers), TABLE


def gpu_flops(count: int) -> float:
    """Useful FLOP/s of an H100 that trains `count` parameters: linear in their logarithm."""
    (small, low), (large, high) = SHARE_AT.items()
    place = math.log(count / small) / math.log(large / small)
    return H100_FLOPS * (low + (high - low) * min(1.0, max(0.0, place)))


def typical(config: RunConfig, device: str, workers: int, measured: Sequence[Row]) -> Sequence[Row]:
    """The result of the median rate alone: for whoever asks often, the same expected time."""
    rates = ((_rate(row, config, device, workers), at) for at, row in enumerate(measured))
    rated = sorted((rate, at) for rate, at in rates if rate)
    return [measured[rated[len(rated) // 2][1]]] if rated else []


def planned_vocab_size(config: RunConfig, of_corpus: int | None) -> tuple[int, str]:
    """The vocabulary to count with, and whence: the configuration, the corpus, else USUAL."""
    if config.model.vocab_size:
        return config.model.vocab_size, "model.vocab_size"
    if of_corpus:
        return of_corpus, "the corpus"
    return usual_vocab_size(config.size_name), USUAL


def planned_device(config: RunConfig) -> str:
    """ "cuda" or "cpu" where nothing says which: the paper's sizes were meant for GPUs."""
    if config.runtime.device != "auto":
        return config.runtime.device
    return "cuda" if config.size_name in PAPER_SIZES else "cpu"


def _rate(row: Row, config: RunConfig, device: str, workers: int) -> float | None:
    """A result's tokens/s, where it is of the same size, objective and kind of place."""
    alike = (
        row.state == "complete"
        and row.size == config.size_name
        and row.tags.get("objective") == config.objective.name
        and row.tags.get("world_size") == str(workers)
        and row.tags.get("device_type") == device
        and (device == "cuda" or row.tags.get("threads") == str(config.runtime.threads))
    )
    return row.metrics.get("tokens_per_second") if alike else None
