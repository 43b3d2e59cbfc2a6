"""The consoles to which every command prints, helpers for them, and the exit codes of commands."""

from __future__ import annotations

import os
import shlex
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.markup import escape
from typer.core import TyperCommand

from dcray.cluster import start as cluster
from dcray.progress import Listener, heard_by

DONE, NOTHING, BAD_INPUT, STOPPED, SOME_FAILED = 0, 1, 2, cluster.STOPPED, 4
DEFAULT_DIR = Path("dcray-runs")
_PROMISED = threading.Lock()  # held by the outermost block of last_word
GAP = 2  # characters between two columns of a table


def plain() -> bool:
    """Tell whether escapes are unwanted (NO_COLOR) or not understood (TERM=dumb), bold too."""
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") in ("dumb", "unknown")


class _Screen(Console):
    """A console whose reader may go, as `| head -1` does: the command still does its work."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.file.fileno())
        os.close(nowhere)


def screen(**options: Any) -> Console:
    """Create a console; if `plain()`, it is not a terminal, so nothing on it is live."""
    if plain():
        options |= {"force_terminal": False, "color_system": None}
    return _Screen(highlight=False, emoji=False, soft_wrap=True, **options)  # ":key:" is text


out = screen()
err = screen(stderr=True)


def print_wide(table: Any) -> None:
    """Print a table, each row on one line however narrow the screen is."""
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
    """Make a rich table of `rows` under `heads` (whether each is text) with the columns that fit.

    If they do not fit into `width` (None: all do), empty columns are dropped first, then the least
    needed; a column that is not in `least_needed` is never dropped. `wraps`: the one head whose
    texts may wrap.
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
    """Print a last message, once, if this process ends abruptly inside the block.

    Ray ends a driver without a message if its node's process is gone. So a shell waits at a pipe
    for the end of the block, or of this process, or for a reason that we know, and prints in our
    place.
    """
    kept = "What was saved is kept: run the same command again to go on"
    words = f"ended from outside: the process of this command ended without a word. {kept}"
    if not _PROMISED.acquire(blocking=False):  # by a block around this one
        yield
        return
    waits = (
        "trap '' INT TERM HUP; read -r why; [ \"$why\" = done ] && exit; "
        "[ -t 2 ] && printf '\\033[?25h\\n' >&2; printf '%s\\n' \"${why:-$0}\" >&2"
    )
    command = ["sh", "-c", waits, words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as shell:

        def tell(reason: str) -> None:
            assert shell.stdin is not None
            shell.stdin.write(f"ended from outside: {reason}. {kept}\n".encode())
            shell.stdin.flush()

        cluster.last_listeners.append(tell)
        try:
            yield
        finally:
            cluster.last_listeners.remove(tell)
            shell.communicate(b"done\n")
            _PROMISED.release()


def address_line(directory: Path, tracking_uri: str | None) -> str:
    """Format the command that opens the record in MLflow's UI, or the record's address."""
    from dcray.track.mlflow.address import redacted, resolve_uri

    uri = redacted(resolve_uri(directory, tracking_uri))
    if uri.startswith("http"):
        return f"record: {uri}"
    return (
        f"compare runs: mlflow ui --backend-store-uri {shlex.quote(uri)} --host 127.0.0.1\n"
        '(there choose "Model training" at the top left, then the study; Columns adds val_loss)'
    )


@contextmanager
def progress_bar(*, quiet: bool = False) -> Iterator[Listener]:
    """Show bars of what is counted inside the block, and of what is told to the function yielded.

    The bars are on the error stream; there are none if that is not a terminal.
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


def follow_up(
    *words: object, directory: Path | None = None, tracking_uri: str | None = None
) -> str:
    """Format a dcray command for a shell, with the options that find this command's record.

    The options are --dir and --tracking-uri, each only if needed.
    """
    needed = [str(word) for word in words]
    if directory is not None and directory != DEFAULT_DIR:
        needed += ["--dir", str(directory)]
    if tracking_uri is not None:
        from dcray.track.mlflow.address import redacted

        needed += ["--tracking-uri", redacted(tracking_uri)]
    return shlex.join(["dcray", *needed])


def say(text: str, *, quiet: bool = False) -> None:
    """Print a line on the error stream: what is being done, before anything slow begins."""
    if not quiet:
        err.print(text, markup=False)


def names(text: str) -> list[str]:
    """Split the names of an option at commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def naming(*kinds: str) -> type[TyperCommand]:
    """Make a command class whose help names every plug-in of `kinds`, also of --plugin files."""

    class Naming(TyperCommand):
        def format_help(self, ctx: Any, formatter: Any) -> None:
            from dcray import plugins

            known = [f"{kind.capitalize()}: {', '.join(plugins.names(kind))}." for kind in kinds]
            self.epilog = "\n\n".join([*known, str(self.epilog)])
            super().format_help(ctx, formatter)

    return Naming
