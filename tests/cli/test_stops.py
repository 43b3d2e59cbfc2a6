"""A driver that is killed or stopped, and the same command again: one run, the same loss."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import gettempdir

import psutil
import pytest

from dcray.cluster.sessions import PREFIX
from tests.training import client_of, runs, start, undisturbed_loss, words

LONG = ("num_epochs=400", "validation.epochs=end", "runtime.checkpoint_seconds=0.5")
PATIENCE = 300  # seconds that a busy machine may take; a quiet one takes a tenth
LABEL = "dim16-layers2-heads2-mlp32 500 ar seed 42"
OURS = re.compile(rf"{LABEL}: |stopping: |stopped; |training dim16-|Ray starts, ")
AGENTS = ("ray::RuntimeEnvAgent", "ray::DashboardAgent")  # Ray's own, idle: gone in a minute or so
AGENT_PORT = 52_365  # of `ray start`
LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


@pytest.fixture(scope="module")
def whole(tiny_corpus, tmp_path_factory) -> float:
    """The loss of the run that nobody disturbs, in a Ray of its own."""
    return undisturbed_loss(tiny_corpus, tmp_path_factory.mktemp("whole"), *LONG)


def checkpoints(directory: Path) -> list[str]:
    return [path.parent.name for path in directory.glob("train/checkpoints/*/step-*/meta.json")]


def wait_until(child: subprocess.Popen, ready) -> None:
    """Until `ready()`; the child must be alive then."""
    deadline = time.monotonic() + PATIENCE
    while not ready():
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < deadline, "it does not get there"
        time.sleep(0.02)


def family(child: subprocess.Popen) -> list[tuple[psutil.Process, str]]:
    """The driver and every process of its Ray, by name."""
    driver = psutil.Process(child.pid)
    return [(one, one.name()) for one in (driver, *driver.children(recursive=True))]


def assert_gone(processes: list[psutil.Process], *, but: tuple[str, ...] = ()) -> None:
    mine = [process for process, name in processes[1:] if name not in but]
    _, alive = psutil.wait_procs(mine, timeout=120)
    assert alive == []


def goes_on(dcray, tiny_corpus, directory: Path, first_id: str, whole: float) -> None:
    """The same command again: the same run, finished, with the undisturbed run's loss."""
    code, out, err = dcray(*words(tiny_corpus, directory, *LONG))
    assert code == 0, err
    assert f"{LABEL}: done" in out
    (run,) = runs(directory)
    assert run.info.run_id == first_id
    assert run.info.status == "FINISHED"
    assert run.data.metrics["val_loss"] == whole
    client = client_of(directory)
    experiment = client.get_experiment_by_name("train").experiment_id
    assert client.search_runs([experiment], "attributes.status = 'RUNNING'") == []
    seen = [m.step for m in client.get_metric_history(first_id, "train/loss")]
    assert sorted(seen) == [*range(8, 1550, 8), 1550]  # every point of the curve, none twice


def test_kill_9_and_the_same_command(dcray, tiny_corpus, tmp_path, whole):
    """Meanwhile: every port of the private Ray is on loopback, and no token file is written."""
    directory = tmp_path / "runs"
    child = start(words(tiny_corpus, directory, *LONG), tmp_path)
    try:
        wait_until(child, lambda: checkpoints(directory))
        processes = family(child)
        bound = {
            connection.laddr
            for process, _ in processes
            for connection in process.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        }
        child.send_signal(signal.SIGKILL)
        _, err = child.communicate(timeout=PATIENCE)
    finally:
        child.kill()
    assert bound
    assert {address.ip for address in bound} <= LOOPBACK
    assert AGENT_PORT not in {address.port for address in bound}  # a head beside it needs that one
    *lines, last = err.splitlines()
    assert [line for line in lines if not OURS.match(line)] == []
    assert last.startswith("ended from outside: ")
    assert_gone(processes, but=AGENTS)
    (run,) = runs(directory)
    assert run.info.status == "RUNNING"  # nobody was left to say otherwise
    assert not (tmp_path / "home" / ".ray").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "runs"]
    goes_on(dcray, tiny_corpus, directory, run.info.run_id, whole)


@pytest.mark.parametrize(
    "how",
    [
        "ctrl-c",
        "sigterm to the group",
        pytest.param("sigterm", marks=pytest.mark.slow),
        pytest.param("sigint to the driver alone", marks=pytest.mark.slow),
    ],
)
def test_stopped_and_the_same_command(dcray, tiny_corpus, tmp_path, whole, how):
    """A terminal's Ctrl-C, or `timeout`, reaches the whole process group: Ray stands apart."""
    directory = tmp_path / "runs"
    child = start(words(tiny_corpus, directory, *LONG), tmp_path)
    try:
        wait_until(child, lambda: checkpoints(directory))
        processes = family(child)
        if how == "ctrl-c":
            os.killpg(child.pid, signal.SIGINT)
        elif how == "sigterm to the group":
            os.killpg(child.pid, signal.SIGTERM)
        else:
            child.send_signal(signal.SIGTERM if how == "sigterm" else signal.SIGINT)
        out, err = child.communicate(timeout=PATIENCE)
    finally:
        child.kill()
    assert child.returncode == 3, err
    assert f"{LABEL}: stopped" in out
    assert "run the same command again to go on" in out
    assert "stopping: saving a checkpoint" in err
    assert [line for line in err.splitlines() if not OURS.match(line)] == []
    assert_gone(processes)
    assert not list(Path(gettempdir()).glob(f"{PREFIX}{child.pid}-*"))
    (run,) = runs(directory)
    assert run.info.status == "KILLED"
    assert run.data.tags["dcray.state"] == "interrupted"
    last = max(m.step for m in client_of(directory).get_metric_history(run.info.run_id, "optim/lr"))
    steps = [int(name.removeprefix("step-")) for name in checkpoints(directory)]
    assert last <= max(steps) < 1550
    goes_on(dcray, tiny_corpus, directory, run.info.run_id, whole)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_while_ray_starts(tiny_corpus, tmp_path, number):
    """Before anything is trained: exit code 3 too, no traceback, nothing left running."""
    directory = tmp_path / "runs"
    child = start(words(tiny_corpus, directory, *LONG), tmp_path)
    try:
        wait_until(child, lambda: list(Path(gettempdir()).glob(f"{PREFIX}{child.pid}-*/session_*")))
        processes = family(child)
        child.send_signal(number)
        out, err = child.communicate(timeout=PATIENCE)
    finally:
        child.kill()
    assert child.returncode == 3, err
    assert "Traceback" not in err
    assert "run the same command again to go on" in out + err
    assert_gone(processes)
    assert [run for run in runs(directory) if run.info.status == "RUNNING"] == []


