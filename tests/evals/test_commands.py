"""dcray eval, gap and export as a user gives them: what they answer, write and refuse."""

import json
import os
import resource
import shutil
import subprocess
import sys

import pytest
import torch

from dcray.corpus.prepare import prepare
from dcray.errors import ConfigError
from dcray.evals.export.checkpoint import export
from dcray.evals.run import find_run
from dcray.sources import parse
from dcray.track import runs
from dcray.track.find import find

OFFLINE = "offline_choice,offline_yesno,offline_lastword,offline_text,offline_count"


def row_of(record, recipe):
    return find(record.directory, record.ids[recipe])


def state(record):
    """All that a command must leave alone: states, losses, curves, checkpoints."""
    rows = runs.every_result(record.directory, study="study")
    return (
        [(r.key, r.state, r.val_loss, dict(r.params), r.tags["dcray.complete"]) for r in rows],
        [runs.curve(record.directory, r.run_id) for r in rows],
        sorted(str(p) for p in (record.directory / "study" / "checkpoints").rglob("*")),
    )


def where(record):
    return ("--dir", record.directory)


def test_tasks_of_two_runs_side_by_side(record, dcray):
    before = state(record)
    names = record.name("ar"), record.name("mir")
    code, out, _ = dcray("eval", *names, "--tasks", OFFLINE, *where(record))
    assert code == 0
    for said in ("offline_yesno", "chance", "majority", "0.6667", "McNemar", "sign flip"):
        assert said in out
    assert state(record) == before
    metrics = row_of(record, "mir").metrics
    assert 0 <= metrics["eval/offline_yesno/acc"] <= 1
    assert metrics["eval/offline_yesno/acc_stderr"] >= 0
    assert metrics["eval/offline_text/bits_per_byte"] > 0
    code, out, _ = dcray("eval", *names, "--tasks", OFFLINE, *where(record), "--json",
                         "--batch-size", 3)  # fmt: skip
    said = json.loads(out)
    assert code == 0
    assert len(said["comparison"]) == len(said["runs"][0]["tasks"]) == 8
    again = {f"eval/{t['task']}/{t['metric']}": t["value"] for t in said["runs"][1]["tasks"]}
    for name, value in again.items():
        assert value == pytest.approx(metrics[name], rel=1e-5)
    cut = {t["task"]: t["truncated"] for t in said["runs"][0]["tasks"]}
    assert cut["offline_yesno"] == 1.0  # rows of 32 bytes


def test_the_validation_loss_is_the_record_s(record, dcray):
    code, out, _ = dcray("eval", record.ids["ar"], *where(record), "--json")
    said = json.loads(out)["runs"][0]
    assert code == 0
    assert said["validation"]["loss"] == pytest.approx(said["recorded_val_loss"], abs=1e-6)
    assert said["validation"]["stderr"] is None
    code, out, _ = dcray("eval", record.name("mdlm"), *where(record), "--draws", 64)
    assert code == 0
    assert "upper bound" in out
    assert "+-" in out
    metrics = row_of(record, "mdlm").metrics
    apart = abs(metrics["eval/val_loss"] - metrics["val_loss"])
    assert apart < 6 * metrics["eval/val_loss_stderr"]


def test_a_bound_ranks_only_when_asked(record, dcray):
    asked = ("eval", record.name("mdlm"), "--tasks", "offline_choice", *where(record))
    code, _, said = dcray(*asked)
    assert code == 2
    assert "--by-bound" in said
    code, out, _ = dcray(*asked, "--by-bound", "--draws", 2)
    assert code == 0
    assert "lower bound" in out
    assert "eval/bound/offline_choice/acc" in row_of(record, "mdlm").metrics
    code, _, said = dcray("eval", record.name("ar"), "--tasks", "offline_choice", "--by-bound",
                          *where(record))  # fmt: skip
    assert code == 2
    assert "leave it out" in said


def test_a_quick_look_is_not_recorded(record, dcray):
    asked = ("--tasks", "offline_choice", "--limit", 3)
    code, out, _ = dcray("eval", record.name("ar"), *asked, *where(record))
    assert code == 0
    assert "  3  " in out
    assert not [name for name in row_of(record, "ar").metrics if name.startswith("eval/")]


