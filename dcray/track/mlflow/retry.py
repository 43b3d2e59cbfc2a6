"""Retries for a record that does not answer: whether waiting helps, and what is wrong."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psutil

from dcray.errors import ConfigError, RecordAwayError, first_line
from dcray.track.mlflow.address import redacted, sqlite_path

T = TypeVar("T")

USER = "MLFLOW_TRACKING_USERNAME"
PERMANENT = {  # error codes that no waiting cures
    "INVALID_PARAMETER_VALUE",
    "RESOURCE_DOES_NOT_EXIST",
    "RESOURCE_ALREADY_EXISTS",
    "INVALID_STATE",
    "PERMISSION_DENIED",
    "UNAUTHENTICATED",
    "ENDPOINT_NOT_FOUND",
    "NOT_IMPLEMENTED",
}
DAMAGED = re.compile(
    r"file is not a database|disk image is malformed|no such (table|column)"
    r"|table \w+ already exists"
)
NO_SPACE = re.compile("database or disk is full|disk I/O error|No space left|File too large")
LOCKED = re.compile("database (table )?is locked")
HTTP_CODE = re.compile(r"error code (\d{3})\b|\b(\d{3}) (?:Client|Server) Error")
REFUSED_CODES = ("401", "403")
LATER_CODES = ("408", "425", "429")  # of those below 500


def waiting_helps(error: BaseException) -> bool:
    """Tell whether the same call may succeed later: a lock or a server away, not a refusal."""
    if _says(error, DAMAGED):
        return False
    answer = _http_code(error)
    if answer.startswith("4") and answer not in LATER_CODES:
        return False
    code = getattr(error, "error_code", None)
    if code is not None:
        return code not in PERMANENT
    if isinstance(error, (FileNotFoundError, IsADirectoryError, PermissionError)):
        return False
    return isinstance(error, OSError) or type(error).__module__.startswith(
        ("sqlalchemy", "sqlite3")
    )


def patiently(call: Callable[[], T], *, uri: str, seconds: float) -> T:
    """Run call(), again with growing pauses while the record `uri` is locked or away.

    Raises RecordAwayError after `seconds`, ConfigError at once for a file that is damaged; another
    refusal is raised at once, as it came.
    """
    deadline = time.monotonic() + seconds
    pause = 0.2
    while True:
        try:
            return call()
        except Exception as error:
            if uri.startswith("sqlite") and _says(error, DAMAGED):
                raise ConfigError(sentence(uri, error)) from error
            if not waiting_helps(error):
                raise
            if time.monotonic() + pause > deadline:
                raise RecordAwayError(
                    f"the record did not answer for {seconds:g} s: {sentence(uri, error)}"
                ) from error
        time.sleep(pause)
        pause = min(2 * pause, 5.0)


def sentence(uri: str, error: BaseException) -> str:
    """Say what is wrong with the record at `uri`, which did not answer, and what to do about it."""
    if isinstance(error, ModuleNotFoundError):
        return (
            f"tracking_uri {redacted(uri)} needs a Python driver of that database, the module "
            f"{error.name}, which is not installed here; install it, name another driver as in "
            "postgresql+psycopg2://..., or leave tracking_uri out to use DIR/mlflow.db"
        )
    if not uri.startswith("sqlite"):
        return _server_sentence(redacted(uri), error)
    path = sqlite_path(uri).absolute()
    if _says(error, LOCKED):
        held = f" ({', '.join(found)})" if (found := holders(path)) else ""
        return f"{path} is locked by another process{held}; end that process, then run again"
    if _says(error, NO_SPACE):
        free = f"{shutil.disk_usage(path.parent).free / 1e6:,.1f} MB"
        return (
            f"{path} cannot be written or read, {free} are free on its disk "
            f"({first_line(error)}); make room there, then run again"
        )
    if _says(error, DAMAGED):
        return (
            f"{path} is damaged, or no database of MLflow ({first_line(error)}); put a copy of it "
            "back, or move it away: the next train or search begins a new record"
        )
    return f"{path} cannot be opened ({first_line(error)}); make it readable, or give --dir another"


def _server_sentence(uri: str, error: BaseException) -> str:
    """Say what is wrong with a record behind a server, by the server's answer."""
    code, local = _http_code(error), "leave tracking_uri out to use DIR/mlflow.db"
    if code in REFUSED_CODES:
        given = " other than those that are set" if os.environ.get(USER) else ""
        return (
            f"tracking_uri {uri} refuses this user (HTTP {code}); set {USER} and "
            f"MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, to what that server knows{given}"
        )
    if code:
        return (
            f"tracking_uri {uri} answers with HTTP {code} ({first_line(error)}); see that it is "
            f"the address of an MLflow server, or {local}"
        )
    if not uri.startswith("http"):
        return f"tracking_uri {uri} cannot be opened ({first_line(error)}); mend that, or {local}"
    return (
        f"tracking_uri {uri} does not answer ({first_line(error)}); start that server, or see "
        f"that this machine reaches it, or {local}"
    )


def _http_code(error: BaseException) -> str:
    """Find the status that an HTTP server answered with, "" if it did not."""
    found = HTTP_CODE.search(str(error))
    return found[1] or found[2] if found else ""


def holders(path: Path) -> list[str]:
    """List other processes that have `path` open, as far as this user sees: "process 7 (name)"."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != psutil.Process().pid and any(
                Path(one.path) == path for one in process.open_files()
            ):
                found.append(f"process {process.pid} ({process.name()})")
        except (psutil.Error, OSError):
            continue
    return found


def _says(error: BaseException, what: re.Pattern[str]) -> bool:
    return what.search(first_line(error)) is not None
