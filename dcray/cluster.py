"""The Ray that a command runs on: the user's cluster where one is named, else a private one.

A private cluster is ours to configure: loopback on every port, no token file, no usage statistics,
a silent screen. A cluster that the user names (RAY_ADDRESS, or a job's own) is only joined, and
what cannot be joined is refused within half a minute.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from dcray import plugins
from dcray.errors import ConfigError, first_line
from dcray.named import LOOPBACK_SWITCH, check_answers, in_job, named_address, on_loopback_alone

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
    LOOPBACK_SWITCH: "0",
    "RAY_AUTH_MODE": "disabled",  # else ray.init writes ~/.ray/auth_token
    "RAY_health_check_failure_threshold": "100",  # a machine that stalls or sleeps is no dead node
    "RAY_worker_niceness": "0",  # Ray's 15 makes a step on a busy machine 1.5 times as long
}


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
    elif on_loopback_alone(address):
        os.environ.setdefault(LOOPBACK_SWITCH, "0")
    import ray

    _hush()
    for module in plugins.file_modules():
        ray.cloudpickle.register_pickle_by_value(module)
    if ray.is_initialized():
        yield
        return
    with _private(num_cpus, logs) if address is None else _joined(address):
        yield


def _hush() -> None:
    """Ray's own words go to its logs alone.

    It prints its errors among our results, on the standard output, whatever log_to_driver says.
    """
    from ray._private import worker

    _hush_deleted()
    worker.print_to_stdstream = lambda *_, **__: None
    colorama: Any = sys.modules.get("colorama.initialise")
    if colorama is not None:  # else it ends every command on a terminal with an escape sequence
        colorama.atexit_done = True
        atexit.unregister(colorama.reset_all)


@functools.cache  # once
def _hush_deleted() -> None:
    """What an object of Ray's raises while it is deleted, as at a stop, goes to nobody's screen."""
    before = sys.unraisablehook

    def hear(one: Any) -> None:
        if not str(getattr(one.object, "__module__", "")).startswith("ray."):
            before(one)

    sys.unraisablehook = hear


@contextmanager
def _joined(address: str) -> Iterator[None]:
    """The named cluster, which stays as it is; its workers import this very dcray.

    A job's workers have theirs as the job has: from its working_dir, or from their machine.
    """
    import ray

    carried = None
    if not in_job():
        check_answers(address)
        carried = {"py_modules": [str(Path(__file__).parent)]}
    with signals_wait():
        ray.init(runtime_env=carried, logging_level="error", log_to_driver=False)
    try:
        yield
    finally:
        with signals_wait():
            ray.shutdown()


@contextmanager
def _private(num_cpus: int | None, logs: Path | None) -> Iterator[None]:
    """A Ray of our own on loopback, in a folder of its own."""
    import ray

    _clear_dead_sessions()
    folder = tempfile.mkdtemp(
        prefix=f"{PREFIX}{os.getpid()}-"
    )  # short: a socket's path has 107 bytes
    keep_logs = functools.partial(_keep_logs, Path(folder), logs)
    try:
        try:
            with signals_wait(), _daemons_apart(), _start_in_a_sentence(keep_logs):
                ray.init(
                    address="local",
                    num_cpus=num_cpus,
                    include_dashboard=False,
                    logging_level="error",
                    log_to_driver=False,
                    configure_logging=True,
                    _temp_dir=folder,
                )
            with _ends_with_its_daemons(keep_logs):
                yield
        except ConfigError:
            raise
        except BaseException:
            keep_logs()
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
def _start_in_a_sentence(keep_logs: Callable[[], Path | None]) -> Iterator[None]:
    """What Ray raises while it starts becomes a sentence: its traceback tells no cause."""
    try:
        yield
    except Exception as error:
        kept = keep_logs()
        raise ConfigError(
            "Ray did not start on this machine, or its process was ended meanwhile (out of "
            f"memory?): {first_line(error)}" + (f"; its logs: {kept}" if kept else "")
        ) from error


@contextmanager
def _ends_with_its_daemons(keep_logs: Callable[[], Path | None]) -> Iterator[None]:
    """This process ends at once if Ray's raylet or GCS is killed inside the block.

    Ray itself would notice only by its health check, which a stalled machine must pass: minutes.
    """
    daemons = [
        child for child in psutil.Process().children() if _name(child) in ("raylet", "gcs_server")
    ]
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.5):
            if not all(map(_alive, daemons)):
                with suppress(Exception):
                    keep_logs()
                os._exit(1)

    watcher = threading.Thread(target=watch, name="dcray-daemons", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _name(process: psutil.Process) -> str:
    with suppress(psutil.NoSuchProcess):
        return process.name()
    return ""


def _alive(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


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


def _keep_logs(folder: Path, logs: Path | None) -> Path | None:
    """Copy a session's logs below `logs`; where they are now, None where nothing was copied."""
    found = folder / "session_latest" / "logs"
    if logs is None or not found.exists():
        return None
    target = logs / f"ray-{os.getpid()}"
    shutil.copytree(found, target, dirs_exist_ok=True, ignore_dangling_symlinks=True)
    return target
