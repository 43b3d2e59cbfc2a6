"""Resumable checkpoints: torch.distributed.checkpoint, renamed into place, read on any world size.

    FOLDER/step-00000200/{__0_0.distcp, .metadata, meta.json}    FOLDER/best/{..., meta.json}
    TRUNK/step-00000180/{...}    the state at a fork, shared by the branches of one trunk

meta.json holds the configuration, the progress and the points of the curve so far, so that a dead
driver's gap in the record can be filled.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict_loader
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.optim import Optimizer

from dcray.config.run import RunConfig
from dcray.errors import ConfigError, first_line
from dcray.train.average import Average
from dcray.train.checkpoint.metadata import FORMAT, check_same, read_meta
from dcray.train.checkpoint.writer import Saver, settle_renames, unwrapped
from dcray.train.schedule import fork_step, last_shared_step
from dcray.train.shard import RankContext

BEST = "best"
DAMAGE = (RuntimeError, ValueError, KeyError, TypeError, OSError)  # of a file that is not whole
TRUNK_FREE = ("num_epochs",)  # in what the branches of one trunk differ


class Checkpoints:
    """The checkpoints of one run in one folder; every method is called by all ranks together.

    Saving copies the state and returns: a thread writes it (writer.py). An error of that thread is
    raised by the next call; `settle` waits for the thread, and so does leaving `with`.

    trunk: the folder of the states at forks that this run shares with shorter and longer ones; None
    for a run that stands alone. save_at_fork: whether a longer one may follow.
    """

    def __init__(
        self,
        folder: Path,
        config: RunConfig,
        place: RankContext,
        *,
        keep: int,
        trunk: Path | None = None,
        save_at_fork: bool = False,
    ) -> None:
        self.folder, self.config, self.place, self.keep = folder, config, place, keep
        self.trunk, self.save_at_fork = trunk, save_at_fork
        self.damaged: list[str] = []  # a sentence for each checkpoint that could not be read
        self._saver = Saver(place)

    def poll(self) -> None:
        """Raise the error of a write that has ended; never waits."""
        self._saver.poll()

    def settle(self) -> None:
        """Wait for the write under way; raises its error."""
        self._saver.settle()

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with suppress(Exception) if kind else nullcontext():  # the first error is the one to tell
            self._saver.close()

    def save(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        progress: Mapping[str, Any],
        *,
        step: int,
        average: Average | None = None,
    ) -> None:
        """Write `step-N` and drop the oldest beyond `keep`. An interrupted save leaves nothing."""

        def drop_old() -> None:
            for old in steps_in(self.folder)[: -self.keep]:
                shutil.rmtree(old, ignore_errors=True)

        state = _whole_state(model, optimizer, average)
        self._write(self.folder / _step(step), state, progress, after=drop_old)

    def save_fork(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        progress: Mapping[str, Any],
        *,
        step: int,
        average: Average | None = None,
    ) -> None:
        """Write the state at the fork to the trunk's folder, if a longer branch may follow."""
        if self.trunk is None or not self.save_at_fork:
            return
        self._write(self.trunk / _step(step), _whole_state(model, optimizer, average), progress)

    def load(
        self, model: nn.Module, optimizer: Optimizer, average: Average | None = None
    ) -> dict[str, Any] | None:
        """Restore the newest intact checkpoint into what is given; its progress, or None.

        The trunk's state at a fork counts too, up to `last_shared_step`: this run's decay has not
        begun there, nor its mean.
        `damaged` then names those that could not be read: if all of them, model and optimizer may
        hold half of one and must be built anew.
        """
        self.settle()
        if self.place.rank == 0:
            for folder in filter(None, (self.folder, self.trunk)):
                settle_renames(folder)
        self.place.barrier()
        while True:
            path = self._newest()
            self.place.barrier()
            if path is None:
                return None
            try:
                return self._load(path, model, optimizer, average)
            except DAMAGE as error:
                if isinstance(error, ConfigError) or not _is_damage(error):
                    raise
                self._put_aside(path, error)

    def _load(
        self, path: Path, model: nn.Module, optimizer: Optimizer, average: Average | None
    ) -> dict[str, Any]:
        meta, ours = read_meta(path), path.parent == self.folder
        check_same(meta["config"], self.config, path, but=() if ours else TRUNK_FREE)
        state = _whole_state(model, optimizer, average)
        self._read(path, state)  # the tensors of the average themselves are filled
        set_state_dict(
            model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"]
        )
        progress: dict[str, Any] = meta["progress"]
        if not ours and path.name != self._own_fork:  # a shorter branch's: its time stays its own
            progress |= {"seconds": 0.0, "first_step": progress["step"]}
        return progress

    def _put_aside(self, path: Path, error: Exception) -> None:
        """Rename a checkpoint that cannot be read, so that the one before counts."""
        if not path.is_dir():
            return  # whoever writes here dropped it meanwhile
        aside = path.with_name(f"damaged-{path.name}")
        self.damaged.append(
            f"the checkpoint {path} is damaged ({first_line(error)}); the newest intact one "
            f"before it counts, or else the beginning. It is now {aside.name}: delete it"
        )
        self.place.barrier()
        if self.place.rank == 0:
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)
        self.place.barrier()

    def save_best(self, model: nn.Module, progress: Mapping[str, Any]) -> None:
        """Write these weights as the best so far."""
        self._write(self.folder / BEST, {"model": get_model_state_dict(model)}, progress)

    def load_best(self, model: nn.Module) -> None:
        """Load the best weights into the model; raises ConfigError if they are damaged."""
        self.settle()
        state = {"model": get_model_state_dict(model)}
        try:
            self._read(self.folder / BEST, state)
        except DAMAGE as error:
            if not _is_damage(error):
                raise
            raise ConfigError(
                f"the weights of the best epoch, {self.folder / BEST}, are damaged "
                f"({first_line(error)}) and no second copy is kept. Delete {self.folder} and give "
                "the same command again: the run is then trained from its beginning"
            ) from error
        set_model_state_dict(model, state["model"])

    def _read(self, path: Path, state: dict[str, Any]) -> None:
        """Fill `state` from files, whatever the world size that wrote them."""
        alone = self.place.mesh is None
        unwrapped(state_dict_loader.load, state, checkpoint_id=str(path), no_dist=alone)

    @property
    def _own_fork(self) -> str:
        return _step(fork_step(self.config.num_steps, self.config.schedule))

    def _newest(self) -> Path | None:
        found = steps_in(self.folder)
        if self.trunk is not None:
            last = _step(last_shared_step(self.config))
            found += [path for path in steps_in(self.trunk) if path.name <= last]
        return max(found, key=lambda path: (path.name, path.parent == self.folder), default=None)

    def _write(
        self,
        target: Path,
        state: dict[str, Any],
        progress: Mapping[str, Any],
        *,
        after: Callable[[], None] = lambda: None,
    ) -> None:
        meta = {"format": FORMAT, "config": self.config.to_dict(), "progress": dict(progress)}
        self._saver.begin(target, state, meta, after=after)


def _whole_state(model: nn.Module, optimizer: Optimizer, average: Average | None) -> dict[str, Any]:
    """Return weights, moments and the average if one is kept, this rank's share."""
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optim": moments}
    return state if average is None else state | {"average": average.tensors}


def _is_damage(error: BaseException) -> bool:
    """Tell whether the error is of a damaged file, not of a lost device, peer or disk."""
    cause = error.__cause__ or error
    if isinstance(cause, OSError):
        return isinstance(cause, (FileNotFoundError, IsADirectoryError, NotADirectoryError))
    elsewhere = (MemoryError, torch.OutOfMemoryError, torch.AcceleratorError, dist.DistError)
    return not isinstance(cause, elsewhere)


def _step(step: int) -> str:
    return f"step-{step:08d}"


def steps_in(folder: Path) -> list[Path]:
    """List the complete checkpoints of a folder, oldest first."""
    return sorted(path.parent for path in folder.glob("step-*/meta.json"))
