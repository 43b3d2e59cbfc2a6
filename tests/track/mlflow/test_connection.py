"""Where the record is, and what is refused before any work."""

import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from base64 import b64encode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import sqlalchemy

from dcray.errors import ConfigError
from dcray.track import runs
from dcray.track.mlflow.address import is_local, redacted, resolve_uri, sqlite_path
from dcray.track.mlflow.connection import connect, silence
from dcray.track.store import Store
from tests.track.support import STUDY, begin, copy_of, driver, open_store, rows_in_database

READ_ONLY = """
import os, sys
from pathlib import Path
from dcray.errors import ConfigError
from dcray.track.store import Store
with Store.open(Path(sys.argv[2]), study="s"):
    pass  # all is imported: the user that a root becomes may not read our folders
if os.geteuid() == 0:
    os.setuid(65534)
try:
    Store.open(Path(sys.argv[1]), study="s")
except ConfigError as error:
    print(error)
"""


def test_an_argument_goes_before_the_environment_before_the_default(tmp_path, monkeypatch):
    default = f"sqlite:///{tmp_path}/mlflow.db"
    assert resolve_uri(tmp_path, None) == default
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://server:5000")
    assert resolve_uri(tmp_path, None) == "http://server:5000"
    assert resolve_uri(tmp_path, default) == default


@pytest.mark.parametrize("uri", ["file:/tmp/x", "file:///tmp/x", "./mlruns", "mlruns"])
def test_a_file_store_is_refused_with_what_to_write_instead(tmp_path, uri):
    with pytest.raises(ConfigError, match=r"write sqlite:///.*/mlflow\.db or http"):
        Store.open(tmp_path / "new", study=STUDY, tracking_uri=uri)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("uri", ["ftp://x/y", "databricks://x", "sqlite://", "sqlite:///:memory:"])
def test_other_addresses_are_refused(tmp_path, uri):
    with pytest.raises(ConfigError, match="tracking_uri must"):
        resolve_uri(tmp_path, uri)


def test_a_server_that_is_not_there_is_refused_before_any_work(tmp_path):
    with pytest.raises(ConfigError, match=r"me:\*\*\*@db/x needs a Python driver .* MySQLdb,"):
        connect(tmp_path, "mysql://me:secret@db/x", create=True)
    with pytest.raises(ConfigError, match=r"http://me:\*\*\*@127.0.0.1:9 does not answer"):
        connect(tmp_path, "http://me:secret@127.0.0.1:9", create=True)


@pytest.mark.parametrize("name", ["a b", "a%20b", "a#b", "a?b", "x=1&y;z", "50%", "caf\u00e9"])
def test_a_directory_of_any_name_holds_the_whole_record(template, tmp_path, name):
    """A URI has letters of its own: nothing is written beside the directory."""
    place = tmp_path / "place"
    directory = copy_of(template, place / name)
    with open_store(directory) as store:
        assert sqlite_path(store.connection.uri) == directory / "mlflow.db"
        with begin(store) as result:
            result.finish({"val_loss": 3.0}, {"a.txt": "text"})
        assert store.config(result.run_id) == {"num_epochs": 16}
    assert len(rows_in_database(directory, result.run_id)) == 1
    assert [path.name for path in place.iterdir()] == [name]
    assert {path.name for path in directory.iterdir()} == {"mlflow.db", "mlflow.lock", "artifacts"}


def test_a_fresh_record_is_its_group_s_too(tmp_path):
    """A folder that a team shares has umask 002; SQLite and a lock file would give 644."""
    code = """
        os.umask(0o002)
        with open_store(directory / "a%20?b") as store, begin(store) as result:
            result.finish({"val_loss": 3.0}, {"a.txt": "text"})
        for path in (directory / "a%20?b").rglob("*"):
            if not path.stat().st_mode & 0o020:
                print(path)
    """
    assert driver(code, tmp_path).communicate(timeout=100) == ("", "")


class AsksForAPassword(BaseHTTPRequestHandler):
    """What stands before many tracking servers; with the password it is none of ours, a 404."""

    def do_GET(self):
        known = self.headers.get("Authorization") == "Basic " + b64encode(b"me:right").decode()
        self.send_error(404 if known else 401)

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_):
        pass


def test_a_server_that_wants_a_password_says_so_at_once(tmp_path, monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), AsksForAPassword)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    uri = f"http://127.0.0.1:{server.server_port}"
    started = time.monotonic()
    for password, said in ((None, "(HTTP 401); set"), ("wrong", "other than"), ("right", "404")):
        if password is not None:
            monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "me")
            monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", password)
        with pytest.raises(ConfigError) as refused:
            connect(tmp_path, uri, create=True)
        assert said in str(refused.value)
        asked = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD" in str(refused.value)
        assert asked == (password != "right")
        assert "start that server" not in str(refused.value)
    assert time.monotonic() - started < 60
    server.shutdown()
    server.server_close()


