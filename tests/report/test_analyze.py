"""`dcray analyze` on real records: figures by hand, the folder, the artifacts, every refusal."""

import csv
import html
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dcray.fit.paper import published
from dcray.report import study
from dcray.report.analysis import Asked
from dcray.report.figures import draw as figures
from dcray.report.folder import replaced
from dcray.report.tables.laws import residuals
from dcray.track import runs
from dcray.track.mlflow.connection import connect
from dcray.track.store import Store
from dcray.types import Cell
from tests.fit.test_cli_fit import invoke
from tests.report.planted import GAIN, SIZES, STUDY, plant
from tests.track.support import copy_of

FIGURES = {*figures.OF_RUNS, *figures.OF_FITS}


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    directory = tmp_path_factory.mktemp("empty")
    connect(directory, None, create=True)
    return directory


@pytest.fixture
def directory(empty, tmp_path):
    return copy_of(empty, tmp_path / "record")


def csv_of(folder, name):
    with (folder / name).open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def small(directory, name="small"):
    """Two cells of ar and one of mir; everything about them can be computed in the head."""
    with Store.open(directory, study=name) as store:
        one, two = Cell(name, "60k", 16_000, "ar"), Cell(name, "226k", 16_000, "ar")
        mir = Cell(name, "60k", 16_000, "mir")
        plant(store, one, loss=4.0, epochs=8)
        plant(store, one, loss=3.5, epochs=16)
        plant(store, one, loss=9.9, epochs=32, end="diverge")
        plant(store, one, loss=0.0, epochs=64, end="interrupt")
        plant(store, two, loss=3.0, epochs=16)
        plant(store, mir, loss=3.25, epochs=16)
        for seed, ar, other, masked in ((1, 3.5, 3.125, 3.25), (2, 4.0, 3.375, 4.25)):
            fresh = {"seed": seed, "kind": "confirmation"}
            plant(store, one, loss=ar, **fresh)
            plant(store, two, loss=other, **fresh)
            plant(store, mir, loss=masked, **fresh)


def test_a_small_record_by_hand(directory):
    small(directory)
    result = invoke("analyze", "small", "--dir", directory)
    assert result.exit_code == 0, result.output
    folder = directory / "small" / "analysis"
    cells = csv_of(folder, "cells.csv")
    columns = ("recipe", "size", "seed", "val_loss", "search_val_loss")
    assert [tuple(cell[name] for name in columns) for cell in cells] == [
        ("ar", "60k", "1", "3.5", "3.5"),
        ("ar", "60k", "2", "4.0", "3.5"),
        ("ar", "226k", "1", "3.125", "3.0"),
        ("ar", "226k", "2", "3.375", "3.0"),
        ("mir", "60k", "1", "3.25", "3.25"),
        ("mir", "60k", "2", "4.25", "3.25"),
    ]  # fmt: skip
    assert {c["source"] for c in cells} == {"confirmed"}
    assert {c["num_params"] for c in cells} == {"59616", "225824"}

    parts = {
        (r["recipe"], r["size"], r["num_epochs"], r["seed"]): r for r in csv_of(folder, "runs.csv")
    }
    assert len(parts) == 12
    assert parts["ar", "60k", "16", "42"]["part"] == "winner"
    assert parts["ar", "60k", "8", "42"]["part"] == "candidate"
    assert parts["ar", "60k", "16", "1"]["part"] == "fresh seed"
    assert "diverged" in parts["ar", "60k", "32", "42"]["reason"]
    assert "interrupted" in parts["ar", "60k", "64", "42"]["reason"]

    found = json.loads((folder / "fit.json").read_text())
    by_name = {cell["name"]: cell for cell in found["grid"]}
    assert by_name["60k 16k ar"]["val_loss"] == 3.75
    assert by_name["60k 16k ar"]["searched"] == 3.5
    assert by_name["226k 16k ar"]["val_loss"] == 3.25
    assert by_name["60k 16k mir"]["val_loss"] == 3.75
    winner = runs.results(directory, study="small").rows
    assert by_name["60k 16k ar"]["winner"] in {r.run_id for r in winner if r.val_loss == 3.5}
    # mir minus ar at seeds 1 and 2: -0.25 and +0.25.
    (whole, cell) = found["pairs"]
    assert (whole["mean"], whole["wins"], whole["num_pairs"]) == (0.0, 1, 2)
    assert whole["high"] == pytest.approx(12.7062 * 0.25, rel=1e-4)  # t of 1 degree of freedom
    assert (cell["num_params"], cell["unique_tokens"]) == (59_616, 16_000)
    assert found["laws"] == {}
    assert len(found["left_out"]) == 2
    # pooled over (3.5, 4), (3.125, 3.375), (3.25, 4.25): squares 0.125, 0.03125, 0.5 over 3
    assert found["fresh_seed_noise"] == pytest.approx((0.65625 / 3) ** 0.5)


