"""One trial on Ray Train: in-process on one device, FSDP2 workers on several.

A trial is a Tune trainable. With one device it runs the loop in its own process
(`ScalingConfig(num_workers=0)`); with several, TorchTrainer starts a worker group and rank 0's
reports are forwarded. Either way the loop is handed its report, its place and its data.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dcray import plugins
from dcray.cluster import set_environment
from dcray.config import RunConfig
from dcray.corpus.stream import StreamRefs, fetch_rows, validation_rows
from dcray.errors import ConfigError
from dcray.train.progress import Outcome, Report

STOP_FILE = "stop"  # in a trial's folder: go to the next report, save, end
MEMORY_ASKED = 1e6  # an outer trial must ask for something that is no CPU (bytes)


@dataclass(frozen=True)
class Leg:
    """One run of a trial: a placed configuration, its folder, and the trunk that it forks from."""

    name: str
    run: RunConfig
    folder: Path
    trunk: Path | None = None
    save_at_fork: bool = False
    answered: float | None = None  # its loss, where it is on record: said, not trained

    def plain(self) -> dict[str, Any]:
        """The leg as plain types, for a trial's configuration."""
        return {
            "name": self.name,
            "run": self.run.to_dict(),
            "folder": str(self.folder.absolute()),
            "trunk": None if self.trunk is None else str(self.trunk.absolute()),
            "save_at_fork": self.save_at_fork,
            "answered": self.answered,
        }

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Leg:
        """The leg that `plain` wrote."""
        return cls(
            fields["name"],
            RunConfig.model_validate(fields["run"]),
            Path(fields["folder"]),
            Path(fields["trunk"]) if fields["trunk"] else None,
            fields["save_at_fork"],
            fields["answered"],
        )


def trial(
    config: dict[str, Any],
    *,
    refs: Mapping[str, StreamRefs],
    plugin_files: list[tuple[str, str]],
) -> None:
    """The Tune trainable: train each leg of `config["legs"]`, report as it goes.

    Reports {"name": ..., "report": ...} while a leg trains and {"name": ..., "outcome": ...} at its
    end, with num_epochs and val_loss for a scheduler; what it raises is an outcome too, so that it
    reaches the driver whole. A leg that is on record already ("answered") is said and not trained.
    """
    import ray.tune

    for leg in config["legs"]:
        said: dict[str, Any] = {"name": leg["name"], "num_epochs": leg["run"]["num_epochs"]}
        if leg["answered"] is not None:
            ray.tune.report(said | {"val_loss": leg["answered"]})
            continue
        outcome = _attempt(leg, refs[config["data"]], plugin_files)
        loss = outcome.get("val_loss")
        ray.tune.report(said | {"outcome": outcome} | ({} if loss is None else {"val_loss": loss}))
        if outcome["state"] != "complete":
            return


def _attempt(
    leg: dict[str, Any], refs: StreamRefs, plugin_files: list[tuple[str, str]]
) -> dict[str, Any]:
    """How one leg ended, whatever happened."""
    try:
        plugins.take_up(plugin_files)
        return _train(Leg.of(leg), refs, plugin_files)
    except ConfigError as error:
        return {"state": "refused", "reason": str(error)}
    except Exception as error:
        return _on_a_rank(error) or {
            "state": "failed",
            "reason": f"{type(error).__name__}: {error}",
            "traceback": traceback.format_exc(),
        }


def _on_a_rank(error: Exception) -> dict[str, Any] | None:
    """What Ray Train's wrapped failure of a worker group means: refused, lost, or None: failed.

    A worker whose process or node is gone says nothing against the run: it is tried again.
    """
    from ray.exceptions import RayError, RayTaskError

    failures = list(getattr(error, "worker_failures", {}).values())
    for failure in failures:
        if isinstance(failure, ConfigError):
            return {"state": "refused", "reason": str(failure)}
    gone = [f for f in failures if isinstance(f, RayError) and not isinstance(f, RayTaskError)]
    return {"state": "lost", "reason": f"{type(gone[0]).__name__}: {gone[0]}"} if gone else None


