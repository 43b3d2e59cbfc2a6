"""A search whose driver, trial or raylet is killed, and the same command again.

What it costs is counted where it is spent: the study's objective is a plug-in that notes every row
that any process trains, orphans and repeats included.
"""

import contextlib
import os
import random
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.studies import cells_of, final_table, search_words, settled, write_study
from tests.training import client_of, runs, start

COUNTED = """
import os
from pathlib import Path
from typing import ClassVar

from dcray.objectives.ar import AR


class Counted(AR):
    name: ClassVar[str] = "counted"

    def terms(self, model, batch, key):
        yield from super().terms(model, batch, key)
        folder = Path(__file__).parent / "trained"
        folder.mkdir(exist_ok=True)
        with (folder / str(os.getpid())).open("ab") as file:
            file.write(bytes(int(batch.real.sum())))  # a byte a row: kill -9 loses none


PLUGIN = Counted
"""
BODY = """
[recipes.ar]
objective = "counted"
space = [{{ num_epochs = {epochs}, lr = {lrs}, tau = [1, 4] }}]
search = {{ sampler = "grid", keep = [1, 0.5] }}
confirm_seeds = [1]
[recipes.again]
objective = "counted"
inherit = "ar"
base = {{ "model.dropout" = 0.1 }}
"""
LONG = {"epochs": (200, 600), "lrs": (1e-2,), "body": BODY}  # segments of seconds
BATCH, IN_FLIGHT = 8, 2  # rows a step; trials at once on two CPUs


def command(folder: Path, corpus: Path) -> list[str]:
    """The search of the counted study in a folder."""
    plugin = folder / "counted.py"
    plugin.write_text(COUNTED)
    study = write_study(folder, **LONG)
    often = 'checkpoint_seconds" = 0.1\n"runtime.report_seconds" = 0.1'
    often = study.read_text().replace('checkpoint_seconds" = 0.5', often)
    study.write_text(often)  # so that a kill may cost little: else the bound says little
    return ["--plugin", str(plugin), *search_words(study, corpus, folder / "runs", "--json")]


def rows_trained(folder: Path) -> int:
    """Rows that went through a backward pass in any process of the searches of a folder."""
    return sum(path.stat().st_size for path in folder.glob("trained/*"))


class Intervals(threading.Thread):
    """The longest way between two checkpoints of one run, in steps, as they appear on disk."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.folder, self.over = folder / "runs" / "micro" / "checkpoints", threading.Event()
        self.last: dict[str, int] = {}
        self.longest = 0

    def run(self) -> None:
        while not self.over.wait(0.02):
            found: list[Path] = []
            with contextlib.suppress(OSError):  # a folder that is gone while it is read
                found = sorted(self.folder.glob("*/step-*"))
            for path in found:
                run, step = path.parent.name, int(path.name.removeprefix("step-"))
                if step > self.last.get(run, 0):
                    self.longest = max(self.longest, step - self.last.get(run, step))
                    self.last[run] = step

    def __enter__(self) -> "Intervals":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.join()


@dataclass(frozen=True)
class Whole:
    """What a search comes to that nobody disturbs."""

    table: dict
    rows: int
    interval: int  # steps between two checkpoints, at most
    seconds: float  # from its first row to its end


@pytest.fixture(scope="module")
def whole(tiny_corpus, tmp_path_factory):
    """Its table, and that it trains what its results say and nothing else."""
    folder = tmp_path_factory.mktemp("whole")
    with Intervals(folder) as seen:
        child = start(command(folder, tiny_corpus), folder)
        wait_for_work(child, folder)
        began = time.monotonic()
        out, err = child.communicate(timeout=500)
        seconds = time.monotonic() - began
    assert child.returncode == 0, err
    assert all(settled(cell) for cell in cells_of(out).values())
    tokens = sum(run.data.metrics["trained_tokens"] for run in runs(folder / "runs", "micro"))
    assert rows_trained(folder) == tokens / 16
    return Whole(final_table(folder / "runs"), rows_trained(folder), seen.longest, seconds)


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


def kill(child: subprocess.Popen, folder: Path, what: str, after: float) -> bool:
    """SIGKILL the first of them that is there after some seconds, while something trains.

    False if the search ended. Between two phases nothing trains, and a kill costs nothing.
    """
    time.sleep(after)
    wait_for_work(child, folder)
    while child.poll() is None:
        if found := victims(child, what):
            os.kill(found[0].pid, signal.SIGKILL)
            return True
        time.sleep(0.05)
    return False


def wait_for_work(child: subprocess.Popen, folder: Path) -> None:
    """Wait until this search trains, or has ended: more rows are trained than when it is called."""
    deadline, before = time.monotonic() + 120, rows_trained(folder)
    while child.poll() is None and rows_trained(folder) == before:
        assert time.monotonic() < deadline, "nothing is trained"
        time.sleep(0.01)


def same_as(whole, directory: Path) -> None:
    """The undisturbed table, one run a key, no point of a curve twice, and nothing left RUNNING."""
    assert final_table(directory) == whole.table
    client = client_of(directory)
    experiment = client.get_experiment_by_name("micro").experiment_id
    assert client.search_runs([experiment], "attributes.status = 'RUNNING'") == []
    for run in runs(directory, "micro"):
        steps = [m.step for m in client.get_metric_history(run.info.run_id, "optim/lr")]
        assert len(steps) == len(set(steps))


def disturb(corpus: Path, folder: Path, kills: list[tuple[str, float]]) -> int:
    """Run the command until it is done, with these kills on the way; how many hit something."""
    words = command(folder, corpus)
    hits, left = 0, list(kills)
    for _ in range(len(kills) + 5):
        child = start(words, folder)
        try:
            wait_for_work(child, folder)
            while left and child.poll() is None:
                what, after = left.pop(0)
                hits += kill(child, folder, what, after)
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


def check_cost(whole: Whole, folder: Path, interval: int, kills: int, record) -> int:
    """Each kill costs at most the work since the last checkpoint of each trial in flight."""
    wasted = rows_trained(folder) - whole.rows
    allowed = kills * IN_FLIGHT * max(interval, whole.interval) * BATCH
    record("wasted_rows", f"{wasted} of {whole.rows}, {kills} kills, allowed {allowed}")
    assert 0 <= wasted <= allowed
    return wasted


@pytest.mark.slow
@pytest.mark.parametrize("what", ["driver", "trial"])
def test_killed_once_and_the_same_command_again(
    tiny_corpus, tmp_path, whole, what, record_property
):
    with Intervals(tmp_path) as seen:
        assert disturb(tiny_corpus, tmp_path, [(what, whole.seconds / 3)]) == 1
    same_as(whole, tmp_path / "runs")
    check_cost(whole, tmp_path, seen.longest, 1, record_property)


@pytest.mark.slow
def test_ten_kills_at_random_moments(tiny_corpus, tmp_path, whole, record_property):
    """Of the driver, of a trial, of the raylet, about half of an undisturbed search in all."""
    rng = random.Random(os.environ.get("DCRAY_TEST_SEED", "1"))
    kinds = ["driver", "trial", "raylet"] * 3 + ["driver"]
    rng.shuffle(kinds)
    kills = [(what, whole.seconds * rng.uniform(0.01, 0.1)) for what in kinds]
    with Intervals(tmp_path) as seen:
        hits = disturb(tiny_corpus, tmp_path, kills)
    assert hits >= 8
    same_as(whole, tmp_path / "runs")
    assert check_cost(whole, tmp_path, seen.longest, hits, record_property) > 0
