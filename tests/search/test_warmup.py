"""Runs of very different length in one space: each warms up, trains and decays."""

import copy
import json
from collections import Counter

import pytest

from dcray.errors import ConfigError
from dcray.study.study import Study
from dcray.train.schedule import fork_step, lr_factor
from tests.search.player import MINI, play, state_of, study_of

RUNGS = [1, 2, 64, 128]


def study_with(**changes):
    table = copy.deepcopy(MINI) | {"sizes": ["60k"], "budgets": ["16k"]}
    recipe = {"objective": "ar", "space": [{"num_epochs": RUNGS, "tau": [1, 2]}]}
    table["recipes"] = {"ar": recipe | changes}
    return study_of(table)


def runs_of(study):
    """Every run of a search that is played to its end, by its epochs."""
    return {one.config.num_epochs: one for one in play(state_of(study))}


@pytest.mark.parametrize("stopping", ["none", "ladder"])
def test_every_run_reaches_its_learning_rate_and_decays(stopping):
    """By the schedule itself, step by step; beside 128 epochs one epoch's warm-up outlasted it."""
    found = runs_of(study_with(search={"stopping": stopping}))
    assert set(found) == set(RUNGS)
    for one in found.values():
        steps, schedule = one.config.num_steps, one.config.schedule
        factors = [lr_factor(step, steps, schedule) for step in range(steps)]
        assert max(factors) == 1.0
        assert factors.index(1.0) < 0.1 * steps + 1
        assert factors[-1] == pytest.approx(schedule.min_lr_frac)
        assert all(
            factor == 1.0 for factor in factors[round(0.1 * steps) : fork_step(steps, schedule)]
        )


def test_what_is_too_short_is_a_run_of_its_own_and_the_others_branch():
    study = study_with(search={"stopping": "none"})
    state = state_of(study)
    found = play(state)
    assert Counter((r.config.num_epochs, r.key.kind) for r in found) == {
        (1, "run"): 2, (2, "run"): 2, (64, "branch"): 2, (128, "branch"): 2,
    }  # fmt: skip
    for one in found:
        own = max(1, round(0.01 * one.config.num_steps))
        shared = round(0.01 * 128 * one.config.num_steps / one.config.num_epochs)
        assert one.config.schedule.warmup_steps == (own if one.trunk is None else shared)
        assert one.forked_from == 0 or one.config.num_epochs == 128


def test_search_and_plan_warn_of_it(dcray, tmp_path):
    (cell_spec,) = study_with().cell_specs
    warning = next(text for text in cell_spec.warnings() if "warm-up" in text)
    assert warning.startswith("recipes.ar: [1, 2] epochs of 60k 16k would be more than a tenth")
    file = tmp_path / "short.toml"
    file.write_text(
        'study = "short"\nsizes = ["60k"]\nbudgets = ["16k"]\n[base]\n"data.seq_len" = 128\n'
        "batch_size = 8\n[recipes.ar]\nspace = [{ num_epochs = [1, 2, 64, 128] }]\n"
    )
    code, out, _ = dcray("plan", file, "--dir", tmp_path, "--json")
    assert code == 0
    assert json.loads(out)["warnings"] == [warning]
    code, out, _ = dcray("plan", file, "--dir", tmp_path)
    assert f"warning: {warning}" in out


def test_a_warm_up_in_steps_that_outlasts_a_run_is_refused():
    base = {"schedule.warmup_steps": 20}  # an epoch of the cell has 124 rows in 16 steps
    with pytest.raises(ConfigError, match=r"warmup_steps \(20\) must end before the decay") as said:
        study_with(base=base)
    assert "at step 14 of 16 (num_epochs = 1)" in str(said.value)
    axis = {"num_epochs": RUNGS, "schedule.warmup_steps": [4, 20]}
    with pytest.raises(ConfigError, match=r"warmup_steps \(20\)"):
        study_with(space=[axis])
    assert study_with(base={"schedule.warmup_steps": 4})


def test_multi_epoch_has_the_paper_s_one_percent_in_every_run():
    study = Study.read("recipes")
    cell_specs = study.select(recipes=["multi_epoch"])
    for one in play(state_of(study, cell_specs=cell_specs)):
        assert one.trunk is None
        assert one.config.schedule.warmup_steps == round(0.01 * one.config.num_steps)
