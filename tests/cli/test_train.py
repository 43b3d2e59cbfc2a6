"""`dcray train` through the real product: real Ray, real MLflow, real files."""

import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from dcray.corpus.manifest import Corpus
from dcray.corpus.stream import publish
from dcray.errors import ConfigError
from dcray.track.runs import studies
from tests.training import artifact, client_of, runs, words


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    """One record, shared by the runs of this file that disturb nobody."""
    return tmp_path_factory.mktemp("record") / "runs"


RAY_STARTS = "Ray starts, in some seconds"


def the_error(err: str) -> str:
    """The one sentence of what is refused; before it stands at most what was being done."""
    *before, last = [line for line in err.splitlines() if line != RAY_STARTS]
    assert last.startswith("error: ")
    assert not before or (len(before) == 1 and before[0].startswith("training "))
    return last


def loss_of(printed: str) -> float:
    return json.loads(printed)["val_loss"]


@pytest.mark.parametrize("objective", ["ar", "mir"])
def test_a_run_and_its_record(dcray, tiny_corpus, directory, tmp_path, monkeypatch, objective):
    monkeypatch.chdir(tmp_path)
    asked = words(tiny_corpus, directory, f"objective={objective}", "runtime.report_seconds=0")
    code, out, err = dcray(*asked)
    assert code == 0
    label = f"dim16-layers2-heads2-mlp32 500 {objective} seed 42"
    assert out.startswith(f"{label}: done, val loss ")
    assert "mlflow ui --backend-store-uri sqlite:" in out
    assert err
    first, *lines = [line for line in err.splitlines() if line != RAY_STARTS]
    cell = label.rpartition(" seed")[0]
    assert first == f"training {cell} on {tiny_corpus}, recorded in {directory} as train"
    assert all(line.startswith(label) for line in lines)
    assert list(tmp_path.iterdir()) == []

    (run,) = [r for r in runs(directory) if r.data.tags["recipe"] == objective]
    assert run.info.status == "FINISHED"
    params, tags, metrics = run.data.params, run.data.tags, run.data.metrics
    assert params["objective"] == objective
    expected = {"num_epochs": "4", "lr": "0.01", "weight_decay": "0.5", "num_steps": "16"}
    assert expected.items() <= params.items()
    assert ("objective.weight" in params) == (objective == "mir")
    assert metrics["val_loss"] == pytest.approx(float(out.split("val loss ")[1].split()[0]), 1e-4)
    assert {"val_bpb", "device_seconds", "tokens_per_second"} <= metrics.keys()
    wanted = {
        "size": "dim16-layers2-heads2-mlp32",
        "budget": "500",
        "recipe": objective,
        "seed": "42",
        "world_size": "1",
        "threads": "1",
        "device_type": "cpu",
        "microbatch_size": "8",
        "corpus_hash": Corpus.open(tiny_corpus).reads(500, None),
        "dcray.complete": "true",
    }
    assert wanted.items() <= tags.items()
    assert tags["device"]
    assert {"version.torch", "version.ray", "version.mlflow", "version.python"} <= tags.keys()
    config = artifact(directory, run, "config.json")
    assert config["optim"]["lr"] == 0.01
    assert artifact(directory, run, "manifest.json")["tokenizer"]["name"] == "byte"
    (read,) = run.inputs.dataset_inputs  # MLflow's column Dataset, and its column Source
    assert (read.dataset.name, json.loads(read.dataset.profile)["unique_tokens"]) == (
        "corpus 500", 500
    )  # fmt: skip
    assert run.data.tags["mlflow.source.name"] == "dcray"
    client = client_of(directory)
    cell = client.get_run(tags["mlflow.parentRunId"])  # MLflow's table shows it first
    assert [one.dataset for one in cell.inputs.dataset_inputs] == [read.dataset]
    assert cell.data.tags["mlflow.source.name"] == "dcray"

    def history(name: str):
        return client.get_metric_history(run.info.run_id, name)

    for name in ("train/loss", "val/loss", "val/bpb", "optim/lr", "optim/grad_norm"):
        assert history(name), name
    seen = {m.step: m.value for m in history("progress/tokens_seen")}
    epochs = {m.step: m.value for m in history("progress/epoch")}
    assert seen[16] == 4 * 31 * 16
    assert epochs[16] == 4
    validated = [m.step for m in history("val/loss")]
    assert sorted(validated) == [8, 16]
    default = client.get_experiment_by_name("Default")
    assert default is None or client.search_runs([default.experiment_id]) == []


