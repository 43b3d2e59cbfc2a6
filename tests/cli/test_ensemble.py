"""An ensemble in a real search: its loss by brute force, its cost, a kill, eval, export."""

import json
import os
import re
import signal
import time

import numpy as np
import pytest
import torch

from dcray.config.run import RunConfig
from dcray.corpus.manifest import Corpus
from dcray.corpus.validation_rows import nats_file, read_nats, write_nats
from dcray.evals.ensemble import ensemble_result
from dcray.evals.validation import rows_of
from dcray.track.find import find, member_rows
from dcray.track.store import Store
from dcray.train.checkpoint.weights import load_weights, weights_folder
from dcray.types import RunKey, RunSpec
from tests.studies import call, cells_of, final_table, search_words, settled, write_study
from tests.training import client_of, runs, start

BODY = """
[recipes.ar]
space = [{{ num_epochs = {epochs}, lr = {lrs}, tau = [1, 4] }}]
search = {{ sampler = "grid", keep = [1, 0.5] }}
confirm_seeds = [2]
[recipes.three]
inherit = "ar"
ensemble = 3
"""
CELL = "micro/tiny/500/three"


def study_in(folder, body=BODY, **more):
    return write_study(folder, epochs=(4, 8), lrs=(3e-2,), body=body, **more)


@pytest.fixture(scope="module")
def searched(tiny_corpus, tmp_path_factory):
    """A micro study with an ensemble, searched once: its record, and what was printed."""
    folder = tmp_path_factory.mktemp("searched")
    code, out, err = call(*search_words(study_in(folder), tiny_corpus, folder / "runs", "--json"))
    assert code == 0, err
    return folder / "runs", cells_of(out)


def result_and_members(directory):
    """The ensemble's run of the record, and those of its members."""
    every = {run.data.tags["dcray.key"]: run for run in runs(directory, "micro")}
    (found,) = [run for run in every.values() if run.data.tags["kind"] == "ensemble"]
    return found, [every[name] for name in found.data.tags["members"].split(",")]


def members_nats(directory, corpus):
    """The nats of each validation target under each member's weights, computed here."""
    _, members = result_and_members(directory)
    found = []
    for run in members:
        home = directory / "micro" / "checkpoints" / run.data.tags["dcray.key"]
        config, model = load_weights(weights_folder(home), torch.device("cpu"))
        rows = torch.from_numpy(rows_of(Corpus.open(corpus), 16, None).tokens.astype(np.int64))
        logits = model(rows[:, :-1], causal=True)[..., : model.vocab_size].double()
        logs = logits.log_softmax(-1).gather(-1, rows[:, 1:, None])[..., 0]
        found.append(-logs.numpy())
        assert config.seed == int(run.data.tags["seed"])
    return found


def brute_force(nats):
    """-mean log of the mean probability."""
    return float(-np.log(np.mean([np.exp(-one) for one in nats], 0)).mean())


def test_its_loss_is_brute_force_over_probabilities_and_below_the_members_mean(
    searched, tiny_corpus
):
    directory, cells = searched
    found, members = result_and_members(directory)
    losses = [run.data.metrics["val_loss"] for run in members]
    stored = [
        read_nats(nats_file(directory / "micro", run.data.tags["dcray.key"])).astype(float)
        for run in members
    ]
    loss = found.data.metrics["val_loss"]
    assert loss == pytest.approx(brute_force(stored), abs=1e-6)
    assert loss == pytest.approx(brute_force(members_nats(directory, tiny_corpus)), abs=1e-5)
    assert loss < np.mean(losses)
    assert found.data.metrics["ensemble/val_loss_1"] == pytest.approx(np.mean(losses), abs=1e-6)
    assert found.data.metrics["ensemble/val_loss_3"] == loss
    cell = client_of(directory).get_run(found.data.tags["mlflow.parentRunId"])
    curve = {name: value for name, value in found.data.metrics.items() if "ensemble/" in name}
    assert curve.items() <= cell.data.metrics.items()
    assert len(curve) == 3 + 3
    assert cells["500 three"]["val_loss"] == loss
    assert cells["500 three"]["ensemble"]["losses"][-1] == loss