def test_what_no_fit_can_carry_is_said_and_the_tables_are_there(directory):
    small(directory)
    result = invoke("analyze", "small", "--dir", directory)
    assert result.exit_code == 0
    assert "No law is fitted: recipe ar has one budget only" in result.output
    text = (directory / "small" / "analysis" / "tables.md").read_text()
    assert "| 60k 16k ar | 16 | 0.8 | 0.005 | 1 | 3.5000 | 3.7500 | 0.2500 | 2 | 2 |" in text
    figures_of_fits = "worth, gap, fits, against-data, asymptotes, residuals are not here"
    assert f"{figures_of_fits}: there is no fit: recipe ar has one budget only" in text
    assert text.count("there is no fit: recipe ar has one budget only") == 1
    assert "validation-over-epochs is not here: no winner was validated more than once" in text
    assert (directory / "small" / "analysis" / "loss-by-size.svg").exists()


def test_the_planted_gain_comes_back(record):
    """mir at U was planted as ar at 1.2 U, so it is worth 1.2 whatever the law's constants."""
    result = invoke("analyze", STUDY, "--dir", record, "--json", "--bootstrap", 100)
    found = json.loads(result.output)
    softq = [e for e in found["efficiency"] if e["law"] == "softq" and e["recipe"] == "mir"]
    assert len(softq) == 12
    for one in softq:
        if one["method"] != "asymptote":
            assert one["low"] < GAIN + 0.01
            assert one["high"] > GAIN - 0.01
            assert one["data_efficiency"] == pytest.approx(GAIN, abs=0.02)
    assert found["source"] == "confirmed"  # two recipes without fresh seeds cost only their own
    assert found["why_source"].startswith("ar, mir: means over fresh seeds of each winner; ")
    assert "weak: losses at the search seed, each its cell's only candidate" in found["why_source"]
    fresh = next(p for p in found["pairs"] if (p["recipe"], p["seeds"]) == ("mir", "fresh seeds"))
    assert (fresh["num_pairs"], fresh["wins"]) == (32, 32)
    assert any("recipe weak has one model size only" in reason for reason in found["excluded"])


@pytest.mark.parametrize("source", ["search", "confirmed"])
def test_cells_csv_read_back_gives_the_same_figures(record, source):
    said = invoke("analyze", STUDY, "--dir", record, "--json", "--bootstrap", 20, "--from", source)
    ours = json.loads(said.output)
    cells = record / STUDY / "analysis" / "cells.csv"
    theirs = json.loads(invoke("fit", cells, "--json", "--bootstrap", 20).output)
    for part in ("baseline", "laws", "recipes", "efficiency", "paired", "model_gap", "cells"):
        assert ours[part] == theirs[part], part
    assert ours["laws"]["softq"]["intervals"]["alpha"] is not None
    assert set(theirs["excluded"]) <= set(ours["excluded"])


def test_the_terminal_shows_what_no_grid_identifies_as_fit_does(directory):
    """The paper's cells: E and the amplitudes of SoftQ are sloppy there."""
    with Store.open(directory, study="paper") as store:
        for row in published.rows("dclm_ar"):
            cell = Cell("paper", f"{row.num_params // 10**6}m", row.unique_tokens, "ar")
            found = {"epochs": int(row.num_epochs), "num_params": row.num_params}
            plant(store, cell, loss=row.val_loss, **found)
    said = invoke("analyze", "paper", "--dir", directory, "--bootstrap", "0")
    assert said.exit_code == 0, said.output
    fitted = invoke("fit", directory / "paper" / "analysis" / "cells.csv").output
    notes = [line.strip() for line in fitted.splitlines() if "is not identified:" in line]
    assert any(note.startswith("softq: E is not identified: from") for note in notes)
    assert not [note for note in notes if note not in " ".join(said.output.split())]


