"""What every command prints with, and the exit codes that they share."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from typer.core import TyperCommand

DONE, NOTHING, BAD_INPUT, STOPPED, SOME_FAILED = 0, 1, 2, 3, 4

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


def naming(kind: str) -> type[TyperCommand]:
    """A command whose help names every plug-in of `kind`, those of --plugin files too."""

    class Naming(TyperCommand):
        def format_help(self, ctx: Any, formatter: Any) -> None:
            from dcray import plugins

            known = f"{kind.capitalize()}: {', '.join(plugins.names(kind))}."
            self.epilog = f"{known}\n\n{self.epilog}"
            super().format_help(ctx, formatter)

    return Naming
