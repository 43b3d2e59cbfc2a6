"""The cluster that the user names: its address, whether it answers, where its jobs may write."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil

from dcray.errors import ConfigError

LOOPBACK_SWITCH = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # "0": every port on 127.0.0.1, on Linux too
JOIN_SECONDS = 30.0  # a child imports Ray and joins: seconds, on a busy machine more
JOIN = """
import ray
try:
    ray.init(logging_level="error", log_to_driver=False)
except Exception as error:
    print(type(error).__name__ + ":", *str(error.__cause__ or error).split(maxsplit=40)[:40])
    raise SystemExit(1)
"""


def named_address() -> str | None:
    """Read the address of the cluster that the user or a job sets in RAY_ADDRESS; None if none."""
    address = os.environ.get("RAY_ADDRESS", "")
    return None if address in ("", "local") else address


def in_job() -> bool:
    """Tell whether this process is the driver of a job that `ray job submit` sent."""
    return "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ


def on_head_node() -> bool:
    """Tell whether this machine is the named cluster's head, or no cluster is named.

    Jobs run on the head, unless they ask resources for their entry point; files on this machine
    alone are then there for the next driver too.
    """
    address = named_address() or "auto"
    host = address.rpartition(":")[0].strip("[]")
    if not host or "://" in address:
        return True
    own = {one.address for many in psutil.net_if_addrs().values() for one in many}
    try:
        return any(found[4][0] in own for found in socket.getaddrinfo(host, None))
    except OSError:
        return False


def check_kept(path: Path, what: str) -> None:
    """Raise ConfigError if `path` is in a job's copy of its working_dir, which Ray deletes."""
    if in_job() and "working_dir_files" in path.absolute().parts:
        raise ConfigError(
            f"{what} must outlive the job, got {path}, which is in the copy of the working folder "
            "that Ray deletes with it; give an absolute path, such as --dir /shared/dcray-runs"
        )


def check_answers(address: str) -> None:
    """Raise ConfigError if the cluster cannot be joined: `ray.init` would wait for minutes."""
    if "://" in address:
        raise ConfigError(
            f"RAY_ADDRESS must be HOST:PORT or auto, a cluster of which this machine is a node, "
            f'got "{address}"; from outside send a job: python jobs/submit.py train ...'
        )
    said = _no_listener(address) or _cannot_join(address)
    if said:
        raise ConfigError(
            f"RAY_ADDRESS names {address}, which cannot be joined from this machine ({said}); see "
            f"that the cluster runs (ray status --address {address}), that this machine is a node "
            "of it and has its RAY_AUTH_MODE and token; or unset RAY_ADDRESS for a private Ray here"
        )


def _no_listener(address: str) -> str:
    """Explain why nothing listens at HOST:PORT; "" if something does, or there is no port."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return ""
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=JOIN_SECONDS).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _cannot_join(address: str) -> str:
    """Explain why a child process cannot join the cluster at `address`; "" if it can."""
    command, named = [sys.executable, "-c", JOIN], {**os.environ, "RAY_ADDRESS": address}
    try:
        child = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=JOIN_SECONDS, env=named
        )
    except subprocess.TimeoutExpired:
        return f"Ray did not answer in {JOIN_SECONDS:g} s"
    return "" if child.returncode == 0 else child.stdout.strip() or "it ended without a word"


def on_loopback_alone(address: str) -> bool:
    """Tell whether a loopback address belongs to a cluster that listens nowhere else.

    Ray takes 127.0.0.1 for this machine's outside address, where such a cluster does not answer,
    unless the variable with which that cluster was started is set here too.
    """
    host, _, port = address.rpartition(":")
    if host not in ("127.0.0.1", "localhost", "[::1]") or not port.isdigit():
        return False
    try:
        bound = {
            connection.laddr.ip
            for connection in psutil.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
            if connection.laddr and connection.laddr.port == int(port)
        }
    except psutil.AccessDenied:
        return False
    return bool(bound) and bound <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
