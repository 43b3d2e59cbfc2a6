"""What a person watches while runs train: a live table on a terminal, else plain lines."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dcray.cli.console import err, fitted_table
from dcray.errors import plural
from dcray.search.queue import Ended
from dcray.search.request import Request
from dcray.train.progress import Report

PLAIN_SECONDS = 10.0  # between two plain lines of one run
COLUMNS = ("run", "epoch", "step", "train loss", "val loss", "tokens/s", "left", "state")
LEAST_NEEDED = ("step", "tokens/s", "epoch", "left", "val loss")  # the first goes first


class _State:
    """The last that is known of one run."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.report: Report | None = None
        self.train_loss: float | None = None
        self.val_loss: float | None = None
        self.word = "waiting"
        self.bound = "<=" if request.config.objective.build().bound else ""
        self.printed_at = 0.0

    def take(self, report: Report) -> None:
        self.report, self.word = report, "training"
        for point in report.points:
            self.train_loss = point.values.get("train/loss", self.train_loss)
            self.val_loss = point.values.get("val/loss", self.val_loss)

    def cells(self) -> tuple[str, ...]:
        said, epochs = self.report, self.request.config.num_epochs
        if said is None:
            return (label(self.request), "", "", "", self._val(), "", "", self.word)
        left = (said.num_steps - said.step) / max(said.step, 1) * said.seconds
        training = self.word == "training"
        return (
            label(self.request),
            f"{said.epoch:.1f}/{epochs}",
            f"{said.step:,}/{said.num_steps:,}",
            _loss(self.train_loss),
            self._val(),
            f"{said.tokens_per_second:,.0f}",
            duration(left) if training and said.step > 4 else "",
            self.word,
        )

    def _val(self) -> str:
        return "" if self.val_loss is None else self.bound + _loss(self.val_loss)


class LiveView:
    """The live table, or plain lines; everything goes to the error stream."""

    def __init__(self, *, quiet: bool) -> None:
        self.quiet, self.states = quiet, dict[str, _State]()
        self.live: Any = None

    def note(self, text: str) -> None:
        if not self.quiet:
            err.print(text, markup=False)

    def begin(self, request: Request, run: Any) -> None:
        self.states[request.name] = _State(request)
        place = run.runtime
        what = "GPU" if place.device == "cuda" else "CPU thread"
        count = place.workers * (1 if place.device == "cuda" else place.threads)
        micro = f"micro-batches of {place.microbatch_size} of {plural(run.batch_size, 'sequence')}"
        self.note(f"{label(request)}: {plural(count, what)}, {micro}")
        self._refresh()

    def report(self, request: Request, report: Report) -> None:
        state = self.states[request.name]
        state.take(report)
        now = time.monotonic()
        if self.live is None and now - state.printed_at >= PLAIN_SECONDS:
            state.printed_at = now
            run, epoch, step, loss, val, rate, left, _ = state.cells()
            text = f"{run}: epoch {epoch}, step {step}, train loss {loss or '-'}, {rate} tokens/s"
            text += f", val loss {val}" if val else ""
            self.note(text + (f", {left} left" if left else ""))
        self._refresh()

    def end(self, ended: Ended) -> None:
        state = self.states.setdefault(ended.request.name, _State(ended.request))
        state.word, state.val_loss = ended.state, ended.val_loss
        self._refresh()

    def table(self, width: int) -> Any:
        """The runs as a rich table, with the columns that fit into so many characters."""
        return fitted_table(
            {head: head in ("run", "state") for head in COLUMNS},
            [state.cells() for state in self.states.values()],
            width=width,
            least_needed=LEAST_NEEDED,
            wraps="run",
        )

    def _refresh(self) -> None:
        if self.live is not None:
            self.live.update(self.table(err.width))


@contextmanager
def live_view(*, quiet: bool) -> Iterator[LiveView]:
    """A view that is live where the error stream is a terminal."""
    view = LiveView(quiet=quiet)
    if quiet or not err.is_terminal:
        yield view
        return
    from rich.live import Live

    with Live(view.table(err.width), console=err, refresh_per_second=4) as view.live:
        yield view
    view.live = None


def label(request: Request) -> str:
    """ "226k 64k mir seed 42": how a run is called on the screen."""
    return f"{request.key.cell.label} seed {request.key.seed}"


def outcome_line(ended: Ended) -> str:
    """One sentence about how a run ended."""
    name = label(ended.request)
    if ended.val_loss is None:
        return f"{name}: {ended.state}" + (f", {ended.reason}" if ended.reason else "")
    bpb = "" if ended.val_bpb is None else f", {ended.val_bpb:.4f} bits per byte"
    how = "already on record" if ended.state == "answered" else "done"
    return f"{name}: {how}, val loss {ended.val_loss:.4f} nats per token{bound_text(ended)}{bpb}"


def bound_text(ended: Ended) -> str:
    """ " (upper bound)" where the run's loss is one, else empty."""
    bound = ended.request.config.objective.build().bound
    return f" ({bound})" if bound else ""


def duration(seconds: float) -> str:
    """ "42 s", "5 min", "3.2 h", "12 days"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 5_400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:,.0f} days"


def _loss(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
