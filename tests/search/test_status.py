"""Where the cells of a study stand: in which order, and what is said where there is none."""

import json
import re

from dcray.cli.screen.cell_table import cells_table, notes
from dcray.config.sizes import PAPER_SIZES, SIZES, size_order
from dcray.errors import plural
from dcray.search.cell_summary import CellSummary
from dcray.search.status import record_lines
from dcray.track.store import Store
from dcray.types import Cell, RunKey
from tests.studies import call


def test_cells_are_listed_by_parameters_and_not_by_their_names():
    sizes = ["1.4b", "119k", "60k", "72m", "5.5m", "984k"]
    wished = [Cell("s", size, tokens, "ar") for size in sizes for tokens in (16_000, 8_000)]
    lines = record_lines([], [], wished)
    assert [line.cell.size for line in lines[::2]] == ["60k", "119k", "984k", "5.5m", "72m", "1.4b"]
    assert [line.cell.unique_tokens for line in lines[:2]] == [8_000, 16_000]
    assert cells_table(lines).row_count == 12


def test_the_sizes_are_named_by_parameters():
    listed = sorted(SIZES, key=size_order)
    assert listed[0] == "60k"
    assert listed[-len(PAPER_SIZES) :] == ["72m", "140m", "257m", "664m", "1.4b"]
    assert size_order("mine") == float("inf")


def test_one_of_a_thing_has_no_s():
    counts = [plural(n, "document") for n in (0, 1, 2, 2_000)]
    assert counts == ["0 documents", "1 document", "2 documents", "2,000 documents"]


def test_a_study_without_a_cell_is_a_sentence(tmp_path):
    with Store.open(tmp_path, study="bare") as store:
        store.experiment.make()
    code, out, err = call("status", "bare", "--dir", str(tmp_path))
    assert (code, err) == (0, "")
    assert out == "bare: no cell is on record yet; dcray search and dcray train begin one\n"


def test_an_interrupted_run_is_counted_and_goes_on_and_nothing_failed(tmp_path):
    """Ctrl-C in `dcray train`; the cell has no winner yet, but another one beside it has."""
    waits, has = (Cell("s", "60k", tokens, "ar") for tokens in (8_000, 16_000))
    with Store.open(tmp_path, study="s") as store:
        for cell in (waits, has):
            with store.claim(cell):
                store.begin(RunKey(cell, "a", 42), config={}, params={}).interrupt("stopped")
        with store.claim(has):
            store.begin(RunKey(has, "b", 42), config={}, params={}).finish({"val_loss": 3.0})
    code, out, err = call("status", "s", "--dir", str(tmp_path))
    assert (code, err) == (0, "")
    assert "interrupted: 60k 8k ar; the same command again goes on where it stopped\n" in out
    assert "no winner" not in out
    _, out, _ = call("status", "s", "--dir", str(tmp_path), "--json")
    fields = ("state", "planned", "finished", "stopped", "failed", "left")
    first, second = ([cell[name] for name in fields] for cell in json.loads(out)["cells"])
    assert first == ["stopped", 1, 0, 1, 0, 0]
    assert second == ["done", 2, 1, 1, 0, 0]


def test_a_search_that_was_stopped_keeps_its_own_count(tmp_path):
    """What is left of it is planned anew, and the ladder's own are counted as it says."""
    cell = Cell("s", "60k", 8_000, "ar")
    with Store.open(tmp_path, study="s") as store:
        lease = store.claim(cell)
        lease.tag({"search_state": "searching", "planned": "9", "stopped": "2"})
        store.begin(RunKey(cell, "a", 42), config={}, params={}).interrupt("stopped")
        lease.release("KILLED")
    _, out, _ = call("status", "s", "--dir", str(tmp_path), "--json")
    (found,) = json.loads(out)["cells"]
    assert [found[name] for name in ("state", "stopped", "left")] == ["stopped", 2, 7]


def test_a_note_names_six_cells():
    lines = [CellSummary(Cell("s", "60k", 1_000 * n, "ar"), "stopped") for n in range(1, 9)]
    (note,) = notes(lines)
    assert note.startswith("interrupted: 60k 1k ar, 60k 2k ar, ")
    assert note.endswith("60k 6k ar, 2 more; the same command again goes on where it stopped")


def test_a_bound_is_no_loss(tmp_path):
    """In the table, beneath it and as JSON."""
    with Store.open(tmp_path, study="s") as store:
        for recipe, bound in (("ar", None), ("mdlm", "upper bound")):
            cell = Cell("s", "60k", 8_000, recipe)
            with store.claim(cell):
                opened = store.begin(
                    RunKey(cell, "a", 42), config={}, params={}, tags={"bound": bound}
                )
                opened.finish({"val_loss": 3.0})
    _, out, _ = call("status", "s", "--dir", str(tmp_path))
    assert re.findall(r"ar +done +(?:\S+ +)?3\.0000", out)
    assert re.findall(r"mdlm +done +(?:\S+ +)?<=3\.0000", out)
    assert "a loss after <= is an upper bound" in out
    _, out, _ = call("status", "s", "--dir", str(tmp_path), "--json")
    assert [cell["bound"] for cell in json.loads(out)["cells"]] == [None, "upper bound"]
    assert "<=" not in "".join(notes([CellSummary(Cell("s", "60k", 8_000, "ar"), "done")]))