def test_the_folder_holds_everything_and_so_do_the_artifacts(record):
    invoke("analyze", STUDY, "--dir", record, "--bootstrap", 0)
    folder = record / STUDY / "analysis"
    names = {path.name for path in folder.iterdir()}
    drawn = {
        f"{name}.{kind}" for name in FIGURES - {"recipes-by-worth"} for kind in ("png", "svg")
    }  # mir alone has a worth
    assert names == {
        "runs.csv",
        "recipes.csv",
        "cells.csv",
        "cells_search.csv",
        "fit.json",
        "tables.md",
        "page.html",
        *drawn,
    }
    client = connect(record, None, create=False).client
    experiment = client.get_experiment_by_name(STUDY).experiment_id
    (run,) = client.search_runs([experiment], "tags.`dcray.role` = 'analysis'")
    assert run.info.status == "FINISHED"
    kept = client.list_artifacts(run.info.run_id, "analysis")
    assert {Path(item.path).name: item.file_size for item in kept} == {
        path.name: path.stat().st_size for path in folder.iterdir()
    }


def test_what_a_later_analysis_has_no_longer_goes_from_the_artifacts(record):
    invoke("analyze", STUDY, "--dir", record, "--bootstrap", 0)
    rows = len(runs.results(record, study=STUDY).rows)
    invoke("analyze", STUDY, "--dir", record, "--bootstrap", 0, "--from", "confirmed")
    client = connect(record, None, create=False).client
    experiment = client.get_experiment_by_name(STUDY).experiment_id
    (run,) = client.search_runs([experiment], "tags.`dcray.role` = 'analysis'")
    names = {Path(item.path).name for item in client.list_artifacts(run.info.run_id, "analysis")}
    assert "mir-tuning.svg" not in names  # its recipe has no fresh seeds
    assert names == {path.name for path in (record / STUDY / "analysis").iterdir()}
    assert len(runs.results(record, study=STUDY).rows) == rows


def test_two_studies_side_by_side(directory):
    small(directory)
    with Store.open(directory, study="other") as store:
        plant(store, Cell("other", "60k", 16_000, "ar"), loss=3.0)
        plant(store, Cell("other", "60k", 32_000, "ar"), loss=2.0)
    result = invoke("analyze", "small", "--dir", directory, "--against", "other", "--json")
    beside = json.loads(result.output)["against"]
    assert (beside["study"], beside["source"]) == ("other", "search")
    (cell,) = beside["cells"]  # the other has no fresh seeds: both by the search seed
    assert (cell["loss"], cell["other"], cell["source"]) == (3.5, 3.0, "search")
    shown = invoke("analyze", "small", "--dir", directory, "--against", "other").output
    assert "+0.5000" in shown
    assert "other data" not in shown


def test_what_the_other_study_lacks_is_told_of_it(directory):
    small(directory)
    with Store.open(directory, study="other") as store:
        plant(store, Cell("other", "60k", 16_000, "ar"), loss=3.0)
    asked = ["analyze", "small", "--against", "other", "--recipe", "mir", "--dir", directory]
    result = invoke(*asked)
    assert result.exit_code == 2
    assert 'error: --against other: --recipe: no cell has the recipe "mir"' in result.output


def test_two_studies_on_two_corpora_are_told_as_such(directory):
    for name, reads, loss in (("one", "aaaa", 3.75), ("two", "bbbb", 3.0)):
        with Store.open(directory, study=name) as store:
            plant(store, Cell(name, "60k", 16_000, "ar"), loss=loss, reads=reads)
    shown = invoke("analyze", "one", "--dir", directory, "--against", "two").output
    assert "They read other data: a difference is one of corpora too" in " ".join(shown.split())


def of_hub(data_set, tokenizer="gpt2", source="huggingface"):
    """What a manifest says of a corpus, as far as it tells whose it is."""
    return {
        "source": {"source": source, "dataset": data_set},
        "tokenizer": {"name": tokenizer, "sha256": "0" * 64, "vocab_size": 50_258},
        "budgets": [{"tokens": 100_000_000, "sha256": "1" * 64}],
        "files": {"validation.bin": "2" * 64},
    }