def test_documents_packed_anew_are_trained_from_either_stream(dcray, tiny_corpus, tmp_path):
    """The same run to the bit, and another one than that of fixed rows."""
    found = {}
    for name, more in {
        "rows": (),
        "resident": ("data.order=documents", "runtime.stream=resident"),
        "pipeline": ("data.order=documents", "runtime.stream=pipeline"),
    }.items():
        asked = words(tiny_corpus, tmp_path / name, "data.unique_tokens=1000", *more)
        code, _, err = dcray(*asked)
        assert code == 0, err
        (run,) = runs(tmp_path / name)
        found[name] = run.data
        assert run.data.params["order"] == ("rows" if name == "rows" else "documents")
        config = artifact(tmp_path / name, run, "config.json")
        assert config["data"]["order"] == run.data.params["order"]
    losses = {name: data.metrics["val_loss"] for name, data in found.items()}
    assert losses["resident"] == losses["pipeline"] != losses["rows"]
    assert len({data.params["num_steps"] for data in found.values()}) == 1


def test_the_same_command_answers_from_the_record(dcray, tiny_corpus, directory):
    asked = words(tiny_corpus, directory, "runtime.report_seconds=0")
    assert dcray(*asked)[0] == 0
    before = len(runs(directory))
    started = time.monotonic()
    code, out, err = dcray(*asked)
    assert time.monotonic() - started < 8
    assert code == 0
    assert len(err.splitlines()) == 1  # what is done
    assert err.startswith("training ")
    assert "already on record" in out
    # what changes rounding at most is no other run
    for change in ("runtime.report_seconds=1", "runtime.microbatch_size=4", "validation.epochs=1"):
        assert "already on record" in dcray(*asked, change)[1]
    assert len(runs(directory)) == before


def test_another_seed_is_another_run(dcray, tiny_corpus, directory):
    code, printed, _ = dcray(*words(tiny_corpus, directory, "--json"))
    assert code == 0
    one = json.loads(printed)
    code, printed, err = dcray(*words(tiny_corpus, directory, "seed=43", "--json"))
    assert (code, err) == (0, "")
    other = json.loads(printed)
    assert one["val_loss"] != other["val_loss"]
    assert one["run_id"] != other["run_id"]
    assert {r.data.tags["seed"] for r in runs(directory)} >= {"42", "43"}
    hashes = {r.data.tags["config_hash"] for r in runs(directory) if r.data.tags["recipe"] == "ar"}
    assert len(hashes) == 1


def test_a_dry_run_uses_what_this_store_measured(dcray, tiny_corpus, directory):
    assert dcray(*words(tiny_corpus, directory))[0] == 0
    code, out, _ = dcray(*words(tiny_corpus, directory, "seed=99", "--dry-run", "--json"))
    assert code == 0
    found = json.loads(out)
    assert "of this store" in found["expected_seconds_from"]
    (rate,) = {
        r.data.metrics["tokens_per_second"] for r in runs(directory)
        if r.data.tags["recipe"] == "ar" and r.data.tags["seed"] == "42"
    }  # fmt: skip
    assert rate > 0
    assert found["num_steps"] == 16


def test_a_batch_of_more_than_all_rows_is_told_with_figures(dcray, tiny_corpus, tmp_path):
    """500 tokens are 31 rows of 16: half a batch of 62."""
    asked = words(tiny_corpus, tmp_path / "runs", "--dry-run")
    code, _, err = dcray(*asked, "batch_size=62")
    assert code == 0
    assert err.startswith("warning: batch_size (62) is more than the 31 rows that are trained on")
    assert (
        "an epoch is 0.5 of a step, and a step sees rows more than once; try batch_size=1, " in err
    )
    assert dcray(*asked, "batch_size=31")[2] == ""
    assert dcray(*asked, "batch_size=62", "--json")[2] == ""
    code, _, err = dcray(*words(tiny_corpus, tmp_path / "runs", "batch_size=62", "num_epochs=1"))
    assert code == 0
    assert err.startswith("warning: batch_size (62) is more than the 31 rows")


