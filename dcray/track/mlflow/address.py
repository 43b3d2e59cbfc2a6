"""The address of the record: a tracking URI, checked and parsed."""

from __future__ import annotations

import os
import re
from pathlib import Path

from dcray.errors import ConfigError

SCHEMES = ("sqlite", "http", "https", "postgresql", "mysql", "mssql")


def resolve_uri(directory: Path, tracking_uri: str | None) -> str:
    """Choose the tracking URI: the argument, else MLFLOW_TRACKING_URI, else DIR/mlflow.db.

    Raises ConfigError for a file store, which this MLflow refuses, and for an unknown scheme.
    """
    default = sqlite_uri(directory.absolute() / "mlflow.db")
    uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or default
    scheme = uri.partition(":")[0].partition("+")[0] if "://" in uri or ":" in uri else "file"
    if scheme == "file":
        raise ConfigError(
            f'tracking_uri must name a database or a server, got the file store "{uri}"; '
            f"write {default} or http://HOST:PORT"
        )
    if scheme not in SCHEMES:
        raise ConfigError(
            f'tracking_uri must begin with one of {", ".join(SCHEMES)}, got "{uri}"; '
            f"write {default} or http://HOST:PORT"
        )
    if scheme == "sqlite" and not sqlite_path(uri).name:
        raise ConfigError(f'tracking_uri must name a file, got "{uri}"; write {default}')
    return uri


def sqlite_uri(path: Path) -> str:
    """Format the URI of a database file, its "?" and "%" quoted as SQLAlchemy reads them."""
    if not set("?%") & set(str(path)):
        return f"sqlite:///{path}"
    from sqlalchemy.engine import URL

    return URL.create("sqlite", database=str(path)).render_as_string(hide_password=False)


def sqlite_path(uri: str) -> Path:
    """Parse the database file out of a sqlite URI."""
    path = uri.partition(":///")[2].partition("?")[0]
    if "%" in path:
        from sqlalchemy.engine import make_url

        path = make_url(uri).database or ""
    return Path("" if path == ":memory:" else path)


def is_local(uri: str) -> bool:
    """Tell whether a driver on another node cannot write there: SQLite, or a loopback server."""
    host = uri.partition("://")[2].rpartition("@")[2].partition("/")[0].lower()
    loopback = ("localhost", "127.", "[::1]", "0.0.0.0")
    return uri.startswith("sqlite") or host.startswith(loopback)


def redacted(uri: str) -> str:
    """Replace the password in the URI by ***."""
    return re.sub(r"(://[^:/@]*):[^@/]*@", r"\1:***@", uri)
