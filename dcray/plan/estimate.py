"""The cost of a run before anything is trained: parameters, steps, FLOPs, memory, time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dcray.config.run import RunConfig
from dcray.config.sizes import PAPER_SIZES, num_non_embedding_params, num_params, usual_vocab_size
from dcray.cost import checkpoint_bytes, fitting_microbatch, memory, training_flops
from dcray.errors import plural
from dcray.track.rows import Row

CPU_CORE_FLOPS = 4e10  # of a mini size's step; 26e9 to 69e9 measured (docs/benchmarks.md)
CPU_BATCH_BYTES = 2e9  # for activations of a micro-batch on a CPU worker
H100_FLOPS, H100_BYTES = 989e12, 80e9  # dense bfloat16
# The useful share of an H100's FLOP/s by number of parameters, 5 % below what bench_gpu measured.
SHARE_AT = {72e6: 0.38, 1.44e9: 0.49}
USUAL = "assumed: usual for this size"
TABLE = (
    "the table in plan/estimate.py: 40 GFLOP/s a CPU thread; "
    "376 TFLOP/s an H100 at 72m, 485 at 1.4b"
)


@dataclass(frozen=True)
class Estimate:
    """A run's cost; `seconds_from` says where the expected time comes from."""

    device: str
    fields: dict[str, Any]
    seconds: float
    seconds_from: str

    def to_dict(self) -> dict[str, Any]:
        """Convert the estimate to plain JSON types."""
        return {
            **self.fields,
            "device": self.device,
            "expected_seconds": self.seconds,
            "expected_seconds_from": self.seconds_from,
        }


def estimate(config: RunConfig, *, device: str, measured: Iterable[Row] = ()) -> Estimate:
    """Estimate the cost of a resolved configuration on `device` ("cpu" or "cuda").

    measured: results of this store; those of the same size, objective and kind of device give the
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
        "checkpoint_bytes": float(checkpoint_bytes(config) * count),
    }
    return Estimate(device, fields, seconds, source)


def expected_seconds(
    config: RunConfig, device: str, workers: int, measured: Iterable[Row]
) -> tuple[float, str]:
    """Estimate the seconds of a run on `workers` devices, and say where that figure comes from.

    The rate is the median one of like runs in `measured`, else the table's.
    """
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
    """Interpolate the useful FLOP/s of an H100 for `count` parameters, linear in log(count)."""
    (small, low), (large, high) = SHARE_AT.items()
    place = math.log(count / small) / math.log(large / small)
    return H100_FLOPS * (low + (high - low) * min(1.0, max(0.0, place)))


def typical(config: RunConfig, device: str, workers: int, measured: Sequence[Row]) -> Sequence[Row]:
    """Return only the result of the median rate: the expected time stays the same."""
    rates = ((_rate(row, config, device, workers), at) for at, row in enumerate(measured))
    rated = sorted((rate, at) for rate, at in rates if rate)
    return [measured[rated[len(rated) // 2][1]]] if rated else []


def planned_vocab_size(config: RunConfig, of_corpus: int | None) -> tuple[int, str]:
    """Choose the vocabulary to count with and name its origin: configuration, corpus or USUAL."""
    if config.model.vocab_size:
        return config.model.vocab_size, "model.vocab_size"
    if of_corpus:
        return of_corpus, "the corpus"
    return usual_vocab_size(config.size_name), USUAL


def planned_device(config: RunConfig) -> str:
    """Choose "cuda" or "cpu" if nothing says which: the paper's sizes were meant for GPUs."""
    if config.runtime.device != "auto":
        return config.runtime.device
    return "cuda" if config.size_name in PAPER_SIZES else "cpu"


def device_of(config: RunConfig, num_gpus: int) -> str:
    """Choose "cuda" or "cpu": as configured, else a GPU if there is one."""
    if config.runtime.device != "auto":
        return config.runtime.device
    return "cuda" if num_gpus else "cpu"


def workers_of(config: RunConfig, num_gpus: int) -> int:
    """Count the processes of one run: as configured, else one per GPU, and one on CPUs."""
    if isinstance(config.runtime.workers, int):
        return config.runtime.workers
    return max(num_gpus, 1) if device_of(config, num_gpus) == "cuda" else 1


def _rate(row: Row, config: RunConfig, device: str, workers: int) -> float | None:
    """Return a result's tokens/s if its size, objective and kind of place match, else None."""
    alike = (
        row.state == "complete"
        and row.size == config.size_name
        and row.tags.get("objective") == config.objective.name
        and row.tags.get("world_size") == str(workers)
        and row.tags.get("device_type") == device
        and (device == "cuda" or row.tags.get("threads") == str(config.runtime.threads))
    )
    return row.metrics.get("tokens_per_second") if alike else None
