"""What every command prints with, and the exit codes that they share."""

from __future__ import annotations

from rich.console import Console

DONE, NOTHING, BAD_INPUT, STOPPED, SOME_FAILED = 0, 1, 2, 3, 4

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)
