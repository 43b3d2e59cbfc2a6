"""A Ray cluster of one node for tests, started as people start one and gone afterwards."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Head:
    """The address that RAY_ADDRESS takes, and the dashboard that takes jobs."""

    address: str
    dashboard: str


@contextmanager
def ray_head(home: Path) -> Iterator[Head]:
    """`ray start --head` on loopback alone, with ports and a folder of its own."""
    folder = tempfile.mkdtemp(prefix="head-")  # short: a socket's path has 107 bytes
    gcs, dashboard, agent, client = free_ports(4)
    head = subprocess.Popen(
        [
            str(BIN / "ray"), "start", "--head", "--block", "--disable-usage-stats",
            f"--port={gcs}", f"--dashboard-port={dashboard}", "--dashboard-host=127.0.0.1",
            f"--dashboard-agent-listen-port={agent}", f"--ray-client-server-port={client}",
            f"--temp-dir={folder}", "--num-cpus=2", "--object-store-memory=200000000",
        ],
        env=outside(home) | {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        wait_for(f"http://127.0.0.1:{dashboard}/api/jobs/", head)
        yield Head(f"127.0.0.1:{gcs}", f"http://127.0.0.1:{dashboard}")
    finally:
        family = psutil.Process(head.pid).children(recursive=True)
        head.terminate()
        psutil.wait_procs(family, timeout=3)
        for process in family:
            if process.is_running():
                process.kill()
        head.wait(timeout=30)
        shutil.rmtree(folder, ignore_errors=True)


def outside(home: Path) -> dict[str, str]:
    """The environment of somebody's shell: nothing of this process's own Ray or Python path."""
    home.mkdir(exist_ok=True)
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("RAY_", "MLFLOW_")) and name != "PYTHONPATH"
    }
    return kept | {"HOME": str(home), "PATH": f"{BIN}:{os.environ['PATH']}"}


def free_ports(count: int) -> list[int]:
    """Ports that are free now, all different."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def wait_for(url: str, server: subprocess.Popen[bytes], seconds: float = 240) -> None:
    """Until a server on this machine answers."""
    from urllib.error import URLError
    from urllib.request import urlopen

    deadline = time.monotonic() + seconds
    while True:
        assert server.poll() is None, f"the server of {url} ended"
        assert time.monotonic() < deadline, f"{url} does not answer"
        try:
            with urlopen(url, timeout=5):
                return
        except (URLError, OSError):
            time.sleep(0.2)