def test_seeds_that_exist_are_used_and_nothing_is_trained_twice(searched):
    """Seed 2 is confirmed anyway; 1 and 3 are added. The run that won is no member."""
    directory, cells = searched
    found, members = result_and_members(directory)
    assert [run.data.tags["seed"] for run in members] == ["2", "1", "3"]
    assert {run.data.tags["kind"] for run in members} == {"confirmation"}
    assert {run.data.tags["recipe"] for run in members} == {"ar"}
    kinds = [run.data.tags["kind"] for run in runs(directory, "micro")]
    assert kinds.count("confirmation") == 3
    assert all(settled(cell) for cell in cells.values())
    assert cells["500 ar"]["planned"] == 2 * 2 + 3
    spent = sum(run.data.metrics["device_seconds"] for run in members)
    assert found.data.metrics["device_seconds"] == pytest.approx(spent)
    assert found.data.tags["ensemble"] == "3"
    assert found.info.run_name.endswith("lr0.03 ensemble")


def test_the_same_command_again_answers_from_the_record(searched, tiny_corpus):
    directory, cells = searched
    before = final_table(directory)
    study = directory.parent / "micro.toml"
    code, out, err = call(*search_words(study, tiny_corpus, directory, "--json"))
    assert code == 0, err
    again = cells_of(out)["500 three"]
    assert (again["val_loss"], again["answered"]) == (cells["500 three"]["val_loss"], 1)
    assert again["ensemble"] == cells["500 three"]["ensemble"]
    assert final_table(directory) == before


@pytest.mark.slow
def test_killed_among_its_members_and_run_again_it_is_the_same(searched, tiny_corpus, tmp_path):
    """kill -9 of the driver when the first member has ended; the table is the undisturbed one."""
    words = search_words(study_in(tmp_path), tiny_corpus, tmp_path / "runs", "--json")
    child = start(words, tmp_path)
    deadline = time.monotonic() + 240
    while not list((tmp_path / "runs" / "micro").glob("validation/tiny*.npy")):
        assert child.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(child.pid, signal.SIGKILL)
    child.communicate()
    before = final_table(tmp_path / "runs")
    assert not any(key.endswith("_ensemble") for key in before)
    code, _, err = call(*words)
    assert code == 0, err
    assert final_table(tmp_path / "runs") == final_table(searched[0])


def test_status_and_the_page_show_it(searched, dcray):
    directory, cells = searched
    losses = cells["500 three"]["ensemble"]
    code, out, _ = dcray("status", "micro", "--dir", directory)
    assert code == 0
    line = next(line for line in out.splitlines() if line.startswith("tiny 500 three:"))
    for loss in (losses["losses"][0], losses["losses"][2], losses["limit"], losses["low"]):
        assert f"{loss:.4f}" in line
    code, out, _ = dcray("analyze", "micro", "--dir", directory)
    assert code == 0
    assert f"{losses['limit']:.4f}" in out
    page = (directory / "micro" / "analysis" / "page.html").read_text()
    assert "Ensembles of seeds" in page
    assert all(f"{loss:.4f}" in page for loss in losses["losses"])
    spent = re.search(r"Device time of all results: [^(]*\(([^)]*)\)", page)
    assert spent.group(1).startswith("ar ")  # its members' time, and only once
    assert "three" not in spent.group(1)


def test_eval_of_an_ensemble_is_brute_force_over_its_members(searched, tiny_corpus, dcray):
    directory, _ = searched
    code, out, err = dcray("eval", CELL, "--dir", directory, "--json")
    assert code == 0, err
    found = json.loads(out)["runs"][0]
    wanted = brute_force(members_nats(directory, tiny_corpus))
    assert found["validation"]["loss"] == pytest.approx(wanted, abs=1e-6)
    ours, _ = result_and_members(directory)
    assert found["validation"]["bpb"] == pytest.approx(ours.data.metrics["val_bpb"], abs=1e-6)
    assert found["recorded_val_loss"] == pytest.approx(wanted, abs=1e-5)


def test_gap_averages_probabilities(searched, tiny_corpus, dcray):
    directory, _ = searched
    code, out, err = dcray("gap", "micro/tiny/500/ar", CELL, "--dir", directory, "--json")
    assert code == 0, err
    wanted = brute_force(members_nats(directory, tiny_corpus))
    assert json.loads(out)["loss_b"] == pytest.approx(wanted, abs=1e-5)