def at_the_papers_size(directory, manifest):
    """tables.md of five recipes at a size and budget of the paper; ours are all 5.0."""
    ladder = published.figures()["ladder"]["rows"]
    with Store.open(directory, study="paper") as store:
        for size in ("140m", "257m"):
            for recipe, objective, epochs, decay in (
                ("single", "ar", 1, 0.1), ("plain", "ar", 16, 0.1), ("plain", "ar", 8, 0.1),
                ("once", "ar", 16, 0.1), ("ar", "ar", 16, 0.8),
                ("mir", "mir", 16, 0.8), ("dllm", "mdlm", 500, 0.8),
            ):  # fmt: skip
                cell = Cell("paper", size, 100_000_000, recipe)
                bound = "upper bound" if objective == "mdlm" else None
                plant(store, cell, loss=5.0, epochs=epochs, decay=decay, objective=objective,
                      bound=bound, manifest=manifest, num_params=ladder[size][-1])  # fmt: skip
    result = invoke("analyze", "paper", "--dir", directory)
    assert result.exit_code == 0, result.output
    return (directory / "paper" / "analysis" / "tables.md").read_text()


def test_the_papers_losses_stand_beside_ours(directory):
    """Corpus, tokenizer, sizes and budget are the paper's; theirs are as printed."""
    text = at_the_papers_size(directory, of_hub("dclm"))
    for line in (
        "| once | - | search seed | 5.0000 | 5.0000 |",  # its epochs are not tuned
        "| single (published) | single-epoch AR | - | 4.9608 | 5.0257 |",
        "| plain (published) | multi-epoch AR | - | 3.9453 | 3.8798 |",
        "| ar (published) | strongly regularized AR | - | 3.4714 | 3.4221 |",
        "| mir (published) | MIR | - | 3.4685 | 3.4048 |",
        "| dllm (published) | strongly regularized dLLM | - | 3.5794 | 3.4836 |",
        "| dllm (upper bound) | strongly regularized dLLM | search seed | 5.0000 | 5.0000 |",
    ):
        assert line in text


def test_code_has_the_papers_losses_on_code(directory):
    text = at_the_papers_size(directory, of_hub("bigcode/the-stack-v2"))
    assert "| ar (published) | strongly regularized AR | - | 1.0200 | 1.0050 |" in text
    assert "| mir (published) | MIR | - | 1.0120 | 0.9850 |" in text
    assert text.count("(published)") == 2


@pytest.mark.parametrize(
    "manifest",
    [
        None, of_hub("dclm", tokenizer="bpe:4096"), of_hub("someone/else"),
        of_hub("dclm", source="files"),
    ],
)  # fmt: skip
def test_another_corpus_has_no_published_losses(directory, manifest):
    assert "(published)" not in at_the_papers_size(directory, manifest)


def test_a_bound_is_compared_only_when_asked_for(directory):
    lines = ["num_params,unique_tokens,num_epochs,val_loss,recipe,bound"]
    for row in published.rows("dclm_ar"):
        place = f"{row.num_params},{row.unique_tokens},{row.num_epochs:g}"
        lines.append(f"{place},{row.val_loss},ar,")
        lines.append(f"{place},{row.val_loss + 0.05},mdlm,upper bound")
    path = directory / "bounds.csv"
    path.write_text("\n".join(lines))
    found = json.loads(invoke("fit", path, "--laws", "softq", "--json").output)
    assert found["recipes"] == {}
    assert any(
        "20 rows of recipe mdlm: its losses are each an upper bound" in r for r in found["excluded"]
    )
    asked = json.loads(invoke("fit", path, "--laws", "softq", "--json", "--recipe", "mdlm").output)
    assert set(asked["recipes"]) == {"mdlm"}


def one_size(store, cell):
    for budget in (16_000, 32_000):
        plant(store, cell("60k", budget), loss=4.0 - budget / 1e5)


def four_cells(store, cell):
    for size in ("60k", "226k"):
        for budget in (16_000, 32_000):
            plant(store, cell(size, budget), loss=4.0 - budget / 1e5 - SIZES[size] / 1e6)


def flat(store, cell):
    for size in SIZES:
        for budget in (16_000, 32_000):
            plant(store, cell(size, budget), loss=3.0)


