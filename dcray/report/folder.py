"""The folder of an analysis: replaced as a whole by the new one, or left as it was."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dcray.corpus.folder import behind_links, partial_folder
from dcray.errors import ConfigError


@contextmanager
def replaced(folder: Path) -> Iterator[Path]:
    """Yield a draft to write in, which becomes `folder` if the block succeeds and else is removed.

    A process that was killed between the two renames leaves the old one as `.NAME.old`, and the
    next call puts it back first. Raises ConfigError if the place cannot be written or is full.
    """
    folder = behind_links(folder)
    old = folder.with_name(f".{folder.name}.old")
    try:
        with partial_folder(folder, cannot=_cannot) as draft:
            restore(folder)
            yield draft
            if folder.exists():
                folder.rename(old)
            try:
                draft.rename(folder)
            finally:
                restore(folder)
    except OSError as error:
        raise ConfigError(_cannot(folder, error)) from None


def restore(folder: Path) -> None:
    """Put the old folder back if a replacement was cut off half-way."""
    old = folder.with_name(f".{folder.name}.old")
    if not old.exists():
        return
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)
    else:
        old.rename(folder)


def _cannot(folder: Path, error: OSError) -> str:
    return (
        f"the analysis cannot be written to {folder} ({os.strerror(error.errno or 0)}); "
        "what was there is unchanged: make room, or give --dir of a folder that you may write"
    )
