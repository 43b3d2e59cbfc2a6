"""An axis beside epochs, weight decay and lr stands wherever a person or a program looks."""

import csv
import json
import re

import pytest

from dcray.config.settings import recorded_settings, short_names, varied
from tests.studies import HEAD, search_words
from tests.training import runs

STUDY = (
    HEAD.format(budgets='["500"]')
    + """
[recipes.mir]
objective = "mir"
base = { num_epochs = 1 }
space = [{ "objective.weight" = [0.25, 0.5] }]
"""
)
AXIS = "objective.weight"


@pytest.fixture(scope="module")
def tuned(tiny_corpus, tmp_path_factory):
    """A study of two weights, searched once: its file, its record."""
    folder = tmp_path_factory.mktemp("tuned")
    (folder / "micro.toml").write_text(STUDY)
    return folder / "micro.toml", folder / "runs"


def test_progress_tables_json_csv_and_names(dcray, tiny_corpus, tuned):
    study, directory = tuned
    words = search_words(study, tiny_corpus, directory)
    code, out, err = dcray(*words)
    assert code == 0, err
    said = re.findall(r"lr 0\.\d+, weight (0\.\d+), seed 42: val loss ([\d.]+)", err)
    losses = {weight: float(loss) for weight, loss in said}
    assert set(losses) == {"0.25", "0.5"}
    best = min(losses, key=losses.get)
    head, row = (line.split() for line in out.splitlines()[:2])
    assert row[head.index("weight") + 2] == best  # "500 mir": its name has three words
    for command in (words, ["status", "micro", "--dir", directory]):
        _, out, _ = dcray(*command, "--json")
        (cell,) = json.loads(out)["cells"]
        assert cell["settings"] == {AXIS: float(best)}
    _, out, _ = dcray("status", "micro", "--dir", directory)
    assert "weight" in out.splitlines()[0].split()
    names = {run.info.run_name: run.data for run in runs(directory, "micro")}
    assert len(names) == 2
    for name, data in names.items():
        assert f" weight={data.params[AXIS]} seed42" in name


def test_the_analysis_has_a_column_for_it(dcray, tiny_corpus, tuned):
    study, directory = tuned
    assert dcray(*search_words(study, tiny_corpus, directory, "--quiet"))[0] == 0
    code, _, err = dcray("analyze", "micro", "--dir", directory)
    assert code == 0, err
    folder = directory / "micro" / "analysis"
    with (folder / "runs.csv").open() as file:
        lines = list(csv.DictReader(file))
    weights = {float(line["val_loss"]): float(line[AXIS]) for line in lines}
    assert set(weights.values()) == {0.25, 0.5}
    best = weights[min(weights)]
    with (folder / "cells.csv").open() as file:
        assert [float(line[AXIS]) for line in csv.DictReader(file)] == [best]
    assert json.loads((folder / "fit.json").read_text())["grid"][0][AXIS] == best
    heads = [x for x in (folder / "tables.md").read_text().splitlines() if "| weight decay |" in x]
    assert all("| tau | weight | " in head for head in heads)
    assert re.search(r"<th[^>]*>weight</th>", (folder / "page.html").read_text())


def test_what_varies_by_hand():
    rows = [
        {"objective": "ar", "batch_size": "128", "dropout": "0.0", "schedule": "wsd"},
        {"objective.weight": "0.4", "batch_size": "256", "dropout": "0.0", "schedule": "cosine"},
        {"objective.weight": "0.4", "objective.mixed": "true", "batch_size": "256"},
    ]
    settings = [recorded_settings(row) for row in rows]
    assert settings[2] == {AXIS: 0.4, "objective.mixed": True, "batch_size": 256}
    assert varied(settings) == ("batch_size", "schedule.kind")  # the weight is the same where it is
    names = short_names(
        [AXIS, "schedule.kind", "optim.eps", "objective.eps", "objective.lr"], ["lr"]
    )
    assert list(names.values()) == [
        "weight",
        "schedule",
        "optim.eps",
        "objective.eps",
        "objective.lr",
    ]