def resources(config: RunConfig, *, gpu: bool) -> list[dict[str, float]]:
    """A trial's placement-group bundle: its own device, or next to nothing beside its workers."""
    if config.runtime.workers == 1:
        return [{"CPU": config.runtime.threads, "GPU": 1.0 if gpu else 0.0}]
    return [{"CPU": 0, "memory": MEMORY_ASKED}]


def _train(leg: Leg, refs: StreamRefs, plugin_files: list[tuple[str, str]]) -> dict[str, Any]:
    import ray.train
    import ray.tune
    from ray.train.torch import TorchConfig, TorchTrainer
    from ray.tune.integration.ray_train import TuneReportCallback

    def on_rank(report: Callable[[dict[str, Any]], None]) -> partial[dict[str, Any]]:
        return partial(_on_rank, plugin_files, leg=leg, refs=refs, report=report)

    run, folder = leg.run, leg.folder
    gpu, num_workers = run.runtime.device == "cuda", run.runtime.workers
    if num_workers == 1:
        trainer = TorchTrainer(
            on_rank(ray.tune.report),
            scaling_config=ray.train.ScalingConfig(num_workers=0, use_gpu=gpu),
        )
    else:
        ours = ray.tune.get_context().get_experiment_name()  # a folder that goes with the command
        each = {"CPU": run.runtime.threads} | ({"GPU": 1} if gpu else {})
        trainer = TorchTrainer(
            on_rank(ray.train.report),
            scaling_config=ray.train.ScalingConfig(
                num_workers=num_workers, use_gpu=gpu, resources_per_worker=each
            ),
            torch_config=TorchConfig(backend="nccl" if gpu else "gloo"),
            run_config=ray.train.RunConfig(
                name=f"workers-{os.getpid()}-{folder.name}",
                storage_path=str(folder.parent.parent / "logs" / ours),
                callbacks=[TuneReportCallback()],
            ),
        )
    return dict(trainer.fit().return_value)


def _on_rank(
    plugin_files: list[tuple[str, str]],
    *,
    leg: Leg,
    refs: StreamRefs,
    report: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """What every rank runs; returns the outcome as plain types."""
    set_environment()
    plugins.take_up(plugin_files)
    import torch

    from dcray.train.checkpoint import Checkpoints
    from dcray.train.loop import Data, train
    from dcray.train.shard import this_place

    run = leg.run
    torch.set_num_threads(run.runtime.threads)
    place = this_place(_device(run.runtime.device))
    data = Data(
        partial(fetch_rows, refs, run), validation_rows(refs, run.data.seq_len), refs.mask_id
    )
    assert run.runtime.microbatch_size is not None, "the driver chooses it"
    on_gpu = place.device.type == "cuda"
    place.wait()
    if on_gpu:  # the process may have trained a larger run before
        torch.cuda.reset_peak_memory_stats(place.device)
    outcome: Outcome = train(
        run,
        data,
        place,
        microbatch_size=run.runtime.microbatch_size,
        report=lambda said: report({"name": leg.name, "report": plain(said)}),
        checkpoints=Checkpoints(
            leg.folder,
            run,
            place,
            keep=run.runtime.keep_checkpoints,
            trunk=leg.trunk,
            save_at_fork=leg.save_at_fork,
        ),
        should_stop=(leg.folder / STOP_FILE).exists,
    )
    peak = torch.cuda.max_memory_allocated(place.device) if on_gpu else None
    return asdict(outcome) | {"peak_bytes": peak}


def plain(report: Report) -> dict[str, Any]:
    """A report as plain types; its points as lists."""
    return vars(report) | {"points": [list(point) for point in report.points]}


def _device(name: str) -> Any:
    """This worker's device; Ray has made its own GPU number 0 in-process, or its local rank's."""
    import torch

    if name != "cuda":
        return torch.device("cpu")
    from ray.train.torch import get_device

    if torch.distributed.is_initialized():
        return get_device()
    return torch.device("cuda", 0)
