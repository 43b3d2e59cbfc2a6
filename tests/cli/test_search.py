"""`dcray search` and `dcray status` as a person types them: real Ray, real MLflow, real files."""

import re
import subprocess
import time
from pathlib import Path

import pytest

from dcray.cli.screen.live import live_view
from dcray.corpus.manifest import Corpus
from dcray.driver.limits import ComputeLimit
from dcray.driver.session import Session
from dcray.driver.study import StudyDriver
from dcray.search.specs import fingerprints
from dcray.study.study import Study
from dcray.track.runs import studies
from dcray.track.store import Store
from tests.studies import LADDER, call, cells_of, final_table, search_words, settled, write_study
from tests.track.support import driver
from tests.training import TINY, broken_objective, client_of, runs, start


@pytest.fixture(scope="module")
def searched(tiny_corpus, tmp_path_factory):
    """A micro study, searched once: its folder, its study file, what was printed."""
    folder = tmp_path_factory.mktemp("searched")
    study = write_study(folder, budgets=("500", "1k"))
    code, out, err = call(*search_words(study, tiny_corpus, folder / "runs", "--json"))
    assert code == 0, err
    return folder, study, out


def test_every_cell_has_a_winner_and_the_sums_agree(searched):
    folder, _, out = searched
    cells = cells_of(out)
    assert set(cells) == {"500 ar", "500 mir", "1000 ar", "1000 mir"}
    for name, cell in cells.items():
        assert cell["state"] == "done"
        assert settled(cell)
        assert cell["planned"] == (1 if name.endswith("mir") else 9)  # 4 trunks x 2, and a seed
    ar = cells["500 ar"]
    assert (ar["finished"], ar["stopped"]) == (4 + 2 + 1, 2)
    table = final_table(folder / "runs")
    assert len(table) == 2 * (7 + 1)
    assert {state for _, state, _ in table.values()} == {"complete"}
    branches = [
        (run.data.metrics["val_loss"], run.info.run_id)
        for run in runs(folder / "runs", "micro")
        if run.data.tags["kind"] == "branch" and run.data.tags["unique_tokens"] == "500"
    ]
    assert (ar["val_loss"], ar["winner_run_id"]) == min(branches)


def test_the_parent_run_says_where_the_search_stands(searched):
    folder, _, out = searched
    client = client_of(folder / "runs")
    experiment = client.get_experiment_by_name("micro").experiment_id
    parents = client.search_runs([experiment], "tags.`dcray.role` = 'cell'")
    assert {run.info.status for run in parents} == {"FINISHED"}
    for run in parents:
        tags = run.data.tags
        cell = cells_of(out)[f"{tags['unique_tokens']} {tags['recipe']}"]
        assert tags["search_state"] == "done"
        assert tags["winner"] == cell["winner_run_id"]
        assert tags["edges"].split(",") == (cell["edges"] or [""])
        assert run.data.metrics["val_loss"] == cell["val_loss"]
        winner = client.get_run(cell["winner_run_id"])
        name = tags["dcray.cell"].replace("_", " ")
        assert winner.info.run_name == f"{name} {tags['best']} seed42"
    marked = client.search_runs([experiment], "tags.is_winner = 'true'")
    assert {run.info.run_id for run in marked} == {run.data.tags["winner"] for run in parents}


def test_the_winners_weights_alone_are_kept(searched):
    folder, _, out = searched
    kept = {path.name for path in (folder / "runs" / "micro" / "checkpoints").iterdir()}
    client = client_of(folder / "runs")
    winners = {
        client.get_run(cell["winner_run_id"]).data.tags["dcray.key"]
        for cell in cells_of(out).values()
    }
    assert kept == winners


def test_again_it_is_answered_without_ray(dcray, tiny_corpus, searched):
    folder, study, out = searched
    before = final_table(folder / "runs")
    code, again, err = dcray(*search_words(study, tiny_corpus, folder / "runs", "--json"))
    assert code == 0, err
    for name, cell in cells_of(again).items():
        assert cell["answered"] == cells_of(out)[name]["finished"]
        assert settled(cell)
    assert final_table(folder / "runs") == before


