"""The live view of runs that train: a picture on a terminal, else plain lines.

`dcray train` shows its runs; a search shows its cells and, below them, the runs under way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from dcray.cli.screen.cell_table import cells_table
from dcray.cli.screen.console import err, fitted_table
from dcray.config.settings import in_words
from dcray.errors import plural
from dcray.plan.remaining import Outlook
from dcray.reports import Report
from dcray.search.cell_summary import CellSummary
from dcray.types import FAILURES, Event, RunResult, RunSpec

PLAIN_SECONDS = 10.0  # between two plain lines of one run
REDRAW_SECONDS = 0.5
COLUMNS = ("run", "epoch", "step", "train loss", "val loss", "tokens/s", "left", "state")
LEAST_NEEDED = ("step", "tokens/s", "epoch", "left", "val loss")  # dropped in this order


class _Run:
    """The last state that is known of one run."""

    def __init__(self, spec: RunSpec, name: str) -> None:
        self.spec, self.name = spec, name
        self.report: Report | None = None
        self.train_loss: float | None = None
        self.val_loss: float | None = None
        self.word = "starting"
        self.printed_at = 0.0

    def take(self, report: Report) -> None:
        self.report, self.word = report, "training"
        for point in report.points:
            self.train_loss = point.values.get("train/loss", self.train_loss)
            self.val_loss = point.values.get("val/loss", self.val_loss)

    def cells(self) -> tuple[str, ...]:
        said, bound = self.report, "<=" if bound_text(self.spec) else ""
        val = "" if self.val_loss is None else bound + _loss(self.val_loss)
        if said is None:
            return (self.name, "", "", "", val, "", "", self.word)
        left = (said.num_steps - said.step) / max(said.step, 1) * said.seconds
        return (
            self.name,
            f"{said.epoch:.1f}/{self.spec.config.num_epochs}",
            f"{said.step:,}/{said.num_steps:,}",
            _loss(self.train_loss),
            val,
            f"{said.tokens_per_second:,.0f}",
            duration(left) if self.word == "training" and said.step > 4 else "",
            self.word,
        )


class LiveView:
    """The live picture, or plain lines; everything goes to the error stream."""

    def __init__(self, *, quiet: bool, verbose: bool = False) -> None:
        self.quiet, self.verbose = quiet, verbose
        self.live: Any = None
        self.runs: dict[str, _Run] = {}
        self.lines: Callable[[], list[CellSummary]] | None = None  # None: no study is searched
        self.outlook: Outlook | None = None  # what is left of all cells
        self.drawn_at = 0.0

    def note(self, text: str) -> None:
        """Print a sentence for the person who watches, unless quiet."""
        if not self.quiet:
            err.print(text, markup=False)

    def watch(self, lines: Callable[[], list[CellSummary]]) -> None:
        """Show a study's cells from now on, as `lines` gives them."""
        self.lines = lines
        self._refresh(now=True)

    def show(self, event: Event) -> None:
        """Show that a run starts, goes on, or has ended."""
        if self.outlook is not None:
            self.outlook.hear(event)
        spec = event.spec
        assert spec is not None, "it was not run by this command"
        new = spec.name not in self.runs
        if new:
            self.runs[spec.name] = _Run(spec, run_label(spec) if self.lines else spec.key.label)
        run = self.runs[spec.name]
        if isinstance(event, RunResult):
            run.word, run.val_loss = event.state, event.val_loss
            self._tell_end(run, event)
        else:
            if new:
                self._tell_start(run)
            if event.report is not None:
                self._tell_report(run, event.report)
        self._refresh(now=new or isinstance(event, RunResult))

    def head(self, lines: Sequence[CellSummary]) -> str:
        """Say how far the search is, and how long it may still take."""
        planned, left = sum(x.planned for x in lines), sum(x.left for x in lines)
        settled, seconds = planned - left, None
        if self.outlook is not None and lines:
            planned, seconds = self.outlook.num_trials(), self.outlook.seconds()
        text = f"{settled} of {plural(planned, 'trial')} settled"
        return text + (f", about {duration(seconds)} left" if seconds and settled < planned else "")

    def screen(self) -> Any:
        """Make the whole picture, progress first, since a low terminal cuts it from below."""
        if self.lines is None:
            return self.table(err.width)
        from rich.console import Group
        from rich.text import Text

        lines = self.lines()
        hours = sum(line.device_seconds for line in lines) / 3600
        head = Text(f"{self.head(lines)}, {hours:.3f} device-hours", overflow="fold")
        running = [self.table(err.width)] if self.runs else []
        return Group(head, cells_table(lines, err.width), *running)

    def table(self, width: int) -> Any:
        """Make a rich table of the runs, with the columns that fit into `width` characters."""
        return fitted_table(
            {head: head in ("run", "state") for head in COLUMNS},
            [run.cells() for run in self.runs.values()],
            width=width,
            least_needed=LEAST_NEEDED,
            wraps="run",
        )

    def _tell_start(self, run: _Run) -> None:
        place, batch = run.spec.run.runtime, run.spec.run.batch_size
        if self.lines is not None:
            if self.verbose:
                self.note(f"{run.name}: starts on {place.device}")
            return
        what = "GPU" if place.device == "cuda" else "CPU thread"
        count = int(place.workers) * (1 if place.device == "cuda" else place.threads)
        micro = f"micro-batches of {place.microbatch_size} of {plural(batch, 'sequence')}"
        self.note(f"{run.name}: {plural(count, what)}, {micro}")

    def _tell_report(self, run: _Run, report: Report) -> None:
        for text in report.notes:
            self.note(f"{run.spec.name}: {text}")
        run.take(report)
        now = time.monotonic()
        if self.live or self.lines or now - run.printed_at < PLAIN_SECONDS:
            return
        run.printed_at = now
        name, epoch, step, loss, val, rate, left, _ = run.cells()
        text = f"{name}: epoch {epoch}, step {step}, train loss {loss or '-'}, {rate} tokens/s"
        text += f", val loss {val}" if val else ""
        self.note(text + (f", {left} left" if left else ""))

    def _tell_end(self, run: _Run, ended: RunResult) -> None:
        if self.lines is None:
            if ended.state == "lost":  # the run is tried again; the command reports other ends
                self.note(f"{run.name}: lost, {ended.reason}")
            return
        del self.runs[run.spec.name]
        if self.live is None:
            self.note(f"{run.name}: {_how(ended)}; {self.head(self.lines())}")
        elif ended.state in FAILURES:
            self.note(f"{run.name}: {_how(ended)}")

    def _refresh(self, *, now: bool) -> None:
        if self.live is not None and (now or time.monotonic() - self.drawn_at > REDRAW_SECONDS):
            self.drawn_at = time.monotonic()
            self.live.update(self.screen())


