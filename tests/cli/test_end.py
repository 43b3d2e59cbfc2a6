"""How the process of a command ends: all that is registered runs, and nothing is taken apart."""

import subprocess
import sys
from pathlib import Path

import pytest

CHILD = """
import atexit, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from dcray import cli

class Last:
    def __del__(self):
        print("taken apart", file=sys.stderr)

last = Last()
atexit.register(print, "exit handler")
pool = ThreadPoolExecutor(1)
pool.submit(time.sleep, 0)
main = threading.main_thread()
threading.Thread(target=lambda: (main.join(), print("thread"))).start()
sys.argv = ["dcray", *sys.argv[1:]]
cli.run()
"""


def ended(*asked, **options):
    command = [sys.executable, "-c", CHILD, *asked]
    return subprocess.run(command, text=True, timeout=60, stderr=subprocess.PIPE, **options)


@pytest.mark.parametrize(
    ("asked", "code", "said"), [(["sizes"], 0, "72m"), (["train", "no.toml"], 2, "")]
)
def test_a_command_ends_whole_and_without_finalization(asked, code, said):
    """Native threads that still live crash in it, now and then."""
    done = ended(*asked, stdout=subprocess.PIPE)
    assert done.returncode == code
    assert said in done.stdout
    assert done.stdout.splitlines()[-2:] == ["thread", "exit handler"]
    assert "taken apart" not in done.stderr
    assert ("error: " in done.stderr) == (code == 2)


def test_a_reader_who_is_gone_is_no_success():
    with Path("/dev/full").open("w") as full:
        assert ended("sizes", stdout=full).returncode != 0
