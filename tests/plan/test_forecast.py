"""A study played with made-up losses: runs counted by hand, FLOPs against the run's own formula."""

import copy

import pytest

from dcray.config.run import RunConfig, override
from dcray.config.sizes import SIZES, num_params
from dcray.cost import training_flops
from dcray.errors import ConfigError
from dcray.plan.estimate import gpu_flops
from dcray.plan.forecast import COSTLIEST, PUBLISHED, RECORD, forecast, placed, prices
from dcray.plan.prices import Prices
from dcray.plan.variants import written_mode
from dcray.study.study import Study
from dcray.types import Cell, RunSpec
from tests.search.player import MINI, study_of

PRICE = prices()
LONG = {  # 512 steps an epoch or more, so that rounding to steps hides nothing
    "data.seq_len": 32,
    "batch_size": 1,
}


def cells(study, **chosen):
    return [cell_spec.cell for cell_spec in study.select(**chosen)]


def ladder_953(epochs=(4, 8, 16)):
    table = copy.deepcopy(MINI) | {"sizes": ["60k"], "budgets": ["16k"], "base": LONG}
    table["recipes"] = {"ar": copy.deepcopy(MINI["recipes"]["ar"])}
    table["recipes"]["ar"]["space"][0]["num_epochs"] = list(epochs)
    return study_of(table)


@pytest.fixture(scope="module")
def dclm():
    return Study.read("dclm")