def test_a_dry_run_needs_no_corpus(dcray, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = dcray("train", "size=257m", "--dry-run")
    assert (code, err) == (0, "")
    for said in ("257,190,400 parameters", "exact causal", "by 6ND", "warm-up", "GiB", "table in"):
        assert said in out
    assert "0.715 MB on disk" in dcray("train", "size=60k", "--dry-run")[1]
    code, out, _ = dcray("train", "size=257m", "--dry-run", "--json")
    found = json.loads(out)
    assert (code, found["num_params"]) == (0, 257_190_400)
    assert found["flops_6nd"] == 6.0 * 257_190_400 * found["train_tokens"]
    assert found["config"]["optim"]["lr"] == 1e-3
    assert list(tmp_path.iterdir()) == []


HUNGRY = """
from typing import ClassVar

import torch

from dcray.objectives.ar import AR


class Hungry(AR):
    name: ClassVar[str] = "hungry"

    def terms(self, model, batch, key):
        if len(batch.real) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        yield from super().terms(model, batch, key)


PLUGIN = Hungry
"""


def test_out_of_memory_is_answered_by_a_smaller_micro_batch(dcray, tiny_corpus, tmp_path):
    """Eight sequences, then four do not fit; two do, and the batch is the same."""
    plugin = tmp_path / "hungry.py"
    plugin.write_text(HUNGRY)
    asked = words(tiny_corpus, tmp_path / "runs", "objective=hungry")
    code, _, err = dcray("--plugin", plugin, *asked)
    assert code == 0, err
    for micro in (8, 4):
        assert f"lost, it ran out of memory with {micro} sequences in a micro-batch" in err
    (run,) = runs(tmp_path / "runs")
    assert run.data.tags["microbatch_size"] == "2"
    code, _, err = dcray(*words(tiny_corpus, tmp_path / "ar"))
    assert code == 0, err
    (plain,) = runs(tmp_path / "ar")
    assert run.data.metrics["val_loss"] == pytest.approx(plain.data.metrics["val_loss"], rel=1e-5)


def test_resident_and_pipeline_give_the_same_loss(dcray, tiny_corpus, tmp_path):
    assert len(Corpus.open(tiny_corpus).shards(500)) == 2
    losses = []
    for mode in ("resident", "pipeline"):
        asked = words(tiny_corpus, tmp_path / mode, f"runtime.stream={mode}", "--json")
        code, out, err = dcray(*asked)
        assert (code, err) == (0, "")
        losses.append(loss_of(out))
    assert losses[0] == losses[1]


@pytest.mark.slow
def test_two_fsdp_workers_reach_the_loss_of_one_process(dcray, tiny_corpus, tmp_path):
    losses = []
    for workers in (1, 2):
        asked = words(tiny_corpus, tmp_path / str(workers), "runtime.precision=float64")
        code, out, _ = dcray(*asked, "--workers", workers, "--json")
        assert code == 0, out
        losses.append(loss_of(out))
        (run,) = runs(tmp_path / str(workers))
        assert run.data.tags["world_size"] == str(workers)
    assert losses[0] == pytest.approx(losses[1], rel=0, abs=1e-8)


def test_a_run_that_blows_up_is_marked_diverged(dcray, tiny_corpus, tmp_path):
    asked = words(tiny_corpus, tmp_path, "optim.lr=1e38", "num_epochs=40")
    code, out, err = dcray(*asked)
    assert code == 1
    assert "diverged, the training loss is not finite" in out
    assert "Traceback" not in err
    (run,) = runs(tmp_path)
    assert run.info.status == "FAILED"
    assert run.data.tags["dcray.state"] == "diverged"
    assert "val_loss" not in run.data.metrics
    started = time.monotonic()
    code, again, _ = dcray(*asked)  # deterministic: answered from the record, not trained again
    assert code == 1
    assert "diverged, the training loss is not finite" in again
    assert time.monotonic() - started < 8
    assert [r.info.run_id for r in runs(tmp_path)] == [run.info.run_id]


BAD_INPUT = {
    "unknown size": (["size=72n"], 'no size is called "72n" (did you mean "72m"?)'),
    "unknown objective": (["objective=mri"], 'did you mean "mir"'),
    "unknown field": (["optim.wieght_decay=1"], 'did you mean "optim.weight_decay"'),
    "no assignment": (["optim.lr"], "an override is written field=value"),
    "no file": (["none.toml"], "cannot read none.toml"),
    "batch": (["batch_size=9", "runtime.microbatch_size=4"], "nearest: 8 or 12"),
    "corpus too small": (["data.unique_tokens=5k"], "must be at most 4000, the training tokens"),
    "validation too small": (["data.val_tokens=601"], "must be at most the corpus's 600"),
    "no validation row": (["data.val_tokens=16"], "holds no row of data.seq_len + 1 = 17"),
    "one document": (
        ["data.order=documents", "data.unique_tokens=150"],
        'data.order = "documents" needs at least two documents, and behind the first of its 150',
    ),
    "vocabulary": (["model.vocab_size=200"], "must hold the corpus's 258 ids"),
    "no GPU": (["runtime.device=cuda"], 'runtime.device = "cuda", but'),
    "too many workers": (["runtime.workers=8"], "runtime.workers (8) must be at most"),
    "study name": (["--study", "a/b"], "a/b"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input(dcray, tiny_corpus, tmp_path, monkeypatch, case):
    monkeypatch.chdir(tmp_path)
    more, said = BAD_INPUT[case]
    code, out, err = dcray(*words(tiny_corpus, tmp_path / "runs", *more))
    assert (code, out) == (2, "")
    assert said in the_error(err)
    assert_nothing_written(tmp_path / "runs")


def test_a_corpus_must_be_there(dcray, tmp_path):
    code, out, err = dcray(*words(tmp_path / "none", tmp_path / "runs"))
    assert (code, out) == (2, "")
    assert "is no corpus: it has no manifest.json; make one with dcray prepare" in err
    code, _, err = dcray("train", "size=60k")
    assert code == 2
    assert "--corpus must name a folder" in err
    assert list(tmp_path.iterdir()) == []


def test_a_paper_size_on_a_cpu_is_refused_with_days_and_advice(dcray, tiny_corpus, tmp_path):
    asked = ["train", "size=72m", "data.unique_tokens=4k", "data.seq_len=16", "num_epochs=100000"]
    code, out, err = dcray(*asked, "--corpus", tiny_corpus, "--dir", tmp_path / "runs")
    assert (code, out) == (2, "")
    assert " days on a CPU" in the_error(err)
    assert "size=226k" in err
    assert studies(tmp_path / "runs") == []
    assert_nothing_written(tmp_path / "runs")


def damage(corpus: Path, case: str) -> str:
    """Damage a corpus; the name of the file that was damaged."""
    if case == "truncated shard":
        path = corpus / Corpus.open(corpus).manifest.shards[1].file
        os.truncate(path, path.stat().st_size - 2)
    elif case == "edited shard":
        path = corpus / Corpus.open(corpus).manifest.shards[1].file
        tokens = np.fromfile(path, "<u2")
        tokens[5] ^= 1
        tokens.tofile(path)
    elif case == "missing shard":
        path = corpus / Corpus.open(corpus).manifest.shards[0].file
        path.unlink()
    elif case == "edited validation":
        path = corpus / "validation.bin"
        tokens = np.fromfile(path, "<u2")
        tokens[7] ^= 1
        tokens.tofile(path)
    else:
        path = corpus / "validation_bytes.bin"
        counts = np.fromfile(path, "<i2")
        counts[7] += 1
        counts.tofile(path)
    return path.name


@pytest.mark.parametrize(
    "case",
    ["truncated shard", "edited shard", "missing shard", "edited validation", "edited byte counts"],
)
def test_a_damaged_corpus_is_refused(dcray, corpus_copy, tmp_path, case):
    name = damage(corpus_copy, case)
    code, out, err = dcray(*words(corpus_copy, tmp_path / "runs"))
    assert (code, out) == (2, "")
    assert name in the_error(err)
    assert "dcray prepare again" in err
    assert_nothing_written(tmp_path / "runs")


@pytest.mark.parametrize("mode", ["resident", "pipeline"])
def test_a_shard_damaged_behind_the_driver_s_back_is_named(corpus_copy, ray_session, mode):
    """Ray Data's tasks verify what they read: another node may hold another copy."""
    name = damage(corpus_copy, "edited shard")
    with pytest.raises(ConfigError, match="was truncated or edited") as refused:
        publish(Corpus.open(corpus_copy), 500, None, mode)
    assert name in str(refused.value)


def test_a_corpus_of_the_future(dcray, corpus_copy, tmp_path):
    path = corpus_copy / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 9}))
    code, _, err = dcray(*words(corpus_copy, tmp_path / "runs"))
    assert code == 2
    assert "written by a newer dcray" in err
    assert not (tmp_path / "runs").exists()


