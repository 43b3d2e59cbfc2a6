"""A command of dcray under the words of a job."""

import sys

from dcray.cli import run


def forward(command: str) -> None:
    """Run `dcray COMMAND WORDS`; a leading --plugin FILE goes before the command, as there."""
    at = 1
    while sys.argv[at : at + 1] == ["--plugin"]:
        at += 2
    sys.argv.insert(at, command)
    run()
