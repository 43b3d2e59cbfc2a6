"""Plug-ins: by file, by entry point, by name; they reach Ray's workers."""

import os
import sys

import pytest

from dcray import plugins
from dcray.config.run import RunConfig, override
from dcray.errors import ConfigError, did_you_mean
from dcray.plan.estimate import workers_of
from dcray.train import loop
from dcray.train.steps import DeviceSteps
from tests.support import run_tiny, tiny_config
from tests.training import client_of, runs, words

HALF = """
from dcray.objectives.ar import AR


class Half(AR):
    \"\"\"Half of the next-token loss.\"\"\"

    factor: float = 0.5

    def terms(self, model, batch, key):
        for term in super().terms(model, batch, key):
            yield type(term)(term.name, self.factor, term.nats, term.num_tokens)


PLUGIN = Half
"""


@pytest.fixture
def no_files(monkeypatch):
    """What a test registers is forgotten at its end."""
    monkeypatch.setenv(plugins.FILES_VARIABLE, "")
    monkeypatch.setattr(plugins, "_from_files", {})
    monkeypatch.setattr(plugins, "_sources", {})


@pytest.fixture
def half(tmp_path, no_files):
    path = tmp_path / "half.py"
    path.write_text(HALF + 'PLUGIN.kind, PLUGIN.name = "objectives", "half"\n')
    return path


def test_a_file_is_known_by_its_name(half):
    assert "half" not in plugins.names("objectives")
    plugins.use_file(half)
    plugins.use_file(half)  # twice is once
    assert plugins.names("objectives").count("half") == 1
    assert "half" not in plugins.names("laws")
    assert os.environ[plugins.FILES_VARIABLE] == str(half)
    assert plugins.load("objectives", "half").factor == 0.5
    config = override(RunConfig(), {"objective": "half", "objective.factor": 0.25})
    assert config.to_dict()["objective"] == {"name": "half", "factor": 0.25}
    with pytest.raises(ConfigError, match='did you mean "half"'):
        override(RunConfig(), {"objective": "hal"})
    with pytest.raises(ConfigError, match=r'"objective\.facto" is not an option of half'):
        override(RunConfig(), {"objective": {"name": "half", "facto": 1}})


def test_a_file_reaches_ray_s_workers(dcray, half, tiny_corpus, tmp_path):
    """Trained in a worker process of a Ray that had started before the file was known."""
    asked = words(tiny_corpus, tmp_path / "runs", "objective=half", "num_epochs=1")
    code, out, _ = dcray("--plugin", half, *asked)
    assert code == 0, out
    assert "half seed 42: done" in out
    (run,) = runs(tmp_path / "runs")
    assert run.data.params["objective"] == "half"
    assert run.data.params["objective.factor"] == "0.5"


def use_anew(monkeypatch, *paths):
    """As a new process would: nothing is known but these files."""
    monkeypatch.setattr(plugins, "_from_files", {})
    monkeypatch.setattr(plugins, "_sources", {})
    monkeypatch.setenv(plugins.FILES_VARIABLE, "")
    for path in paths:
        plugins.use_file(path)


def test_the_source_of_an_objective_is_part_of_what_a_run_is(half, tmp_path, monkeypatch):
    """Its own file, and no other: not a source's, not that of an objective it does not use."""

    def identity(name, *paths):
        use_anew(monkeypatch, *paths)
        return override(RunConfig(), {"objective": name}).resolved(vocab_size=512).identity("x")

    source = tmp_path / "source.py"
    source.write_text('class Source:\n    kind, name = "sources", "mine"\nPLUGIN = Source\n')
    ours, theirs = identity("ar"), identity("half", half)
    assert identity("ar", half, source) == ours
    assert identity("half", half, source) == theirs
    elsewhere = tmp_path / "copy" / "renamed.py"
    elsewhere.parent.mkdir()
    elsewhere.write_text(half.read_text())
    assert identity("half", elsewhere) == theirs  # what it is, not where
    half.write_text(half.read_text().replace("yield type", "yield  type"))
    assert identity("half", half) != theirs


BLOWS = HALF.replace("term.nats,", 'term.nats * float("nan"),')


