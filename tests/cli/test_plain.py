"""NO_COLOR, TERM=dumb, no terminal: no escape sequence from any command, bold neither."""

import os
import pty
import subprocess
import sys

import pytest

ESCAPE = b"\x1b"
FORCING = ("FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS", "NO_COLOR")
TERMINAL = {k: v for k, v in os.environ.items() if k not in FORCING} | {"TERM": "xterm-256color"}
COMMANDS = [
    ["--help"],
    ["train", "--help"],
    ["prepare"],
    ["nope"],
    ["sizes"],
    ["plan", "mini_cpu"],
    ["train", "size=60k", "--dry-run"],
    ["status", "nope", "--dir", "nowhere"],
]
PREPARE = ["prepare", "files:texts", "--out", "c", "--tokenizer", "byte", "--budgets", "500"]
PREPARE += ["--val-tokens", "300"]


def on_terminal(words, cwd, **env):
    """(exit code, all that a command writes on a terminal of its own)."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "dcray", *words]
    env = {**TERMINAL, **env}
    process = subprocess.Popen(
        command, cwd=cwd, env=env, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    written = b""
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:  # how Linux says that the other side is closed
            break
        if not chunk:
            break
        written += chunk
    os.close(ours)
    return process.wait(timeout=60), written


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=["NO_COLOR", "dumb"])
def test_a_plain_terminal_gets_no_escape_sequence(words, env, tmp_path):
    code, written = on_terminal(words, tmp_path, **env)
    assert code in (0, 2)
    assert len(written) > 20
    assert ESCAPE not in written


def test_a_command_with_ray_and_bars_is_plain_too(tmp_path, ray_session):
    """Bold, bars, cursor moves, and what Ray's colorama would write at the end."""
    (tmp_path / "texts").mkdir()
    for number in range(20):
        (tmp_path / "texts" / f"{number}.txt").write_text(f"document {number} " * 30)
    code, written = on_terminal(PREPARE, tmp_path, NO_COLOR="1")
    assert code == 0
    assert b"is prepared" in written
    assert ESCAPE not in written
    code, written = on_terminal(PREPARE, tmp_path)  # that the terminal is one: bold, where wanted
    assert ESCAPE in written


def test_a_pipe_gets_no_escape_sequence(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "dcray", "plan", "mini_cpu"], cwd=tmp_path, env=TERMINAL,
        capture_output=True, check=True,
    )  # fmt: skip
    assert ESCAPE not in done.stdout + done.stderr
