"""The weights of a finished run alone: on one device, without the optimizer."""

from __future__ import annotations

from pathlib import Path

import torch
from pydantic import ValidationError
from torch.distributed.checkpoint import state_dict_loader

from dcray.config.run import RunConfig, override
from dcray.errors import ConfigError
from dcray.model.transformer import Transformer
from dcray.train.checkpoint.manager import BEST, steps_in
from dcray.train.checkpoint.metadata import read_meta
from dcray.train.checkpoint.writer import unwrapped
from dcray.train.shard import RankContext, blank_model


def weights_folder(folder: Path) -> Path:
    """Find the weights of a run's result: the best epoch's if one was kept, else the last.

    Raises ConfigError if there are none.
    """
    steps = steps_in(folder)
    best = folder / BEST
    if (best / "meta.json").is_file():
        return best
    if not steps:
        raise ConfigError(
            f"the run has no weights: {folder} holds no checkpoint. Give --dir the folder that it "
            "was trained in, or train it again with the same command"
        )
    return steps[-1]


def load_weights(
    path: Path, device: torch.device, *, precision: str = "auto", compiled: bool = False
) -> tuple[RunConfig, Transformer]:
    """Load a checkpoint's configuration and model, for evaluation alone, without the moments.

    The weights are their average, if the run keeps one; that is what its best epoch holds too.
    precision: "float32", "bfloat16", or "auto", as in training. Raises ConfigError if a file is
    damaged, or its configuration cannot be built here.
    """
    try:
        saved = RunConfig.model_validate(read_meta(path)["config"])
    except ValidationError as error:
        raise ConfigError(
            f"the checkpoint {path} has no meaning here ({error.errors()[0]['msg']}): it is of "
            "another dcray, or its objective or optimizer is a plug-in that --plugin must name"
        ) from None
    config = override(saved, {"runtime.precision": precision, "runtime.compile": compiled})
    model = blank_model(config, RankContext(device))
    part = "average" if config.average.kept and path.name != BEST else "model"
    state = {part: model.state_dict()}
    try:
        unwrapped(state_dict_loader.load, state, checkpoint_id=str(path), no_dist=True)
    except RuntimeError as error:
        raise ConfigError(f"the checkpoint {path} cannot be read: {error}") from None
    model.load_state_dict(state[part])
    return config, model.eval().requires_grad_(False)