def test_a_directory_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="give --dir another"):
        Store.open(tmp_path / "file" / "runs", study=STUDY)


def test_a_read_only_directory_is_refused(tmp_path):
    """As another user where we are root, who may write everywhere."""
    with tempfile.TemporaryDirectory(dir="/tmp" if os.geteuid() == 0 else None) as place:
        Path(place).chmod(0o555)
        done = subprocess.run(
            [sys.executable, "-c", READ_ONLY, place, tmp_path / "theirs"],
            capture_output=True,
            text=True,
            cwd="/",
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
            check=False,
        )
        assert "may only read" in done.stdout, done.stderr


def test_there_is_nothing_to_read_where_nothing_was_written(tmp_path):
    with pytest.raises(ConfigError, match="there is no record at"):
        runs.results(tmp_path, study=STUDY)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_study_is_told_with_the_nearest(store, directory):
    with pytest.raises(ConfigError, match=f'did you mean "{STUDY}"'):
        runs.results(directory, study="test")
    assert runs.studies(directory) == [STUDY]


def test_an_unknown_run_is_told(directory):
    with pytest.raises(ConfigError, match="RUN must be"):
        runs.curve(directory, "0" * 32)


def test_which_addresses_another_node_cannot_reach():
    assert is_local("sqlite:////a/mlflow.db")
    assert is_local("http://localhost:5000")
    assert is_local("http://127.0.0.1:5000/x")
    assert not is_local("http://tracking.example:5000")
    assert not is_local("postgresql://me@db/x")


def test_passwords_are_not_shown():
    assert redacted("postgresql://me:secret@db:1/x") == "postgresql://me:***@db:1/x"
    assert redacted("http://server:5000") == "http://server:5000"


def test_a_newer_mlflows_database_is_refused(directory):
    with sqlite3.connect(directory / "mlflow.db") as database:
        database.execute("update alembic_version set version_num = 'ffffffffffff'")
    with pytest.raises(ConfigError, match="install an MLflow at least as new"):
        connect(directory, None, create=True)
    with pytest.raises(ConfigError, match="another MLflow's schema"):
        connect(directory, None, create=False)


def test_an_older_mlflows_database_is_migrated(tmp_path):
    silence()
    from alembic import command
    from mlflow.store.db import utils
    from mlflow.store.tracking.dbmodels.initial_models import Base

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    engine = sqlalchemy.create_engine(uri)
    Base.metadata.create_all(engine)
    settings = utils._get_alembic_config(uri)
    with engine.begin() as settings.attributes["connection"]:
        command.upgrade(settings, "head")
        command.downgrade(settings, "-1")
    assert utils._get_schema_version(engine) != utils._get_latest_schema_revision()
    Store.open(tmp_path, study=STUDY).close()
    assert utils._get_schema_version(engine) == utils._get_latest_schema_revision()


@pytest.mark.parametrize("content", [b"not a database", os.urandom(50_000)])
@pytest.mark.parametrize("create", [True, False])
def test_a_damaged_database_is_told_by_its_file(tmp_path, content, create):
    (tmp_path / "mlflow.db").write_bytes(content)
    with pytest.raises(
        ConfigError, match=r"mlflow\.db is damaged, .*put a copy of it back"
    ) as told:
        connect(tmp_path, None, create=create)
    assert "server" not in str(told.value)
    assert (tmp_path / "mlflow.db").read_bytes() == content


def test_a_locked_database_is_told_with_who_holds_it(directory):
    code = (
        "import sqlite3, sys; d = sqlite3.connect(sys.argv[1], isolation_level=None);"
        "d.execute('begin exclusive'); print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(directory / "mlflow.db")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(ConfigError, match="is locked by another process") as told:
            connect(directory, None, create=False)
        assert f"process {holder.pid} (" in str(told.value)
        assert "server" not in str(told.value)
    finally:
        holder.communicate(timeout=20)
    connect(directory, None, create=False)


FULL = """
import resource, sys
from pathlib import Path
from dcray.errors import ConfigError
from dcray.track.mlflow.connection import connect
limit = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    connect(Path(sys.argv[1]), None, create=True)
except ConfigError as error:
    print(error)
"""


def test_a_full_disk_is_told_and_leaves_no_half_made_database(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path), "100000"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        check=False,
    )
    assert "mlflow.db cannot be written or read" in done.stdout, done.stderr
    assert "make room there" in done.stdout
    assert {path.name for path in tmp_path.iterdir()} <= {"mlflow.lock"}
    connect(tmp_path, None, create=True)
