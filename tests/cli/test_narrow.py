"""What a search shows on a narrow screen: whole columns and whole lines, or none of them."""

import io
import re

import pytest
from rich.console import Console

from dcray.cli.screen import live
from dcray.cli.screen.cell_table import HEADS, cells_table
from dcray.cli.screen.console import print_wide, screen
from dcray.cli.screen.live import COLUMNS, LiveView, duration
from dcray.config.run import RunConfig
from dcray.plan.remaining import Outlook
from dcray.reports import Point, Report
from dcray.search.cell_summary import COUNTS, CellSummary, cell_line
from dcray.types import Cell, RunKey, RunReport, RunSpec
from tests.search.player import MINI, play, state_of, study_of

EMPTY = {"run", "div", "fail", "ans"}
EDGES = ("num_epochs", "optim.lr", "tau")
ALL = [head for head, *_ in HEADS]


def line(recipe: str, **fields) -> CellSummary:
    """A cell of which something is known, as in the README's table."""
    counts = dict.fromkeys(COUNTS, 0) | {"finished": 7, "stopped": 2}
    known = {"num_epochs": 8, "weight_decay": 12.9, "lr": 0.01, "val_loss": 5.2273}
    known |= {"counts": counts, "planned": 112, "device_seconds": 7.2} | fields
    return CellSummary(Cell("s", "119k", 16_000, recipe), "searching", **known)


LINES = [line("ar", edges=EDGES), line("mir", val_loss=None)]


def shown(what, width: int) -> list[str]:
    """The lines of a screen as wide as that, as the live view crops them."""
    console = Console(file=io.StringIO(), width=width)
    console.print(what)
    return [text.rstrip() for text in console.file.getvalue().splitlines()]


@pytest.mark.parametrize("width", [60, 80, 90, 120])
def test_the_runs_of_train_fit_too(width):
    key = RunKey(Cell("s", "226k", 64_000, "ar"), "hash", 42)
    config = RunConfig(num_epochs=16).resolved(vocab_size=256)
    spec = RunSpec(key, config, "", place=config.runtime)
    view = LiveView(quiet=True)
    view.show(RunReport(spec))
    losses = Point(1_234, 1.6, 631_808, {"train/loss": 5.25, "val/loss": 5.5}, 0)
    said = Report(1_234, 13_000, 1.6, 631_808, 60.0, 0, 1_235_678.0, [losses])
    view.show(RunReport(spec, said))
    head, text = shown(view.table(width), width)
    assert text.startswith("226k 64k ar seed 42")
    assert {"train loss", "state"} <= {one for one in COLUMNS if one in head}
    assert ("1,234/13,000" in text) == (width >= 94)
    assert ("1,235,678" in text) == (width >= 80)
    assert "5.5000" in text
    assert text.endswith("training")


@pytest.mark.parametrize("width", range(34, 120))
def test_what_does_not_fit_is_left_out_and_never_cut(width):
    head, first, second = shown(cells_table(LINES, width), width)
    columns = head.split()
    assert "\u2026" not in head + first + second
    assert {"cell", "state", "loss"} <= set(columns)
    assert columns == [one for one in ALL if one in columns]
    assert first.startswith("119k 16k ar   searching")
    assert "5.2273" in first
    assert set(columns) & EMPTY == set() or {"edge", "wd", "lr", "epochs"} <= set(columns)
    needed = [one for one in ("edge", "wd", "lr", "epochs", "done") if one in columns]
    assert needed == ["edge", "wd", "lr", "epochs", "done"][-len(needed) or 5 :]
    assert max(map(len, (head, first, second))) <= width


def test_88_columns_lose_the_empty_ones_eighty_the_edges_and_wide_ones_nothing():
    assert shown(cells_table(LINES, 88), 88)[0].split() == [x for x in ALL if x not in EMPTY]
    eighty = " ".join(shown(cells_table(LINES, 80), 80)[0].split())
    assert eighty == "cell state epochs wd lr loss done stop hours"
    assert shown(cells_table(LINES, 200), 200) == shown(cells_table(LINES), 200)
    assert shown(cells_table([], 22), 200)[0].split() == ["cell", "state", "loss", "run"]


def test_the_last_table_is_whole_on_any_screen(capsys):
    print_wide(cells_table(LINES))
    assert capsys.readouterr().out.split("\n")[0].split() == ALL


def test_the_live_view_cuts_no_line_and_the_address_stands_whole_before_it(monkeypatch):
    """A terminal of 60 columns: what is printed there, and what the live view holds."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    console = screen(file=io.StringIO(), width=60, force_terminal=True)
    assert console.is_terminal
    monkeypatch.setattr(live, "err", console)
    address = f"compare runs: mlflow ui --backend-store-uri sqlite:///{'x' * 80}/mlflow.db"
    with live.live_view(quiet=False, address=address, transient=True) as view:
        assert view.live is not None
        view.watch(lambda: LINES)
        lines = [[part.text for part in row] for row in console.render_lines(view.screen())]
    assert address in console.file.getvalue()
    whole = ["".join(row) for row in lines]
    assert "\u2026" not in "".join(whole)
    assert whole[0].rstrip() == "18 of 224 trials settled, 0.004 device-hours"


def test_without_a_terminal_each_line_says_how_far_all_is(capsys):
    """As many lines as runs, each with all trials of all cells, and with the outlook's time."""
    state, view = state_of(study_of(MINI)), LiveView(quiet=False)
    view.watch(lambda: [cell_line(state, cell) for cell in state.searches])

    class InMinutes(Outlook):
        def seconds(self):
            return 60.0 * (self.num_trials() - sum(x.planned - x.left for x in view.lines()))

    view.outlook = InMinutes(lambda: state, lambda one: 1.0)
    told = state.apply

    def apply(result):
        told(result)
        view.show(result)

    state.apply = apply
    num_runs = len(play(state))
    said = capsys.readouterr().err.splitlines()
    assert len(said) == num_runs
    for text in said:
        settled, planned = map(int, re.search(r"; (\d+) of (\d+) trials settled", text).groups())
        assert planned == 2 * 2 * (27 + 1 + 1 + 1)  # ar, its fresh seed, mir, its fresh seed
        left = f", about {duration(60 * (planned - settled))} left"
        assert text.endswith(f"trials settled{left if planned > settled else ''}")
    lines = view.lines()
    assert settled == planned == sum(line.planned for line in lines)
    assert num_runs == sum(line.counts["finished"] for line in lines)