def test_a_second_corpus_is_refused_and_has_a_study_of_its_own(
    dcray, tiny_corpus, other_corpus, searched
):
    """Nothing is computed, and each sentence names both corpora and what to do."""
    folder, study, _ = searched
    before = final_table(folder / "runs")
    words = search_words(study, other_corpus, folder / "runs")
    code, out, err = dcray(*words)
    assert (code, out) == (2, "")
    said = " ".join(err.split())
    assert f'"micro" was begun on {tiny_corpus} (' in said
    assert f"and {other_corpus} (" in said
    assert f"has another validation set. Give --study another name, --corpus {tiny_corpus}" in said
    assert final_table(folder / "runs") == before
    code, out, err = dcray(*words, "--study", "other", "--max-device-hours", "1e-9")
    assert code == 3, err  # this one would be searched
    train = ["train", *TINY, "--corpus", other_corpus, "--dir", folder / "runs", "--study", "micro"]
    code, out, err = dcray(*train)
    assert (code, out) == (2, "")
    assert "a study has one corpus" in err


def test_a_refused_search_leaves_no_study(dcray, tiny_corpus, tmp_path):
    """Neither where the corpus is too small nor where no node could hold a trial."""
    small = write_study(tmp_path, budgets=("5k",), name="small.toml")
    wide = write_study(
        tmp_path, body=LADDER + "[resources.tiny]\nthreads = 640\n", name="wide.toml"
    )
    for study, said in ((small, "at most 4000"), (wide, "640")):
        code, out, err = dcray(*search_words(study, tiny_corpus, tmp_path / "runs"))
        assert code == 2, out
        assert said in err
    assert studies(tmp_path / "runs") == []


def test_status_says_the_same_by_the_record_alone(dcray, searched):
    folder, _, out = searched
    code, said, err = dcray("status", "micro", "--dir", str(folder / "runs"), "--json")
    assert code == 0, err
    told = cells_of(said)
    for name, cell in cells_of(out).items():
        for field in ("state", "num_epochs", "weight_decay", "lr", "val_loss", "edges", "planned"):
            assert told[name][field] == pytest.approx(cell[field]), field
        assert settled(told[name])


def test_concurrency_and_a_budget_more(dcray, tiny_corpus, searched, tmp_path):
    """One trial at a time gives the table of two; a budget more in the file trains it alone."""
    folder, _, _ = searched
    one = write_study(tmp_path, budgets=("500",))
    words = search_words(one, tiny_corpus, tmp_path / "runs", "--json", "--max-concurrent", 1)
    code, first, err = dcray(*words)
    assert code == 0, err
    write_study(tmp_path, budgets=("500", "1k"))
    code, second, err = dcray(*words)
    assert code == 0, err
    assert cells_of(second)["500 ar"]["answered"] == cells_of(first)["500 ar"]["finished"]
    assert cells_of(second)["500 ar"]["finished"] == 0
    assert final_table(tmp_path / "runs") == final_table(folder / "runs")


def test_a_divergence_is_marked_and_the_search_goes_on(dcray, tiny_corpus, tmp_path):
    study = write_study(tmp_path, lrs=(1e-2, 1e3))
    code, out, err = dcray(*search_words(study, tiny_corpus, tmp_path / "runs", "--json"))
    assert code == 0, err
    cell = cells_of(out)["500 ar"]
    assert (cell["state"], cell["diverged"]) == ("done", 2)
    assert settled(cell)
    assert cell["lr"] == 1e-2
    bad = [run for run in runs(tmp_path / "runs", "micro") if float(run.data.params["lr"]) == 1e3]
    assert {run.data.tags["dcray.state"] for run in bad} == {"diverged"}
    assert all("val_loss" not in run.data.metrics for run in bad)


FAILING = """
[recipes.ar]
objective = "broken"
space = [{{ num_epochs = {epochs}, lr = {lrs} }}]
"""


