"""What a person watches while a study is searched: a live table of cells, else plain lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from dcray.cli.cells import cells_table
from dcray.cli.console import err
from dcray.cli.view import bound_text, duration
from dcray.errors import plural
from dcray.search.queue import Ended
from dcray.search.request import Request
from dcray.search.standing import CellLine
from dcray.train.progress import Report

REDRAW_SECONDS = 0.5


class SearchView:
    """The live table, or a line for each result; everything goes to the error stream."""

    def __init__(self, *, quiet: bool, verbose: bool) -> None:
        self.quiet, self.verbose = quiet, verbose
        self.live: Any = None
        self.lines: Callable[[], list[CellLine]] = list
        self.reports: dict[str, tuple[Request, Report | None]] = {}
        self.started, self.drawn_at = time.monotonic(), 0.0
        self.num_ended = 0

    def note(self, text: str) -> None:
        """A sentence for the person."""
        if not self.quiet:
            err.print(text, markup=False)

    def watch(self, lines: Callable[[], list[CellLine]]) -> None:
        """From now on the cells can be asked for."""
        self.lines = lines
        self._refresh(now=True)

    def begin(self, request: Request, run: Any) -> None:
        """A run starts."""
        self.reports[request.name] = request, None
        if self.verbose:
            self.note(f"{run_label(request)}: starts on {run.runtime.device}")
        self._refresh(now=True)

    def report(self, request: Request, report: Report) -> None:
        """A run goes on."""
        self.reports[request.name] = request, report
        self._refresh()

    def end(self, ended: Ended) -> None:
        """A run ended."""
        self.reports.pop(ended.request.name, None)
        self.num_ended += ended.state in ("complete", "diverged", "failed")
        text = f"{run_label(ended.request)}: {_how(ended)}"
        if self.live is None:
            self.note(f"{text}; {self.head(self.lines())}")
        elif ended.state in ("failed", "refused", "lost"):
            self.note(text)
        self._refresh(now=True)

    def head(self, lines: Sequence[CellLine]) -> str:
        """How far the search is, and how long it may still take."""
        planned, left = sum(x.planned for x in lines), sum(x.left for x in lines)
        text = f"{planned - left} of {plural(planned, 'trial')} settled"
        if self.num_ended and left:
            per_trial = (time.monotonic() - self.started) / self.num_ended
            text += f", about {duration(per_trial * left)} left at most"
        return text

    def screen(self) -> Any:
        """The whole picture: how far it is first, since a low terminal cuts it from below."""
        from rich.console import Group
        from rich.text import Text

        lines = self.lines()
        hours = sum(line.device_seconds for line in lines) / 3600
        head = f"{self.head(lines)}, {hours:.3f} device-hours"
        around = [head, *(_progress(*pair) for pair in self.reports.values())]
        first, *running = (Text(text, no_wrap=False, overflow="fold") for text in around)
        return Group(first, cells_table(lines, err.width), *running)

    def _refresh(self, *, now: bool = False) -> None:
        if self.live is None:
            return
        if now or time.monotonic() - self.drawn_at > REDRAW_SECONDS:
            self.drawn_at = time.monotonic()
            self.live.update(self.screen())


@contextmanager
def search_view(*, quiet: bool, verbose: bool, address: str) -> Iterator[SearchView]:
    """A view that is live where the error stream is a terminal; before it, whole, the address."""
    view = SearchView(quiet=quiet, verbose=verbose)
    view.note(address)
    if quiet or not err.is_terminal:
        yield view
        return
    from rich.live import Live

    with Live(view.screen(), console=err, refresh_per_second=4, transient=True) as view.live:
        yield view
    view.live = None


def run_label(request: Request) -> str:
    """ "226k 64k ar, 16 epochs, wd 3.2, lr 0.005, seed 42"."""
    config, optim = request.config, request.config.optim
    return (
        f"{request.key.cell.label}, {plural(config.num_epochs, 'epoch')}, "
        f"wd {optim.weight_decay:.4g}, lr {optim.lr:.4g}, seed {config.seed}"
    )


def _how(ended: Ended) -> str:
    if ended.val_loss is None:
        return ended.state + (f", {ended.reason}" if ended.reason else "")
    return f"val loss {ended.val_loss:.4f}{bound_text(ended)} in {duration(ended.device_seconds)}"


def _progress(request: Request, report: Report | None) -> str:
    if report is None:
        return f"  {run_label(request)}: starting"
    losses = [p.values["train/loss"] for p in report.points if "train/loss" in p.values]
    loss = f", train loss {losses[-1]:.4f}" if losses else ""
    return (
        f"  {run_label(request)}: step {report.step:,} of {report.num_steps:,}{loss}, "
        f"{report.tokens_per_second:,.0f} tokens/s"
    )
