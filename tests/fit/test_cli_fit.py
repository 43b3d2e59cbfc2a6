"""`dcray fit` and `dcray reproduce` as a user meets them: answers, JSON, and every refusal."""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
import sys
from dataclasses import dataclass

import pytest

from dcray import cli
from dcray.fit.paper import published

HEADER = "num_params,unique_tokens,num_epochs,val_loss,recipe,seed"


@dataclass
class Result:
    """What a command printed, on both streams, and its exit code."""

    output: str
    exit_code: int


def invoke(*words):
    """The `dcray` command with these words, in this process."""
    said = io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(said),
    ):
        patch.setattr(sys, "argv", ["dcray", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
    return Result(said.getvalue(), ended.value.code or 0)


@pytest.fixture
def run(tmp_path):
    def call(lines, *options):
        path = tmp_path / "grid.csv"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return invoke("fit", path, *options)

    return call


def lines_of(*names, change=None):
    """The published grids as CSV lines; `change(row) -> loss text` for some other loss."""
    lines = [HEADER]
    for name in names:
        for row in published.rows(name):
            loss = change(row) if change else row.val_loss
            lines.append(
                f"{row.num_params},{row.unique_tokens},{row.num_epochs:g},{loss},{row.recipe},42"
            )
    return lines


def test_the_answer_leads_with_the_like_for_like_figure(run):
    result = run(
        lines_of("dclm_ar", "dclm_mir"), "--baseline", "ar", "--recipe", "mir", "--bootstrap", "50"
    )
    assert result.exit_code == 0, result.output
    text = result.output
    assert "mir is worth 1.12 to 1.14 times ar's unique data" in text
    assert text.index("like for like") < text.index("asymptote")
    assert "19 of 20 lower" in text
    assert "E is not identified" in text


def test_a_law_that_fails_gives_no_ratio(run):
    """Fixed C4 misses by up to 0.15 nats: two fits that fail alike would look like 1."""
    text = run(lines_of("dclm_ar", "dclm_mir")).output
    assert "no ratio under muennighoff_c4" in text
    shown = {line.split()[0] for line in text.splitlines() if "joint" in line.split()[1:2]}
    assert shown == {"chinchilla", "muennighoff", "quanta", "softq"}


def test_figures_go_where_they_are_asked_for(run, tmp_path):
    folder = tmp_path / "deep" / "figures"
    result = run(lines_of("dclm_ar"), "--laws", "softq,chinchilla", "--figures", folder)
    assert result.exit_code == 0, result.output
    assert "no figure worth: worth needs a second recipe" in result.output
    assert f"5 figures, each as PNG and SVG: {folder}" in result.output
    names = {path.name for path in folder.iterdir()}
    drawn = ("gap", "fits", "against-data", "asymptotes", "residuals")
    assert names == {f"{name}.{kind}" for name in drawn for kind in ("png", "svg")}
    (tmp_path / "file").write_text("")
    refused = run(lines_of("dclm_ar"), "--laws", "softq", "--figures", tmp_path / "file")
    assert refused.exit_code == 2
    assert "--figures must be a folder that can be written" in refused.output


def test_recipes_that_cannot_be_fitted_are_left_out_unless_asked_for(run):
    lines = [*lines_of("dclm_ar"), "71965952,100000000,32,3.9,weak,42"]
    found = json.loads(run(lines, "--laws", "softq", "--json").output)
    assert found["recipes"] == {}
    (reason,) = found["excluded"]
    assert reason.startswith("1 row of recipe weak: recipe weak has one model size only")
    asked = run(lines, "--laws", "softq", "--recipe", "weak")
    assert asked.exit_code == 2
    assert "recipe weak has one model size only" in asked.output


def test_json_has_the_promised_keys_and_the_papers_figures(run):
    options = ("--laws", "softq,quanta", "--hold-out", "unique_tokens=400m", "--json",
               "--predict", "num_params=3b,unique_tokens=400m", "--hold-out", "each")  # fmt: skip
    result = run(lines_of("dclm_ar", "dclm_mir"), *options)
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    softq = found["laws"]["softq"]
    assert {"theta", "rmse", "mae", "aic", "num_starts", "agreeing_frac", "flags"} <= set(softq)
    assert softq["rmse"] == pytest.approx(0.008015, abs=1e-5)
    assert set(softq["theta"]) == {"E", "A", "B", "alpha", "rho"}
    assert found["cells"] == 20
    assert len(found["efficiency"]) == 2 * 3 * 4  # laws, methods, budgets
    held = {one["law"]: one for one in found["held_out"]}
    assert held["softq"]["rmse"] == pytest.approx(0.005955, abs=2e-5)
    assert found["leave_one_out_rmse"]["softq"] > softq["rmse"]
    assert {one["law"] for one in found["predictions"]} == {"softq", "quanta"}
    assert found["paired"][0]["wins"] == 19


def test_loss_and_counts_may_be_written_otherwise(run):
    lines = ["num_params, unique_tokens, loss"]
    lines += [
        f"{r.num_params / 1e6:.6f}m,{r.unique_tokens // 10**6}m,{r.val_loss}"
        for r in published.rows("dclm_ar")
    ]
    lines = [line.replace(".000000m", "m") for line in lines]
    result = run(lines, "--laws", "softq", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["laws"]["softq"]["rmse"] == pytest.approx(0.008015, abs=1e-5)


def test_without_epochs_the_laws_of_repetition_are_left_out_and_named(run):
    lines = ["num_params,unique_tokens,val_loss"]
    lines += [f"{r.num_params},{r.unique_tokens},{r.val_loss}" for r in published.rows("dclm_ar")]
    found = json.loads(run(lines, "--json").output)
    assert set(found["laws"]) == {"chinchilla", "quanta", "softq"}
    assert any("muennighoff reads num_epochs" in reason for reason in found["excluded"])
    refused = run(lines, "--laws", "muennighoff")
    assert refused.exit_code == 2
    assert "reads num_epochs" in refused.output


def test_several_seeds_weigh_their_cell_and_give_the_noise(run):
    lines = lines_of("dclm_ar")
    first = lines[1].rsplit(",", 1)[0]
    lines += [f"{first},1", f"{first},2"]
    found = json.loads(run(lines, "--laws", "softq", "--bootstrap", "20", "--json").output)
    assert found["cells"] == 20
    assert found["seed_noise"] == pytest.approx(0.0, abs=1e-12)


def one_of(axis, keep):
    return [HEADER] + [line for line in lines_of("dclm_ar")[1:] if line.split(",")[axis] == keep]


def replaced(number, column, text):
    lines = lines_of("dclm_ar")
    parts = lines[number].split(",")
    parts[column] = text
    lines[number] = ",".join(parts)
    return lines


BAD = {
    "one size only": (one_of(0, "71965952"), (), "one model size only"),
    "one budget only": (one_of(1, "100000000"), (), "one budget only"),
    "fewer points than parameters": (
        [*lines_of("dclm_ar")[:3], *lines_of("dclm_ar")[6:8]],
        (),
        "at least 6 cells, of two sizes and two budgets; ar has 4 (2 sizes, 2 budgets)",
    ),
    "duplicate rows": ([*lines_of("dclm_ar"), lines_of("dclm_ar")[3]], (), "2 rows for one cell"),
    "zero loss": (replaced(2, 3, "0"), (), "grid.csv, line 3: a loss must be a positive finite"),
    "negative loss": (replaced(2, 3, "-3.1"), (), "positive finite"),
    "NaN": (replaced(2, 3, "nan"), (), "positive finite"),
    "infinite": (replaced(2, 3, "inf"), (), "positive finite"),
    "MLflow's infinity": (replaced(2, 3, "1.7976931348623157e308"), (), "absurd"),
    "101 nats": (replaced(2, 3, "101"), (), "absurd"),
    "no number": (replaced(2, 3, "n/a"), (), "must be a number"),
    "an empty loss": (replaced(2, 3, ""), (), "must be a number"),
    "an endless seed": (replaced(2, 5, "inf"), (), "seed must be a whole number, got 'inf'"),
    "half a seed": (replaced(2, 5, "1.5"), (), "seed must be a whole number, got '1.5'"),
    "a field without end": (replaced(2, 4, "x" * 200_000), (), "cannot be read: field larger"),
    "size in millions": (replaced(2, 0, "72"), (), "is 72m meant?"),
    "size in billions": (replaced(2, 0, "0.072"), (), "is 0.072b meant?"),
    "budget in millions": (replaced(2, 1, "100"), (), "is 100m meant?"),
    "budget absurdly large": (replaced(2, 1, "1e18"), (), "another unit"),
    "negative size": (replaced(2, 0, "-5"), (), "positive count"),
    "no loss column": (
        ["num_params,unique_tokens", "1000000,1000000"],
        (),
        "lacks the column val_loss",
    ),
    "no columns at all": (
        ["a,b", "1,2"],
        (),
        "lacks the columns num_params, unique_tokens, val_loss",
    ),
    "no rows": ([HEADER], (), "no rows"),
    "unknown recipe": (lines_of("dclm_ar"), ("--recipe", "mri"), 'no row has the recipe "mri"'),
    "unknown baseline": (lines_of("dclm_ar"), ("--baseline", "arr"), 'did you mean "ar"'),
    "unknown law": (lines_of("dclm_ar"), ("--laws", "soft"), 'did you mean "softq"'),
    "held-out value not there": (
        lines_of("dclm_ar"),
        ("--hold-out", "unique_tokens=500m"),
        "it has 100m, 200m, 300m, 400m",
    ),
    "held-out axis": (lines_of("dclm_ar"), ("--hold-out", "tokens=400m"), "--hold-out must be"),
    "prediction without a size": (
        lines_of("dclm_ar"),
        ("--predict", "unique_tokens=1b"),
        "--predict must be",
    ),
    "prediction of nonsense": (
        lines_of("dclm_ar"),
        ("--predict", "num_params=x,unique_tokens=1b"),
        "count",
    ),
    "flat": (lines_of("dclm_ar", change=lambda row: 3.2), (), "is flat"),
    "one number of epochs twice": (
        [*lines_of("dclm_ar"), "71965952,100000000,8,3.7,ar,1", "71965952,100000000,8,3.8,ar,1"],
        (),
        "2 rows for one cell (71965.952k parameters, 100m tokens, recipe ar, 8 epochs) and seed 1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_a_sentence_and_exit_code_2(run, case):
    lines, options, words = BAD[case]
    result = run(lines, *options)
    assert result.exit_code == 2, result.output
    assert words in result.output
    assert "Traceback" not in result.output
    assert "RMSE" not in result.output


def test_a_missing_file_gets_a_sentence():
    result = invoke("fit", "/nowhere/grid.csv")
    assert result.exit_code == 2
    assert "cannot be read" in result.output


def test_all_problems_come_at_once(run):
    lines = replaced(2, 3, "n/a")
    lines[5] = lines[5].replace("1439273984", "1.4")
    lines[7] = replaced(7, 3, "nan")[7]
    result = run(lines)
    assert "line 3" in result.output
    assert "line 6" in result.output
    assert (
        "line 8: a loss must be a positive finite number, got nan; leave the row" in result.output
    )


def test_reproduce_prints_every_table_and_ends_well():
    result = invoke("reproduce")
    assert result.exit_code == 0, result.output
    tables = "full_fit heldout_400m heldout_residuals_400m kim_full_fit infinite_model_curves "
    tables += "mir_param_fits mir_efficiency muennighoff_fixed_c4"
    for table in (*tables.split(), "null of mir_efficiency"):
        assert table in result.output
    assert "print does not bear it out" in result.output
    last = result.output.strip().splitlines()[-1]
    assert last == (
        "197 figures, 0 outside their tolerance: 20 independent, 158 partly circular, "
        "10 circular, 4 our own nulls, 5 print against print"
    )


def test_reproduce_fails_when_a_figure_is_off(monkeypatch):
    figures = json.loads(json.dumps(published.figures()))
    figures["full_fit"]["softq"][1] += 1e-4
    monkeypatch.setattr(published, "figures", lambda: figures)
    result = invoke("reproduce")
    assert result.exit_code == 1
    assert "OUTSIDE" in result.output


def test_reproduce_as_json():
    found = json.loads(invoke("reproduce", "--json").output)
    assert all(check["ok"] for check in found["checks"])
    assert sum(found["counts"].values()) == len(found["checks"]) == 197
    assert {one["study"] for one in found["only_runs"]} == {"stack_v2_100m", "seeds", "recipes"}
    assert math.isclose(found["like_for_like"][-1]["paper"], 1.29, abs_tol=0.01)


def test_where_losses_do_not_fall_with_size_the_answer_is_at_a_size_that_was_trained(
    dcray, tmp_path
):
    """The limit of infinite models is then a number that only looks like an answer."""
    rows = ["num_params,unique_tokens,num_epochs,val_loss,recipe"]
    noise = iter([3, -2, 1, -1, 2, -3, 2, 1, -2, -1, 3, -2, 1, 2, -3, 1, -1, 2])
    for recipe, worth in (("ar", 1.0), ("mir", 1.2)):
        for num_params in (60e3, 120e3, 230e3):
            for unique in (16e3, 32e3, 64e3):
                loss = 2 + (1e6 / (worth * unique)) ** 0.25 + 4e-3 * next(noise)
                rows.append(f"{num_params:.0f},{unique:.0f},16,{loss},{recipe}")
    (tmp_path / "flat.csv").write_text("\n".join(rows))
    code, out, err = dcray("fit", tmp_path / "flat.csv", "--baseline", "ar", "--recipe", "mir")
    assert code == 0, err
    (said,) = [line for line in out.splitlines() if line.startswith("mir is worth")]
    assert "at 230k parameters: the limit of infinite models is not identified here" in said
    ends = re.findall(r"([\d.]+) times \(at (16k|32k|64k|each budget)\)", said)
    low, high = float(ends[0][0]), float(ends[-1][0])
    assert low <= 1.2 <= high + 0.1
    assert high < 1.5
    shown = [line.split() for line in out.splitlines()]
    for method in ("joint", "asymptote"):
        rows = [words for words in shown if words[1:2] == [method]]
        assert rows
        assert all(words[-3:] == ["limit", "not", "identified"] for words in rows)
    assert any(words[1:2] == ["finite"] and words[-1] == "within" for words in shown)
    _, plain, _ = dcray("fit", tmp_path / "flat.csv", "--baseline", "ar", "--json")
    found = json.loads(plain)
    for one in found["efficiency"]:
        both = (found["laws"][one["law"]], found["recipes"]["mir"]["laws"][one["law"]])
        loose = any("alpha" in law["not_identified"] for law in both)
        assert (one["status"] == "limit not identified") == (loose and one["method"] != "finite")


def test_a_range_over_budgets_does_not_look_like_an_interval(run):
    """Each end stands beside its budget, as the table below has it, and --bootstrap is named."""
    text = run(lines_of("dclm_ar", "dclm_mir"), "--laws", "softq").output
    (said,) = [line for line in text.splitlines() if line.startswith("mir is worth")]
    rows = [line.split() for line in text.splitlines()]
    ratios = {row[2]: float(row[4]) for row in rows if row[:2] == ["softq", "joint"]}
    low, high = min(ratios, key=ratios.get), max(ratios, key=ratios.get)
    low_ratio, high_ratio = (
        f"{ratios[low]:.2f} times (at {low})",
        f"{ratios[high]:.2f} times (at {high})",
    )
    assert said.startswith(f"mir is worth {low_ratio} to {high_ratio} ar's unique data")
    assert said.endswith("No interval is drawn: --bootstrap 1000 gives one.")
    drawn = run(lines_of("dclm_ar", "dclm_mir"), "--laws", "softq", "--bootstrap", "20").output
    assert "95 % intervals" in drawn
    assert "No interval is drawn" not in drawn


def test_a_baseline_is_not_compared_with_itself(run):
    result = run(lines_of("dclm_ar", "dclm_mir"), "--baseline", "ar", "--recipe", "ar")
    assert result.exit_code == 2
    assert "--recipe ar is the baseline itself, worth 1 of its own data" in result.output


NOWHERE = """
from dcray.laws import Law


class Nowhere(Law):
    kind, name = "laws", "nowhere"
    names, example = ("E", "A"), (1.0, 1.0)

    def __call__(self, theta, N, U, **more):
        return theta[0] + theta[1] * float("nan") / (N * U)

    def limit(self, theta, U):
        return theta[0] + 0 * U

    def bounds(self, grid):
        return (0.0, 0.0), (10.0, 10.0)


PLUGIN = Nowhere
"""


def test_a_law_that_gives_no_number_is_left_out(dcray, tmp_path):
    (tmp_path / "nowhere.py").write_text(NOWHERE)
    (tmp_path / "grid.csv").write_text("\n".join(lines_of("dclm_ar", "dclm_mir")))
    plugin, grid = ("--plugin", tmp_path / "nowhere.py"), tmp_path / "grid.csv"
    said = "nowhere gave no finite prediction for every cell from any of its 1 start"
    code, out, err = dcray(*plugin, "fit", grid)
    assert code == 0, err
    assert f"left out: law {said}" in out
    assert "nowhere" not in out.replace(said, "")
    assert "under softq (lowest AICc)" in out
    code, out, err = dcray(*plugin, "fit", grid, "--laws", "nowhere,softq")
    assert (code, out) == (2, "")
    assert err.strip() == f"error: {said}"
