"""The files below a folder: each folder is listed once, and what is left out is counted."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

from dcray.errors import ConfigError
from dcray.sources import LeftOut

HIDDEN = "hidden"  # a name that begins with a dot: .git, .ipynb_checkpoints, ._x of macOS
READ_ALREADY = "links to a folder that is read already"
SPECIAL = "pipes or devices"
ASKED = "left out as asked"


def walk(root: Path, patterns: Sequence[str], left_out: LeftOut) -> Iterator[Path]:
    """Yield every file below a folder, including links to files and broken links.

    A folder behind a link is listed once, after all that lies below `root` itself, so that a
    folder below `root` keeps its own path; a link to a folder above `root` is not followed.
    Raises ConfigError that names a folder which may not be listed.
    """
    seen = {_identity(folder) for folder in root.resolve().parents}
    waiting, links = [root], list[Path]()
    while waiting or links:
        folder = waiting.pop() if waiting else links.pop(0)
        name = folder.relative_to(root).as_posix()
        try:
            identity = _identity(folder)
            if identity in seen:
                left_out.add(READ_ALREADY, name)
                continue
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            raise ConfigError(f"{folder} cannot be read: {error.strerror}") from None
        seen.add(identity)
        for entry in entries:
            below = entry.name if name == "." else f"{name}/{entry.name}"
            if reason := _left_out(entry, below, patterns):
                left_out.add(reason, below + "/" * _is_folder(entry))
            elif _is_folder(entry):
                (links if entry.is_symlink() else waiting).append(Path(entry.path))
            else:
                yield Path(entry.path)
        links.sort()


def _left_out(entry: os.DirEntry[str], below: str, patterns: Sequence[str]) -> str | None:
    if entry.name.startswith("."):
        return HIDDEN
    if any(fnmatch(entry.name, one) or fnmatch(below, one) for one in patterns):
        return ASKED
    if not (entry.is_symlink() or entry.is_dir() or entry.is_file()):
        return SPECIAL
    return None


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def _identity(folder: Path) -> tuple[int, int]:
    state = folder.stat()
    return state.st_dev, state.st_ino