def test_all_trials_fail(dcray, tiny_corpus, tmp_path):
    """Exit code 1, the first real traceback, no winner, the tracebacks kept with their runs."""
    error = 'OSError("no such shard: part-0007.parquet")'
    plugin = broken_objective(tmp_path / "broken.py", error)
    study = write_study(tmp_path, body=FAILING)
    words = search_words(study, tiny_corpus, tmp_path / "runs")
    code, out, err = dcray("--plugin", plugin, *words)
    assert code == 1
    assert "no winner" in out
    assert "OSError: no such shard: part-0007.parquet" in err
    assert "in terms" in err
    for run in runs(tmp_path / "runs", "micro"):
        assert run.info.status == "FAILED"
        path = client_of(tmp_path / "runs").download_artifacts(run.info.run_id, "traceback.txt")
        assert "part-0007" in Path(path).read_text()


def test_device_hours_end_the_command_and_it_goes_on(dcray, tiny_corpus, tmp_path):
    study = write_study(tmp_path)
    words = search_words(study, tiny_corpus, tmp_path / "runs")
    code, out, err = dcray(*words, "--max-device-hours", "1e-9")
    assert code == 3, err
    assert "--max-device-hours 1e-09; run the same command again to go on" in out
    assert runs(tmp_path / "runs", "micro") == []
    code, out, err = dcray(*words)
    assert code == 0, err


ASHA = """
[recipes.ar]
space = [{{ num_epochs = {epochs}, lr = {lrs}, tau = [1, 4] }}]
search = {{ sampler = "grid", stopping = "asha" }}
[recipes.mir]
objective = "mir"
inherit = "ar"
"""


@pytest.mark.slow
def test_stock_asha_loses_nothing_and_repeats_nothing(dcray, tiny_corpus, tmp_path):
    study = write_study(tmp_path, body=ASHA, epochs=(4, 8, 16))
    words = search_words(study, tiny_corpus, tmp_path / "runs", "--json")
    code, out, err = dcray(*words)
    assert code == 0, err
    cell = cells_of(out)["500 ar"]
    assert cell["planned"] == 12
    assert settled(cell)
    assert cell["finished"] >= 4 + 2 + 1  # the first trial always passes
    table = final_table(tmp_path / "runs")
    assert {state for _, state, _ in table.values()} == {"complete"}
    assert len(table) == cell["finished"] + 1
    code, again, err = dcray(*words)
    assert code == 0, err
    assert cells_of(again)["500 ar"]["answered"] == cell["finished"]
    assert final_table(tmp_path / "runs") == table


GROUPS = """
[recipes.ar]
space = [{{ num_epochs = {epochs}, lr = {lrs}, tau = [1, 4] }}]
search = {{ sampler = "grid", keep = [1, 0.5] }}
[resources.tiny]
workers = 2
"""


@pytest.mark.slow
def test_trials_of_two_workers_on_four_logical_cpus(tiny_corpus, tmp_path):
    """Worker groups beside each other, the ladder between them: all end, and nothing is left."""
    study = write_study(tmp_path, body=GROUPS, lrs=(1e-2,))
    words = search_words(study, tiny_corpus, tmp_path / "runs", "--json")
    child = start(words, tmp_path, RAY_OVERRIDE_RESOURCES='{"CPU": 4}')
    out, err = child.communicate(timeout=590)
    assert child.returncode == 0, err
    cell = cells_of(out)["500 ar"]
    assert (cell["planned"], cell["finished"], cell["stopped"]) == (4, 3, 1)


