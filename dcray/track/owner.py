"""Who writes a run, and whether that process still lives."""

from __future__ import annotations

import functools
import json
import math
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import psutil

HEARTBEAT_SECONDS = 30.0
LOST_SECONDS = 120.0  # a heartbeat older than this, from another host, is a dead owner's
_START_TOLERANCE = 2.0  # the start of a process is computed from the boot time, which clocks adjust


@dataclass(frozen=True)
class Owner:
    """A process: its host, its pid, and the instant it started, since pids come back."""

    host: str
    pid: int
    started: float

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | None) -> Owner | None:
        """The owner of a tag's text, None where there is none or it is not ours."""
        try:
            found = cls(**json.loads(text or ""))
            return cls(str(found.host), _natural(found.pid), float(found.started))
        except (ValueError, TypeError):
            return None

    def alive(self, heartbeat: float | None) -> bool:
        """Whether the process lives: asked of the system on this host, else told by its heartbeat.

        `heartbeat` is the instant of the last one in Unix seconds, None where there was none.
        """
        if self.host != socket.gethostname():
            return heartbeat is not None and time.time() - heartbeat <= LOST_SECONDS
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started) <= _START_TOLERANCE
            return bool(same and process.status() != psutil.STATUS_ZOMBIE)
        except psutil.AccessDenied:
            return True
        except psutil.NoSuchProcess:
            return False

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def heartbeat_of(tags: Mapping[str, str]) -> float | None:
    """The instant of the last heartbeat, None where there was none or what is written is none."""
    try:
        beat = float(tags["dcray.heartbeat"])
    except (KeyError, ValueError):
        return None
    return beat if math.isfinite(beat) else None


def _natural(pid: object) -> int:
    if not isinstance(pid, int) or pid < 1:
        raise ValueError(f"{pid} is no process")
    return pid


def this_process() -> Owner:
    """This process as an owner."""
    return _owner(os.getpid())


@functools.cache
def _owner(pid: int) -> Owner:
    return Owner(socket.gethostname(), pid, psutil.Process(pid).create_time())
