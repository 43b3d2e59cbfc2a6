"""The identity of a process across machines, and whether it lives, without any wall clock."""

from __future__ import annotations

import functools
import os
import re
from dataclasses import dataclass
from pathlib import Path

BOOT = Path("/proc/sys/kernel/random/boot_id")
START_FIELD = 19  # of /proc/PID/stat behind the name: clock ticks from the boot to the start
DEAD = ("Z", "X")  # its state there: a zombie, or dead


@dataclass(frozen=True)
class Process:
    """A process and what distinguishes it from every other one; an empty field is not known.

    boot: the boot of its kernel. namespace: its PID namespace, outside of which its pid means
    another process or none (two containers of one host name have two). ticks: clock ticks from the
    boot to its start, since pids come back; a step of the wall clock does not change them.
    """

    pid: int
    boot: str = ""
    namespace: str = ""
    ticks: int = 0

    def lives(self) -> bool | None:
        """Tell whether the process lives; None if that is unknown here, as on another machine."""
        here = this_process()
        if "" in (self.boot, self.namespace) or not self.ticks:
            return None
        if (self.boot, self.namespace) != (here.boot, here.namespace):
            return None
        try:
            state, ticks = _stat(self.pid)
        except OSError:
            return None if _exists(self.pid) else False
        return ticks == self.ticks and state not in DEAD

    def mark(self) -> str:
        """Format the process as a part of a file's name, which of_mark reads."""
        return f"{self.pid}-{self.ticks}-{self.namespace or 0}-{self.boot or 0}"

    @classmethod
    def of_mark(cls, mark: str) -> Process | None:
        """Parse a mark; None if it is not one."""
        found = re.fullmatch(r"([1-9]\d*)-(\d+)-(\d+)-([0-9a-f]+)", mark)
        if found is None:
            return None
        pid, ticks, namespace, boot = found.groups()
        return cls(int(pid), "" if boot == "0" else boot, namespace, int(ticks))


def this_process() -> Process:
    """Identify this process; fields that the system does not tell are empty."""
    return _process(os.getpid())


@functools.cache
def _process(pid: int) -> Process:
    try:
        if Path("/proc/self").readlink().name != str(pid):  # a /proc of another PID namespace
            return Process(pid)
        boot = BOOT.read_text().strip().replace("-", "")
        namespace = re.sub(r"\D", "", Path("/proc/self/ns/pid").readlink().name)
        return Process(pid, boot, namespace, _stat(pid)[1])
    except (OSError, ValueError):
        return Process(pid)


def _stat(pid: int) -> tuple[str, int]:
    """Read the state of a process and the ticks of its start; OSError if it cannot be seen."""
    text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    fields = text.rpartition(")")[2].split()  # a name may hold blanks and brackets
    return fields[0], int(fields[START_FIELD])


def _exists(pid: int) -> bool:
    """Tell whether there is such a process, even if its /proc is hidden from this user."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
