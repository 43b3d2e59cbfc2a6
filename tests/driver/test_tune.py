"""What a stop asks, and of whom; what killed commands leave."""

import subprocess
from dataclasses import replace

from dcray.cluster.process import Process, this_process
from dcray.driver.silence import Silence
from dcray.driver.stop import StopRequest
from dcray.driver.tune import clear_dead_tunes
from dcray.train.worker import STOP_FILE


def test_a_stop_asks_the_trials_that_run_and_makes_no_folder_of_one_that_is_gone(tmp_path):
    """A search has deleted most folders of its trials by then: they stay deleted."""
    stop, over, runs, late = StopRequest(), tmp_path / "over", tmp_path / "runs", tmp_path / "late"
    stop.watch(over)
    stop.watch(runs)
    over.rmdir()
    stop.leave(over)
    stop.set()
    stop.watch(late)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["late", "runs"]
    assert all((folder / STOP_FILE).exists() for folder in (runs, late))


def test_folders_of_killed_commands_are_deleted_and_no_others(tmp_path):
    """Of this machine alone: on a shared disk another's process numbers mean nothing here."""
    dead = subprocess.Popen(["true"])
    dead.wait()
    here, there = replace(this_process(), pid=dead.pid), Process(dead.pid, "ab", "7", 7)
    gone = f"tune-1-{here.mark()}"
    stay = [f"tune-2-{this_process().mark()}", f"tune-3-{there.mark()}", "tune-x", "ray-1"]
    for name in (gone, *stay):
        (tmp_path / name).mkdir()
    clear_dead_tunes(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(stay)


def test_a_silence_is_told_once_and_anew_after_the_next_word():
    clock, told = [0.0], []
    silence = Silence(lambda name, seconds: told.append((name, seconds)), now=lambda: clock[0])
    for clock[0] in (0.0, 5.0, 9.9, 10.0, 12.0):
        silence.look("a", 10.0)
    silence.hear("a")
    for clock[0] in (15.0, 25.0):
        silence.look("a", 10.0)
        silence.look("b", 99.0)
    silence.leave("a")
    silence.look("a", 10.0)  # another attempt begins
    assert told == [("a", 10.0), ("a", 13.0)]
