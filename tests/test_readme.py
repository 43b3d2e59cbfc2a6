"""Every command of the README is one that dcray takes; the cheap ones run."""

import json
import math
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import typer
from ray.dashboard.modules.job.cli import job_cli_group
from typer.testing import CliRunner

from dcray import plugins
from dcray.cli import app
from dcray.cli.cells import HEADS
from dcray.cli.prepare import _counts, _options
from dcray.cli.train import _config
from dcray.sources import parse
from tests.jobs.submitter import submit
from tests.support import VOCAB_SIZE, run_tiny, tiny_config

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
CHEAP = ("--version", "sizes", "plan", "--dry-run")  # others need a corpus, a network, minutes


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


LINES = [line for block in blocks("bash") for line in block.splitlines() if line.strip()]
COMMANDS = sorted(
    {
        tuple(words[1:])
        for line in LINES
        for part in line.split(" && ")
        if Path((words := shlex.split(part))[0]).name == "dcray"
    }
)
JOBS = sorted(
    {
        tuple(shlex.split(line))
        for line in LINES
        if ("jobs/" in line or "srun" in line) and not line.startswith("dcray")
    }
)
GROUP = typer.main.get_command(app)


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """The files that the README shows, and the ones that it speaks of, in the working directory."""
    for language in ("toml", "python"):
        for block in blocks(language):
            Path(tmp_path, block.splitlines()[0].removeprefix("# ")).write_text(block)
    Path(tmp_path, "jobs").symlink_to(ROOT / "jobs")
    Path(tmp_path, "losses.csv").write_text("num_params,unique_tokens,val_loss\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(plugins.FILES_VARIABLE, "")
    monkeypatch.setattr(plugins, "_from_files", {})
    monkeypatch.setattr(plugins, "_sources", {})  # no later test carries them to its workers
    return tmp_path


def parsed(words):
    """(name, parameters) of a command's words; raises where an option or argument is unknown."""
    at = next(i for i, word in enumerate(words) if word in GROUP.commands)
    options = GROUP.make_context("dcray", list(words[: at + 1])).params
    for path in options["plugin"] or []:
        plugins.use_file(path)
    command = GROUP.commands[words[at]]
    return words[at], command.make_context(words[at], list(words[at + 1 :])).params


def of_job(words):
    """The words after `dcray` of a line that sends a job, or runs a command on a cluster."""
    if words[0] == "srun":
        (inner,) = (word for word in words if "symmetric-run" in word)
        words = shlex.split(inner)
        return words[words.index("dcray") + 1 :]
    at = next(i for i, word in enumerate(words) if word.startswith("jobs/"))
    if words[at] == "jobs/submit.py":
        given = submit.parser().parse_args(words[at + 1 :])
        return [given.command, *given.words]
    return [Path(words[at]).stem, *words[at + 1 :]]


@pytest.mark.parametrize("words", JOBS, ids=" ".join)
def test_a_line_for_a_cluster_is_understood(words, beside):
    """Files exist; Ray takes its own options; the command after them is one of dcray's."""
    for word in words:
        if word.startswith("jobs/"):
            assert (ROOT / word).is_file()
    if words[0] == "kubectl" or words[:2] in {("ray", "up"), ("ray", "down"), ("ray", "dashboard")}:
        return
    if words[0] == "ray":
        job_cli_group.commands["submit"].make_context("submit", list(words[3:]))
    command = of_job(words)
    assert command[0] in submit.COMMANDS
    if command[0] in GROUP.commands:
        name, given = parsed(command)
        assert name != "train" or _config(given["items"], given["workers"]).num_steps > 0


def test_there_are_commands_to_test():
    assert len(COMMANDS) > 10
    assert any(words[0] == "quickstart" for words in COMMANDS)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_is_understood(words, beside):
    name, given = parsed(words)
    if name == "train":
        assert _config(given["items"], given["workers"]).num_steps > 0
    if name == "prepare":
        parse(given["source"], _options(given["option"]))
        counts = _counts(budgets=given["budgets"], val_tokens=given["val_tokens"])
        assert counts["budgets"] == sorted(counts["budgets"])


@pytest.mark.parametrize(
    "words",
    [("--version",), *(words for words in COMMANDS if any(word in words for word in CHEAP))],
    ids=" ".join,
)
def test_a_cheap_command_runs(words, beside):
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("words", [("train", "size=60m"), ("train", "optim.lrr=1", "--dry-run")])
def test_a_wrong_command_would_be_found(words):
    with pytest.raises(ValueError, match=r"did you mean|no size"):
        _config(list(parsed(words)[1]["items"]), None)


def test_the_plugin_of_the_readme_trains(beside):
    plugins.use_file("stutter.py")
    outcome, reports = run_tiny(tiny_config(objective={"name": "stutter", "share": 0.2}))
    losses = [
        point.values["train/loss"]
        for said in reports
        for point in said.points
        if "train/loss" in point.values
    ]
    assert outcome.val_loss is not None
    assert 0 < losses[-1] < losses[0] < 2 * VOCAB_SIZE


def test_the_law_of_the_readme_is_fitted(beside, dcray):
    rows = [
        f"{N},{U},{2 + 0.02 / math.sqrt(N / 1e9) + 0.05 / math.sqrt(U / 1e9)}"
        for N in (1e7, 4e7, 1.6e8)
        for U in (1e7, 2e7, 4e7)
    ]
    Path("losses.csv").write_text("\n".join(["num_params,unique_tokens,val_loss", *rows]))
    code, out, err = dcray(
        "--plugin", "halves.py", "fit", "losses.csv", "--laws", "halves", "--json"
    )
    assert code == 0, err
    assert json.loads(out)["laws"]["halves"]["theta"] == pytest.approx(
        {"E": 2.0, "A": 0.02, "B": 0.05}, rel=1e-3
    )


def test_the_words_and_columns_that_a_newcomer_meets_are_explained():
    words = re.findall(r"^\| ([^|]+) \| [^|]+ \|$", README.partition("## Two commands")[0], re.M)
    told = {word for cell in words[1:] for word in cell.split(", ")}
    assert {"AR", "MIR", "like for like", "null", "SoftQ", "tau", "cell", "budget"} <= told
    assert len(words) - 1 <= 10  # less the head
    table = README.partition("At its end, or at any time from anywhere by")[2]
    columns = table.partition("**Plan before you pay.**")[0]
    assert [head for head, _, _ in HEADS[2:] if f"`{head}`" not in columns] == []


def test_no_first_run_lands_in_the_study_that_a_search_makes():
    searched = {tomllib.loads(block).get("study") for block in blocks("toml")}
    trained = {
        words[words.index("--study") + 1]
        for words in COMMANDS
        if "train" in words and "--study" in words
    }
    assert trained
    assert not trained & searched


def test_the_tests_that_the_readme_names_exist():
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", README)
    assert len(named) > 5
    for path, function in named:
        assert f"def {function}" in (ROOT / path).read_text(encoding="utf-8"), (path, function)
