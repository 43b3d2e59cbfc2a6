"""The process that writes a run, and whether it is still alive."""

from __future__ import annotations

import json
import math
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from dcray.cluster import process

HEARTBEAT_SECONDS = 30.0
LOST_SECONDS = 120.0  # an owner that cannot be looked up and is silent for longer is dead


@dataclass(frozen=True)
class Owner:
    """A process on a host; the other fields are those of process.Process, empty if not known."""

    host: str
    pid: int
    boot: str = ""
    namespace: str = ""
    ticks: int = 0

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | None) -> Owner | None:
        """Parse the owner in a tag's text, None if there is none or it is not dcray's.

        An older dcray wrote only host and pid; a field that is not known is ignored.
        """
        try:
            told = json.loads(text or "")
            return cls(
                str(told["host"]),
                _natural(told["pid"]),
                str(told.get("boot", "")),
                str(told.get("namespace", "")),
                int(told.get("ticks", 0)),
            )
        except (ValueError, TypeError, KeyError, AttributeError):
            return None

    def seen(self) -> bool | None:
        """Tell whether the process lives by this machine's process table, None if not known."""
        return process.Process(self.pid, self.boot, self.namespace, self.ticks).lives()

    def alive(self, heartbeat: float | None) -> bool:
        """Tell whether the process lives: asked of the system that runs it, else by its heartbeat.

        `heartbeat` is the instant of the last one in Unix seconds, None if there was none. It
        decides if boot or PID namespace is another, or if either side does not know its own.
        """
        seen = self.seen()
        if seen is not None:
            return seen
        return heartbeat is not None and time.time() - heartbeat <= LOST_SECONDS

    def death(self) -> str:
        """Say how a dead owner is known to be dead: "process 7 on box is gone", or silent."""
        if self.seen() is None:
            return f"{self} gave no sign of life for {LOST_SECONDS:g} s"
        return f"{self} is gone"

    def advice(self, heartbeat: float | None) -> str:
        """Say what can be done about a living owner, and when its silence frees what it holds."""
        if self.seen() is not None or heartbeat is None:
            return "wait for it, or end that process"
        silent = max(time.time() - heartbeat, 0.0)
        return (
            f"wait for it, or end that process (its last sign of life is {silent:.0f} s old; after "
            f"{LOST_SECONDS:g} s of silence this command takes over)"
        )

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def heartbeat_of(tags: Mapping[str, str]) -> float | None:
    """Read the last heartbeat in Unix seconds, None if there is none or it is no number."""
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
    """Return this process as an owner."""
    return Owner(socket.gethostname(), **asdict(process.this_process()))