BAD = {
    "unknown field": ("seeed = 1\n", "", r'"seeed" is not a field \(did you mean "seed"'),
    "unknown recipe field": ("", "spcae = []\n", r'"recipes.ar.spcae" is not a field'),
    "both": ("", "space = [{ tau = [1], weight_decay = [1] }]\n", "tau and weight_decay, not both"),
    "epochs": ("", "space = [{ num_epochs = [8, 4] }]\n", r"num_epochs must rise, got \[8, 4\]"),
    "no cell": ("", '[recipes.ar.spaces]\n"72m" = []\n', 'names no cell: "72m" is not among'),
    "no budget": ("", "", None),
    "off the space": (
        "",
        "space = [{ lr = [1e-3], tau = [1] }]\nsearch.warm_start = [{ lr = 5e-3, tau = 1 }]\n",
        "warm_start must hold points of the space",
    ),
    "no such axis": ("", 'space = [{ "optim.lrr" = [1] }]\n', '"optim.lrr" is not a field'),
    "bad value": ("", "space = [{ lr = [-1] }]\n", "optim.lr"),
    "grid of ranges": ("", "space = [{ lr = { low = 1e-3, high = 1e-2 } }]\n", "needs lists"),
    "counts": (
        "",
        "space = [{ num_epochs = [4, 8], lr = [1, 2] }]\nsearch = { keep = [9, 5] }\n",
        r"keep\[0\] must be the number of trunks, 2",
    ),
    "its own seed": ("", "confirm_seeds = [42]\n", "confirm_seeds must be fresh"),
    "circle": ("", 'inherit = "ar"\n', "runs in a circle"),
    "no parent": ("", 'inherit = "arr"\n', 'must name a recipe of this file, or "STUDY:RECIPE"'),
    "sampler": (
        "",
        'search = { sampler = "nsga" }\n',
        r"recipes\.ar\.search\.sampler must be one of 'grid', 'gp', .*, got 'nsga'",
    ),
    "an axis' name": (
        "",
        "space = [{ tua = [1] }]\n",
        r'"tua" is not a field \(did you mean "tau"',
    ),
    "an axis outside": (
        "",
        "num_epochs = [1]\n",
        r'"recipes.ar.num_epochs" is not a field here: it belongs into space = \[\{ num_epochs',
    ),
    "a search's field outside": (
        "",
        "keep = [1]\n",
        r'"recipes.ar.keep" is not a field here: it belongs into search = \{ keep',
    ),
    "a configuration's field outside": ("batch_size = 4\n", "", r"it belongs into \[base\]"),
    "keep too long": (
        "",
        "space = [{ num_epochs = [4, 8] }]\nsearch = { keep = [1, 0.5, 0.3] }\n",
        r"a number for each rung, 2 for num_epochs = \[4, 8\], got \[1.0, 0.5, 0.3\]",
    ),
    "keep too short": (
        "",
        "space = [{ num_epochs = [4, 8, 16] }]\nsearch = { keep = [1, 0.5] }\n",
        "keep must have a number for each rung, 3",
    ),
    "seeds as an axis": ("", "space = [{ seed = [1, 2] }]\n", "seed is no axis.*confirm_seeds ="),
    "sizes as an axis": ("", 'space = [{ "size.dim" = [8, 16] }]\n', "size.dim is no axis of a"),
    "validation as an axis": (
        "",
        'space = [{ "data.val_tokens" = [100, 200] }]\n',
        r"data\.val_tokens is no axis of a space: .* write it in \[base\]",
    ),
    "two validation sets": (
        '[recipes.b]\nbase = { "data.val_tokens" = 100 }\n',
        "",
        r"data\.val_tokens must be one for a .* got 100 for recipe b and all for recipe ar",
    ),
    "workers as an axis": ("", 'space = [{ "runtime.workers" = [1, 2] }]\n', "is no axis of a"),
    "no number": ("", 'space = [{ lr = { low = "x", high = 1 } }]\n', "low must be a number, got"),
    "no range": ("", "space = [{ lr = { low = 1, high = 2, lg = 1 } }]\n", "lg is no part of a"),
    "no table": ("", "search = 3\n", "recipes.ar.search must be a table, got 3"),
    "a negative seed": ("seed = -1\n", "", "seed must be at least 0, got -1"),
    "recipe's budget": ("", 'budgets = ["3k2"]\n', "such as 64000, .*, got '3k2'"),
    "winners of no count": ("", 'space = [{ lr = { winners = ["3k2"] } }]\n', "got '3k2'"),
    "winners of no cell": (
        "",
        'space = [{ lr = { winners = ["99k"] } }]\n',
        'it needs the winner of tiny 99k ar, which no file of the study "micro" searches',
    ),
    "objective": ("", 'objective = "mirr"\n', "mirr"),
    "optimizer": (
        "",
        'optimizer = "moun"\n',
        r'no optimizer is called "moun" \(did you mean "muon"',
    ),
    "optimizers as an axis": (
        "",
        'space = [{ optimizer = ["adamw", "muon"] }]\n',
        "optimizer is no axis of a space: write a recipe for each optimizer",
    ),
    "an option of another optimizer": (
        "",
        'space = [{ "optimizer.momentum" = [0.9, 0.95] }]\n',
        '"optimizer.momentum" is not an option of adamw',
    ),
    "resources": ("[resources.tiny]\nworkers = 8\nthreads = 64\n", "", "must be at most"),
}


