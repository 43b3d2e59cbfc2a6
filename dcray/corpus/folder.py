"""Writing a corpus folder completely or not at all, and its token stream shard by shard."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from dcray.cluster.process import Process, this_process
from dcray.corpus.manifest import Array
from dcray.corpus.record import Budget, ShardRecord
from dcray.errors import ConfigError

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
PARTIAL = ".partial-"


@contextmanager
def partial_folder(out: Path, *, cannot: Callable[[Path, OSError], str]) -> Iterator[Path]:
    """Make a folder beside `out` (or its link's target) to write in; remove it at the end.

    A folder that was published stays. Partial folders of killed runs are removed first. Raises
    ConfigError with the sentence of `cannot` if the place cannot be written or the disk is full.
    """
    there = behind_links(out)
    partial = there.parent / f".{there.name}{PARTIAL}{this_process().mark()}"
    try:
        there.parent.mkdir(parents=True, exist_ok=True)
        remove_stale(there)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
    except OSError as error:
        raise ConfigError(cannot(out, error)) from None
    try:
        yield partial
    except OSError as error:
        if error.errno in NO_SPACE:
            raise ConfigError(cannot(out, error)) from error
        raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def behind_links(path: Path) -> Path:
    """Resolve the links of `path`: a link to a folder cannot be renamed over, and its target may
    be on another disk, to which nothing can be renamed.
    """
    return Path(os.path.realpath(path))


def cannot_prepare(out: Path, error: OSError) -> str:
    """Write the sentence for a corpus folder that cannot be written, or whose disk is full."""
    why = os.strerror(error.errno or 0)
    if error.errno not in NO_SPACE:
        return f"{out} cannot be made ({why}): name a folder that you may write"
    free = shutil.disk_usage(behind_links(out).parent).free / 1e9
    return (
        f"no space left to prepare {out} ({why}; {free:.1f} GB free on its disk): it takes the "
        "source's text once more while it runs, and 2 or 4 bytes a token; nothing was left behind"
    )


def remove_stale(out: Path) -> None:
    """Remove the partial folders of `out` whose process is known to have ended."""
    for found in out.parent.glob(f".*{PARTIAL}*"):
        name, _, mark = found.name.rpartition(PARTIAL)
        owner = Process.of_mark(mark) if name == f".{out.name}" else None
        if owner is not None and owner.lives() is False:
            shutil.rmtree(found, ignore_errors=True)


def publish(partial: Path, out: Path) -> None:
    """Turn `partial` into the corpus `out`: sync all files to disk, then rename once."""
    for path in (*(p for p in partial.iterdir() if p.is_file()), partial):
        _fsync(path)
    there = behind_links(out)
    partial.rename(there)
    _fsync(there.parent)


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_array(path: Path, array: Array) -> str:
    """Write flat ids, or an .npy (by the suffix of `path`), and return the file's sha256."""
    if path.suffix == ".npy":
        np.save(path, array)
    else:
        array.tofile(path)
    return hashlib.sha256(path.read_bytes()).hexdigest()


class StreamWriter:
    """A writer of the training stream: shards of `shard_tokens`, and each budget prefix's hash.

    It takes exactly budgets[-1] tokens; `add` cuts the last document.
    """

    def __init__(
        self, folder: Path, dtype: np.dtype[Any], budgets: Sequence[int], *, shard_tokens: int
    ) -> None:
        self.folder = folder
        self.dtype = dtype
        self.shard_tokens = shard_tokens
        self.num_tokens = 0
        self.starts: list[int] = []
        self.budgets: list[Budget] = []
        self.shards: list[ShardRecord] = []
        self._left = sorted(set(budgets))
        self.limit = self._left[-1]
        self._prefix = hashlib.sha256()
        self._shard = hashlib.sha256()
        self._file: Any = None

    @property
    def full(self) -> bool:
        return self.num_tokens == self.limit

    def add(self, document: Array) -> int:
        """Write one document (or row) and return how many of its tokens were taken."""
        taken = min(len(document), self.limit - self.num_tokens)
        if not taken:
            return 0
        self.starts.append(self.num_tokens)
        document = document[:taken].astype(self.dtype, copy=False)
        while len(document):
            document = document[self._write(document) :]
        return taken

    def _write(self, tokens: Array) -> int:
        """Write up to the next border of a shard or a budget; return how many were written."""
        in_shard = self.num_tokens % self.shard_tokens
        borders = (len(tokens), self.shard_tokens - in_shard, self._left[0] - self.num_tokens)
        count = min(borders)
        if self._file is None:
            self._file = (self.folder / self._name()).open("wb")
            self._shard = hashlib.sha256()
        raw = tokens[:count].tobytes()
        self._file.write(raw)
        self._shard.update(raw)
        self._prefix.update(raw)
        self.num_tokens += count
        if self.num_tokens == self._left[0]:
            self.budgets.append(Budget(tokens=self._left.pop(0), sha256=self._prefix.hexdigest()))
        if self.num_tokens % self.shard_tokens == 0 or self.full:
            self._close_shard()
        return count

    def _name(self) -> str:
        return f"train-{len(self.shards):05d}.bin"

    def _close_shard(self) -> None:
        self._file.close()
        self._file = None
        start = len(self.shards) * self.shard_tokens
        record = ShardRecord(
            file=self._name(),
            start=start,
            tokens=self.num_tokens - start,
            sha256=self._shard.hexdigest(),
        )
        self.shards.append(record)

    def close(self) -> None:
        """Close the file of an unfinished shard, whose tokens are not recorded."""
        if self._file is not None:
            self._file.close()
