"""Where the cells of a study stand: in which order, and what is said where there is none."""

from dcray.cli.cells import cells_table
from dcray.errors import plural
from dcray.search.status import record_lines
from dcray.sizes import PAPER_SIZES, SIZES, size_order
from dcray.track.points import Cell
from dcray.track.store import Store
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
