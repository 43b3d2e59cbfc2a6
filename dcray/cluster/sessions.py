"""The folder of a private Ray's files, so short that the paths of its sockets fit.

The path of a socket has at most 107 bytes, of which Ray takes some 64; a TMPDIR of a Slurm job or
of macOS leaves too few.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from dcray.cluster.process import BOOT, Process, this_process
from dcray.errors import ConfigError

PREFIX = "dcray-"
OWNER = "owner"  # a file in the folder: the mark of the process that made it
SOCKET_BYTES = 107  # of a path, on Linux
RAY_PATH = "/session_2026-01-31_23-59-59_123456_4194304/sockets/plasma_store"
SHORT = ("/tmp", "/var/tmp", "/dev/shm")  # in this order, if TMPDIR is too long


def make_folder(note: Callable[[str], None] = lambda text: None) -> tuple[str, str | None]:
    """Make a folder for Ray's files, and one for objects that do not fit into Ray's memory.

    The first is in TMPDIR if a socket's path fits there, else in the first of SHORT that can be
    written, of which `note` is told; the second is then in TMPDIR. None: both share the first.
    Folders of processes that are gone are deleted first. Raises ConfigError if there is no place.
    """
    wanted = tempfile.gettempdir()
    for place in dict.fromkeys((wanted, *SHORT)):
        clear_dead(Path(place))
        if not _has_room(place) or not os.access(place, os.W_OK | os.X_OK):
            continue
        folder = _made_in(place)
        if place == wanted:
            return folder, None
        note(f"TMPDIR {wanted} is too long for Ray's sockets: they lie in {place}")
        return folder, _made_in(wanted)
    raise ConfigError(
        f"Ray needs a folder of at most {_room()} bytes for its sockets, and neither TMPDIR "
        f"({wanted}) nor {', '.join(SHORT)} is one that can be written; set TMPDIR to a short one"
    )


def clear_dead(place: Path) -> None:
    """Delete the folders of dcray processes that died without deleting them.

    A folder of another container that shares `place` stays; processes of an earlier boot are gone.
    """
    here = this_process()
    for folder in place.glob(f"{PREFIX}*-*"):
        try:
            owner = Process.of_mark((folder / OWNER).read_text())
        except OSError:
            continue
        if owner is None or not BOOT.exists():
            continue
        if owner.lives() is False or (owner.boot and owner.boot != here.boot):
            shutil.rmtree(folder, ignore_errors=True)


def _made_in(place: str) -> str:
    folder = tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=place)
    (Path(folder) / OWNER).write_text(this_process().mark())
    return folder


def _has_room(place: str) -> bool:
    return len(os.fsencode(place)) <= _room()


def _room() -> int:
    """Compute how many bytes the path of the parent of a session's folder may have."""
    own = f"/{PREFIX}{os.getpid()}-12345678"
    return SOCKET_BYTES - len(own) - len(RAY_PATH)
