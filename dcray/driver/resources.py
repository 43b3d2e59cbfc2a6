"""The place of a run: device, workers and micro-batch; runs that cannot be done are refused."""

from __future__ import annotations

import math
import platform
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dcray.config.run import RunConfig
from dcray.config.sections import batch_problems
from dcray.cost import fitting_microbatch, gpu_share, training_flops
from dcray.errors import ConfigError, plural
from dcray.plan.estimate import CPU_BATCH_BYTES, CPU_CORE_FLOPS, device_of, workers_of

LEAST_SHARE = 0.01  # of a GPU, to ask it for its name beside trials that share it
MAX_CPU_DAYS = 2.0  # a longer run on a CPU is refused: it was meant for a GPU


@dataclass(frozen=True)
class Machine:
    """The CPUs and GPUs that the connected Ray offers."""

    num_cpus: float
    num_gpus: int
    cpu_name: str
    gpu_name: str
    gpu_bytes: float  # memory of the GPU that was asked; 0 if there is none
    node_cpus: tuple[float, ...] = ()  # of each node; none: one node has them all


def this_machine(*, gpu_seconds: float = 0.0) -> Machine:
    """Read the connected cluster's CPUs and GPUs; one GPU is asked for its name and memory (bytes).

    gpu_seconds: how long to wait for a first GPU if there is none yet; the request for it is what
    makes an autoscaler start a node.
    """
    import ray

    gpu_name, gpu_bytes = "", 0.0
    if gpu_seconds or ray.cluster_resources().get("GPU", 0):
        asked = ray.remote(num_gpus=LEAST_SHARE, num_cpus=0)(_gpu).remote()
        try:
            gpu_name, gpu_bytes = ray.get(asked, timeout=gpu_seconds or None)
        except ray.exceptions.GetTimeoutError:
            ray.cancel(asked, force=True)
    have = ray.cluster_resources()
    num_gpus = int(have.get("GPU", 0)) if gpu_name else 0
    return Machine(
        have.get("CPU", 0),
        num_gpus,
        platform.processor() or platform.machine(),
        gpu_name,
        gpu_bytes,
        tuple(node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]),
    )


def place_run(
    config: RunConfig,
    machine: Machine,
    note: Callable[[str], None] = lambda _: None,
    *,
    seconds: float = math.inf,
) -> RunConfig:
    """Decide device, workers, share of a GPU and micro-batch of a configuration on this machine.

    seconds: of training on a whole GPU, by which runs that last short share one. Raises ConfigError
    if the machine cannot hold the run, or would take days for it on a CPU. `note` is told how many
    GPUs are used if not all are.
    """
    runtime, device = config.runtime, device_of(config, machine.num_gpus)
    if device == "cuda" and not machine.num_gpus:
        raise ConfigError(f'runtime.device = "cuda", but {missing_gpu()}')
    if device == "cpu":
        _refuse_hopeless(config, machine)
    workers = workers_of(config, machine.num_gpus)
    _check_workers(config, workers, device, machine)
    share = 1.0
    if device == "cuda" and workers == 1:
        cpus = machine.num_cpus / machine.num_gpus
        share = gpu_share(config, available=machine.gpu_bytes, cpus=cpus, seconds=seconds)
    if device == "cuda" and workers < machine.num_gpus:
        note(f"{workers} of {machine.num_gpus} GPUs used (--workers auto takes all)")
    micro = runtime.microbatch_size
    if micro is None:
        half = device == "cuda" and runtime.precision in ("auto", "bfloat16")
        room = share * machine.gpu_bytes if device == "cuda" else CPU_BATCH_BYTES
        micro = fitting_microbatch(config, world_size=workers, available=room, half=half)
    decided = {"device": device, "workers": workers, "gpu_share": share, "microbatch_size": micro}
    return config.model_copy(update={"runtime": runtime.model_copy(update=decided)})


def cpus_of(run: RunConfig) -> float:
    """Return the CPUs that a placed run holds; the process of a GPU needs its own, too."""
    return float(run.runtime.threads * int(run.runtime.workers))


def gpus_of(run: RunConfig) -> float:
    """Return the GPUs that a placed run holds, or its share of one."""
    return run.runtime.num_devices if run.runtime.device == "cuda" else 0.0


def cpu_days(config: RunConfig) -> float:
    """Estimate the days of a run on its CPU threads, at CPU_CORE_FLOPS a thread."""
    workers = config.runtime.workers if isinstance(config.runtime.workers, int) else 1
    return training_flops(config) / (CPU_CORE_FLOPS * config.runtime.threads * workers) / 86_400


def missing_gpu() -> str:
    """Explain why no GPU is seen: there is none, or this torch was built without CUDA."""
    import torch

    card = Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi")
    if card and torch.version.cuda is None:
        return (
            f"torch {torch.__version__} was built without CUDA beside an NVIDIA card; install the "
            "CUDA build: pip install --force-reinstall 'torch>=2.11,<2.14'"
        )
    return "Ray sees no GPU on this machine or cluster"


def _refuse_hopeless(config: RunConfig, machine: Machine) -> None:
    days = cpu_days(config)
    if config.runtime.device == "auto" and days > MAX_CPU_DAYS:
        raise ConfigError(
            f"{config.size_name} for {plural(config.num_epochs, 'epoch')} of "
            f"{config.unique_tokens:,} tokens takes about {days:,.0f} days on a CPU, "
            f"and {missing_gpu()}. Run it on a GPU, try a mini size (dcray sizes lists them, "
            "for example size=226k data.unique_tokens=64k data.seq_len=128 batch_size=8), or "
            "insist with runtime.device=cpu"
        )


def _check_workers(config: RunConfig, workers: int, device: str, machine: Machine) -> None:
    """Raise ConfigError for what would wait forever: each process, a GPU's too, needs its CPUs."""
    problems = batch_problems(config.batch_size, workers, config.runtime.microbatch_size)
    threads, nodes = config.runtime.threads, machine.node_cpus or (machine.num_cpus,)
    room, what = sum(int(cpus / threads) for cpus in nodes), f"CPUs at runtime.threads = {threads}"
    if device == "cuda" and workers > machine.num_gpus:
        room, what = machine.num_gpus, "GPUs"
    if not room:
        problems.append(
            f"runtime.threads ({threads}) must be at most the CPUs of one node, for each process "
            f"needs as many, here {max(nodes):g}"
        )
    elif workers > room:
        problems.append(f"runtime.workers ({workers}) must be at most what Ray has: {room} {what}")
    if problems:
        raise ConfigError(problems)


def _gpu() -> tuple[str, float]:
    import torch

    properties = torch.cuda.get_device_properties(0)
    return properties.name, float(properties.total_memory)