def test_a_mended_objective_is_trained_anew(dcray, no_files, tiny_corpus, tmp_path, monkeypatch):
    """ "diverged" is the answer to the same run alone, and says what to do; so is a loss."""
    path = tmp_path / "half.py"
    end = 'PLUGIN.kind, PLUGIN.name = "objectives", "half"\n'
    path.write_text(BLOWS + end)
    asked = words(tiny_corpus, tmp_path / "runs", "objective=half", "num_epochs=1")
    for how in ("diverged, the training loss is not finite", "on record: the same run diverges"):
        use_anew(monkeypatch)
        code, out, _ = dcray("--plugin", path, *asked)
        assert (code, how in out) == (1, True), out
    (bad,) = runs(tmp_path / "runs")
    assert f"delete its run {bad.info.run_id} in MLflow" in out
    use_anew(monkeypatch)
    path.write_text(HALF + end)
    code, out, _ = dcray("--plugin", path, *asked)
    assert (code, "half seed 42: done" in out) == (0, True), out
    assert len(runs(tmp_path / "runs")) == 2
    client_of(tmp_path / "runs").delete_run(bad.info.run_id)  # the way that the sentence names
    use_anew(monkeypatch)
    path.write_text(BLOWS + end)
    code, out, _ = dcray("--plugin", path, *asked)
    assert (code, "on record" in out) == (1, False), out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\n", "must set PLUGIN to something with a kind"),
        ('class P:\n    kind, name = "objektives", "p"\nPLUGIN = P\n', "kind='objektives'"),
        ("import nothing_of_this_name\n", "nothing_of_this_name"),
        ("def broken(:\n", "invalid syntax"),
        ("# caf\xe9\n".encode("latin-1"), "cannot be read as UTF-8 text"),
        (
            (
                'class P:\n    kind, name = "objectives", "p"\n'
                "    def validation(self): ...\nPLUGIN = P\n"
            ),
            'objective "p" must define terms(self, model, batch, key)',
        ),
    ],
)
def test_a_file_that_is_no_plugin(dcray, no_files, tmp_path, text, said):
    path = tmp_path / "bad.py"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    code, out, err = dcray("--plugin", path, "sizes")
    assert (code, out) == (2, "")
    assert err.startswith("error: --plugin ")
    assert said in err
    assert "Traceback" not in err


def test_a_file_that_is_not_there(dcray, no_files, tmp_path):
    code, out, err = dcray("--plugin", tmp_path / "none.py", "sizes")
    assert (code, out) == (2, "")
    assert "--plugin must be a Python file" in err
    assert err.rstrip().endswith("none.py, which does not exist")
    assert dcray("--plugin", tmp_path, "sizes")[2].rstrip().endswith("which is no file")


def test_a_plugin_named_behind_the_command_is_told_where_it_goes(dcray):
    code, out, err = dcray("train", "--plugin", "mine.py")
    assert (code, out) == (2, "")
    assert err.rstrip().endswith("--plugin goes before the command: dcray --plugin FILE ...")
    code, out, err = dcray("train", "size=60k", "objective=mine", "--dry-run")
    assert (code, out) == (2, "")
    assert "a file of your own is named before the command: dcray --plugin FILE" in err


BARE = 'class P:\n    kind, name = "{}", "{}"\nPLUGIN = P\n'


@pytest.mark.parametrize(
    ("kind", "name"),
    [("objectives", "ar"), ("optimizers", "muon"), ("laws", "softq"), ("sources", "files")],
)
def test_a_name_of_our_own_is_taken(dcray, no_files, tmp_path, kind, name):
    path = tmp_path / "mine.py"
    path.write_text(BARE.format(kind, name))
    code, out, err = dcray("--plugin", path, "sizes")
    assert (code, out) == (2, "")
    assert f'the name "{name}" is taken by dcray\'s own {kind[:-1]}; give yours another' in err


def test_a_name_of_another_file_is_taken(half, tmp_path):
    plugins.use_file(half)
    other = tmp_path / "other.py"
    other.write_text(half.read_text())
    with pytest.raises(ConfigError, match="taken by another --plugin file's objective"):
        plugins.use_file(other)
    plugins.use_file(half)


