"""A rank that is killed, and one that hangs: the run is lost, tried again, and ends as if alone."""

import os
import re
import signal
import subprocess
import threading
import time
from pathlib import Path

import psutil
import pytest

from tests.training import runs, start, undisturbed_loss, words

LONG = (
    "num_epochs=200", "validation.epochs=end", "runtime.checkpoint_seconds=0.5",
    "runtime.precision=float64", "optim.lr=1e-3",  # at 1e-2 rounding errors grow to 0.04 nats
)  # fmt: skip
HANG = "runtime.hang_seconds=10"
GONE = r"lost, (rank \d: its process is gone|the connection to another rank broke)"
PATIENCE = 400  # seconds that a busy machine may take; a quiet one takes ten


@pytest.fixture(scope="module")
def whole(tiny_corpus, tmp_path_factory) -> float:
    """The loss of the run in one process that nobody disturbs."""
    return undisturbed_loss(tiny_corpus, tmp_path_factory.mktemp("whole"), *LONG)


class Command:
    """The command under way in `folder`, and what it says, each line with its time."""

    def __init__(self, corpus: Path, folder: Path, *more: object) -> None:
        self.directory = folder / "runs"
        self.child = start(words(corpus, self.directory, *LONG, *more), folder)
        self.said: list[tuple[float, str]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.child.stderr:
            self.said.append((time.monotonic(), line))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.child.kill()
        self.child.wait()
        self.child.stdout.close()

    def until(self, found):
        """What `found()` returns, as soon as that is something; the command must be alive."""
        deadline = time.monotonic() + PATIENCE
        while not (it := found()):
            assert self.child.poll() is None, self.said
            assert time.monotonic() < deadline, self.said
            time.sleep(0.05)
        return it

    def ranks(self) -> list[psutil.Process]:
        """The processes that train, once they have left a checkpoint."""
        before = self.newest()
        self.until(lambda: self.newest() > before)
        every = {p: p.name() for p in psutil.Process(self.child.pid).children(recursive=True)}
        group = [p for p, name in every.items() if "RayTrainWorker" in name]
        return group or [p for p, name in every.items() if "ImplicitFunc" in name]

    def newest(self) -> str:
        """The name of the newest whole checkpoint, "" if there is none."""
        found = self.directory.glob("train/checkpoints/*/step-*/meta.json")
        return max((path.parent.name for path in found), default="")

    def after(self, hit: float, words: str) -> tuple[float, str]:
        """The first line since `hit` that has these words, and how long after `hit` it came."""
        found = self.until(lambda: [s for s in self.said if s[0] >= hit and words in s[1]])
        return found[0][0] - hit, found[0][1]

    def loss(self) -> float:
        """The loss that is on record after the command has ended well."""
        try:
            self.child.wait(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            pytest.fail(f"it does not end: {self.said}")
        self._reader.join(timeout=10)
        assert self.child.returncode == 0, self.said
        (run,) = runs(self.directory)
        assert run.info.status == "FINISHED"
        return run.data.metrics["val_loss"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "hits"),
    [
        (1, {signal.SIGKILL: "lost, its process is gone"}),
        (2, {signal.SIGKILL: GONE, signal.SIGSTOP: "did not answer for runtime.hang_seconds"}),
    ],
    ids=["alone", "group"],
)
def test_a_lost_rank_is_tried_again_and_changes_no_loss(
    tiny_corpus, tmp_path, whole, workers, hits
):
    """Two gloo processes on the road of Ray Train; the hung one is named in less than a minute."""
    with Command(tiny_corpus, tmp_path, HANG, "--workers", workers) as command:
        for number, said in hits.items():
            ranks = command.ranks()
            assert len(ranks) == workers
            hit = time.monotonic()
            os.kill(ranks[-1].pid, number)
            seconds, line = command.after(hit, "lost, ")
            assert re.search(said, line)
            assert seconds < 75, "10 s of silence, and 10 s for Ray Train to take the group apart"
        assert command.loss() == pytest.approx(whole, rel=0, abs=1e-8)


@pytest.mark.slow
def test_a_run_that_says_nothing_is_named_and_not_ended(tiny_corpus, tmp_path, whole):
    """One process that stands still: a step may take long, so nobody kills it."""
    with Command(tiny_corpus, tmp_path, HANG) as command:
        (rank,) = command.ranks()
        hit = time.monotonic()
        rank.suspend()
        seconds, line = command.after(hit, "no report for ")
        rank.resume()
        assert "500 ar seed 42: no report for 1" in line
        assert 8 < seconds < 30
        assert command.loss() == pytest.approx(whole, rel=0, abs=1e-8)
        told = [line for at, line in command.said if at >= hit and "no report for" in line]
    assert len(told) == 1
