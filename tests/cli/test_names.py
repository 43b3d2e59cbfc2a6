"""Names of any letters: tables show them as they are, and a path that cannot be is a sentence."""

import io

import pytest
from rich.console import Console

from dcray.cli.screen.cell_table import cells_table
from dcray.cli.screen.console import screen
from dcray.cli.screen.live import LiveView
from dcray.cli.screen.plan_view import _bytes
from dcray.cli.train import _on_disk
from dcray.config.run import RunConfig
from dcray.search.cell_summary import CellSummary
from dcray.types import Cell, RunKey, RunSpec

CELL = Cell("study", "60k", 16_000, "mir [wide r]")


def shown(table):
    screen = Console(file=io.StringIO(), width=200)
    screen.print(table)
    return screen.file.getvalue()


def test_a_recipe_with_brackets_keeps_them_in_tables():
    assert "60k 16k mir [wide r]" in shown(cells_table([CellSummary(CELL, "done")]))
    view = LiveView(quiet=True)
    spec = RunSpec(RunKey(CELL, "hash", 42), RunConfig(), "")
    view.show(spec.ended("answered", 3.0))
    assert "60k 16k mir [wide r] seed 42" in shown(view.table(200))


def test_letters_between_colons_are_no_picture():
    there = screen(file=io.StringIO())
    there.print("corpora/:key:/x: inherit other:cat: must", markup=False)
    assert there.file.getvalue() == "corpora/:key:/x: inherit other:cat: must\n"


def test_sizes_just_below_a_unit_are_one_of_it():
    assert [_bytes(size) for size in (999.7e6, 1.5e6, 0)] == ["1 GB", "1.5 MB", "none"]
    assert [_on_disk(size) for size in (999.7e6, 1.5e6)] == ["1 GB", "1.5 MB"]


LONG = "a" * 300


@pytest.mark.parametrize(
    "words",
    [
        ["prepare", "files:texts", "--out", LONG, "--tokenizer", "byte"],
        ["prepare", f"files:{LONG}", "--out", "c", "--tokenizer", "byte"],
        ["prepare", "files:texts", "--out", "c", "--tokenizer", f"hf:{LONG}"],
    ],
)
def test_a_path_that_cannot_be_is_a_sentence(dcray, tmp_path, monkeypatch, words):
    """As one in a folder that may not be looked into."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("text")
    code, _, said = dcray(*words, "--budgets", "1k", "--val-tokens", "100")
    assert code == 2
    assert f"{LONG}" in said
    assert "cannot be used: File name too long" in said
    assert "Traceback" not in said
