"""Every command of the README and of docs/ is one that dcray takes; the cheap ones run."""

import itertools
import json
import math
import re
import runpy
import shlex
import tomllib
from pathlib import Path

import pytest
import typer
from ray.dashboard.modules.job.cli import job_cli_group
from typer.testing import CliRunner

from dcray import plugins
from dcray.cli import app
from dcray.cli.prepare import _counts, _options
from dcray.cli.screen.cell_table import HEADS
from dcray.cli.train import _config
from dcray.sources import parse
from tests.jobs.submitter import submit
from tests.support import VOCAB_SIZE, run_tiny, tiny_config

ROOT = Path(__file__).parent.parent
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
}
README = PAGES["README.md"]
CHEAP = ("--version", "sizes", "plan", "--dry-run")  # others need a corpus, a network, minutes


def blocks(language, page="README.md"):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGES[page], re.MULTILINE | re.DOTALL)


def lines(page):
    return [line for block in blocks("bash", page) for line in block.splitlines() if line.strip()]


COMMANDS = sorted(
    {
        (page, *words[1:])
        for page in PAGES
        for line in lines(page)
        for part in line.split(" && ")
        if Path((words := shlex.split(part))[0]).name == "dcray"
    }
)
JOBS = sorted(
    {
        (page, *shlex.split(line))
        for page in PAGES
        for line in lines(page)
        if ("jobs/" in line or "srun" in line) and not line.startswith("dcray")
    }
)
RUN = [(page, *words) for words, page in {tuple(w): page for page, *w in COMMANDS}.items()
       if any(word in words for word in CHEAP)]  # each once  # fmt: skip
GROUP = typer.main.get_command(app)


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """Lays out the files that a page shows, and those that it speaks of, in the working folder."""
    Path(tmp_path, "jobs").symlink_to(ROOT / "jobs")
    Path(tmp_path, "losses.csv").write_text("num_params,unique_tokens,val_loss\n")
    Path(tmp_path, "sweep.csv").write_text("size,unique_tokens,val_loss\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(plugins.FILES_VARIABLE, "")
    monkeypatch.setattr(plugins, "_from_files", {})
    monkeypatch.setattr(plugins, "_sources", {})  # no later test carries them to its workers

    def lay_out(page):
        for language, where in itertools.product(("toml", "python"), ("docs/tutorial.md", page)):
            for block in blocks(language, where):
                name = block.splitlines()[0].removeprefix("# ")
                if name.endswith((".toml", ".py")):
                    Path(tmp_path, name).write_text(block)

    return lay_out


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
    beside(words[0])
    words = words[1:]
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
    assert any(words[1] == "quickstart" for words in COMMANDS)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_is_understood(words, beside):
    beside(words[0])
    words = words[1:]
    name, given = parsed(words)
    if name == "train":
        assert _config(given["items"], given["workers"]).num_steps > 0
    if name == "prepare":
        parse(given["source"], _options(given["option"]))
        counts = _counts(budgets=given["budgets"], val_tokens=given["val_tokens"])
        assert counts["budgets"] == sorted(counts["budgets"])


@pytest.mark.parametrize(
    "words",
    [("README.md", "--version"), *RUN],
    ids=" ".join,
)
def test_a_cheap_command_runs(words, beside):
    beside(words[0])
    result = CliRunner().invoke(app, list(words[1:]))
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("words", [("train", "size=60m"), ("train", "optim.lrr=1", "--dry-run")])
def test_a_wrong_command_would_be_found(words):
    with pytest.raises(ValueError, match=r"did you mean|no size"):
        _config(list(parsed(words)[1]["items"]), None)


def test_the_objective_of_the_guide_trains(beside):
    beside("docs/how-to/own-objective.md")
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


def test_the_optimizer_of_the_guide_trains(beside):
    beside("docs/how-to/own-optimizer.md")
    plugins.use_file("lion.py")  # refused if its decay were not what tau says
    lion = {"name": "lion", "slow": 0.98}
    config = tiny_config(optimizer=lion, optim__lr=3e-3, optim__weight_decay=1.5, num_epochs=8)
    outcome, reports = run_tiny(config)
    losses = [
        point.values["train/loss"]
        for said in reports
        for point in said.points
        if "train/loss" in point.values
    ]
    assert outcome.val_loss is not None
    assert 0 < losses[-1] < losses[0] - 0.2


def test_the_law_of_the_guide_is_fitted(beside, dcray):
    beside("docs/how-to/own-law.md")
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
    table = README.partition("At its end, or at any time by")[2]
    columns = table.partition("**Plan before you pay.**")[0]
    assert [head for head, _, _ in HEADS[2:] if f"`{head}`" not in columns] == []


@pytest.mark.parametrize("page", PAGES)
def test_no_first_run_lands_in_the_study_that_a_search_makes(page):
    searched = {tomllib.loads(block).get("study") for block in blocks("toml", page)}
    trained = {
        words[words.index("--study") + 1]
        for where, *words in COMMANDS
        if where == page and "train" in words and "--study" in words
    }
    assert not trained & (searched - {None})


@pytest.mark.parametrize("page", PAGES)
def test_the_tests_that_a_page_names_exist(page):
    for path, function in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGES[page]):
        assert f"def {function}" in (ROOT / path).read_text(encoding="utf-8"), (path, function)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_plain_and_its_blocks_are_of_known_kinds(page):
    kinds = re.findall(r"^```(\w*)$", PAGES[page], re.MULTILINE)[::2]
    assert set(kinds) <= {"bash", "text", "toml", "python"}
    assert PAGES[page].startswith("# ")


def test_the_front_door_is_short():
    assert len(README.splitlines()) <= 200


def test_the_reference_follows_from_the_source():
    """python .ci/make_reference.py writes the pages anew."""
    made = runpy.run_path(str(ROOT / ".ci" / "make_reference.py"))["PAGES"]
    for name, make in made.items():
        assert PAGES[f"docs/reference/{name}"] == make(), name


def test_every_link_of_a_page_leads_to_a_file():
    """mkdocs holds those of docs/ to its pages; this one also holds the README's."""
    for page, text in PAGES.items():
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", re.sub(r"`[^`]*`", "", text)):
            if "://" not in target:
                assert ((ROOT / page).parent / target).exists(), (page, target)
