"""A command that is ended at once, by Ray or by the system, does not end without a word."""

import contextlib
import os
import pty
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
    code = f"from dcray.cli.screen.console import last_word\nwith last_word():\n    {ENDS[how]}\n"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ended.returncode == 0) == (how == "done")
    assert ended.stdout == ""
    assert ("run the same command again" in ended.stderr) == said
    assert ended.stderr == "" or said


def test_a_block_within_a_block_adds_none():
    code = (
        "from dcray.cli.screen.console import last_word\nwith last_word():\n    with last_word():\n"
        "        pass\n    with last_word():\n        import os; os._exit(1)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.stderr.count("run the same command again") == 1


def test_on_a_terminal_it_has_a_line_of_its_own():
    """A live table is left with the cursor at the end of its last line."""
    imports = "import os; from dcray.cli.screen.console import last_word"
    code = f"{imports}\nwith last_word():\n    os._exit(1)\n"
    ours, theirs = pty.openpty()
    subprocess.run(
        [sys.executable, "-c", f"print('table', end='', flush=True)\n{code}"],
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # how the end of a terminal reads
        while part := os.read(ours, 4096):
            shown += part
    assert shown.startswith(b"table")
    assert b"\r\nended from outside: " in shown
