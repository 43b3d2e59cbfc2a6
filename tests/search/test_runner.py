"""What a stop asks, and of whom; what killed commands leave."""

import os
import socket
import subprocess

from dcray.search.runner import StopRequest, _clear_dead_tunes
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
    here = socket.gethostname()
    gone = f"tune-1-{dead.pid}-{here}"
    stay = [f"tune-2-{os.getpid()}-{here}", f"tune-3-{dead.pid}-elsewhere", "tune-x", "ray-1"]
    for name in (gone, *stay):
        (tmp_path / name).mkdir()
    _clear_dead_tunes(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(stay)
