"""Whether a process lives: by boot, PID namespace and ticks since boot, never by a wall clock."""

import os
import subprocess
import sys
import time
from dataclasses import replace

import psutil
import pytest

from dcray.cluster.process import Process, this_process
from dcray.track.locks.owner import Owner


@pytest.fixture
def child():
    process = subprocess.Popen(
        [sys.executable, "-c", TELL], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )
    yield process
    process.kill()
    process.communicate()


TELL = """
from dcray.cluster.process import this_process
print(this_process().mark(), flush=True)
input()
"""


def test_a_process_is_known_by_its_mark_and_dead_as_a_zombie_too(child):
    mark = child.stdout.readline().strip()
    process = Process.of_mark(mark)
    assert (process.pid, process.mark()) == (child.pid, mark)
    assert process.lives() is True
    assert replace(process, ticks=process.ticks - 1).lives() is False  # its pid came back
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, and not waited for
    assert process.lives() is False
    child.wait()
    assert process.lives() is False


@pytest.mark.parametrize("field", ["boot", "namespace", "ticks"])
def test_what_differs_or_is_missing_cannot_be_told(field):
    """Nor by a pid that lives here: it is another process's number."""
    ours = this_process()
    missing = replace(ours, **{field: 0 if field == "ticks" else ""})
    assert missing.lives() is None
    assert Process.of_mark(missing.mark()).lives() is None
    if field != "ticks":
        assert replace(ours, **{field: "77"}).lives() is None


@pytest.mark.parametrize("text", ["", "1", "x-1-2-3", "0-1-2-ab", "1-2-3-ab-4", "1-2-3-box"])
def test_other_names_are_no_marks(text):
    assert Process.of_mark(text) is None


def test_a_step_of_the_clock_kills_nobody(monkeypatch):
    """Linux moves its boot time with the clock, and a start time in seconds was counted from it."""
    owner = Owner.from_json(Owner("box", **vars(this_process())).to_json())
    now, boot = time.time(), psutil.boot_time()
    for step in (-3600.0, -3.0, 3.0, 3600.0):
        monkeypatch.setattr(time, "time", lambda step=step: now + step)
        monkeypatch.setattr(psutil, "boot_time", lambda step=step: boot + step)
        assert owner.alive(now)
        assert owner.alive(None)


def test_an_owner_of_an_older_dcray_is_judged_by_its_heartbeat():
    """Its tag tells a host, a pid and a wall clock's second."""
    started = psutil.Process().create_time()
    old = Owner.from_json(f'{{"host": "box", "pid": {os.getpid()}, "started": {started}}}')
    assert old.alive(time.time() - 60)
    assert not old.alive(time.time() - 600)
    assert not old.alive(None)
    assert "gave no sign of life for 120 s" in old.death()


@pytest.mark.parametrize("text", ["", "7", "[]", '{"host": "a"}', '{"host": "a", "pid": "x"}'])
def test_another_text_is_no_owner(text):
    assert Owner.from_json(text) is None