def test_export_writes_each_member_and_how_to_average_them(searched, tiny_corpus, dcray, tmp_path):
    pytest.importorskip("transformers")
    from transformers import AutoModelForCausalLM

    directory, cells = searched
    target = tmp_path / "exported"
    code, out, err = dcray("export", CELL, "--dir", directory, "--out", target, "--json")
    assert code == 0, err
    index = json.loads((target / "ensemble.json").read_text())
    assert index["members"] == ["seed2", "seed1", "seed3"]
    assert index["val_loss"] == cells["500 three"]["val_loss"]
    assert [one["folder"] for one in json.loads(out)["members"]] == [
        str(target / name) for name in index["members"]
    ]
    rows = torch.from_numpy(rows_of(Corpus.open(tiny_corpus), 16, None).tokens.astype(np.int64))
    total = 0.0
    for name in index["members"]:
        model = AutoModelForCausalLM.from_pretrained(target / name, trust_remote_code=True)
        with torch.inference_mode():
            total = total + model(input_ids=rows[:, :-1]).logits.double().softmax(-1)
    chosen = (total / 3).gather(-1, rows[:, 1:, None]).log().mean()
    assert float(-chosen) == pytest.approx(index["val_loss"], abs=1e-5)
    code, _, err = dcray("export", CELL, "--dir", directory, "--out", target)
    assert code == 2
    assert "--out must be a new folder" in err


def test_a_member_on_record_without_its_nats_is_refused_before_anything_trains(
    searched, tiny_corpus, tmp_path, dcray
):
    """As of an older dcray: four are asked for, and one of the three there is not whole."""
    directory, _ = searched
    study = study_in(tmp_path, BODY.replace("ensemble = 3", "ensemble = 4"), name="four.toml")
    _, members = result_and_members(directory)
    path = nats_file(directory / "micro", members[1].data.tags["dcray.key"])
    kept, before = path.read_bytes(), final_table(directory)
    path.unlink()
    try:
        code, _, err = dcray(*search_words(study, tiny_corpus, directory))
        assert code == 2
        assert "needs the nats of validation targets of tiny 500 ar seed 1, which is on" in err
        assert "or name other seeds in confirm_seeds" in err
        assert final_table(directory) == before
    finally:
        path.write_bytes(kept)


def test_a_member_without_weights_is_named_and_the_loss_stays(searched, dcray):
    """As of confirmations from before the study file named the ensemble."""
    directory, _ = searched
    _, members = result_and_members(directory)
    home = directory / "micro" / "checkpoints" / members[2].data.tags["dcray.key"]
    aside = home.rename(directory / "aside")
    try:
        for command in ("eval", "export"):
            code, _, err = dcray(command, CELL, "--dir", directory)
            assert code == 2
            assert "the member of seed 3 has no weights in" in err
            assert f"Delete run {members[2].info.run_id}" in err
    finally:
        aside.rename(home)


def test_what_the_members_kept_must_be_theirs(searched, tiny_corpus, tmp_path):
    """Files of another run, and of another validation set, give no loss but a sentence."""
    directory, _ = searched
    corpus, row = Corpus.open(tiny_corpus), find(directory, CELL)
    rows = {
        RunKey(one.cell, one.config_hash, one.seed, one.kind): one
        for one in member_rows(directory, row)
    }
    members = tuple(rows)
    with Store.open(directory, study="micro") as store:
        config = RunConfig.model_validate(store.config(row.run_id))
    key = RunKey(row.cell, row.config_hash, row.seed, "ensemble")
    spec = RunSpec(key, config, "reads", members=members)
    home = directory / "micro"
    whole = ensemble_result(spec, corpus, home, rows.get)
    assert (whole.state, whole.val_loss) == ("complete", pytest.approx(row.val_loss))
    every = {key: read_nats(nats_file(home, key.name)) for key in members}
    for change, said in (
        (lambda nats: nats + 0.1, "is not of tiny 500 ar seed 3: its mean is"),
        (lambda nats: np.concatenate([nats, nats]), "must have one tokenizer and one validation"),
    ):
        for key, nats in every.items():
            kept = change(nats) if key is members[-1] else nats
            write_nats(nats_file(tmp_path, key.name), kept)
        failed = ensemble_result(spec, corpus, tmp_path, rows.get)
        assert failed.state == "failed"
        assert said in failed.reason
