"""dcray plan as a person calls it: what it prints, what it refuses, what it says in JSON."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dcray.cli import app
from dcray.config.sizes import Shape, num_params
from dcray.errors import ConfigError
from dcray.plan.report import compare
from dcray.study.study import Study
from dcray.track.store import Store
from dcray.types import Cell, RunKey
from tests.plan.test_estimate import ROW
from tests.studies import TINY

SMALL = """
kind: RayCluster
spec:
  headGroupSpec: {template: {spec: {containers: [{resources: {limits: {cpu: 4}}}]}}}
  workerGroupSpecs:
    - groupName: gpus
      maxReplicas: 4
      template: {spec: {containers: [{resources: {limits: {cpu: 8, nvidia.com/gpu: 1}}}]}}
"""


@pytest.fixture
def dcray(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def call(*words):
        result = CliRunner().invoke(app, ["plan", *words])
        if isinstance(result.exception, ConfigError):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.output

    return call


def test_the_paper_s_four_budgets(dcray):
    shown = dcray("dclm", "--recipes", "ar", "--price", "2")
    (grid,) = [line.split() for line in shown.splitlines() if line.startswith("grid")]
    assert grid[1] == "484"
    assert float(grid[2]) == pytest.approx(5.1e21, rel=0.1)
    hours, cost = (float(text.replace(",", "")) for text in grid[3:])
    assert (
        0.38 < float(grid[2]) / 989e12 / 3600 / hours < 0.49
    )  # the smallest's share; the largest's
    assert cost == pytest.approx(2 * hours, rel=1e-3)
    assert "ladder*" in shown
    assert "376 TFLOP/s an H100 at 72m, 485 at 1.4b" in shown
    assert "winners that cells start from: 10 as the paper printed them, not yet ours" in shown
    assert "ASSUMED: the paper prints only the winners" in shown
    assert list(Path().iterdir()) == []  # it leaves nothing behind


def test_json_adds_up(dcray):
    found = json.loads(dcray("mini_cpu", "--json", "--price", "0.5"))
    assert found["search_does"] == "ladder"
    assert len(found["cells"]) == 8
    for mode in ("grid", "ladder", "warm", "confirmations"):
        for unit in ("runs", "flops", "device_hours", "cost"):
            parts = sum(cell[mode][unit] for cell in found["cells"])
            assert found["all"][mode][unit] == pytest.approx(parts)
    # by hand: 4 trunks at 4 epochs, 2 of them at 8; and one run for mir
    ladder = {(c["size"], c["recipe"]): c["ladder"]["runs"] for c in found["cells"]}
    assert ladder == {("60k", "ar"): 6, ("60k", "mir"): 1, ("119k", "ar"): 6, ("119k", "mir"): 1}
    assert all(cell["grid"]["runs"] == 8 for cell in found["cells"] if cell["recipe"] == "ar")
    # after the first rung, 4 trunks of each ar cell hold a state of 12 bytes a parameter
    assert found["disk_bytes"]["trunks"] == 2 * 4 * 12 * (59_616 + 118_704)


def test_a_cluster_that_could_never_hold_it_is_refused(dcray, tmp_path):
    (tmp_path / "mine.yaml").write_text(SMALL)
    with pytest.raises(ConfigError) as refused:
        dcray("dclm", "--cluster", "mine.yaml")
    named = [problem.split()[0] for problem in refused.value.problems]
    assert named == ['resources."664m"', 'resources."1.4b"']
    shown = dcray("dclm", "--cluster", "mine.yaml", "--sizes", "72m,140m")
    assert "4 x gpus:" in shown
    assert " h at least" in shown


def test_where_to_start_a_new_cell(dcray):
    shown = dcray("--suggest", "257m", "150m")
    assert "lr            0.001" in shown
    assert "from the paper's winners" in shown
    assert "257m 200m: 16 epochs, lr 0.001, tau 1.64" in shown
    found = json.loads(dcray("--suggest", "257m", "100m", "--json"))
    assert (found["num_epochs"], found["weight_decay"], found["warnings"]) == (16, 1.6, [])
    far = json.loads(dcray("mini_cpu", "--suggest", "60k", "8k", "--json"))
    assert len(far["warnings"]) == 2  # fewer parameters, fewer tokens
    assert far["weight_decay"] == pytest.approx(1024 / (far["lr"] * far["tau"] * 7936), rel=0.01)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "STUDY must be given"),
        (["dclmm"], 'did you mean "dclm'),
        (["dclm", "--sizes", "73m"], 'has no "73m"'),
        (["--suggest", "73m", "1m"], 'no size is called "73m"'),
        (["--suggest", "72m", "lots"], "must be a count"),
        (["dclm", "--cluster", "none.yaml"], "cannot read none.yaml"),
    ],
)
def test_bad_input_is_a_sentence(dcray, words, sentence):
    with pytest.raises(ConfigError, match=sentence):
        dcray(*words)


def test_measured_runs_of_a_record_give_the_time():
    """1,000 tokens a second, as ROW has it: 60k runs of mini_cpu take their tokens over that."""
    study = Study.read("mini_cpu")
    wanted = [w.cell for w in study.select(sizes=["60k"], budgets=["8k"], recipes=["ar"])]
    found = compare(study, wanted, [replace(ROW, unique_tokens=8_000)])
    tokens = 4 * (4 + 8) * (7_999 // 128) * 128  # four trunks, each run separately
    assert found.by_mode["grid"].search.device_seconds == pytest.approx(tokens / 1000)
    assert "1 run of this store" in found.assumptions[0]


OWN = f"""
study = "own"
{{corpus}}
budgets = ["500"]
{TINY}[recipes.ar]
"""


def test_an_own_shape_is_counted_with_the_vocabulary_of_its_corpus(dcray, tiny_corpus, tmp_path):
    """By the study's own, by --corpus, else as is usual, which is said: 12 * N bytes tell it."""

    def planned(*more, corpus=""):
        study = tmp_path / "own.toml"
        study.write_text(OWN.format(corpus=corpus))
        found = json.loads(dcray(str(study), "--json", *more))
        return found["disk_bytes"]["winners"], " ".join(found["assumed"])

    shape = Shape(dim=16, num_layers=2, num_heads=2, mlp_dim=32)
    of_corpus, usual = num_params(shape, 258), num_params(shape, 50_258)
    assert usual > 50 * of_corpus  # it is nearly all vocabulary
    blind, assumed = planned(corpus='corpus = "nowhere"')
    assert "vocabulary: 50,258 ids for tiny; no corpus is at hand" in assumed
    for found, said in (
        planned(corpus=f'corpus = "{tiny_corpus}"'),
        planned("--corpus", str(tiny_corpus)),
    ):
        assert found == pytest.approx(blind * of_corpus / usual)
        assert "vocabulary" not in said


