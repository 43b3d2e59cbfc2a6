"""A database that is locked and a server that is away in mid-run: nothing lost, nothing ended."""

import os
import subprocess
import sys
import threading
import time
from base64 import b64encode
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import requests

from dcray.errors import ConfigError
from dcray.track import runs
from dcray.track.store import Store
from tests.heads import free_ports, wait_for
from tests.track.support import CELL, STUDY, begin, key, locked, point, rows_in_database


def log_through(directory, store, seconds):
    """Log for `seconds` while the database is locked; the longest that one log() took."""
    result = begin(store)
    result.log([point(0)])
    store.writer.drain(None, seconds=20)
    longest, step = 0.0, 1
    with locked(directory):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            started = time.perf_counter()
            result.log([point(step)])
            longest = max(longest, time.perf_counter() - started)
            step += 1
            time.sleep(0.02)
    result.log([point(step)])
    assert result.finish({"val_loss": 3.0})
    rows = [r for r in rows_in_database(directory, result.run_id) if r[0] == "train/loss"]
    assert [r[1] for r in rows] == list(range(step + 1))
    assert runs.results(directory, study=STUDY).rows[0].state == "complete"
    return longest


def test_a_database_locked_for_five_seconds_loses_nothing(store, directory):
    assert log_through(directory, store, 5.0) < 0.5


@pytest.mark.slow
def test_a_database_locked_for_sixty_seconds_loses_nothing(store, directory, monkeypatch):
    monkeypatch.setattr("dcray.track.run.FINISH_SECONDS", 60.0)
    assert log_through(directory, store, 60.0) < 0.5


def test_beginning_while_the_database_is_locked_waits(store, directory):
    store.cell(CELL)
    with locked(directory):
        threads = [threading.Thread(target=begin, args=(store, key(seed=s))) for s in (1, 2)]
        for thread in threads:
            thread.start()
        time.sleep(2.0)
        assert all(thread.is_alive() for thread in threads)
    for thread in threads:
        thread.join(timeout=20)
    assert len(runs.every_result(directory, study=STUDY)) == 2


@contextmanager
def server(directory, port):
    """A real tracking server on loopback; it answers when the block begins."""
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--workers", "1"]
    command += ["--port", str(port), "--backend-store-uri", f"sqlite:///{directory}/mlflow.db"]
    command += ["--artifacts-destination", str(directory / "served")]
    process = subprocess.Popen(
        command,
        cwd=directory,
        env=os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},  # half of its start
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(f"http://127.0.0.1:{port}/health", process)
        yield
    finally:
        process.terminate()
        process.wait(timeout=30)


@pytest.mark.slow
def test_a_server_away_for_thirty_seconds_loses_nothing(
    template, directory, tmp_path, monkeypatch, capfd
):
    monkeypatch.setattr("dcray.track.store.PATIENCE_SECONDS", 60.0)
    monkeypatch.setattr("dcray.track.run.FINISH_SECONDS", 60.0)
    (port,) = free_ports(1)
    address = f"http://127.0.0.1:{port}"
    home = tmp_path / "home"
    with server(directory, port):
        store = Store.open(home, study=STUDY, tracking_uri=address)
        store.claim(CELL)
        result = begin(store)
        result.log([point(s) for s in range(10)])
        assert store.writer.drain(None, seconds=20)
    for step in range(10, 40):
        result.log([point(step)])
        time.sleep(1.0)
    with server(directory, port):
        assert result.finish({"val_loss": 3.0}, {"a.txt": "text"})
        store.close()
        row = runs.results(home, study=STUDY, tracking_uri=address).rows[0]
        assert (row.state, row.val_loss) == ("complete", 3.0)
        steps = [p.step for p in runs.curve(home, row.run_id, tracking_uri=address)]
        assert steps == list(range(40))
        names = [a.path for a in store.connection.client.list_artifacts(row.run_id)]
        assert sorted(names) == ["a.txt", "config.json"]
    assert {path.name for path in home.iterdir()} <= {"mlflow.lock", "spill"}
    assert capfd.readouterr().out == ""


def front(port):
    """What stands before a tracking server and lets in who has a password."""

    class Front(BaseHTTPRequestHandler):
        def do_GET(self):
            if self.headers.get("Authorization") != "Basic " + b64encode(b"me:right").decode():
                self.send_error(401)
                return
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            url = f"http://127.0.0.1:{port}{self.path}"
            kind = {"Content-Type": self.headers.get("Content-Type", "application/json")}
            answer = requests.request(self.command, url, data=body, headers=kind, timeout=60)
            self.send_response(answer.status_code)
            if "Content-Type" in answer.headers:  # the answer to an artifact has none
                self.send_header("Content-Type", answer.headers["Content-Type"])
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815

        def log_message(self, *_):
            pass

    return ThreadingHTTPServer(("127.0.0.1", 0), Front)


@pytest.mark.slow
def test_a_server_behind_a_password_keeps_a_whole_run(directory, tmp_path, monkeypatch):
    (port,) = free_ports(1)
    with server(directory, port):
        gate = front(port)
        threading.Thread(target=gate.serve_forever, daemon=True).start()
        uri = f"http://127.0.0.1:{gate.server_port}"
        here = tmp_path / "here"
        with pytest.raises(ConfigError, match="HTTP 401"):
            Store.open(here, study=STUDY, tracking_uri=uri)
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "me")
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "right")
        with Store.open(here, study=STUDY, tracking_uri=uri) as store, store.claim(CELL):
            result = begin(store)
            result.log([point(step) for step in range(20)])
            assert result.finish({"val_loss": 3.0}, {"a.txt": "text"})
            assert store.config(result.run_id) == {"num_epochs": 16}
        gate.shutdown()
        gate.server_close()
