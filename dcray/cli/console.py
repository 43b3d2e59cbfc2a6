"""What every command prints with, and the exit codes that they share."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.markup import escape
from typer.core import TyperCommand

from dcray.progress import Listener, heard_by

DONE, NOTHING, BAD_INPUT, STOPPED, SOME_FAILED = 0, 1, 2, 3, 4
_PROMISED = threading.Lock()  # a last word
GAP = 2  # characters between two columns of a table


def plain() -> bool:
    """Whether no escape sequence is wanted (NO_COLOR) or understood (TERM=dumb): bold neither."""
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") in ("dumb", "unknown")


def screen(**options: Any) -> Console:
    """A console; a plain one is no terminal, so nothing on it is live."""
    if plain():
        options |= {"force_terminal": False, "color_system": None}
    return Console(highlight=False, emoji=False, soft_wrap=True, **options)  # ":key:" is text


out = screen()
err = screen(stderr=True)


def print_wide(table: Any) -> None:
    """A table on the output, each row on one line however narrow the screen is."""
    wide = screen(file=out.file, width=10_000)
    wide.width = max(out.width, wide.measure(table).maximum)
    wide.print(table)


def fitted_table(
    heads: Mapping[str, bool],
    rows: Sequence[Sequence[str]],
    *,
    width: int | None,
    least_needed: Iterable[str],
    wraps: str = "",
) -> Any:
    """A rich table of `rows` under `heads` (whether each is text), of the columns that fit.

    Where they do not fit into `width` (None: all do), first those go that are empty, then the least
    needed; what is not in `least_needed` never goes. `wraps`: the one head whose texts may.
    """
    from rich.cells import cell_len
    from rich.table import Table

    columns = {head: [row[at] for row in rows] for at, head in enumerate(heads)}
    sizes = {head: GAP + max(map(cell_len, (head, *texts))) for head, texts in columns.items()}
    for head in sorted(least_needed, key=lambda head: any(columns[head])):
        if width is not None and sum(sizes[head] for head in columns) - GAP > width:
            del columns[head]
    table = Table(box=None, pad_edge=False, padding=(0, GAP // 2))
    for head in columns:
        side: Literal["left", "right"] = "left" if heads[head] else "right"
        table.add_column(head, justify=side, no_wrap=head != wraps)
    for row in zip(*columns.values(), strict=True):
        table.add_row(*map(escape, row))
    return table


@contextmanager
def last_word() -> Iterator[None]:
    """If this process ends inside the block at once, somebody says so in its place, once.

    Ray ends a driver without a word when its node's process is gone, which a system that is short
    of memory likes to kill. A shell waits at a pipe for the end of the block, or of this process.
    """
    words = (
        "ended from outside: this command was killed, or Ray's own process was (out of memory?). "
        "What was saved is kept: run the same command again to go on"
    )
    if not _PROMISED.acquire(blocking=False):  # in a block around this one
        yield
        return
    waits = "trap '' INT TERM HUP; read done && exit; [ -t 2 ] && printf '\\033[?25h\\n' >&2; "
    command = ["sh", "-c", waits + "printf '%s\\n' \"$0\" >&2", words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as shell:
        try:
            yield
        finally:
            shell.communicate(b"done\n")
            _PROMISED.release()


def address_line(directory: Path, tracking_uri: str | None) -> str:
    """The command that opens the record in MLflow's UI, or its address."""
    from dcray.track.address import redacted, resolve_uri

    uri = redacted(resolve_uri(directory, tracking_uri))
    if uri.startswith("http"):
        return f"record: {uri}"
    return (
        f"compare runs: mlflow ui --backend-store-uri {uri} --host 127.0.0.1\n"
        '(there choose "Model training" at the top left, then the study; Columns adds val_loss)'
    )


@contextmanager
def progress_bar(*, quiet: bool = False) -> Iterator[Listener]:
    """Bars of what is counted inside the block, and of what is told to the function given.

    On the error stream; nothing where that is no terminal.
    """
    if quiet or not err.is_terminal:
        yield lambda stage, done, total: None
        return
    from rich import progress

    columns = (
        progress.SpinnerColumn(),
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=err, transient=True) as bar:
        tasks = dict[str, progress.TaskID]()

        def show(stage: str, done: int, total: int | None) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=total)
            bar.update(tasks[stage], completed=done, total=total)

        with heard_by(show):
            yield show


def say(text: str, *, quiet: bool = False) -> None:
    """A line on the error stream: what is being done, before anything slow is begun."""
    if not quiet:
        err.print(text, markup=False)


def names(text: str) -> list[str]:
    """The names of an option, with commas between them."""
    return [name.strip() for name in text.split(",") if name.strip()]


def naming(kind: str) -> type[TyperCommand]:
    """A command whose help names every plug-in of `kind`, those of --plugin files too."""

    class Naming(TyperCommand):
        def format_help(self, ctx: Any, formatter: Any) -> None:
            from dcray import plugins

            known = f"{kind.capitalize()}: {', '.join(plugins.names(kind))}."
            self.epilog = f"{known}\n\n{self.epilog}"
            super().format_help(ctx, formatter)

    return Naming
