"""Files of a checkpoint, written while training goes on, renamed into place when complete.

Training waits only until the state is copied to host memory (pinned, beside a GPU); a thread
writes the copy with torch.distributed.checkpoint. One write is under way at a time.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.staging import BlockingAsyncStager

from dcray.errors import ConfigError
from dcray.train.shard import RankContext

# One process is what no_dist means. (Filters belong to the process: a thread must not set them
# aside and put them back.)
warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)


class Saver:
    """A writer of one run's folders; every method is called by all ranks together.

    The error of a write is raised by the next call of any method.
    """

    def __init__(self, place: RankContext) -> None:
        self.place = place
        self._thread: tuple[ThreadPoolExecutor, Any] | None = None
        self._copies: dict[tuple[str, ...], BlockingAsyncStager] = {}  # by what a state holds
        self._write: Future[None] | None = None

    def begin(
        self,
        target: Path,
        state: dict[str, Any],
        meta: Mapping[str, Any],
        *,
        after: Callable[[], None] = lambda: None,
    ) -> None:
        """Copy `state` and begin to write it, with `meta` as meta.json; then rank 0 calls `after`.

        An interrupted write leaves nothing at `target`.
        """
        self.settle()
        pool, group = self._thread = self._thread or self._start()
        copied = self._copied(state)
        self._write = pool.submit(self._save, target, copied, meta, after, group)

    def poll(self) -> None:
        """Raise the error of a write that has ended; never waits."""
        if self._write is not None and self._write.done():
            self.settle()

    def settle(self) -> None:
        """Wait for the write under way; raises its error."""
        write, self._write = self._write, None
        if write is not None:
            write.result()

    def close(self) -> None:
        """Wait for the write under way and free the memory of the copies."""
        try:
            self.settle()
        finally:
            self._copies.clear()
            if self._thread is not None:
                pool, group = self._thread
                self._thread = None
                pool.shutdown()
                if group is not None:
                    dist.destroy_process_group(group)

    def _start(self) -> tuple[ThreadPoolExecutor, Any]:
        """Make one thread with its own process group: collectives of two threads never mix."""
        group = dist.new_group(backend="gloo") if self.place.mesh is not None else None
        return ThreadPoolExecutor(1, "checkpoint"), group

    def _copied(self, state: dict[str, Any]) -> dict[str, Any]:
        """Copy to host memory; beside a GPU to pinned memory, which the next save uses again.

        (torch's DefaultStager stages once only in torch 2.11.)
        """
        on_gpu = self.place.device.type == "cuda"
        stager = self._copies.setdefault(
            tuple(state), BlockingAsyncStager(cache_staged_state_dict=on_gpu)
        )
        copied: dict[str, Any] = stager.stage(state)
        return copied

    def _save(
        self,
        target: Path,
        state: dict[str, Any],
        meta: Mapping[str, Any],
        after: Callable[[], None],
        group: Any,
    ) -> None:
        partial, first = target.with_name(f".partial-{target.name}"), self.place.rank == 0
        wrong: list[str | None] = [None]  # by rank 0, on every rank
        if first:
            shutil.rmtree(partial, ignore_errors=True)
            target.parent.mkdir(parents=True, exist_ok=True)
            wrong = [_lack_of_space(target.parent, state)]
        if group is not None:
            dist.broadcast_object_list(wrong, src=0, group=group)
        if wrong[0] is not None:
            raise ConfigError(wrong[0])
        unwrapped(
            state_dict_saver.save,
            state,
            checkpoint_id=str(partial),
            process_group=group,
            no_dist=group is None,
        )
        if first:
            _write_synced(partial / "meta.json", json.dumps(meta))
            _replace(partial, target)
            after()
        if group is not None:
            dist.barrier(group)  # whoever waits for its own write waits for the renaming too


def settle_renames(folder: Path) -> None:
    """Finish the renames of a `_replace` that was killed between the two: the older one counts."""
    if not folder.is_dir():
        return
    for partial in folder.glob(".partial-*"):
        shutil.rmtree(partial, ignore_errors=True)
    for aside in folder.glob(".old-*"):
        target = aside.with_name(aside.name.removeprefix(".old-"))
        if not target.exists():
            aside.rename(target)


def unwrapped(function: Any, *args: Any, **kwargs: Any) -> None:
    """Call `function`; raise a rank's error as itself, not as torch's wrapper.

    (CheckpointException is no Exception: no handler of Exception would catch it.)
    """
    try:
        function(*args, **kwargs)
    except CheckpointException as error:
        causes = [cause for cause, _ in error.failures.values()]
        for cause in causes:
            _told_if_full(cause, Path(kwargs["checkpoint_id"]))
        raise RuntimeError(f"{kwargs['checkpoint_id']}: {causes[0]}") from causes[0]


def _lack_of_space(folder: Path, state: Mapping[str, Any]) -> str | None:
    needed = round(1.05 * _num_bytes(state)) + 2**20
    free = shutil.disk_usage(folder).free
    if free >= needed:
        return None
    return (
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
    """Rename a folder into place; an older one of this name is renamed first, then deleted."""
    aside = target.with_name(f".old-{target.name}")
    shutil.rmtree(aside, ignore_errors=True)
    if target.exists():
        target.rename(aside)
    source.rename(target)
    shutil.rmtree(aside, ignore_errors=True)


def _told_if_full(error: BaseException, path: Path) -> None:
    """Raise ConfigError if the cause is a full disk."""
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        raise ConfigError(
            f"no space left for a checkpoint in {path.parent}. Free some and run the same command "
            "again: the last checkpoint is kept"
        ) from None