def assert_nothing_written(directory: Path) -> None:
    """No run, no checkpoint, no log: at most an empty record."""
    if not directory.exists():
        return
    assert runs(directory) == []
    left = {path.name for path in directory.iterdir()}
    assert left <= {"mlflow.db", "mlflow.lock", "artifacts"}


@pytest.fixture
def unfinished(dcray, tiny_corpus, directory, tmp_path):
    """A record, and the checkpoint folder in which the tiny run of seed 42 will look."""
    assert dcray(*words(tiny_corpus, directory))[0] == 0
    (run,) = [
        r for r in runs(directory) if (r.data.tags["recipe"], r.data.tags["seed"]) == ("ar", "42")
    ]
    key = run.data.tags["dcray.key"]
    folder = tmp_path / "runs" / "train" / "checkpoints" / key
    shutil.copytree(directory / "train" / "checkpoints" / key, folder)
    return tmp_path / "runs", folder / "step-00000016" / "meta.json"


def test_a_checkpoint_of_another_configuration(dcray, tiny_corpus, unfinished):
    record, path = unfinished
    meta = json.loads(path.read_text())
    meta["config"]["optim"]["lr"] = 0.5
    meta["config"]["model"]["dropout"] = 0.0
    path.write_text(json.dumps(meta))
    code, out, err = dcray(*words(tiny_corpus, record))
    assert code == 2
    said = out + err
    assert "is of another configuration" in said
    assert "model.dropout is 0.0 there and 0.1 here; optim.lr is 0.5 there and 0.01 here" in said
    assert "Traceback" not in said
    (run,) = runs(record)
    assert run.info.status == "FAILED"


