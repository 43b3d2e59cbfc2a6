"""One trial on Ray Train: in-process on one device, FSDP2 workers on several.

A trial is a Tune trainable. With one device it runs the loop in its own process
(`ScalingConfig(num_workers=0)`); with several, TorchTrainer starts a worker group and rank 0's
reports are forwarded. Either way the loop is given its report, its place and its data.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from dcray import plugins
from dcray.cluster.environment import set_environment
from dcray.config.run import RunConfig
from dcray.corpus.stream import StreamRefs, fetch_rows, validation_rows
from dcray.corpus.validation_rows import nats_file
from dcray.reports import Outcome, Report
from dcray.train.failure import group_environment, memory_reason, outcome_of, peer_seconds
from dcray.types import RunSpec

STOP_FILE = "stop"  # in a trial's folder: go to the next report, save, end
MEMORY_ASKED = 1e6  # an outer trial must ask for something that is no CPU (bytes)


def trial(
    config: dict[str, Any],
    *,
    refs: Mapping[str, StreamRefs],
    plugin_files: list[tuple[str, str]],
) -> None:
    """Train each RunSpec of `config["runs"]` as a Tune trainable, and report on the way.

    Reports {"name": ..., "report": ...} while a run trains and {"name": ..., "outcome": ...} at its
    end, with num_epochs and val_loss for a scheduler; an exception is an outcome too, so that the
    driver gets all of it. A run that is on record already ("answered") is reported and not trained.
    """
    import ray.tune

    for spec in config["runs"]:
        said: dict[str, Any] = {"name": spec.name, "num_epochs": spec.config.num_epochs}
        if spec.answered is not None:
            ray.tune.report(said | {"val_loss": spec.answered})
            continue
        try:
            plugins.take_up(plugin_files)
            folder = Path(config["checkpoints"])
            trainer = _trainer(spec, folder, refs[config["data"]], plugin_files)
            outcome = dict(trainer.fit().return_value)
        except Exception as error:
            outcome = outcome_of(error, traceback.format_exc())
        if outcome.get("out_of_memory"):
            outcome["reason"] = memory_reason(spec.run.runtime.microbatch_size or 1)
        if spec.run.runtime.num_devices < 1 or outcome.get("out_of_memory"):
            _free_memory()
        loss = outcome.get("val_loss")
        ray.tune.report(said | {"outcome": outcome} | ({} if loss is None else {"val_loss": loss}))
        if outcome["state"] != "complete":
            return


def _free_memory() -> None:
    """Free the GPU memory that this process keeps for a next run: others need it."""
    import gc

    import torch

    gc.collect()
    torch.cuda.empty_cache()


def resources(config: RunConfig, *, gpu: bool) -> list[dict[str, float]]:
    """Return a trial's placement-group bundle: its own device, or almost nothing beside workers."""
    if config.runtime.workers == 1:
        return [{"CPU": config.runtime.threads, "GPU": config.runtime.num_devices if gpu else 0.0}]
    return [{"CPU": 0, "memory": MEMORY_ASKED}]


def _trainer(
    spec: RunSpec, checkpoints: Path, refs: StreamRefs, plugin_files: list[tuple[str, str]]
) -> Any:
    """Build the TorchTrainer of a run: in this process, or a group of workers beside it."""
    import ray.train
    import ray.tune
    from ray.train.torch import TorchConfig, TorchTrainer
    from ray.tune.integration.ray_train import TuneReportCallback

    def on_rank(report: Callable[[dict[str, Any]], None]) -> partial[dict[str, Any]]:
        return partial(train_rank, plugin_files, spec, checkpoints, refs=refs, report=report)

    run = spec.run
    gpu, num_workers = run.runtime.device == "cuda", run.runtime.workers
    if num_workers == 1:
        return TorchTrainer(
            on_rank(ray.tune.report),
            scaling_config=ray.train.ScalingConfig(num_workers=0, use_gpu=gpu),
        )
    ours = ray.tune.get_context().get_experiment_name()  # a folder that goes with the command
    each = {"CPU": run.runtime.threads} | ({"GPU": 1} if gpu else {})
    hang_seconds = run.runtime.hang_seconds
    os.environ.update(group_environment(hang_seconds))  # Ray Train hands it to its controller
    return TorchTrainer(
        on_rank(ray.train.report),
        scaling_config=ray.train.ScalingConfig(
            num_workers=num_workers, use_gpu=gpu, resources_per_worker=each
        ),
        torch_config=TorchConfig(
            backend="nccl" if gpu else "gloo", timeout_s=peer_seconds(hang_seconds)
        ),
        run_config=ray.train.RunConfig(
            name=f"workers-{os.getpid()}-{spec.name}",
            storage_path=str(checkpoints.parent / "logs" / ours),
            callbacks=[TuneReportCallback()],
        ),
    )


def train_rank(
    plugin_files: list[tuple[str, str]],
    spec: RunSpec,
    checkpoints: Path,
    *,
    refs: StreamRefs,
    report: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """Train on one rank; return the outcome as plain types."""
    set_environment()
    plugins.take_up(plugin_files)
    import torch

    from dcray.train.checkpoint.manager import Checkpoints
    from dcray.train.evaluate import keep_target_nats
    from dcray.train.loop import Data, train
    from dcray.train.shard import this_place

    run, folder = spec.run, checkpoints / spec.name
    torch.set_num_threads(run.runtime.threads)
    place = this_place(_device(run.runtime.device))
    data = Data(
        partial(fetch_rows, refs, run), validation_rows(refs, run.data.seq_len), refs.mask_id
    )
    assert run.runtime.microbatch_size is not None, "the driver chooses it"
    keep_nats = partial(
        keep_target_nats,
        nats_file(checkpoints.parent, spec.name),
        rows=data.validation,
        place=place,
        microbatch_size=run.runtime.microbatch_size,
    )
    on_gpu = place.device.type == "cuda"
    place.wait()
    if on_gpu:  # the process may have trained a larger run before
        torch.cuda.reset_peak_memory_stats(place.device)
        torch.cuda.set_per_process_memory_fraction(min(1.0, run.runtime.num_devices), place.device)
    outcome: Outcome = train(
        run,
        data,
        place,
        microbatch_size=run.runtime.microbatch_size,
        report=lambda said: report({"name": spec.name, "report": plain(said)}),
        checkpoints=Checkpoints(
            folder,
            run,
            place,
            keep=run.runtime.keep_checkpoints,
            trunk=checkpoints / spec.trunk if spec.trunk else None,
            save_at_fork=spec.save_at_fork,
        ),
        should_stop=(folder / STOP_FILE).exists,
        on_result=keep_nats if spec.keeps_nats else lambda model: None,
    )
    peak = torch.cuda.max_memory_allocated(place.device) if on_gpu else None
    return asdict(outcome) | {"peak_bytes": peak}


def plain(report: Report) -> dict[str, Any]:
    """Return a report as plain types; its points as lists."""
    return vars(report) | {"points": [list(point) for point in report.points]}


def _device(name: str) -> Any:
    """Find this worker's device: Ray makes its GPU number 0 in-process, or its local rank's."""
    import torch

    if name != "cuda":
        return torch.device("cpu")
    from ray.train.torch import get_device

    if torch.distributed.is_initialized():
        return get_device()
    return torch.device("cuda", 0)