@contextmanager
def live_view(
    *, quiet: bool, verbose: bool = False, address: str = "", transient: bool = False
) -> Iterator[LiveView]:
    """Yield a view that is live if the error stream is a terminal.

    address: printed before the view, whole. transient: the view's picture goes when it ends.
    """
    view = LiveView(quiet=quiet, verbose=verbose)
    if address:
        view.note(address)
    if quiet or not err.is_terminal:
        yield view
        return
    from rich.live import Live

    options: dict[str, Any] = {"console": err, "refresh_per_second": 4, "transient": transient}
    with Live(view.screen(), **options) as view.live:
        yield view
    view.live = None


def run_label(spec: RunSpec) -> str:
    """Format a run with its searched settings, after the example below.

    "226k 64k mir, 16 epochs, wd 3.2, lr 0.005, weight 0.4, seed 42"
    """
    config, optim = spec.config, spec.config.optim
    parts = (
        spec.key.cell.label,
        plural(config.num_epochs, "epoch"),
        f"wd {optim.weight_decay:.4g}",
        f"lr {optim.lr:.4g}",
        *in_words(spec.settings),
        f"{len(spec.members)} seeds averaged" if spec.members else f"seed {config.seed}",
    )
    return ", ".join(parts)


def outcome_line(ended: RunResult) -> str:
    """Say in one sentence how a run ended."""
    name = ended.key.label
    if ended.val_loss is None:
        return f"{name}: {_how(ended)}"
    bpb = "" if ended.val_bpb is None else f", {ended.val_bpb:.4f} bits per byte"
    how = "already on record" if ended.state == "answered" else "done"
    raw = ended.metrics.get("val_loss_raw")
    beside = bound_text(ended.spec) + ("" if raw is None else f" (raw weights {raw:.4f})")
    return f"{name}: {how}, val loss {ended.val_loss:.4f} nats per token{beside}{bpb}"


def _how(ended: RunResult) -> str:
    if ended.val_loss is None:
        return ended.state + (f", {ended.reason}" if ended.reason else "")
    loss = f"val loss {ended.val_loss:.4f}{bound_text(ended.spec)}"
    return f"{loss} in {duration(ended.device_seconds)}"


def bound_text(spec: RunSpec | None) -> str:
    """Return " (upper bound)" if the run's loss is one, else ""."""
    bound = spec.config.objective.build().bound if spec else ""
    return f" ({bound})" if bound else ""


def duration(seconds: float) -> str:
    """Format a duration for people: "42 s", "5 min", "3.2 h", "12 days"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 5_400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:,.0f} days"


def _loss(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
