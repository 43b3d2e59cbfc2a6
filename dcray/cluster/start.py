"""The Ray that a command runs on: the cluster that the user names, else a private one.

A private cluster is configured here: loopback on every port, no token file, no usage statistics,
no output. A cluster that the user names (RAY_ADDRESS, or a job's own) is only joined; one that
cannot be joined is refused within half a minute.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

import dcray
from dcray import plugins
from dcray.cluster import sessions
from dcray.cluster.environment import PRIVATE, set_environment
from dcray.cluster.named import (
    LOOPBACK_SWITCH,
    check_answers,
    in_job,
    named_address,
    on_loopback_alone,
)
from dcray.errors import ConfigError, first_line

STOPPED = 3  # exit code of a command that continues if it is run again
last_listeners: list[Callable[[str], None]] = []  # told why this process ends at once


@contextmanager
def ray_cluster(
    *,
    num_cpus: int | None = None,
    logs: Path | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> Iterator[None]:
    """Keep Ray connected: to what RAY_ADDRESS or an outer `ray.init` names, else a private cluster.

    A private cluster offers `num_cpus` CPUs (None: this machine's). It is gone at the end; its logs
    are moved to `logs` when the block ends with an exception. `note` is told where its files lie if
    that is not in TMPDIR.
    Raises ConfigError if the named cluster cannot be joined.
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
    with _private(num_cpus, logs, note) if address is None else _joined(address):
        yield


def _hush() -> None:
    """Keep Ray's own messages in its logs.

    Ray prints its errors among our results, on the standard output, whatever log_to_driver is.
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
    """Ignore what a Ray object raises while it is deleted, as at a stop."""
    before = sys.unraisablehook

    def hear(one: Any) -> None:
        if not str(getattr(one.object, "__module__", "")).startswith("ray."):
            before(one)

    sys.unraisablehook = hear


@contextmanager
def _joined(address: str) -> Iterator[None]:
    """Keep the named cluster joined, and leave it as it is; its workers import this very dcray.

    Workers of a job have the job's dcray instead: from its working_dir, or from their machine.
    """
    import ray

    carried = None
    if not in_job():
        check_answers(address)
        carried = {"py_modules": [str(Path(dcray.__file__).parent)]}
    with signals_wait():
        ray.init(runtime_env=carried, logging_level="error", log_to_driver=False)
    try:
        yield
    finally:
        with signals_wait():
            ray.shutdown()


@contextmanager
def _private(
    num_cpus: int | None, logs: Path | None, note: Callable[[str], None]
) -> Iterator[None]:
    """Keep a private Ray on loopback, in a folder of its own."""
    import ray

    folder, spilled = sessions.make_folder(note)
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
                    object_spilling_directory=spilled,
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
        for one in filter(None, (folder, spilled)):
            shutil.rmtree(one, ignore_errors=True)


@contextmanager
def _daemons_apart() -> Iterator[None]:
    """Start Ray's daemons in process groups of their own, with their agent at a free port.

    A signal to the whole group (`timeout`, `kill %1`) then reaches the driver alone, which saves
    and ends them. However the driver dies, the kernel ends them with it. At its usual port the
    agent would keep a head that a person starts beside from taking jobs.
    """
    from ray._private import parameter, services

    popen, parameters = services.ConsolePopen, parameter.RayParams
    services.ConsolePopen = functools.partial(popen, process_group=0)
    parameter.RayParams = functools.partial(parameters, dashboard_agent_listen_port=0)
    try:
        yield
    finally:
        services.ConsolePopen, parameter.RayParams = popen, parameters


@contextmanager
def _start_in_a_sentence(keep_logs: Callable[[], Path | None]) -> Iterator[None]:
    """Turn an error at Ray's start into a one-sentence ConfigError; tracebacks tell no cause."""
    try:
        yield
    except Exception as error:
        kept = keep_logs()
        said = f"{type(error).__name__}: {first_line(error)}"
        where = f"; its logs are kept in {kept}" if kept else ""
        raise ConfigError(f"Ray did not start on this machine ({said}){where}") from error


@contextmanager
def _ends_with_its_daemons(keep_logs: Callable[[], Path | None]) -> Iterator[None]:
    """End this process at once if Ray's raylet or GCS ends inside the block.

    The exit code is STOPPED: the same command goes on. Ray itself would notice only by its health
    check, which tolerates a stalled machine and so takes minutes.
    """
    children = {_name(child): child for child in psutil.Process().children()}
    daemons = {name: one for name, one in children.items() if name in ("raylet", "gcs_server")}
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.1):
            ended = [name for name, one in daemons.items() if not _alive(one)]
            if ended and not over.is_set():
                with suppress(Exception):
                    keep_logs()
                for listener in last_listeners:
                    with suppress(Exception):
                        listener(f"Ray's {ended[0]} (process {daemons[ended[0]].pid}) has ended")
                os._exit(STOPPED)

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
    """Defer a SIGINT or SIGTERM within the block to its end; raise at once for a second one.

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


def _keep_logs(folder: Path, logs: Path | None) -> Path | None:
    """Copy a session's logs below `logs`; return where they are, None if nothing was copied."""
    found = folder / "session_latest" / "logs"
    if logs is None or not found.exists():
        return None
    target = logs / f"ray-{os.getpid()}"
    shutil.copytree(found, target, dirs_exist_ok=True, ignore_dangling_symlinks=True)
    return target