@pytest.mark.slow
def test_a_second_ctrl_c_ends_at_once(tiny_corpus, tmp_path):
    directory = tmp_path / "runs"
    asked = words(tiny_corpus, directory, *LONG, "num_epochs=20000", "runtime.report_seconds=600")
    child = start(asked, tmp_path)
    try:
        wait_until(child, lambda: list(directory.glob("train/checkpoints/*")))
        time.sleep(5)
        processes = family(child)
        os.killpg(child.pid, signal.SIGINT)
        time.sleep(0.5)
        os.killpg(child.pid, signal.SIGINT)
        _, err = child.communicate(timeout=60)
    finally:
        child.kill()
    assert child.returncode == 3, err
    assert "Traceback" not in err
    assert_gone(processes)
    (run,) = runs(directory)
    assert run.info.status == "KILLED"


STALLS = """
import os, signal, time
import psutil
from dcray.cluster.start import ray_cluster
with ray_cluster(num_cpus=1):
    import ray
    (raylet,) = [p for p in psutil.Process().children(recursive=True) if p.name() == "raylet"]
    raylet.suspend()
    time.sleep(5)
    raylet.resume()
    time.sleep(1)
    print("works", ray.get(ray.remote(lambda: 7).remote()))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("threshold", "lives"), [(None, True), ("5", False)])
def test_a_machine_that_stalls_for_a_while_goes_on(threshold, lives):
    """By Ray's own threshold its node is dead (asked five times a second here, not every 3 s)."""
    often = {
        f"RAY_health_check_{name}_ms": "200" for name in ("initial_delay", "period", "timeout")
    }
    own = {"RAY_health_check_failure_threshold": threshold} if threshold else {}
    ended = subprocess.run(
        [sys.executable, "-c", STALLS],
        env=os.environ | often | own, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert ("works 7" in ended.stdout) == lives, ended.stderr
    assert (ended.returncode == 0) == lives


LOSES_A_DAEMON = """
import time
from pathlib import Path
import psutil
from dcray.cli.screen.console import last_word
from dcray.cluster.start import ray_cluster
with last_word(), ray_cluster(num_cpus=1, logs=Path("{logs}")):
    (one,) = [p for p in psutil.Process().children() if p.name() == "{daemon}"]
    one.kill()
    time.sleep(30)
"""


@pytest.mark.parametrize("daemon", ["raylet", "gcs_server"])
def test_without_its_daemon_a_command_ends_at_once(daemon, tmp_path):
    """Ray's own health check would take minutes to tell. Its logs are kept."""
    code = LOSES_A_DAEMON.format(daemon=daemon, logs=tmp_path)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=PATIENCE)
    assert ended.returncode == 3  # run the same command again to go on
    said = ended.stderr.decode()
    assert f"ended from outside: Ray's {daemon} (process " in said
    assert said.count("run the same command again to go on") == 1
    assert list(tmp_path.glob("ray-*/raylet.out"))


@pytest.mark.slow
def test_a_ray_that_dies_in_its_start_is_a_sentence(tiny_corpus, tmp_path):
    child = start(words(tiny_corpus, tmp_path / "runs"), tmp_path)
    try:
        wait_until(child, lambda: [p for p, name in family(child) if name == "raylet"])
        (raylet,) = [p for p, name in family(child) if name == "raylet"]
        raylet.kill()
        _, err = child.communicate(timeout=PATIENCE)
    finally:
        child.kill()
    assert child.returncode == 2
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("error: Ray did not start on this machine (")
    assert list((tmp_path / "runs").glob("train/logs/ray-*"))


DELETED = """
from dcray.cluster.start import ray_cluster
class Its:
    def __del__(self):
        raise RuntimeError(type(self).__name__)
class Ours(Its):
    def __del__(self):
        raise RuntimeError("ours")
Its.__del__.__module__ = "ray.data"
with ray_cluster(num_cpus=1):
    Its()
    Ours()
"""


def test_what_ray_raises_while_it_is_deleted_is_on_no_screen():
    """As its data executor does where a stop comes upon it."""
    ended = subprocess.run([sys.executable, "-c", DELETED], capture_output=True, text=True)
    assert ended.returncode == 0
    assert ended.stderr.count("RuntimeError") == 1
    assert "RuntimeError: ours" in ended.stderr
