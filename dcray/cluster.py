"""The Ray that a command runs on: the user's cluster where one is named, else a private one.

A private cluster is ours to configure: loopback on every port, no token file, no usage statistics,
a silent screen. A cluster that the user names (RAY_ADDRESS, or a job's own) is only joined, and
what cannot be joined is refused within half a minute.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import psutil

from dcray import plugins
from dcray.errors import ConfigError

PREFIX = "dcray-"
QUIET = {  # defaults only: what the user has set stays
    "RAY_USAGE_STATS_ENABLED": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",  # a worker's report waits for the next poll
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
PRIVATE = {  # a cluster of ours alone
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # puts every port on 127.0.0.1, on Linux too
    "RAY_AUTH_MODE": "disabled",  # else ray.init writes ~/.ray/auth_token
    "RAY_worker_niceness": "0",  # Ray's 15 makes a step on a busy machine 1.5 times as long
}

JOIN_SECONDS = 20.0
JOIN = """
import ray
try:
    ray.init(logging_level="error", log_to_driver=False)
except Exception as error:
    print(type(error).__name__ + ":", *str(error.__cause__ or error).split(maxsplit=40)[:40])
    raise SystemExit(1)
"""


def set_environment() -> None:
    """Set the defaults that must stand before Ray and MLflow are imported; overrides nothing."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)


@contextmanager
def ray_cluster(*, num_cpus: int | None = None, logs: Path | None = None) -> Iterator[None]:
    """Ray, connected: what RAY_ADDRESS or an outer `ray.init` names, else a private cluster.

    A private cluster offers `num_cpus` CPUs (None: this machine's). It is gone at the end; its logs
    are moved to `logs` when the block ends with an exception.
    Raises ConfigError where the named cluster cannot be joined.
    """
    set_environment()
    address = named_address()
    if address is None:
        for name, value in PRIVATE.items():
            os.environ.setdefault(name, value)
    elif _on_loopback_alone(address):
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    import ray

    for module in plugins.file_modules():
        ray.cloudpickle.register_pickle_by_value(module)
    if ray.is_initialized():
        yield
        return
    with _private(num_cpus, logs) if address is None else _joined(address):
        yield


def named_address() -> str | None:
    """The address of the cluster that the user, or a job, names by RAY_ADDRESS; None for none."""
    address = os.environ.get("RAY_ADDRESS", "")
    return None if address in ("", "local") else address


def in_job() -> bool:
    """Whether this process is the driver of a job that `ray job submit` sent."""
    return "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ


def on_head_node() -> bool:
    """Whether this machine is the named cluster's head, or no cluster is named.

    Jobs run there, unless resources are asked for their entry point: what is only on this machine
    is then there for the next driver too.
    """
    host = (named_address() or "auto").rpartition(":")[0].strip("[]")
    if not host or host == "localhost":
        return True
    own = {one.address for many in psutil.net_if_addrs().values() for one in many}
    try:
        return any(found[4][0] in own for found in socket.getaddrinfo(host, None))
    except OSError:
        return False


@contextmanager
def _joined(address: str) -> Iterator[None]:
    """The named cluster, which stays as it is; its workers import this very dcray.

    A job's workers have theirs as the job has: from its working_dir, or from their machine.
    """
    import ray

    carried = None
    if not in_job():
        _check_answers(address)
        carried = {"py_modules": [str(Path(__file__).parent)]}
    with signals_wait():
        ray.init(runtime_env=carried, logging_level="error", log_to_driver=False)
    try:
        yield
    finally:
        with signals_wait():
            ray.shutdown()


def _check_answers(address: str) -> None:
    """Raise ConfigError where the cluster cannot be joined: `ray.init` would wait for minutes."""
    if "://" in address:
        raise ConfigError(
            f"RAY_ADDRESS must be HOST:PORT or auto, a cluster of which this machine is a node, "
            f'got "{address}"; from outside send a job: python jobs/submit.py train ...'
        )
    said = _no_listener(address) or _cannot_join()
    if said:
        raise ConfigError(
            f"RAY_ADDRESS names {address}, which cannot be joined from this machine ({said}); see "
            f"that the cluster runs (ray status --address {address}), that this machine is a node "
            "of it and has its RAY_AUTH_MODE and token; or unset RAY_ADDRESS for a private Ray here"
        )


def _no_listener(address: str) -> str:
    """Why nothing listens at HOST:PORT, "" where something does or the address is none."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return ""
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=JOIN_SECONDS).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _cannot_join() -> str:
    """Why a child of ours cannot join the cluster, "" where it can."""
    command = [sys.executable, "-c", JOIN]
    try:
        child = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=JOIN_SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"Ray did not answer in {JOIN_SECONDS:g} s"
    return "" if child.returncode == 0 else child.stdout.strip() or "it ended without a word"


def _on_loopback_alone(address: str) -> bool:
    """Whether a loopback address is of a cluster that listens nowhere else.

    Ray takes 127.0.0.1 for this machine's outside address, where such a cluster does not answer,
    unless it is told by the variable with which that cluster was started.
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


@contextmanager
def _private(num_cpus: int | None, logs: Path | None) -> Iterator[None]:
    """A Ray of our own on loopback, in a folder of its own."""
    import ray

    _clear_dead_sessions()
    folder = tempfile.mkdtemp(
        prefix=f"{PREFIX}{os.getpid()}-"
    )  # short: a socket's path has 107 bytes
    try:
        try:
            with signals_wait(), _daemons_apart():
                ray.init(
                    address="local",
                    num_cpus=num_cpus,
                    include_dashboard=False,
                    logging_level="error",
                    log_to_driver=False,
                    configure_logging=True,
                    _temp_dir=folder,
                )
            yield
        except ConfigError:
            raise
        except BaseException:
            _keep_logs(Path(folder), logs)
            raise
        finally:
            with signals_wait():
                ray.shutdown()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _daemons_apart() -> Iterator[None]:
    """Ray's daemons start in process groups of their own.

    A signal to the whole group (`timeout`, `kill %1`) then reaches the driver alone, which saves
    and ends them. They end with the driver however it dies: the kernel sees to that.
    """
    from ray._private import services

    popen = services.ConsolePopen
    services.ConsolePopen = functools.partial(popen, process_group=0)
    try:
        yield
    finally:
        services.ConsolePopen = popen


@contextmanager
def signals_wait() -> Iterator[None]:
    """A SIGINT or SIGTERM within the block is heard at its end; a second one at once.

    An exception raised in the midst of `ray.init` may be swallowed, and a lock stays taken.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[int] = []

    def hear(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        if len(heard) > 1:
            raise KeyboardInterrupt

    set_handler = signal.signal
    before = {number: set_handler(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
    # ray.init would put its own handler there
    signal.signal = lambda number, _: signal.getsignal(number)  # type: ignore[assignment]
    try:
        yield
    finally:
        signal.signal = set_handler
        for number, handler in before.items():
            set_handler(number, handler)
    if heard:
        raise KeyboardInterrupt


def _clear_dead_sessions() -> None:
    """Delete the session folders of our processes that died without their end."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*-*"):
        pid = folder.name.removeprefix(PREFIX).split("-")[0]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)


def _keep_logs(folder: Path, logs: Path | None) -> None:
    found = folder / "session_latest" / "logs"
    if logs is not None and found.exists():
        target = logs / f"ray-{os.getpid()}"
        shutil.copytree(found, target, dirs_exist_ok=True, ignore_dangling_symlinks=True)