BUDGETS = {"a budget": '["3k2"]', "a budget twice": '["500", "500"]', "no token": '["0"]',
           "one document": '["150"]'}  # fmt: skip
BAD |= {
    "one document": (
        "",
        '[recipes.b]\nbase = { "data.order" = "documents" }\n',
        'data.order = "documents" needs at least two documents',
    ),
    "a budget": ("", "", "budgets must be a count such as 64000, .*, got '3k2'"),
    "a budget twice": ("", "", 'budgets must name each once, got "500" more than once'),
    "no token": ("", "", "must be at least 1 token, got '0'"),
}


# what the corpus, another study's file or the machine refuses: told of the recipe or the cell
BESIDE = {"two validation sets", "winners of no cell", "resources", "one document"}


@pytest.mark.parametrize("case", BAD)
def test_bad_study_files(dcray, tiny_corpus, tmp_path, case):
    """One sentence a problem, exit code 2, nothing trained, no half-written result."""
    head, recipe, said = BAD[case]
    text = write_study(tmp_path, body="").read_text()
    if case == "no budget":
        text, said = text.replace('["500"]', "[]"), "budgets must name at least one"
    if case in BUDGETS:
        text, said = text.replace('["500"]', BUDGETS[case]), said
    if head.startswith("["):
        text += head
    else:
        text = head + text
    study = tmp_path / "bad.toml"
    study.write_text(text + "[recipes.ar]\n" + recipe)
    code, out, err = dcray(*search_words(study, tiny_corpus, tmp_path / "runs"))
    assert (code, out) == (2, "")
    assert re.search(said, err), err
    assert "bad.toml: " in err or case in BESIDE
    assert "Traceback" not in err
    assert not (tmp_path / "runs" / "mlflow.db").exists() or runs(tmp_path / "runs", "micro") == []


def test_what_does_not_exist(dcray, tiny_corpus, tmp_path):
    code, _, err = dcray("search", "mini_cpuu", "--dir", str(tmp_path))
    assert code == 2
    assert 'did you mean "mini_cpu"' in err
    study = write_study(tmp_path)
    code, _, err = dcray(*search_words(study, tiny_corpus, tmp_path, "--budgets", "2k"))
    assert code == 2
    assert '--budgets: the study "micro" has no "2k"' in err
    code, _, err = dcray("search", str(study), "--dir", str(tmp_path / "runs"))
    assert code == 2
    assert "--corpus must name a folder" in err
    code, _, err = dcray(*search_words(study, tiny_corpus, tmp_path, "--tracking-uri", "file:x"))
    assert code == 2
    assert "must name a database or a server" in err


def test_a_rung_below_a_quarter_is_warned_of(dcray, tiny_corpus, tmp_path):
    study = write_study(tmp_path, epochs=(1, 8), lrs=(1e-2,))
    code, _, err = dcray(*search_words(study, tiny_corpus, tmp_path / "runs"))
    assert code == 0
    assert "warning: recipes.ar: rung 1 lies below a quarter of the longest run" in err
    said = [text for text in err.splitlines() if ": val loss " in text]
    assert re.search(r" s; (\d+) of \1 trials settled$", said[-1]), said[-1]
    assert all(re.search(r" trials settled, about .* left$", text) for text in said[:-1])


