"""dcray.api gives what the commands give, and the guide's code runs."""

import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

import dcray.api as dc
from dcray.api.results import TEXTS
from dcray.errors import ConfigError
from dcray.fit.paper.published import _text as grid_text
from tests.fit.test_cli_fit import invoke
from tests.report.planted import STUDY
from tests.training import words

GUIDE = (Path(__file__).parents[2] / "docs" / "how-to" / "notebook.md").read_text()
CODE = re.findall(r"^```python\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def losses(tmp_path) -> Path:
    """The paper's two grids as one CSV."""
    first, second = grid_text("dclm_ar.csv"), grid_text("dclm_mir.csv")
    path = tmp_path / "losses.csv"
    path.write_text(first + second.partition("\n")[2])
    return path


def test_a_frame_is_fitted_as_its_file_is(losses):
    options = {"baseline": "ar", "recipe": "mir", "laws": ["softq", "chinchilla"]}
    by_file, by_frame = dc.fit(losses, **options), dc.fit(pd.read_csv(losses), **options)
    command = invoke("fit", losses, "--baseline", "ar", "--recipe", "mir", "--laws",
                     "softq,chinchilla", "--json")  # fmt: skip
    told = [json.dumps(one.to_dict(), indent=1) for one in (by_file, by_frame)]
    assert told == [command.output.rstrip()] * 2
    laws = by_frame.laws.set_index(["recipe", "law"])
    assert laws.loc[("ar", "softq"), "rmse"] == by_frame.answer.fits["ar"]["softq"].rmse
    assert set(by_frame.worth.law) == {"softq", "chinchilla"}
    assert "<pre>" in by_frame._repr_html_()
    assert str(by_frame) == by_frame.text
    assert by_frame.figures["fits"].axes


def test_a_frame_may_miss_values_and_name_its_columns_otherwise(losses):
    frame = pd.read_csv(losses).rename(columns={"num_params": "params (M)", "val_loss": "final"})
    frame["params (M)"] /= 1e6
    frame["num_epochs"] = frame["num_epochs"].astype(object).where(frame.index != 0)
    frame.loc[len(frame)] = None  # a line of a spreadsheet that holds nothing
    fitted = dc.fit(frame, baseline="ar", laws="softq", columns={"val_loss": "final"})
    plain = dc.fit(losses, baseline="ar", laws="softq")
    assert fitted.laws.rmse.tolist() == pytest.approx(plain.laws.rmse.tolist(), rel=1e-9)


def test_a_wrong_frame_is_a_sentence(losses):
    frame = pd.read_csv(losses)
    frame.loc[3, "val_loss"] = -1.0
    with pytest.raises(ConfigError, match=r"frame, line 4: a loss must be a positive finite"):
        dc.fit(frame, baseline="ar")
    with pytest.raises(ConfigError, match="num_params"):
        dc.fit(frame.drop(columns=["num_params", "size"]), baseline="ar")


def test_a_study_is_read_as_analyze_writes_it(record):
    folder = record / STUDY / "analysis"
    shutil.rmtree(folder, ignore_errors=True)
    read = dc.read_study(STUDY, dir=record)
    assert not folder.exists()
    written = dc.analyze(STUDY, dir=record, bootstrap=0)
    for name, frame in (("cells", read.cells), ("runs", read.runs)):
        pd.testing.assert_frame_equal(frame, pd.read_csv(folder / f"{name}.csv", dtype=TEXTS))
    assert read.headlines == written.headlines
    assert read.headlines[0] in str(read)
    assert "<table" in read._repr_html_()
    assert read.figures["loss-by-size"].axes
    with pytest.raises(ConfigError, match="nowhere"):
        dc.read_study("nowhere", dir=record)


def test_a_plan_is_the_command_s(tmp_path):
    planned = dc.plan("mini_cpu", price=2.0, dir=tmp_path)
    command = invoke("plan", "mini_cpu", "--price", 2.0, "--dir", tmp_path, "--json")
    assert json.loads(json.dumps(planned.to_dict())) == json.loads(command.output)
    total = planned.total.set_index("mode")
    assert total.search_does.sum() == 1
    cells = planned.cells.groupby("mode").runs.sum()
    assert cells["ladder"] == total.loc["ladder", "runs"]
    assert "<table" in planned._repr_html_()


def test_a_run_is_trained_and_answered(tiny_corpus, tmp_path, dcray):
    config = dict(word.split("=") for word in words(tiny_corpus, tmp_path)[1:-4])
    first = dc.train(config, tiny_corpus, dir=tmp_path)
    again = dc.train(config, tiny_corpus, dir=tmp_path)
    assert (first.state, again.state) == ("complete", "answered")
    assert first.val_loss == again.val_loss
    code, out, err = dcray(*words(tiny_corpus, tmp_path, "--json"))
    assert code == 0, err
    assert json.loads(out)["val_loss"] == first.val_loss


@pytest.mark.parametrize("code", CODE, ids=range(len(CODE)))
def test_the_guide_s_code_runs(code, losses, record, monkeypatch):
    monkeypatch.chdir(losses.parent)
    Path("dcray-runs").symlink_to(record)
    exec(compile(code.replace('"mine"', f'"{STUDY}"'), "notebook", "exec"), {})