def twins(store, cell):
    for size in ("60k", "60k-again"):
        for budget in (16_000, 32_000):
            plant(store, cell(size, budget), loss=3.0 - budget / 1e5, num_params=60_000)


def other_names(store, cell):
    plant(store, Cell("bad", "60k", 16_000, "one"), loss=3.0)
    plant(store, Cell("bad", "60k", 16_000, "two"), loss=3.0)


NO_FIT = {
    "one size only": (one_size, "recipe ar has one model size only (num_params 59.616k)"),
    "fewer points than parameters": (
        four_cells,
        "at least 6 cells, of two sizes and two budgets; ar has 4 (2 sizes, 2 budgets).",
    ),
    "a flat grid": (flat, "recipe ar is flat"),
    "two sizes of one count": (twins, "2 rows for one cell"),
    "no recipe called ar": (other_names, "say --baseline RECIPE (one of: one, two)"),
}


@pytest.mark.parametrize("case", NO_FIT)
def test_what_is_missing_for_a_fit_is_a_sentence(directory, case):
    make, words = NO_FIT[case]
    with Store.open(directory, study="bad") as store:
        make(store, lambda size, budget: Cell("bad", size, budget, "ar"))
    result = invoke("analyze", "bad", "--dir", directory)
    assert result.exit_code == 0, result.output
    (said,) = [line for line in result.output.splitlines() if words in line]
    assert said == result.output.splitlines()[0]
    assert result.output.count("o law is fitted") == 1
    assert html.escape(said) in (directory / "bad" / "analysis" / "page.html").read_text()
    assert "RMSE" not in result.output
    assert csv_of(directory / "bad" / "analysis", "cells.csv")


def test_absurd_losses_are_left_out_by_name(directory):
    with Store.open(directory, study="bad") as store:
        plant(store, Cell("bad", "60k", 16_000, "ar"), loss=3.0)
        plant(store, Cell("bad", "226k", 16_000, "ar"), loss=101.0)
        broken = plant(store, Cell("bad", "431k", 16_000, "ar"), loss=3.0)
        store.connection.client.log_metric(broken, "val_loss", float("inf"))  # as other programs do
    assert invoke("analyze", "bad", "--dir", directory).exit_code == 0
    reasons = [
        r["reason"] for r in csv_of(directory / "bad" / "analysis", "runs.csv") if r["reason"]
    ]
    assert (
        sorted("nats per token is outside" in r or "not finite" in r for r in reasons) == [True] * 2
    )
    assert len(csv_of(directory / "bad" / "analysis", "cells.csv")) == 1


def test_a_study_without_a_completed_run(directory):
    with Store.open(directory, study="bad") as store:
        plant(store, Cell("bad", "60k", 16_000, "ar"), loss=0, end="diverge")
    result = invoke("analyze", "bad", "--dir", directory)
    assert result.exit_code == 2
    assert 'study "bad" has no completed run: 1 run is left out' in result.output
    assert "it is diverged" in result.output
    assert not (directory / "bad" / "analysis").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("smal",), 'did you mean "small"'),
        (("small", "--baseline", "arr"), '--baseline: no cell has the recipe "arr"'),
        (("small", "--recipe", "mri"), '--recipe: no cell has the recipe "mri"'),
        (("small", "--from", "confirm"), "--from must be one of confirmed, search"),
        (("small", "--against", "nothing"), 'STUDY must be on record, got "nothing"'),
        (("small", "--against", "small"), "--against small is the study itself"),
        (("small", "--recipe", "ar"), "--recipe ar is the baseline itself"),
        (("small", "--recipe", "mir", "--baseline", "mir"), "--recipe mir is the baseline itself"),
        (("nowhere.toml",), "nowhere.toml cannot be read"),
    ],
)
def test_bad_input_gets_a_sentence_and_exit_code_2(directory, words, said):
    small(directory)
    result = invoke("analyze", *words, "--dir", directory)
    assert result.exit_code == 2
    assert said in result.output
    assert "Traceback" not in result.output


def test_a_study_may_be_named_by_its_file(directory, tmp_path):
    small(directory)
    (tmp_path / "mine.toml").write_text('study = "small"\n')
    result = invoke("analyze", tmp_path / "mine.toml", "--dir", directory, "--quiet")
    assert result.exit_code == 0, result.output