@pytest.mark.slow
def test_a_cell_that_another_job_holds_is_skipped(dcray, tiny_corpus, tmp_path):
    """It says who holds it, trains the others, and ends with "run again"; then nothing is lost."""
    study = write_study(tmp_path, budgets=("500",), epochs=(200, 400), lrs=(1e-2,))
    words = search_words(study, tiny_corpus, tmp_path / "runs")
    first = start(words, tmp_path)
    try:
        deadline = time.monotonic() + 90
        while not list((tmp_path / "runs").glob("micro/checkpoints/*")):
            assert first.poll() is None, first.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        code, said, _ = dcray("status", "micro", "--dir", str(tmp_path / "runs"), "--json")
        assert code == 0
        assert cells_of(said)["500 ar"]["state"] == "searching"
        assert cells_of(said)["500 mir"]["state"] == "waiting"
        wider = write_study(tmp_path, budgets=("500", "1k"), lrs=(1e-2,), name="wider.toml")
        code, out, err = dcray(*search_words(wider, tiny_corpus, tmp_path / "runs", "--json"))
        assert code == 3, err
        cells = cells_of(out)
        assert cells["500 ar"]["state"] == "held"
        assert "held by" in cells["500 ar"]["note"]
        assert cells["1000 ar"]["state"] == "done"
        out, err = first.communicate(timeout=120)
        assert first.returncode == 0, err
    finally:
        first.kill()
    assert {state for _, state, _ in final_table(tmp_path / "runs").values()} == {"complete"}


HOLDER = """
    store = Store.open(directory, study="micro")
    store.claim(Cell("micro", "tiny", 500, "ar"))
    print("held", flush=True)
    sys.stdin.read()
    os._exit(1)
"""
ALONE = """
[recipes.ar]
space = [{{ num_epochs = [4], lr = [1e-2] }}]
search = {{ sampler = "grid", keep = [1] }}
"""


def test_a_cell_that_is_left_between_two_looks_is_searched(tiny_corpus, tmp_path):
    """Another job holds it when the record is first read, and is dead when it is claimed."""
    asked = Study.read(str(write_study(tmp_path, body=ALONE)))
    holder = driver(HOLDER, tmp_path / "runs", cwd=tmp_path, stdin=subprocess.PIPE)
    assert holder.stdout.readline() == "held\n", holder.stderr.read()
    corpus = Corpus.open(tiny_corpus)
    with (
        Store.open(tmp_path / "runs", study="micro") as store,
        live_view(quiet=True) as view,
    ):
        task = StudyDriver(
            asked.cell_specs,
            fingerprints(corpus, asked.cell_specs),
            Session(corpus, store, tmp_path / "runs", view),
            ComputeLimit(),
            lambda lines: holder.communicate(""),  # called between the two looks
        )
        task.run()
    assert [(line.state, line.counts["finished"]) for line in task.lines()] == [("done", 1)]


HEIR = (
    ALONE
    + """
[recipes.mir]
objective = "mir"
inherit = "ar"
"""
)


@pytest.mark.slow
def test_what_waits_for_another_job_says_so(tiny_corpus, tmp_path):
    """Its heir can start when that job has a winner; it dies without one."""
    study = write_study(tmp_path, body=HEIR)
    holder = driver(HOLDER, tmp_path / "runs", cwd=tmp_path, stdin=subprocess.PIPE)
    assert holder.stdout.readline() == "held\n", holder.stderr.read()
    child = start(search_words(study, tiny_corpus, tmp_path / "runs"), tmp_path)
    try:
        said = []
        for line in child.stderr:
            said.append(line)
            if line.startswith("waiting for"):
                holder.communicate("")
                break
        out, err = child.communicate(timeout=120)
    finally:
        child.kill()
        holder.kill()
    assert next(x for x in said if "held by" in x).startswith("tiny 500 ar is skipped: ")
    assert said[-1] == "waiting for tiny 500 ar, which another command searches\n"
    assert "waiting" not in err
    assert child.returncode == 3
    assert "tiny 500 mir waits for tiny 500 ar" in out