def test_a_gap_is_figures_and_files(record, dcray):
    before = state(record)
    code, out, _ = dcray("gap", record.name("ar"), record.name("mir"), *where(record))
    assert code == 0
    for said in ("positive favors B", "6.61%", "kinds of the top"):
        assert said in out
    assert not (record.directory / "study" / "analysis").exists()  # which analyze replaces
    (place,) = (record.directory / "study" / "gaps").iterdir()
    assert {p.name for p in place.iterdir()} == {
        "gap.json", "tokens.csv", "section.html", "tails.svg", "position.svg", "kinds.svg",
    }  # fmt: skip
    said = json.loads((place / "gap.json").read_text())
    losses = [row_of(record, recipe).val_loss for recipe in ("ar", "mir")]
    assert said["mean_nats"] == pytest.approx(losses[0] - losses[1], abs=1e-6)
    section = (place / "section.html").read_text()
    assert section.isascii()
    assert section.count("<svg") == 3
    assert "<mark>" in section
    assert state(record) == before
    code, out, _ = dcray("gap", record.name("ar"), record.name("ar"), *where(record), "--json")
    said = json.loads(out)
    assert (said["sum_nats"], said["b_better_frac"], said["a_better_frac"]) == (0, 0, 0)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["eval", "AR", "--tasks", "offline_choise"], 'did you mean "offline_choice"'),
        (["eval", "AR", "--tasks", "boolq,arc_easy"], "from datasets import load_dataset"),
        (["eval", "study/tiny/900/arr"], 'did you mean "study/tiny/900/ar"'),
        (["eval", "studdy/tiny/900/ar"], 'did you mean "study"'),
        (["eval", "study/tiny/ar"], "STUDY/SIZE/BUDGET/RECIPE"),
        (["eval", "study/tiny/many/ar"], "the budget must be a count"),
        (["eval", "0" * 32], "has no such run"),
        (["eval", "AR", "AR", "AR"], "one run, or two"),
        (["eval", "AR", "--draws", "8"], "whose loss is exact"),
        (["eval", "AR", "--limit", "0"], "--limit must be at least 1"),
        (["eval", "AR", "--device", "tpu"], "--device must be one of"),
        (["eval", "AR", "--precision", "half"], "--precision must be one of"),
        (["eval", "AR", "--include", "nowhere", "--tasks", "x"], "--include must be a folder"),
        (["eval", "AR", "--corpus", "nowhere"], "nowhere"),
        (["gap", "AR", "MDLM"], "no loss of single tokens"),
        (["gap", "AR", "study/tiny/900/mirr"], "did you mean"),
        (["gap", "AR", "AR", "--batch-size", "0"], "--batch-size must be at least 1"),
        (["export", "AR", "--to", "gguf"], "(one of: hf)"),
        (["export", "AR", "--out", "DIR"], "must be a new folder"),
        (["export", "0" * 32], "has no such run"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_a_sentence_and_nothing_is_lost(record, dcray, words, told):
    names = {"AR": record.name("ar"), "MDLM": record.name("mdlm"), "DIR": record.directory}
    before = state(record)
    code, out, said = dcray(*[names.get(word, word) for word in words], *where(record))
    assert code == 2, (out, said)
    assert said.startswith("error: ")
    assert told in said.replace("\n", " ")
    assert state(record) == before
    assert not [n for n in row_of(record, "ar").metrics if n.startswith("eval/")]


@pytest.mark.parametrize("command", ["eval", "gap", "export"])
def test_a_run_without_weights_is_told(record, dcray, command):
    shutil.rmtree(record.directory / "study" / "checkpoints" / row_of(record, "ar").key)
    more = [record.name("mir")] if command == "gap" else []
    code, _, said = dcray(command, record.name("ar"), *more, *where(record))
    assert code == 2
    assert "the run has no weights" in said


@pytest.mark.parametrize("command", ["eval", "gap", "export"])
def test_a_checkpoint_of_another_tokenizer_is_told(record, dcray, command, tmp_path):
    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(20):
        (texts / f"{number}.txt").write_text(f"document {number} with its words\n" * 9)
    prepare(parse(f"files:{texts}"), tmp_path / "other", tokenizer="bpe:260", budgets=[500],
            val_tokens=200)  # fmt: skip
    more = [record.name("mir")] if command == "gap" else []
    code, _, said = dcray(
        command, record.name("ar"), *more, "--corpus", tmp_path / "other", *where(record)
    )
    assert code == 2
    assert "a checkpoint of another tokenizer: byte" in said
    assert "bpe:260" in said


def test_a_damaged_checkpoint_is_told(record, dcray):
    home = record.directory / "study" / "checkpoints" / row_of(record, "ar").key
    (piece,) = home.glob("step-*/*.distcp")
    piece.write_bytes(piece.read_bytes()[:100])
    code, _, said = dcray("eval", record.name("ar"), *where(record))
    assert code == 2
    assert "cannot be read" in said


def test_a_plugin_s_checkpoint_asks_for_the_plugin(record, dcray):
    home = record.directory / "study" / "checkpoints" / row_of(record, "ar").key
    (meta,) = home.glob("step-*/meta.json")
    meta.write_text(meta.read_text().replace('"name": "ar"', '"name": "stutter"'))
    code, _, said = dcray("eval", record.name("ar"), *where(record))
    assert code == 2
    assert "--plugin" in said


def test_your_own_tasks_come_from_a_folder(record, dcray, tmp_path):
    (tmp_path / "docs.jsonl").write_text('{"q": "a b a", "c": [" b", " c"], "y": 0}\n' * 4)
    (tmp_path / "mine.py").write_text(
        "from datasets import Dataset, DatasetDict, disable_caching\n"
        "import json, pathlib\n"
        "def docs(**_):\n"
        "    lines = pathlib.Path(__file__).with_name('docs.jsonl').read_text().splitlines()\n"
        "    return DatasetDict(test=Dataset.from_list([json.loads(l) for l in lines]))\n"
    )
    (tmp_path / "mine.yaml").write_text(
        "task: mine\ncustom_dataset: !function mine.docs\noutput_type: multiple_choice\n"
        "test_split: test\ndoc_to_text: '{{q}}'\ndoc_to_target: y\ndoc_to_choice: c\n"
        "metric_list:\n  - metric: acc\n    aggregation: mean\n    higher_is_better: true\n"
    )
    code, out, _ = dcray("eval", record.name("ar"), "--tasks", "mine", "--include", tmp_path,
                         *where(record))  # fmt: skip
    assert code == 0
    assert "mine" in out


def test_metrics_of_all_documents_together_are_told_and_not_paired(record, dcray, tmp_path):
    """f1 and mcc keep (gold, guess) of a document: no value that could be subtracted."""
    (tmp_path / "mine.py").write_text(
        "from datasets import Dataset, DatasetDict\n"
        "def docs(**_):\n"
        "    rows = [{'q': 'a b a', 'c': [' b', ' c'], 'y': i % 2} for i in range(6)]\n"
        "    return DatasetDict(test=Dataset.from_list(rows))\n"
    )
    (tmp_path / "mine.yaml").write_text(
        "task: mine\ncustom_dataset: !function mine.docs\noutput_type: multiple_choice\n"
        "test_split: test\ndoc_to_text: '{{q}}'\ndoc_to_target: y\ndoc_to_choice: c\n"
        "metric_list:\n  - metric: acc\n  - metric: f1\n  - metric: mcc\n"
    )
    runs = [record.name("ar"), record.name("mir")]
    code, out, said = dcray("eval", *runs, "--tasks", "mine", "--include", tmp_path, "--json",
                            *where(record))  # fmt: skip
    assert code == 0, said
    found = json.loads(out)
    assert {t["metric"] for t in found["runs"][0]["tasks"]} == {"acc", "f1", "mcc"}
    assert [pair["metric"] for pair in found["comparison"]] == ["acc"]


@pytest.mark.parametrize("place", ["/proc/model", "/proc/deep/model", "FILE/model"])
def test_an_export_to_a_place_that_cannot_be_written_is_a_sentence(record, dcray, tmp_path, place):
    """/proc takes no folder of anybody's, root included; nor does a file."""
    (tmp_path / "file").write_text("a file")
    target = place.replace("FILE", str(tmp_path / "file"))
    before = sorted(tmp_path.rglob("*"))
    code, _, said = dcray("export", record.name("ar"), "--out", target, *where(record))
    assert code == 2
    assert f"--out must be a folder that can be made and written, got {target} (" in said
    assert "name another" in said
    assert "Traceback" not in said
    assert [path for path in sorted(tmp_path.rglob("*")) if path not in before] == []


def test_an_export_to_a_full_disk_leaves_nothing(record, dcray, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    run = find_run(record.directory, record.name("ar")).load(
        torch.device("cpu"), precision="float32"
    )
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, hard))
    try:
        with pytest.raises(ConfigError, match="make room there, or name another"):
            export(run, tmp_path / "out" / "model")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("offline", ["1", pytest.param("0", marks=pytest.mark.slow)])
def test_tasks_whose_data_are_away_are_one_sentence(record, tmp_path, offline):
    """As a user has it: a process of its own, a hub that refuses, no cache; not a line beside."""
    done = subprocess.run(
        [sys.executable, "-m", "dcray", "eval", record.name("ar"), "--tasks", "arc_easy,boolq",
         *map(str, where(record))],
        capture_output=True, text=True, check=False, timeout=280,
        env={**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path),
             "HF_HUB_OFFLINE": offline},
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith('error: the data of "arc_easy" (')
    assert 'load_dataset("allenai/ai2_arc", "ARC-Easy"); load_dataset(' in line
    assert line.endswith("nothing was evaluated")
