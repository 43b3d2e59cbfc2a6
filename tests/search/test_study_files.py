"""Every study file that ships: it parses, every value trains, and it says what the paper says."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from dcray.errors import ConfigError
from dcray.fit.paper.published import figures
from dcray.plan.forecast import forecast, prices
from dcray.study.axes import Winners
from dcray.study.schema import SHIPPED, StudyFile, parse_study
from dcray.study.study import Study
from tests.search.player import MINI

ROOT = Path(__file__).parent.parent.parent
FILES = sorted(SHIPPED.glob("*.toml"))
NAMES = [path.stem for path in FILES]
LRS = [3e-4, 1e-3, 3e-3, 1e-2, 3e-2]  # the grid of the paper's learning rates
WINNERS = {
    budget: by_size
    for budget, by_size in figures()["best_hyperparameters"].items()
    if budget.endswith("m")
}


def test_the_study_files_of_the_mission_are_there():
    wanted = {"dclm_100m", "dclm_200m", "dclm_300m", "dclm_400m", "stack_v2_100m", "mir_tuning",
              "recipes", "recipes_cpu", "recipes_gpu", "seeds", "schedule", "mini_cpu",
              "mini_gpu"}  # fmt: skip
    assert wanted <= set(NAMES)
    assert {path.name for path in (ROOT / "search_spaces").iterdir()} == {p.name for p in FILES}


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_a_file_parses_and_every_value_of_it_is_planned(path):
    """`grid` builds the RunConfig of every (epochs, weight decay, lr) of every cell."""
    study = Study.read(path.stem)
    found = forecast(study, [cell_spec.cell for cell_spec in study.cell_specs], "grid", prices())
    assert len(found.cells) == len(study.cell_specs) > 0
    assert study.name == parse_study(path).study
    for one, cell_spec in zip(found.cells, study.cell_specs, strict=True):
        if cell_spec.borrows:
            continue
        if cell_spec.member_seeds:  # its members are runs of another cell
            assert one.search.runs == one.confirmations.runs == 0
            continue
        points = {
            (epochs, *trunk.values)
            for trunk in cell_spec.space(one.winner.num_epochs, {}).trunks()
            for epochs in trunk.rungs
        }
        assert one.search.runs == len(points)
    assert not [warning for cell_spec in study.cell_specs for warning in cell_spec.warnings()]


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_a_file_says_what_it_is(path):
    assert len(parse_study(path).about) > 40
    assert path.read_text(encoding="utf-8").isascii()


@pytest.mark.parametrize("budget", WINNERS)
def test_the_published_winners(budget):
    shipped = parse_study(SHIPPED / f"dclm_{budget}.toml").recipes["ar"].published
    assert {
        cell: [best.num_epochs, best.weight_decay, best.lr] for cell, best in shipped.items()
    } == {f"{size}/{budget}": values for size, values in WINNERS[budget].items()}


def test_the_boxes_of_100m_are_the_printed_ones():
    printed = dict(figures()["search_spaces_100m"])
    printed.pop("source")
    assert parse_study(SHIPPED / "dclm_100m.toml").recipes["ar"].spaces == printed


@pytest.mark.parametrize("budget", ["200m", "400m"])
def test_the_boxes_of_200m_and_400m_stand_around_the_winner_and_are_marked(budget):
    file = parse_study(SHIPPED / f"dclm_{budget}.toml")
    assert "ASSUMED" in file.about
    for size, (epochs, weight_decay, lr) in WINNERS[budget].items():
        (box,) = file.recipes["ar"].spaces[size]
        assert box["num_epochs"] == [epochs // 4, epochs // 2, epochs]
        assert box["weight_decay"] == [weight_decay / 2, weight_decay, weight_decay * 2]
        at = LRS.index(lr)
        assert box["lr"] == LRS[at - 1 : at + 2]


def test_300m_waits_for_the_winners_of_200m_and_400m():
    study = Study.read("dclm")
    for cell_spec in study.select(budgets=["300m"], recipes=["ar"]):
        assert {cell.unique_tokens for cell in cell_spec.needs} == {200_000_000, 400_000_000}
        (box,) = cell_spec.boxes
        assert set(box) == {"num_epochs", "weight_decay", "lr"}
        assert all(axis == Winners(winners=("200m", "400m")) for axis in box.values())


@pytest.mark.parametrize("name", ["recipes", "seeds"])
def test_the_baseline_at_its_printed_winners(name):
    study = Study.read(name)
    wanted = [cell_spec.cell for cell_spec in study.select(recipes=["ar", "mir"])]
    for one in forecast(study, wanted, "", prices()).cells:
        best = one.winner
        assert [best.num_epochs, best.optim.weight_decay, best.optim.lr] == (
            WINNERS["100m"][one.cell.size]
        )


def test_the_diffusion_recipes_follow_the_printed_protocol():
    study, printed = Study.read("recipes"), figures()["dllm_protocol"]
    wanted = study.select(recipes=["mdlm", "mdlm_regularized"])
    found = forecast(study, [cell_spec.cell for cell_spec in wanted], "", prices())
    assert {one.cell.size for one in found.cells} == set(printed["num_epochs"])
    for one in found.cells:
        run, size = one.winner, one.cell.size
        assert run.num_epochs == printed["num_epochs"][size]
        assert run.batch_size == printed["batch_sequences"]
        assert run.data.seq_len == printed["seq_len"]
        assert run.optim.lr == printed["lr"]
        assert run.optim.lr * run.schedule.min_lr_frac == pytest.approx(printed["min_lr"])
        assert run.schedule.kind == printed["schedule"]
        assert run.schedule.warmup_frac == printed["warmup_frac"]
        assert run.optim.max_grad_norm == printed["max_grad_norm"]
        assert run.model.dropout == printed["dropout"]
        assert run.validation.epochs == 1
        tuned = WINNERS["100m"][size][1]
        plain = one.cell.recipe == "mdlm"
        assert run.optim.weight_decay == (printed["weight_decay"] if plain else tuned)


def test_the_other_recipes_at_100m():
    study = Study.read("recipes")
    wanted = study.select(recipes=["single_epoch", "multi_epoch"])
    best = figures()["multi_epoch_ar_best_epochs"]
    for one in forecast(study, [cell_spec.cell for cell_spec in wanted], "", prices()).cells:
        run, size = one.winner, one.cell.size
        assert run.optim.weight_decay == best["weight_decay"] == 0.1
        if one.cell.recipe == "single_epoch":
            assert (run.num_epochs, run.optim.lr) == (1, WINNERS["100m"][size][2])
        else:
            assert run.optim.lr == best["lr"]
            (cell_spec,) = study.select(sizes=[size], recipes=["multi_epoch"])
            (trunk,) = cell_spec.space(1, {}).trunks()
            assert trunk.rungs[0] < best[size] < trunk.rungs[-1]


def test_seeds_and_the_tuning_of_mir_hold_the_paper_s_values():
    seeds = parse_study(SHIPPED / "seeds.toml")
    for recipe in seeds.recipes.values():
        assert [seeds.seed, *recipe.confirm_seeds] == figures()["seeds_100m"]["five_seeds"]
    (cell_spec,) = Study.read("mir_tuning").select(recipes=["mir"])
    chosen = {f"objective.{name}": value for name, value in figures()["mir_selected"].items()}
    points = [dict(trunk.values) for trunk in cell_spec.space(16, {}).trunks()]
    assert chosen in points
    assert len(points) == 4 * 3 + 2 * 3


def test_a_wheel_and_an_sdist_hold_the_study_files(tmp_path):
    """Built from a copy, by the build backend itself: no network."""
    copy = tmp_path / "copy"
    shutil.copytree(ROOT, copy, symlinks=True, ignore=_IGNORED)
    build = (
        "from setuptools import build_meta as b; b.build_wheel('../out'); b.build_sdist('../out')"
    )
    (tmp_path / "out").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", build], cwd=copy, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    wheel, sdist = _built(tmp_path / "out")
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    with tarfile.open(sdist) as archive:
        unpacked = {name.split("/", 1)[-1] for name in archive.getnames()}
    wanted = {f"dcray/search_spaces/{path.name}" for path in FILES}
    assert wanted <= packed
    assert wanted <= unpacked


def _built(folder):
    return next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))


_IGNORED = shutil.ignore_patterns(
    ".git", ".venv", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", "tests",
    "dcray-runs", "corpora", ".hypothesis",
)  # fmt: skip


HEAD = 'study = "mine"\nsizes = {sizes}\nbudgets = ["10k"]\n[recipes.ar]\n'


def test_a_size_that_is_named_twice_is_told_as_that(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(HEAD.format(sizes='["72m", "140m", "72m"]'))
    with pytest.raises(ConfigError) as refused:
        Study.read(str(path))
    assert refused.value.problems == (
        'mine.toml: sizes must name each once, got "72m" more than once',
    )


def test_sizes_that_are_no_list_are_told_once(tmp_path):
    path = tmp_path / "mine.toml"
    for sizes, said in (
        ("3", "sizes must be a list, got 3"),
        ("[3]", "sizes.0 must be a text, got 3"),
        ('{ mine = { dim = "x" } }', "sizes.mine.dim must be a whole number, got 'x'"),
    ):
        path.write_text(HEAD.format(sizes=sizes))
        with pytest.raises(ConfigError) as refused:
            Study.read(str(path))
        assert refused.value.problems == (f"mine.toml: {said}",)


def test_of_several_files_each_problem_names_its_own(tmp_path):
    files = []
    for name, value in (("one", -1), ("two", -2)):
        path = tmp_path / f"{name}.toml"
        body = HEAD.format(sizes='["72m"]').replace("10k", f"{10 - value}k")
        path.write_text(f'{body}space = [{{ "lr" = [{value}] }}]\n')
        files.append(path)
    with pytest.raises(ConfigError) as refused:
        Study.of([parse_study(path) for path in files], files)
    one, two = refused.value.problems
    assert one.startswith("one.toml: recipes.ar: optim.lr must be above 0")
    assert two.startswith("two.toml: recipes.ar: optim.lr must be above 0")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("batch_size = 3\n", '"recipes.ar.batch_size" is not a field here'),
        ('base = { "optim.lrr" = 3 }\n', '"optim.lrr" is not a field'),
        ("base = { batch_size = -3 }\n", "batch_size must be at least 1, got -3"),
        ("space = [{ lr = [-1] }]\n", "recipes.ar: optim.lr must be above 0"),
        ("confirm_seeds = [42]\n", "recipes.ar.confirm_seeds must be fresh"),
        ('inherit = "nobody"\n', "recipes.ar.inherit must name a recipe"),
        ('sizes = ["73m"]\n', "recipes.ar.sizes names no cell"),
        ('space = [{ lr = { winners = ["10k"] } }]\n', "cells wait for each other's winners"),
    ],
)
def test_a_wrong_field_or_value_names_the_file(tmp_path, wrong, said):
    path = tmp_path / "mine.toml"
    path.write_text(HEAD.format(sizes='["72m"]') + wrong)
    with pytest.raises(ConfigError) as refused:
        Study.read(str(path))
    assert refused.value.problems[0].startswith(f"mine.toml: {said}")


NEEDS = """space = [{ lr = { winners = ["99k"] } }]
search = { keep = [1] }
"""


def test_plan_and_search_refuse_a_winner_that_cannot_come_alike(dcray, tiny_corpus, tmp_path):
    """And a file beside it that would search it, were it not broken, is named."""
    base = '[base]\n"data.seq_len" = 16\n'
    path = tmp_path / "mine.toml"
    head = HEAD.format(sizes='["60k", "226k"]').replace("10k", "500")
    path.write_text(head + NEEDS + base)
    said = []
    for command in ("plan", "search"):
        more = ["--corpus", tiny_corpus] if command == "search" else []
        words = [command, path, "--sizes", "60k", "--dir", tmp_path / "runs", *more]
        code, out, err = dcray(*words)
        assert (code, out) == (2, "")
        said.append(err.splitlines()[-1])
    assert said[0] == said[1]
    assert "60k 99k ar" in said[0]
    other = tmp_path / "other.toml"
    other.write_text('study = "mine"\nsizes = ["60k"]\nbudgets = ["99k"]\nrecipes = 1\n')
    _, _, err = dcray("plan", path)
    assert f"{other} cannot be read: other.toml: recipes must be a table, got 1" in " ".join(
        err.split()
    )
    other.write_text(head.replace("500", "99k") + base)
    code, _, err = dcray("plan", path)
    assert code == 0, err


def test_under_another_name_a_recipe_inherits_from_there():
    """Its own study's winner, however it is spelled; another study's stays another's."""
    recipes = {"ar": {}, "a": {"inherit": "ar"}, "b": {"inherit": "toy:ar"}}
    file = StudyFile.model_validate({**MINI, "recipes": recipes | {"c": {"inherit": "toys:ar"}}})
    study = Study.of([file.renamed("new")])
    inherited = {w.cell.recipe: w.inherits.study for w in study.cell_specs if w.inherits}
    assert inherited == {"a": "new", "b": "new", "c": "toys"}
    assert file.renamed("toy") == file
