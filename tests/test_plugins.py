"""Plug-ins: by file, by entry point, by name; they reach Ray's workers."""

import os
import sys

import pytest

from dcray import plugins
from dcray.config import RunConfig, override
from dcray.errors import ConfigError
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
    """Its own file, and no other: not a law's, not that of an objective it does not use."""

    def identity(name, *paths):
        use_anew(monkeypatch, *paths)
        return override(RunConfig(), {"objective": name}).resolved(vocab_size=512).identity("x")

    law = tmp_path / "law.py"
    law.write_text('class Law:\n    kind, name = "laws", "mine"\nPLUGIN = Law\n')
    ours, theirs = identity("ar"), identity("half", half)
    assert identity("ar", half, law) == ours
    assert identity("half", half, law) == theirs
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
    ],
)
def test_a_file_that_is_no_plugin(dcray, no_files, tmp_path, text, said):
    path = tmp_path / "bad.py"
    path.write_text(text)
    code, out, err = dcray("--plugin", path, "sizes")
    assert (code, out) == (2, "")
    assert err.startswith("error: --plugin ")
    assert said in err
    assert "Traceback" not in err


def test_a_file_that_is_not_there(dcray, no_files, tmp_path):
    code, out, err = dcray("--plugin", tmp_path / "none.py", "sizes")
    assert (code, out) == (2, "")
    assert "--plugin must be a Python file" in err


def test_an_entry_point(tmp_path, monkeypatch, dcray):
    """A package that names an objective in its metadata, as pip leaves it behind."""
    site = tmp_path / "site"
    (site / "thirds-1.0.dist-info").mkdir(parents=True)
    (site / "thirds-1.0.dist-info" / "METADATA").write_text("Name: thirds\nVersion: 1.0\n")
    (site / "thirds-1.0.dist-info" / "entry_points.txt").write_text(
        "[dcray.objectives]\nthird = thirds:PLUGIN\nwhole = thirds\n"
    )
    (site / "thirds.py").write_text(HALF)
    monkeypatch.syspath_prepend(str(site))
    assert {"third", "whole"} <= set(plugins.names("objectives"))
    assert plugins.load("objectives", "third", factor=0.3).options() == {"factor": 0.3}
    assert plugins.load("objectives", "whole").factor == 0.5  # a module's PLUGIN
    code, _, err = dcray("train", "objective=thrd", "--dry-run")
    assert code == 2
    assert 'did you mean "third"' in err
    sys.modules.pop("thirds", None)


def test_help_names_every_objective(dcray, half, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = dcray("--plugin", half, "train", "--help")
    assert code == 0
    assert "Objectives: ar, half, mdlm, mir." in out
    code, out, _ = dcray("prepare", "--help")
    assert "Sources: files, huggingface, stdlib, tokens." in out


def test_names_are_sorted_and_a_kind_must_exist():
    assert list(plugins.names("objectives")) == sorted(plugins.names("objectives"))
    assert {"ar", "mir", "mdlm"} <= set(plugins.names("objectives"))
    assert {"stdlib", "files", "huggingface", "tokens"} <= set(plugins.names("sources"))
    with pytest.raises(ConfigError, match='did you mean "objectives"'):
        plugins.names("objective")