def test_a_place_that_cannot_be_written_is_a_sentence(directory):
    small(directory)
    (directory / "small").write_text("a file where the folder should be")
    result = invoke("analyze", "small", "--dir", directory)
    assert result.exit_code == 2
    assert "the analysis cannot be written to" in result.output


KILLED = """
import os, sys
from pathlib import Path
from dcray.report import study
from dcray.report.figures import draw as figures
from dcray.report.analysis import Asked
figures.save_all = lambda pictures, folder: os.kill(os.getpid(), 9)
directory = Path(sys.argv[1])
study.write(study.read(directory, "small", Asked(bootstrap=0)), directory)
"""


def test_an_analysis_that_is_killed_leaves_the_old_one(directory):
    small(directory)
    assert invoke("analyze", "small", "--dir", directory).exit_code == 0
    folder = directory / "small" / "analysis"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(directory)],
        env=os.environ | {"PYTHONPATH": root}, check=False, capture_output=True,
    )  # fmt: skip
    assert done.returncode == -9
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert invoke("analyze", "small", "--dir", directory).exit_code == 0
    assert [path.name for path in folder.parent.iterdir()] == ["analysis"]  # no drafts lie about


def test_the_folder_is_replaced_as_a_whole_or_not_at_all(tmp_path):
    folder = tmp_path / "analysis"
    with replaced(folder) as draft:
        (draft / "one").write_text("1")
    with pytest.raises(RuntimeError), replaced(folder):
        raise RuntimeError
    assert [path.name for path in folder.iterdir()] == ["one"]
    folder.rename(tmp_path / ".analysis.old")  # killed between the two renames
    with pytest.raises(RuntimeError), replaced(folder):
        raise RuntimeError
    assert (folder / "one").read_text() == "1"
    with replaced(folder) as draft:
        (draft / "three").write_text("3")
    assert [path.name for path in folder.iterdir()] == ["three"]
    assert [path.name for path in tmp_path.iterdir()] == ["analysis"]


def test_an_analysis_that_links_to_another_place_is_replaced_there(tmp_path):
    place = tmp_path / "disk" / "mine"
    place.mkdir(parents=True)
    (tmp_path / "analysis").symlink_to(place)
    for name in ("one", "two"):
        with replaced(tmp_path / "analysis") as draft:
            (draft / name).write_text(name)
        assert [path.name for path in place.iterdir()] == [name]
    assert [path.name for path in tmp_path.iterdir() if path.is_symlink()] == ["analysis"]


def test_curves_are_those_of_the_winners(directory):
    curve = [(1.0, 5.0), (2.0, 4.0), (3.0, 3.5)]
    with Store.open(directory, study="curves") as store:
        cell = Cell("curves", "60k", 16_000, "ar")
        won = plant(store, cell, loss=3.5, curve=curve)
        plant(store, cell, loss=4.5, epochs=8, curve=[(1.0, 4.5)])
    found = study.read(directory, "curves", Asked())
    assert found.curves == {won: curve}


def test_the_experiment_s_note_says_how_to_read_it_and_its_filter_works(record):
    client = connect(record, None, create=False).client
    experiment = client.get_experiment_by_name(STUDY)
    note = experiment.tags["mlflow.note.content"]
    (wanted,) = re.findall(r"`(tags\.[^`]+)`", note)
    found = client.search_runs([experiment.experiment_id], wanted)
    assert {run.data.tags["is_winner"] for run in found} <= {"true"}
    (one,) = client.search_runs([experiment.experiment_id], "params.num_epochs != ''")[:1]
    assert "val_loss" in one.data.metrics


def test_residuals_are_of_every_cell_and_law(record):
    read = study.read(record, STUDY, Asked(None, (), None, 0))
    tables = residuals(read)
    fits = read.answer.fits
    assert [table.header[0] for table in tables] == list(fits)
    for table, its in zip(tables, fits.values(), strict=True):
        assert table.header[2:] == list(its)
        for column, fit in enumerate(its.values(), start=2):
            offs = [float(row[column]) for row in table.rows if row[column] is not None]
            assert sorted(offs) == pytest.approx(sorted(fit.residuals), abs=5e-5)
            rmse = (sum(off**2 for off in offs) / len(offs)) ** 0.5
            assert rmse == pytest.approx(fit.rmse, abs=1e-4)