def test_the_paper_s_grid_is_484_runs_and_5_1e21_flops(dclm):
    found = forecast(dclm, cells(dclm, recipes=["ar"]), "grid", PRICE)
    by_budget = dict.fromkeys((100, 200, 300, 400), 0)
    for one in found.cells:
        by_budget[one.cell.unique_tokens // 10**6] += one.search.runs
    assert by_budget == {100: 196, 200: 135, 300: 18, 400: 135}
    assert found.search.runs == 484
    assert found.search.flops == pytest.approx(5.1e21, rel=0.1)
    assert found.confirmations.runs == 20  # beside the grid


def test_the_72m_cell_at_100m_by_hand(dclm):
    """Two boxes of 27 share wd 0.4 at two lr: 48 runs, 16 of each of 16, 32 and 64 epochs."""
    (cell,) = cells(dclm, sizes=["72m"], budgets=["100m"], recipes=["ar"])
    (found,) = forecast(dclm, [cell], "grid", PRICE).cells
    one = override(RunConfig(), {"size": "72m", "num_epochs": 1}).resolved(vocab_size=50_258)
    assert found.search.runs == 48
    assert found.search.flops == pytest.approx(16 * (16 + 32 + 64) * training_flops(one))
    assert found.search.device_seconds == pytest.approx(
        found.search.flops / gpu_flops(num_params(SIZES["72m"], 50_258))
    )


def test_a_ladder_of_nine_five_three_by_hand():
    """In units of E: the first rung 9/4; then 5 go from 0.9/4 to 1/2, and 3 from 0.9/2 to 1."""
    study = ladder_953()
    (separate,) = forecast(study, cells(study), "grid", PRICE).cells
    (ladder,) = forecast(study, cells(study), "ladder", PRICE).cells
    assert separate.search.runs == 27
    assert ladder.search.runs == 9 + 5 + 3
    by_hand = 9 / 4 + 5 * (1 / 2 - 0.9 / 4) + 3 * (1 - 0.9 / 2)
    all_trunks = 9 * (1 / 4 + (1 / 2 - 0.9 / 4) + (1 - 0.9 / 2))
    assert by_hand == pytest.approx(5.275)
    epoch = separate.search.flops / (9 * (4 + 8 + 16))
    assert ladder.search.flops / (16 * epoch) == pytest.approx(by_hand, rel=1e-4)
    assert ladder.search.flops / (16 * epoch) / all_trunks == pytest.approx(0.56, abs=0.02)
    assert separate.search.flops / ladder.search.flops == pytest.approx(3.0, abs=0.02)
    assert ladder.forks == 10  # 9 after the first rung, or 5 with two states each
    assert ladder.state_bytes == 12 * 59_616


@pytest.mark.parametrize(("objective", "each"), [("ar", 2 * 12), ("mdlm", 2 * 12 + 4)])
def test_a_winner_keeps_two_checkpoints_and_the_best_epoch_where_it_has_one(objective, each):
    recipes = {"one": {"objective": objective, "base": {"num_epochs": 4}}}
    study = study_of(MINI | {"sizes": ["60k"], "budgets": ["16k"], "recipes": recipes})
    (found,) = forecast(study, cells(study), "ladder", PRICE).cells
    assert found.kept_bytes == each * 59_616


def test_a_warm_start_takes_four_trunks_from_the_second_budget_on():
    """4, then 0.56 * 4 = 2, then 0.33 * 4 = 1; the first budget has no neighbor."""
    study = study_of(MINI)
    found = forecast(study, cells(study, recipes=["ar"], sizes=["60k"]), "warm", PRICE)
    assert [one.search.runs for one in found.cells] == [9 + 5 + 3, 4 + 2 + 1]
    assert set(found.given.values()) == {COSTLIEST}


def test_generations_cost_between_one_rung_and_all():
    table = copy.deepcopy(MINI)
    table["recipes"]["ar"]["search"] = {"sampler": "gp", "trunks": 6, "generation": 2}
    study = study_of(table)
    wanted = cells(study, recipes=["ar"])
    for one in forecast(study, wanted, "ladder", PRICE).cells:
        assert 6 + 1 + 1 <= one.search.runs < 6 * 3  # the first generation sends one on
    assert all(one.search.runs == 18 for one in forecast(study, wanted, "grid", PRICE).cells)


def test_the_published_winner_counts_until_ours_is_known(dclm):
    cell = Cell("dclm", "1.4b", 100_000_000, "mir")
    (found,) = forecast(dclm, [cell], "ladder", PRICE).cells
    best = (found.winner.num_epochs, found.winner.optim.weight_decay, found.winner.optim.lr)
    assert best == (16, 3.2, 1e-3)
    parent = Cell("dclm", "1.4b", 100_000_000, "ar")
    ours = {"num_epochs": 8, "optim.weight_decay": 6.4, "optim.lr": 3e-4}
    again = forecast(dclm, [cell], "ladder", PRICE, {parent: ours})
    assert again.given == {parent: RECORD}
    assert again.search.flops == pytest.approx(found.search.flops / 2)
    assert forecast(dclm, [cell], "ladder", PRICE).given == {parent: PUBLISHED}


def test_one_file_of_a_study_is_planned_with_the_others_winners():
    alone = Study.read("dclm_300m")
    found = forecast(alone, cells(alone, recipes=["ar"]), "grid", PRICE)
    assert found.search.runs == 18
    assert len(found.given) == 10
    assert set(found.given.values()) == {PUBLISHED}


def test_a_winner_that_no_file_can_give_is_refused():
    table = copy.deepcopy(MINI)
    table["recipes"]["mir"]["inherit"] = "nowhere:ar"
    study = study_of(table)
    with pytest.raises(ConfigError, match='no file of the study "nowhere" searches'):
        forecast(study, cells(study, recipes=["mir"]), "ladder", PRICE)


def test_eight_gpus_take_as_many_device_hours_as_one():
    one = override(RunConfig(), {"size": "664m"}).resolved(vocab_size=50_258)
    eight = override(one, {"runtime.workers": 8})
    seconds = [PRICE(_spec(config)) for config in (one, eight)]
    speed = gpu_flops(num_params(SIZES["664m"], 50_258))
    assert seconds == [pytest.approx(training_flops(one) / speed)] * 2
    mini = override(one, {"size": "60k"})
    assert placed(mini).runtime.device == "cpu"
    assert placed(mini, with_gpus=True).runtime.device == "cuda"
    assert Prices().device_seconds(_spec(mini)) == PRICE(_spec(mini))


def _spec(config):
    from dcray.search.specs import Fingerprint, plain_run

    cell = Cell("s", config.size_name, config.data.unique_tokens, "ar")
    found: RunSpec = plain_run(config, cell, Fingerprint(50_258, "plan"))
    return found


@pytest.mark.parametrize(
    ("search", "mode"),
    [
        ({"keep": [9, 5, 3]}, "ladder"),
        ({"branching": False, "stopping": "none"}, "grid"),
        ({"warm_start": "budget", "warm_trunks": 3}, "warm"),
        ({"stopping": "asha"}, ""),
    ],
)
def test_what_a_file_asks_for_is_named(search, mode):
    table = copy.deepcopy(MINI)
    table["recipes"]["ar"]["search"] = search
    assert written_mode(cell_spec.file for cell_spec in study_of(table).cell_specs) == mode