def test_a_checkpoint_of_the_future(dcray, tiny_corpus, unfinished):
    record, path = unfinished
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    code, out, err = dcray(*words(tiny_corpus, record))
    assert code == 2
    assert "written by a newer dcray" in out + err
    assert "Traceback" not in out + err


LARGER = ("size.dim=128", "size.num_layers=4", "size.num_heads=8", "size.mlp_dim=384")


def test_no_space_for_a_checkpoint(dcray, tiny_corpus, small_disk):
    """12 MB of weights and moments where 9 MB are free: said, and the run is no result."""
    record = small_disk("10m") / "runs"
    code, out, err = dcray(*words(tiny_corpus, record, *LARGER))
    assert code == 2, err
    assert "no space left for a checkpoint" in out
    assert "run the same command again" in out
    assert "Traceback" not in out + err
    (run,) = runs(record)
    assert run.info.status == "FAILED"
    assert "val_loss" not in run.data.metrics
    assert not list(record.glob("train/checkpoints/*/step-*"))


def test_files_and_overrides_in_their_order(dcray, tmp_path):
    one, two = tmp_path / "one.toml", tmp_path / "two.toml"
    one.write_text('size = "60k"\n[optim]\nlr = 1e-3\neps = 1e-7\n')
    two.write_text("[optim]\nlr = 2e-3\n")
    code, out, _ = dcray("train", one, "optim.lr=5e-3", two, "--dry-run", "--json")
    optim = json.loads(out)["config"]["optim"]
    assert (code, optim["lr"], optim["eps"]) == (0, 2e-3, 1e-7)


def test_the_wish_for_workers_is_checked(dcray, tiny_corpus, tmp_path):
    code, _, err = dcray(*words(tiny_corpus, tmp_path / "runs", "--workers", "many"))
    assert code == 2
    assert "runtime.workers" in err
    assert not (tmp_path / "runs").exists()