def test_a_budget_above_the_corpus_is_warned_of(tiny_corpus, tmp_path):
    """A plan needs no corpus, but if one lies there, search would refuse the study."""
    study = tmp_path / "own.toml"
    written = OWN.format(corpus=f'corpus = "{tiny_corpus}"')
    for budget, warned in (("500", False), ("900k", True)):
        study.write_text(written.replace('budgets = ["500"]', f'budgets = ["{budget}"]'))
        shown = CliRunner().invoke(app, ["plan", str(study)])
        assert shown.exit_code == 0
        assert ("training tokens, and the largest budget is 900,000" in shown.output) == warned


def test_a_dry_run_is_counted_with_the_vocabulary_of_its_corpus(tiny_corpus):
    words = ["train", "size.dim=16", "size.num_layers=2", "size.num_heads=2", "size.mlp_dim=32"]
    shown = CliRunner().invoke(app, [*words, "--dry-run", "--corpus", str(tiny_corpus)]).output
    assert "vocabulary 258 (the corpus)" in shown
    shown = CliRunner().invoke(app, [*words, "--dry-run"]).output
    assert "vocabulary 50,258 (assumed: usual for this size)" in shown


def test_a_study_of_two_corpora_is_left_out_and_said(dcray, tmp_path):
    with Store.open(tmp_path / "dcray-runs", study="mixed") as store:
        for sha in "ab":
            one = RunKey(Cell("mixed", "60k", 8_000, "ar"), sha, 42, "run")
            params = {"num_epochs": 1, "num_params": 1}
            result = store.begin(one, config={}, params=params, tags={"corpus_hash": sha * 64})
            result.finish({"val_loss": 3.0})
    said = 'left out: the study "mixed" holds results of two corpora'
    assert said in dcray("mini_cpu", "--sizes", "60k", "--budgets", "8k", "--recipes", "ar")
    assert said in CliRunner().invoke(app, ["train", "size=60k", "--dry-run"]).output


CHILD = """
study = "child"
sizes = ["60k"]
budgets = ["8k"]
[base]
"data.seq_len" = 128
batch_size = 8
[recipes.mir]
objective = "mir"
inherit = "parent:ar"
"""


def test_a_winner_on_record_counts_though_no_file_searches_it(dcray, tmp_path):
    (tmp_path / "child.toml").write_text(CHILD)
    cell = Cell("parent", "60k", 8_000, "ar")
    with Store.open(tmp_path / "dcray-runs", study="parent") as store:
        lease = store.claim(cell)
        params = {"num_epochs": 4, "weight_decay": 0.5, "lr": 2e-3, "num_params": 1}
        result = store.begin(RunKey(cell, "a", 42, "branch"), config={}, params=params)
        result.finish({"val_loss": 3.0})
        with pytest.raises(ConfigError, match="it needs the winner of 60k 8k ar"):
            dcray("child.toml")  # no search has chosen it yet
        lease.tag({"search_state": "done", "winner": result.run_id})
    (one,) = json.loads(dcray("child.toml", "--json"))["cells"]
    counted = one["winner_counted_with"]
    assert (counted["num_epochs"], counted["weight_decay"], counted["lr"]) == (4, 0.5, 2e-3)
    assert counted["from"] == "record"
