"""Resumable checkpoints: torch.distributed.checkpoint, renamed into place, read on any world size.

    FOLDER/step-00000200/{__0_0.distcp, .metadata, meta.json}    FOLDER/best/{..., meta.json}
    TRUNK/step-00000180/{...}    the state at a fork, shared by the branches of one trunk

meta.json holds the configuration, the progress and the points of the curve so far, so that a dead
driver's gap in the record can be filled.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.optim import Optimizer

from dcray.config import RunConfig
from dcray.errors import ConfigError
from dcray.train.meta import FORMAT, check_same, read_meta
from dcray.train.schedule import fork_step
from dcray.train.shard import Place

BEST = "best"
DAMAGE = (RuntimeError, ValueError, KeyError, TypeError, OSError)  # of a file that is not whole
TRUNK_FREE = ("num_epochs",)  # in what the branches of one trunk differ


class Checkpoints:
    """The checkpoints of one run in one folder; every method is called by all ranks together.

    trunk: the folder of the states at forks that this run shares with shorter and longer ones; None
    for a run that stands alone. save_at_fork: whether a longer one may follow.
    """

    def __init__(
        self,
        folder: Path,
        config: RunConfig,
        place: Place,
        *,
        keep: int,
        trunk: Path | None = None,
        save_at_fork: bool = False,
    ) -> None:
        self.folder, self.config, self.place, self.keep = folder, config, place, keep
        self.trunk, self.save_at_fork = trunk, save_at_fork
        self.damaged: list[str] = []  # a sentence for each checkpoint that could not be read

    def save(
        self, model: nn.Module, optimizer: Optimizer, progress: Mapping[str, Any], *, step: int
    ) -> None:
        """Write `step-N` and drop the oldest beyond `keep`. An interrupted save leaves nothing."""
        weights, moments = get_state_dict(model, optimizer)
        self._write(self.folder / _step(step), {"model": weights, "optim": moments}, progress)
        if self.place.rank == 0:
            for old in steps_in(self.folder)[: -self.keep]:
                shutil.rmtree(old, ignore_errors=True)

    def save_fork(
        self, model: nn.Module, optimizer: Optimizer, progress: Mapping[str, Any], *, step: int
    ) -> None:
        """Leave the state at the fork in the trunk's folder, where a longer branch may follow."""
        if self.trunk is None or not self.save_at_fork:
            return
        weights, moments = get_state_dict(model, optimizer)
        self._write(self.trunk / _step(step), {"model": weights, "optim": moments}, progress)

    def load(self, model: nn.Module, optimizer: Optimizer) -> dict[str, Any] | None:
        """Restore the newest intact checkpoint into model and optimizer; its progress, or None.

        The trunk's state at a fork counts too, as long as this run's decay has not begun there.
        `damaged` then says which could not be read: where that was all of them, model and optimizer
        may hold half of one and must be built anew.
        """
        if self.place.rank == 0:
            for folder in filter(None, (self.folder, self.trunk)):
                _settle(folder)
        self.place.barrier()
        while True:
            path = self._newest()
            self.place.barrier()
            if path is None:
                return None
            try:
                return self._load(path, model, optimizer)
            except DAMAGE as error:
                if isinstance(error, ConfigError) or not _is_damage(error):
                    raise
                self._put_aside(path, error)

    def _load(self, path: Path, model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
        meta = read_meta(path)
        check_same(
            meta["config"], self.config, path, but=() if path.parent == self.folder else TRUNK_FREE
        )
        weights, moments = get_state_dict(model, optimizer)
        state: dict[str, Any] = {"model": weights, "optim": moments}
        quietly(
            state_dict_loader.load, state, checkpoint_id=str(path), no_dist=self.place.mesh is None
        )
        set_state_dict(
            model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"]
        )
        progress: dict[str, Any] = meta["progress"]
        return progress

    def _put_aside(self, path: Path, error: Exception) -> None:
        """What cannot be read is no checkpoint: it is renamed, so that the one before counts."""
        aside = path.with_name(f"damaged-{path.name}")
        what = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        self.damaged.append(
            f"the checkpoint {path} is damaged ({what}); the newest intact one before it counts, "
            f"or else the beginning. It is now {aside.name}: delete it"
        )
        self.place.barrier()
        if self.place.rank == 0:
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)
        self.place.barrier()

    def save_best(self, model: nn.Module, progress: Mapping[str, Any]) -> None:
        """Keep these weights as the best so far."""
        self._write(self.folder / BEST, {"model": get_model_state_dict(model)}, progress)

    def load_best(self, model: nn.Module) -> None:
        """Put the best weights into the model."""
        state = {"model": get_model_state_dict(model)}
        quietly(
            state_dict_loader.load,
            state,
            checkpoint_id=str(self.folder / BEST),
            no_dist=self.place.mesh is None,
        )
        set_model_state_dict(model, state["model"])

    def _newest(self) -> Path | None:
        found = steps_in(self.folder)
        if self.trunk is not None:
            last = _step(fork_step(self.config.num_steps, self.config.schedule))
            found += [path for path in steps_in(self.trunk) if path.name <= last]
        return max(found, key=lambda path: (path.name, path.parent == self.folder), default=None)

    def _write(self, target: Path, state: dict[str, Any], progress: Mapping[str, Any]) -> None:
        partial = target.with_name(f".partial-{target.name}")
        if self.place.rank == 0:
            shutil.rmtree(partial, ignore_errors=True)
            target.parent.mkdir(parents=True, exist_ok=True)
            _check_space(target.parent, state)
        self.place.barrier()
        quietly(
            state_dict_saver.save,
            state,
            checkpoint_id=str(partial),
            no_dist=self.place.mesh is None,
        )
        if self.place.rank == 0:
            meta = {"format": FORMAT, "config": self.config.to_dict(), "progress": dict(progress)}
            _write_synced(partial / "meta.json", json.dumps(meta))
            _replace(partial, target)
        self.place.barrier()


