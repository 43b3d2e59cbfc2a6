"""A connection to the record, checked before any work, with MLflow's own output turned off."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout

from dcray.cluster.environment import set_environment
from dcray.cluster.named import check_kept, on_head_node
from dcray.errors import ConfigError, RecordAwayError, first_line
from dcray.track.mlflow.address import is_local, redacted, resolve_uri, sqlite_path, sqlite_uri
from dcray.track.mlflow.retry import patiently, sentence

T = TypeVar("T")

QUIET = {  # defaults only: what the user has set stays
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",  # its retries take minutes and block; ours buffer
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}
LOCK_SECONDS = 180.0  # longer than a holder waits for a record that is away


@dataclass(frozen=True)
class Connection:
    """An MLflow client, the address that it uses, and the directory of the record."""

    client: Any
    uri: str
    directory: Path

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock under which processes of this directory make what must exist once.

        Raises RecordAwayError if another process holds it for three minutes.
        """
        path = self.directory / "mlflow.lock"
        with suppress(FileExistsError):
            path.touch(exist_ok=False)  # by our umask: a shared folder's group locks it too
        try:
            with FileLock(path, timeout=LOCK_SECONDS, mode=stat.S_IMODE(path.stat().st_mode)):
                yield
        except Timeout:
            raise RecordAwayError(
                f"{path} was held by another process for {LOCK_SECONDS:g} s; end that process"
            ) from None

    def patiently(self, call: Callable[[], T], *, seconds: float) -> T:
        """Run call(), again while the record is locked or away (retry.patiently)."""
        return patiently(call, uri=self.uri, seconds=seconds)

    @property
    def address(self) -> str:
        """Return the tracking URI without its password: for people and for files."""
        return redacted(self.uri)


def connect(directory: Path, tracking_uri: str | None, *, create: bool) -> Connection:
    """Make a connection that has answered once.

    With `create`, the directory and the database are made, or migrated, under a file lock, so that
    several processes may open a fresh record at once. Without it, a missing record is refused.
    Raises ConfigError if the record cannot be used: before any work.
    """
    directory = Path(directory).absolute()
    uri = resolve_uri(directory, tracking_uri)
    if create:
        _check_reached_by_all(uri, directory)
        _make_writable(directory, "the directory of the record")
    database = sqlite_path(uri).absolute() if uri.startswith("sqlite") else None
    if database is not None and not create and not database.is_file():
        raise ConfigError(
            f"there is no record at {database}; give --dir or --tracking-uri of one, "
            f"or run dcray train or dcray search first"
        )
    if database is not None and create:
        _make_writable(database.parent, "the directory of tracking_uri")
        if database.exists() and not os.access(database, os.W_OK):
            raise ConfigError(f"{database} must be writable; this user may only read it")
    connection = Connection(None, uri, directory)
    if not os.access(directory, os.W_OK):
        return replace(connection, client=_client(uri, create=create))
    with connection.lock():  # a reader too: it may meet tables that are only half made
        return replace(connection, client=_client(uri, create=create))


def _check_reached_by_all(uri: str, directory: Path) -> None:
    """Raise ConfigError if the next driver, or a person, would not find what is written."""
    check_kept(directory, "the directory of the record")
    if uri.startswith("sqlite"):
        check_kept(sqlite_path(uri), "the database of tracking_uri")
    if is_local(uri) and not on_head_node():
        raise ConfigError(
            f"tracking_uri must be one that every driver reaches, got {redacted(uri)}, which is on "
            "this node alone, and this is not the head of the cluster that RAY_ADDRESS names; give "
            "--tracking-uri http://HOST:PORT of a server, or run where the head is"
        )


def _make_writable(directory: Path, what: str) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{what} must be one that can be made and written, got {directory} "
            f"({error.strerror}); give --dir another"
        ) from None
    if not os.access(directory, os.W_OK | os.X_OK):
        raise ConfigError(
            f"{what} must be writable, got {directory}, which this user may only read; "
            f"give --dir another"
        )


def _client(uri: str, *, create: bool) -> Any:
    """Make an MlflowClient that has answered; the first of a fresh database makes its tables."""
    silence()
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    try:
        if uri.startswith("sqlite"):
            _make_no_other_folder()
        if create and uri.startswith("sqlite"):
            _make_database(sqlite_path(uri).absolute())
        client = MlflowClient(tracking_uri=uri)
        silence_loggers()
        client.search_experiments(max_results=1)
    except MlflowException as error:
        if "database schema" in str(error) and uri.startswith("sqlite"):
            return _migrated(uri, create=create)
        raise ConfigError(sentence(uri, error)) from None
    except Exception as error:  # drivers raise what they like; the sentence is the same
        raise ConfigError(sentence(uri, error)) from None
    return client


def _make_no_other_folder() -> None:
    """Keep MLflow from making a database's folder: it mistakes a quoted path for another."""
    from mlflow.store.db import utils

    module: Any = utils
    module._make_parent_dirs_if_sqlite = lambda uri: None  # it is there


def _make_database(path: Path) -> None:
    """Make the tables of a fresh database, all or none; called under the lock."""
    if path.exists() and path.stat().st_size:
        return
    from mlflow.store.db import utils

    draft = path.with_name(f".{path.name}.draft")
    for left in (draft, draft.with_name(f"{draft.name}-journal")):
        left.unlink(missing_ok=True)
    silence_loggers()
    draft.touch()  # by our umask: SQLite would give it to its owner alone
    try:
        engine = utils.create_sqlalchemy_engine_with_retry(sqlite_uri(draft))
        try:
            utils._initialize_tables(engine)
        finally:
            engine.dispose()
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _migrated(uri: str, *, create: bool) -> Any:
    """Make a client on an older MLflow's database, migrated in place; called under the lock."""
    from mlflow import MlflowClient
    from mlflow.store.db import utils

    if not create:
        raise ConfigError(
            f"the database of {redacted(uri)} has another MLflow's schema; "
            f"dcray train or dcray search migrates it"
        )
    try:
        utils._upgrade_db(utils.create_sqlalchemy_engine_with_retry(uri))
        client = MlflowClient(tracking_uri=uri)
        client.search_experiments(max_results=1)
    except Exception as error:
        raise ConfigError(
            f"the database of {redacted(uri)} was written by another MLflow and cannot be migrated "
            f"({first_line(error)}); install an MLflow at least as new as the one that wrote it"
        ) from None
    return client


def silence() -> None:
    """Set the environment that must be set before `import mlflow`, and quiet its loggers."""
    set_environment()
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    silence_loggers()


def silence_loggers() -> None:
    """Quiet MLflow, which logs a stack trace for each try at a locked database."""
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("mlflow").setLevel(logging.ERROR)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
