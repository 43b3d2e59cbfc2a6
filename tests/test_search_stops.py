"""A search whose driver, trial or raylet is killed, and the same command again."""

import contextlib
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.studies import cells_of, final_table, search_words, settled, write_study
from tests.training import client_of, runs, start

LONG = {"epochs": (400, 1200), "lrs": (1e-2,)}  # segments of seconds: orphans do not finish them


@pytest.fixture(scope="module")
def whole(tiny_corpus, tmp_path_factory):
    """The table that nobody disturbs."""
    folder = tmp_path_factory.mktemp("whole")
    study = write_study(folder, **LONG)
    child = start(search_words(study, tiny_corpus, folder / "runs", "--json"), folder)
    out, err = child.communicate(timeout=500)
    assert child.returncode == 0, err
    assert all(settled(cell) for cell in cells_of(out).values())
    return final_table(folder / "runs")


def victims(child: subprocess.Popen, what: str) -> list[psutil.Process]:
    """The processes of the search that `what` names."""
    driver = psutil.Process(child.pid)
    if what == "driver":
        return [driver]
    wanted = "raylet" if what == "raylet" else "ray::ImplicitFu"  # as much as the kernel keeps
    found = []
    for process in driver.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.name().startswith(wanted):
                found.append(process)
    return found


def kill(child: subprocess.Popen, what: str, after: float) -> bool:
    """SIGKILL one of them some seconds after the first checkpoint; False where it ended before."""
    deadline = time.monotonic() + after
    while time.monotonic() < deadline and child.poll() is None:
        time.sleep(0.05)
    found = victims(child, what) if child.poll() is None else []
    for process in found[:1]:
        os.kill(process.pid, signal.SIGKILL)
    return bool(found)


def wait_for_work(child: subprocess.Popen, directory: Path) -> None:
    """Until something is being trained."""
    deadline = time.monotonic() + 120
    while child.poll() is None and not victims(child, "trial"):
        assert time.monotonic() < deadline, "nothing is trained"
        time.sleep(0.1)


def same_as(whole, directory: Path) -> None:
    """The undisturbed table, one run a key, no point of a curve twice, and nothing left RUNNING."""
    assert final_table(directory) == whole
    client = client_of(directory)
    experiment = client.get_experiment_by_name("micro").experiment_id
    assert client.search_runs([experiment], "attributes.status = 'RUNNING'") == []
    for run in runs(directory, "micro"):
        steps = [m.step for m in client.get_metric_history(run.info.run_id, "optim/lr")]
        assert len(steps) == len(set(steps))


def disturb(study: Path, corpus: Path, folder: Path, kills: list[tuple[str, float]]) -> int:
    """Run the command until it is done, with these kills on the way; how many hit something."""
    words = search_words(study, corpus, folder / "runs", "--json")
    hits, left = 0, list(kills)
    for _ in range(len(kills) + 5):
        child = start(words, folder)
        try:
            wait_for_work(child, folder / "runs")
            while left and child.poll() is None:
                what, after = left.pop(0)
                hits += kill(child, what, after)
                if what != "trial":
                    break  # the command ends, or has ended
            out, err = child.communicate(timeout=300)
        finally:
            child.kill()
        if child.returncode == 0:
            assert all(settled(cell) for cell in cells_of(out).values())
            return hits
        assert "Traceback" not in err, err
    raise AssertionError("it does not come to an end")


@pytest.mark.parametrize("what", ["driver", "trial"])
def test_killed_once_and_the_same_command_again(tiny_corpus, tmp_path, whole, what):
    study = write_study(tmp_path, **LONG)
    assert disturb(study, tiny_corpus, tmp_path, [(what, 3.0)]) == 1
    same_as(whole, tmp_path / "runs")


@pytest.mark.slow
def test_ten_kills_at_random_moments(tiny_corpus, tmp_path, whole):
    """Of the driver, of a trial, of the raylet."""
    rng = random.Random(os.environ.get("DCRAY_TEST_SEED", "1"))
    kinds = ["driver", "trial", "raylet"] * 3 + ["driver"]
    rng.shuffle(kinds)
    study = write_study(tmp_path, **LONG)
    kills = [(what, rng.uniform(0.5, 6.0)) for what in kinds]
    assert disturb(study, tiny_corpus, tmp_path, kills) >= 5
    same_as(whole, tmp_path / "runs")
