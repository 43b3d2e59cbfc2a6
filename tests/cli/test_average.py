"""Averaged weights as a person asks for them: real Ray, real MLflow, real files."""

import json

import pytest
import torch

from dcray.evals.run import find_run
from dcray.train.checkpoint.manager import steps_in
from tests.studies import search_words, write_study
from tests.training import artifact, client_of, runs, words

EMA = ("average.kind=ema", "average.tau_epochs=1", "validation.epochs=1")


def history(directory, run, name) -> list[float]:
    return [point.value for point in client_of(directory).get_metric_history(run.info.run_id, name)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("record") / "runs"


def test_both_losses_are_recorded_and_the_average_is_what_is_evaluated(
    dcray, tiny_corpus, directory, tmp_path
):
    code, out, err = dcray(*words(tiny_corpus, directory, *EMA, "--recipe", "ema"))
    assert code == 0, err
    code, _, err = dcray(*words(tiny_corpus, directory, "validation.epochs=1", "--recipe", "raw"))
    assert code == 0, err
    found = {run.data.tags["recipe"]: run for run in runs(directory)}
    ema, raw = found["ema"], found["raw"]
    losses = ema.data.metrics
    told = f"val loss {losses['val_loss']:.4f} nats per token (raw weights "
    assert f"{told}{losses['val_loss_raw']:.4f})" in out
    assert losses["val_loss_raw"] == raw.data.metrics["val_loss"]  # the same trajectory
    assert losses["val_loss"] != losses["val_loss_raw"]
    assert history(directory, ema, "val/raw_loss") == history(directory, raw, "val/loss")
    assert history(directory, ema, "val/loss")[-1] == losses["val_loss"]
    assert len(history(directory, ema, "val/loss")) == 4
    wanted = {"average.kind": "ema", "average.tau_epochs": "1.0"}
    assert wanted.items() <= ema.data.params.items()
    assert not [name for name in raw.data.params if name.startswith("average")]
    assert artifact(directory, ema, "config.json")["average"] == {"kind": "ema", "tau_epochs": 1.0}
    assert "average" not in artifact(directory, raw, "config.json")
    assert "val_loss_raw" not in raw.data.metrics

    code, out, _ = dcray("eval", ema.info.run_id, "--dir", directory, "--json")
    said = json.loads(out)["runs"][0]
    assert code == 0
    assert said["validation"]["loss"] == pytest.approx(losses["val_loss"], abs=1e-6)
    code, out, _ = dcray("gap", raw.info.run_id, ema.info.run_id, "--dir", directory, "--json")
    assert code == 0
    gap = losses["val_loss_raw"] - losses["val_loss"]
    assert json.loads(out)["mean_nats"] == pytest.approx(gap, abs=1e-6)
    target = tmp_path / "model"
    code, out, err = dcray("export", ema.info.run_id, "--out", target, "--dir", directory, "--json")
    assert code == 0, err
    from safetensors.torch import load_file

    model = find_run(directory, ema.info.run_id).load(torch.device("cpu")).model
    other = find_run(directory, raw.info.run_id).load(torch.device("cpu")).model
    exported = load_file(target / "model.safetensors")["norm.weight"]
    assert torch.equal(exported, model.norm.weight)
    assert not torch.equal(exported, other.norm.weight)


def test_an_average_longer_than_the_run_is_one_sentence(dcray, tiny_corpus, tmp_path):
    asked = words(tiny_corpus, tmp_path / "runs", *EMA[:1], "average.tau_epochs=5")
    said = "error: average.tau_epochs (5) must be at most num_epochs (4), for the average would be "
    for more in ((), ("--dry-run",)):
        code, out, err = dcray(*asked, *more)
        assert (code, out) == (2, "")
        assert err.startswith(said)
        assert len(err.splitlines()) == 1
    assert not (tmp_path / "runs" / "mlflow.db").exists()


def test_a_dry_run_counts_the_bytes(dcray, tmp_path):
    """4 bytes a parameter more, in memory and on disk."""
    tiny = ("train", "size=60k", "data.unique_tokens=16k", "data.seq_len=128", "batch_size=8",
            "runtime.microbatch_size=8", "--dry-run", "--json", "--dir", tmp_path)  # fmt: skip
    plain, kept = (json.loads(dcray(*tiny, *more)[1]) for more in ((), ("average.kind=mean",)))
    for name in ("checkpoint_bytes", "memory_bytes"):
        assert kept[name] - plain[name] == 4 * plain["num_params"]
    assert kept["training_flops"] == plain["training_flops"]


BODY = """
[recipes.ema]
base = {{ average = {{ kind = "ema", tau_epochs = 2 }} }}
space = [{{ num_epochs = {epochs}, lr = {lrs} }}]
search = {{ stopping = "none", branching = BRANCHING }}
[recipes.mean]
base = {{ average = {{ kind = "mean", last_frac = 0.3 }} }}
space = [{{ num_epochs = {epochs}, lr = {lrs} }}]
search = {{ stopping = "none", branching = BRANCHING }}
"""


@pytest.mark.slow
def test_branches_of_a_search_are_runs_from_scratch(dcray, tiny_corpus, tmp_path):
    """Each branch's averaged and raw loss, bit for bit; and the winner's weights stay."""
    folder, found, cells = tmp_path / "runs", {}, []
    for name, branching in (("branches", "true"), ("alone", "false")):
        body = BODY.replace("BRANCHING", branching)
        study = write_study(tmp_path, body=body, epochs=(4, 8), lrs=(1e-2,), name=f"{name}.toml")
        asked = search_words(study, tiny_corpus, folder, "--study", name, "--json")
        code, out, err = dcray(*asked)
        assert code == 0, err
        cells.append(json.loads(out)["cells"])
        found[name] = {run.data.tags["config_hash"]: run for run in runs(folder, name)}
    assert len(found["branches"]) == 4
    assert found["branches"].keys() == found["alone"].keys()
    for branch, alone in ((run, found["alone"][key]) for key, run in found["branches"].items()):
        assert (branch.data.tags["kind"], alone.data.tags["kind"]) == ("branch", "run")
        for loss in ("val_loss", "val_loss_raw", "val_bpb"):
            assert alone.data.metrics[loss] == branch.data.metrics[loss]
        if branch.data.params["num_epochs"] == "8":  # from the fork of 4 epochs on, at step 14
            steps = [run.data.metrics["trained_tokens"] / (8 * 16) for run in (branch, alone)]
            assert steps == [31 - 14, 31]
    for cell in cells[0]:
        (winner,) = [
            run for run in found["branches"].values() if run.info.run_id == cell["winner_run_id"]
        ]
        assert cell["val_loss"] == winner.data.metrics["val_loss"]
        assert steps_in(folder / "branches" / "checkpoints" / winner.data.tags["dcray.key"])