def _is_damage(error: BaseException) -> bool:
    """Whether it says that a file is not what was written, and no device, peer or disk is away."""
    cause = error.__cause__ or error
    if isinstance(cause, OSError):
        return isinstance(cause, (FileNotFoundError, IsADirectoryError, NotADirectoryError))
    elsewhere = (MemoryError, torch.OutOfMemoryError, torch.AcceleratorError, dist.DistError)
    return not isinstance(cause, elsewhere)


def _step(step: int) -> str:
    return f"step-{step:08d}"


def steps_in(folder: Path) -> list[Path]:
    """The whole checkpoints of a folder, oldest first."""
    return sorted(path.parent for path in folder.glob("step-*/meta.json"))


def _check_space(folder: Path, state: Mapping[str, Any]) -> None:
    needed = round(1.05 * _num_bytes(state)) + 2**20
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ConfigError(
            f"no space left for a checkpoint in {folder}: it takes {needed / 1e6:,.0f} MB and "
            f"{free / 1e6:,.0f} MB are free. Free some and run the same command again: "
            "the last checkpoint is kept"
        )


def _num_bytes(state: Any) -> int:
    if isinstance(state, Mapping):
        return sum(_num_bytes(value) for value in state.values())
    return state.numel() * state.element_size() if hasattr(state, "element_size") else 8


def _write_synced(path: Path, text: str) -> None:
    try:
        with path.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        _told_if_full(error, path.parent)
        raise


def _replace(source: Path, target: Path) -> None:
    """Rename a folder into place; an older one of this name steps aside first."""
    aside = target.with_name(f".old-{target.name}")
    shutil.rmtree(aside, ignore_errors=True)
    if target.exists():
        target.rename(aside)
    source.rename(target)
    shutil.rmtree(aside, ignore_errors=True)


def _settle(folder: Path) -> None:
    """Finish the renames of a `_replace` that was killed between its two: the older one counts."""
    if not folder.is_dir():
        return
    for partial in folder.glob(".partial-*"):
        shutil.rmtree(partial, ignore_errors=True)
    for aside in folder.glob(".old-*"):
        target = aside.with_name(aside.name.removeprefix(".old-"))
        if not target.exists():
            aside.rename(target)


def quietly(function: Any, *args: Any, **kwargs: Any) -> None:
    """Call without warnings; what fails on any rank is raised as itself, not as torch's wrapper.

    (CheckpointException is no Exception: it would pass every handler on its way out.)
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function(*args, **kwargs)
    except CheckpointException as error:
        causes = [cause for cause, _ in error.failures.values()]
        for cause in causes:
            _told_if_full(cause, Path(kwargs["checkpoint_id"]))
        raise RuntimeError(f"{kwargs['checkpoint_id']}: {causes[0]}") from causes[0]


def _told_if_full(error: BaseException, path: Path) -> None:
    """Raise ConfigError where the cause is a full disk."""
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        raise ConfigError(
            f"no space left for a checkpoint in {path.parent}. Free some and run the same command "
            "again: the last checkpoint is kept"
        ) from None