LAW = """
from dcray.laws import Law


class P(Law):
    kind, name = "laws", "mine"
    names, example = ("E", "A"), (1.0, 1.0)

    def __call__(self, theta, N, U, **more):
        E, A = theta
        return E + A / (N * U)

    def limit(self, theta, U):
        return theta[0] + 0 * U

    def bounds(self, grid):
        return (0.0, 0.0), (9.0, 9.0)


PLUGIN = P
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("(1.0, 1.0)", "(1.0,)", "got names 2 (E, A), but example 1, start 1 1"),
        ("(0.0, 0.0)", "(0.0, 0.0, 0.0)", "but the lower bounds 3, the lower box 3"),
        ("(9.0, 9.0)", "(9.0,)", "but the upper bounds 1, the upper box 1"),
        ("def bounds", "def limits", "fails in bounds (NotImplementedError)"),
        ("E, A = theta", "E, A, B = theta", "fails in __call__ (ValueError: not enough values"),
        ("return E + A / (N * U)", "return E", "one loss a cell, got shape () for 4 cells"),
        ("theta[0] + 0 * U", "theta[0]", "one limit a budget (add 0 * U to a constant), got shape"),
        ("def limit", 'def stages(self):\n        return (("E",),)\n\n    def limit',
         "each name in one of its stages, got E"),
    ],
)  # fmt: skip
def test_a_law_whose_parts_disagree_is_refused_by_name(dcray, no_files, tmp_path, old, new, said):
    path = tmp_path / "mine.py"
    path.write_text(LAW)
    assert dcray("--plugin", path, "sizes")[0] == 0
    plugins._sources.clear()
    plugins._from_files.clear()
    assert LAW.count(old) == 1
    path.write_text(LAW.replace(old, new))
    code, out, err = dcray("--plugin", path, "sizes")
    assert (code, out) == (2, "")
    assert err.startswith("error: --plugin ")
    assert 'law "mine" ' in err
    assert said in err


def test_an_entry_point(tmp_path, monkeypatch, dcray):
    """A package that names an objective in its metadata, as pip leaves it behind."""
    site = tmp_path / "site"
    (site / "thirds-1.0.dist-info").mkdir(parents=True)
    (site / "thirds-1.0.dist-info" / "METADATA").write_text("Name: thirds\nVersion: 1.0\n")
    (site / "thirds-1.0.dist-info" / "entry_points.txt").write_text(
        "[dcray.objectives]\nthird = thirds:PLUGIN\nwhole = thirds\n[dcray.laws]\nsoftq = thirds\n"
    )
    (site / "thirds.py").write_text(HALF)
    monkeypatch.syspath_prepend(str(site))
    assert {"third", "whole"} <= set(plugins.names("objectives"))
    assert plugins.load("objectives", "third", factor=0.3).options() == {"factor": 0.3}
    assert plugins.load("objectives", "whole").factor == 0.5  # a module's PLUGIN
    code, _, err = dcray("train", "objective=thrd", "--dry-run")
    assert code == 2
    assert 'did you mean "third"' in err
    with pytest.raises(ConfigError, match='softq = thirds: the name "softq" is taken by dcray'):
        plugins.load("laws", "softq")
    sys.modules.pop("thirds", None)


SGD = """
from typing import ClassVar

import torch
from pydantic import Field

from dcray.optimizers import Optimizer, decay_groups


class SGD(Optimizer):
    name: ClassVar[str] = "sgd"
    momentum: float = Field(0.0, ge=0, lt=1)

    def build(self, named, optim):
        groups = decay_groups(named, optim.weight_decay)
        return torch.optim.SGD(groups, lr=optim.lr, momentum=self.momentum)

    def num_moments(self, matrices, others):
        return matrices + others if self.momentum else 0


PLUGIN = SGD
"""


@pytest.fixture
def sgd(tmp_path, no_files):
    path = tmp_path / "sgd.py"
    path.write_text(SGD)
    return path


def test_an_optimizer_of_a_file_trains_is_recorded_and_answered(dcray, sgd, tiny_corpus, tmp_path):
    """In Ray's worker, with checkpoints; the source is part of what the run is."""
    asked = words(tiny_corpus, tmp_path / "runs", "optimizer=sgd", "num_epochs=2")
    code, out, err = dcray("--plugin", sgd, *asked)
    assert (code, "ar-sgd seed 42: done" in out) == (0, True), out
    assert "ar-sgd" in err  # what is begun is told with the optimizer's name
    (run,) = runs(tmp_path / "runs")
    assert run.data.params["optimizer"] == run.data.tags["optimizer"] == "sgd"
    assert run.data.params["optimizer.momentum"] == "0.0"
    assert run.data.tags["optimizer_source"] == plugins.source_hash("optimizers", "sgd")
    assert dcray("--plugin", sgd, *asked)[0] == 0
    assert len(runs(tmp_path / "runs")) == 1  # answered
    plugins._sources.clear()
    plugins._from_files.clear()
    sgd.write_text(SGD.replace("lr=optim.lr,", "lr=optim.lr, nesterov=False,"))
    assert dcray("--plugin", sgd, *asked)[0] == 0
    assert len(runs(tmp_path / "runs")) == 2  # another source is another run


