"""The quickstart at micro scale: to its page, again in seconds, and killed on the way."""

import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tests.browser import browser
from tests.heads import free_ports, wait_for
from tests.studies import HEAD
from tests.training import client_of, start

STUDY = (
    HEAD.format(budgets='["16k"]')
    + """
[recipes.ar]
space = [{ num_epochs = [4, 8], lr = [1e-2], tau = [1, 4] }]
[recipes.mir]
objective = "mir"
inherit = "ar"
[recipes.weak]
base = { "optim.weight_decay" = 0.1, "optim.lr" = 1e-2 }
space = [{ num_epochs = [2, 4, 8] }]
"""
)


def words(folder):
    (folder / "micro.toml").write_text(STUDY)
    return ["quickstart", "--study", str(folder / "micro.toml"), "--dir", str(folder / "runs")]


def losses(folder) -> list[str]:
    """cells.csv without the ids of MLflow's runs."""
    lines = (folder / "runs" / "micro" / "analysis" / "cells.csv").read_text().splitlines()
    at = lines[0].split(",").index("run_id")
    return [",".join(line.split(",")[:at]) for line in lines]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Undisturbed: its folder, and what it printed."""
    folder = tmp_path_factory.mktemp("whole")
    child = start(words(folder), folder)
    out, err = child.communicate(timeout=400)
    assert child.returncode == 0, err
    return folder, out


@pytest.mark.slow
def test_from_nothing_to_the_page(whole):
    folder, out = whole
    page = folder / "runs" / "micro" / "analysis" / "page.html"
    assert out.count(f"the page: {page.as_uri()}") == 1
    assert "<html" in page.read_text()
    assert "MIR minus AR" in out
    assert "Weight decay of 0.1, at its own best epochs, costs" in out
    assert "(1 cell)" in out
    assert "illustrate and do not prove" in out
    assert len(losses(folder)) == 1 + 3


@pytest.mark.slow
def test_again_in_seconds(whole):
    folder, _ = whole
    before = losses(folder)
    child = start(words(folder), folder)
    out, err = child.communicate(timeout=120)
    assert child.returncode == 0, err
    assert "the page: " in out
    assert losses(folder) == before


def read_only(folder, small_disk):
    disk = small_disk("1m")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    return disk / "runs"


def a_file(folder, small_disk):
    (folder / "runs").touch()
    return folder / "runs"


def full(folder, small_disk):
    return small_disk("300k") / "runs"


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (read_only, "cannot be made (Read-only file system): name a folder that you may write"),
        (a_file, "cannot be made (File exists): name a folder that you may write"),
        (full, "no space left to prepare"),
    ],
)
def test_a_place_that_cannot_hold_it(dcray, ray_session, tmp_path, small_disk, place, said):
    directory = place(tmp_path, small_disk)
    code, _, err = dcray("quickstart", "--dir", directory)
    assert code == 2
    assert said in err
    assert not directory.is_dir() or list(directory.iterdir()) == []


def test_a_folder_of_another_version(dcray, ray_session, tiny_corpus, tmp_path):
    shutil.copytree(tiny_corpus, tmp_path / "runs" / "quickstart-corpus")
    code, _, err = dcray("quickstart", "--dir", tmp_path / "runs")
    assert code == 2
    assert "holds another corpus" in err
    assert "choose another folder, or move that one away" in err


def test_a_study_that_is_not_there(dcray, tmp_path):
    code, out, err = dcray("quickstart", "--study", "quickstrat", "--dir", tmp_path / "runs")
    assert (code, out) == (2, "")
    assert "did you mean" in err or "one of: dclm" in err
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_its_record_in_mlflow_s_own_pages(whole):
    """The line that it prints opens them: cells, the runs nested in them, two winners compared."""
    folder, out = whole
    (line,) = (line for line in out.splitlines() if line.startswith("compare runs: "))
    command, port = shlex.split(line.removeprefix("compare runs: ")), free_ports(1)[0]
    assert command[:2] == ["mlflow", "ui"]
    client = client_of(folder / "runs")
    experiment = client.get_experiment_by_name("micro").experiment_id
    winners = client.search_runs([experiment], "tags.is_winner = 'true'")
    pair = {
        run.data.params["recipe"]: run for run in winners if run.data.params["recipe"] != "weak"
    }
    assert set(pair) == {"ar", "mir"}
    chosen = (
        f"runs={json.dumps([run.info.run_id for run in pair.values()])}"
        f"&experiments={json.dumps([experiment])}"
    )
    words = [sys.executable, "-m", *command, "--port", str(port), "--workers", "1"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            wait_for(f"http://127.0.0.1:{port}/health", server)
            with browser() as window:
                page = f"http://127.0.0.1:{port}/#"
                window.show(f"{page}/experiments/{experiment}/runs", width=1500, scheme="light")
                cells = window.text_with("tiny_16k_ar", "tiny_16k_mir", "tiny_16k_weak")
                names = [run.info.run_name for run in pair.values()]
                assert not any(name in cells for name in names)
                window.click_all("[data-component-id*=runnamecellrenderer]")  # open each cell
                window.text_with(*names)
                window.show(f"{page}/compare-runs?{chosen}", width=1500, scheme="light")
                window.text_with(*names, "weight_decay", "val_loss")
                curve = 'metric="train/ar_loss"&plot_metric_keys=["train/ar_loss"]&x_axis=step'
                window.show(f"{page}/metric?{chosen}&{curve}", width=1500, scheme="light")
                window.text_with(*(f"{name} (train/ar_loss)" for name in names))  # the legend
                assert window.eval("document.querySelectorAll('.scatterlayer .trace').length") >= 2
        finally:
            server.terminate()


@pytest.mark.slow
def test_killed_five_times_it_ends_with_the_same_figures(whole, tmp_path):
    rng = random.Random(os.environ.get("DCRAY_TEST_SEED", "1"))
    for _ in range(5):
        child = start(words(tmp_path), tmp_path)
        deadline = time.monotonic() + rng.uniform(5, 30)
        while child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        child.send_signal(signal.SIGKILL)
        child.communicate(timeout=60)
    child = start(words(tmp_path), tmp_path)
    _, err = child.communicate(timeout=400)
    assert child.returncode == 0, err
    assert losses(tmp_path) == losses(whole[0])
