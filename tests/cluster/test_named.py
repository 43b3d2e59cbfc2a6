"""A cluster that the user names is joined, or refused in a sentence; never waited for."""

import re
import socket
import time

import pytest

from dcray.cluster import named
from dcray.errors import ConfigError
from dcray.track.mlflow.connection import connect
from tests.heads import ray_head
from tests.training import runs, start, words


@pytest.fixture(scope="module")
def head(tmp_path_factory):
    with ray_head(tmp_path_factory.mktemp("head") / "home") as head:
        yield head


def ended(tiny_corpus, tmp_path, **environment: str) -> tuple[int, str, str, float]:
    """(exit code, output, error output, seconds) of a tiny train with RAY_ variables set."""
    began = time.monotonic()
    child = start(words(tiny_corpus, tmp_path / "runs"), tmp_path, **environment)
    try:
        out, err = child.communicate(timeout=150)
    finally:
        child.kill()
    return child.returncode, out, err, time.monotonic() - began


def test_a_loopback_cluster_is_joined_from_any_shell(head, tiny_corpus, tmp_path):
    """The shell lacks the switch that the cluster was started with: Ray alone would wait.

    The workers run the driver's dcray, whatever is installed where the cluster was started.
    """
    code, out, err, _ = ended(tiny_corpus, tmp_path, RAY_ADDRESS=head.address)
    assert code == 0, err
    assert "done, val loss" in out
    (run,) = runs(tmp_path / "runs")
    assert run.info.status == "FINISHED"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "runs"]


def refused(address: str) -> str:
    with pytest.raises(ConfigError) as error:
        named.check_answers(address)
    return str(error.value)


def test_nothing_listens():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    said = refused(f"127.0.0.1:{port}")
    assert f"RAY_ADDRESS names 127.0.0.1:{port}, which cannot be joined" in said
    assert "(Connection refused)" in said


@pytest.mark.parametrize("address", ["http://127.0.0.1:8265", "ray://head:10001"])
def test_a_dashboard_or_a_client_server_is_no_cluster_to_join(address):
    assert f'got "{address}"; from outside send a job' in refused(address)


def test_an_address_that_is_none(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "nonsense")
    assert "Invalid address format: nonsense" in refused("nonsense")


def test_a_token_that_is_missing(head, monkeypatch, tmp_path):
    monkeypatch.setenv("RAY_ADDRESS", head.address)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert "AuthenticationError" in refused(head.address)


@pytest.mark.slow
def test_what_is_no_ray_is_refused_within_half_a_minute(tiny_corpus, tmp_path):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        child = start(words(tiny_corpus, tmp_path / "runs"), tmp_path, RAY_ADDRESS=address)
        try:
            began = time.monotonic()
            assert "did not answer in 30 s" in refused(address)
            assert time.monotonic() - began < 40
            out, err = child.communicate(timeout=150)
        finally:
            child.kill()
    assert (child.returncode, out) == (2, "")
    told = err.splitlines()[-1]
    assert re.fullmatch(rf"error: RAY_ADDRESS names {address}, .*did not answer in 30 s.*", told)


@pytest.mark.parametrize("address", ["", "local"])
def test_an_empty_address_names_no_cluster(monkeypatch, address):
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert named.named_address() is None
    assert named.on_head_node()


@pytest.mark.parametrize(
    ("address", "here"),
    [
        ("auto", True),
        ("127.0.0.1:6379", True),
        ("localhost:6379", True),
        ("203.0.113.7:6379", False),
    ],
)
def test_which_machine_is_the_head(monkeypatch, address, here):
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert named.on_head_node() == here


@pytest.mark.parametrize("uri", [None, "http://localhost:5000", "http://127.0.0.1:5000"])
def test_a_record_of_this_node_alone_is_refused_off_the_head(monkeypatch, tmp_path, uri):
    monkeypatch.setenv("RAY_ADDRESS", "203.0.113.7:6379")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(ConfigError, match="must be one that every driver reaches"):
        connect(tmp_path / "runs", uri, create=True)
    assert not (tmp_path / "runs").exists()


def test_a_record_on_the_head_is_taken(monkeypatch, tmp_path):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert connect(tmp_path / "runs", None, create=True).uri.startswith("sqlite")