@pytest.mark.parametrize("workers", [["runtime.workers=2"], ["--workers", "2"]])
def test_an_optimizer_that_does_not_shard_takes_one_worker(
    dcray, sgd, tiny_corpus, tmp_path, workers
):
    """Refused before anything is computed; with "auto" it gets one."""
    asked = words(tiny_corpus, tmp_path / "runs", "optimizer=sgd", *workers)
    code, out, err = dcray("--plugin", sgd, *asked)
    assert (code, out) == (2, "")
    assert 'error: runtime.workers must be 1 with optimizer = "sgd"' in " ".join(err.split())
    assert not (tmp_path / "runs").exists()
    auto = override(RunConfig(), {"optimizer": "sgd", "runtime.workers": "auto"})
    assert workers_of(auto, 8) == 1
    assert workers_of(override(auto, {"optimizer": "muon"}), 8) == 8


class NoGraphs:
    """A device on which nothing may be captured."""

    def wait(self):
        pass

    def capture(self, function):
        raise AssertionError("its step may wait for the device")

    def release(self):
        pass


def test_steps_of_an_optimizer_that_is_not_capturable_are_launched(sgd, monkeypatch):
    """As a GPU alone takes them, with the learning rate as a number."""
    plugins.use_file(sgd)
    config = tiny_config(optimizer="sgd", optim__lr=0.1, runtime__precision="float64",
                         runtime__capture=True)  # fmt: skip
    plain, _ = run_tiny(config)

    def build(model, optimizer, objective, config, place, **more):
        return DeviceSteps(model, optimizer, objective, config, place, NoGraphs(), **more)

    monkeypatch.setattr(loop, "build_steps", build)
    assert run_tiny(config)[0].val_loss == pytest.approx(plain.val_loss, rel=1e-6)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("Field(0.0,", "Field(0.9,", "must multiply a decayed weight by 1 - lr * weight_decay"),
        ("decay_groups(named, optim.weight_decay)", "[p for _, p in named]",
         "must multiply a decayed weight by 1 - lr * weight_decay in a step and leave the"),
        ("decay_groups(named, optim.weight_decay)", "decay_groups(named[1:], optim.weight_decay)",
         "must take every parameter in one group, and does not take embed.weight"),
        ("return torch.optim.SGD", "return list", "fails with its default options (TypeError"),
        ("return torch.optim.SGD(groups, lr=optim.lr, momentum=self.momentum)", "return groups",
         "must build a torch.optim.Optimizer, got list"),
        ("def build", "def make", "fails with its default options (NotImplementedError)"),
    ],
)  # fmt: skip
def test_an_optimizer_that_would_not_do_is_refused_by_name(
    dcray, no_files, tmp_path, old, new, said
):
    path = tmp_path / "sgd.py"
    assert SGD.count(old) == 1
    path.write_text(SGD.replace(old, new))
    code, out, err = dcray("--plugin", path, "sizes")
    assert (code, out) == (2, "")
    assert f'optimizer "sgd" {said}' in " ".join(err.split())


def test_help_names_every_objective(dcray, half, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = dcray("--plugin", half, "train", "--help")
    assert code == 0
    assert "Objectives: ar, half, mdlm, mir." in out
    assert "Optimizers: adamw, muon." in out
    code, out, _ = dcray("prepare", "--help")
    assert "Sources: files, huggingface, stdlib, tokens." in out


def test_what_is_offered_instead_is_sorted_by_value():
    known = ["1.4b", "140m", "5.5m", "60k", "72m", "ar"]
    expected = " (one of: 60k, 5.5m, 72m, 140m, 1.4b, ar)"
    assert did_you_mean("nothing like it", known) == expected


def test_names_are_sorted_and_a_kind_must_exist():
    assert list(plugins.names("objectives")) == sorted(plugins.names("objectives"))
    assert {"ar", "mir", "mdlm"} <= set(plugins.names("objectives"))
    assert {"stdlib", "files", "huggingface", "tokens"} <= set(plugins.names("sources"))
    with pytest.raises(ConfigError, match='did you mean "objectives"'):
        plugins.names("objective")
