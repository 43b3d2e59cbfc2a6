"""A command that is ended at once, by Ray or by the system, does not end without a word."""

import subprocess
import sys

import pytest

ENDS = {
    "hard": "import os; os._exit(1)",  # as Ray ends a driver whose raylet is gone
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "raised": "raise SystemExit(3)",
    "done": "pass",
}


@pytest.mark.parametrize(("how", "said"), zip(ENDS, (True, True, False, False), strict=True))
def test_the_last_word(how, said):
    code = f"from dcray.cli.console import last_word\nwith last_word():\n    {ENDS[how]}\n"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ended.returncode == 0) == (how == "done")
    assert ended.stdout == ""
    assert ("run the same command again" in ended.stderr) == said
    assert ended.stderr == "" or said
