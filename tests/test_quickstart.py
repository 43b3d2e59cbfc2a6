"""The quickstart at micro scale: to its page, again in seconds, and killed on the way."""

import os
import random
import signal
import time

import pytest

from tests.studies import HEAD
from tests.training import start

STUDY = (
    HEAD.format(budgets='["16k"]')
    + """
[recipes.ar]
space = [{ num_epochs = [4, 8], lr = [1e-2], tau = [1, 4] }]
[recipes.mir]
objective = "mir"
inherit = "ar"
[recipes.weak]
inherit = "ar"
base = { "optim.weight_decay" = 0.1 }
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
    assert f"The page: {page.as_uri()}" in out
    assert "<html" in page.read_text()
    assert "MIR minus AR" in out
    assert "Weight decay of 0.1 in the winner's place costs" in out
    assert "illustrate and do not prove" in out
    assert len(losses(folder)) == 1 + 3


@pytest.mark.slow
def test_again_in_seconds(whole):
    folder, _ = whole
    before = losses(folder)
    child = start(words(folder), folder)
    out, err = child.communicate(timeout=120)
    assert child.returncode == 0, err
    assert "The page: " in out
    assert losses(folder) == before


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
