"""Plug-ins: by file, by entry point, by name; they reach Ray's workers."""

import os
import sys

import pytest

from dcray import plugins
from dcray.config import RunConfig, override
from dcray.errors import ConfigError
from tests.training import runs, words

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
    monkeypatch.setattr(plugins, "_files_read", set())


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
    for name in ("ar", "mir", "mdlm", "half"):
        assert name in out.split("objective", 1)[1]


def test_names_are_sorted_and_a_kind_must_exist():
    assert list(plugins.names("objectives")) == sorted(plugins.names("objectives"))
    assert {"ar", "mir", "mdlm"} <= set(plugins.names("objectives"))
    assert {"stdlib", "files", "huggingface", "tokens"} <= set(plugins.names("sources"))
    with pytest.raises(ConfigError, match='did you mean "objectives"'):
        plugins.names("objective")
