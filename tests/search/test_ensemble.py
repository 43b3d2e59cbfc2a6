"""The cell of an ensemble while a study is played: it waits for its members, then is computed."""

import copy
import math
import random

import pytest

from dcray.driver.checkpoint_gc import CheckpointCollector
from dcray.plan.forecast import forecast
from dcray.search.cell_summary import cell_line
from dcray.types import RunKey
from tests.search.player import MINI, bowl, play, state_of, study_of


def study(number=3, **more):
    table = copy.deepcopy(MINI) | {"sizes": ["60k"], "budgets": ["8k"]}
    table["recipes"] = {
        "ar": table["recipes"]["ar"],
        "both": {"inherit": "ar", "ensemble": number, **more},
    }
    return study_of(table)


def cells(state):
    ar, both = state.searches
    return ar, both


@pytest.mark.parametrize("concurrency", [1, 3])
def test_it_is_computed_last_of_the_winner_s_confirmations(concurrency):
    state = state_of(study())
    started = play(state, concurrency=concurrency, order=random.Random(concurrency))
    ar, both = cells(state)
    last, winner = started[-1], state.winner(ar)
    assert last.key.cell == both
    assert [key.seed for key in last.members] == [1, 2, 3]
    trained = {one.key: one for one in started if one.key.cell == ar}
    for key in last.members:
        config = trained[key].config
        assert config.model_copy(update={"seed": winner.seed}) == winner
        assert key.kind == trained[key].key.kind == "confirmation"
    assert sum(one.key.kind == "confirmation" for one in started) == 3  # 1 was wished for anyway
    assert last.flops == 0.0  # its members are counted where they are trained
    line = cell_line(state, both)
    assert (line.state, line.planned, line.left) == ("done", 1, 0)
    assert line.num_epochs == winner.num_epochs
    assert state.finished()


def test_what_is_on_record_is_neither_trained_nor_computed_again():
    first = state_of(study())
    play(first)
    again = state_of(study(), known=copy.deepcopy(first.known))
    assert play(again) == []
    assert cell_line(again, cells(again)[1]).state == "done"


def test_a_killed_search_goes_on_to_the_same_ensemble():
    whole = play(state_of(study()))
    for stop in range(1, len(whole)):
        state = state_of(study())
        play(state, stop_after=stop)
        state.running.clear()
        rest = play(state_of(study(), known=state.known))
        assert rest[-1].key == whole[-1].key
        assert rest[-1].members == whole[-1].members


def test_more_members_train_only_the_missing_ones():
    first = state_of(study(2))
    play(first)
    more = play(state_of(study(4), known=copy.deepcopy(first.known)))
    assert [one.key.seed for one in more[:-1]] == [3, 4]
    assert len(more[-1].members) == 4
    assert more[-1].key not in first.known[more[-1].key.cell]


def test_a_member_without_a_loss_leaves_no_ensemble_and_is_named():
    def diverges(spec):
        return math.inf if spec.key.seed == 2 else bowl(spec)

    state = state_of(study())
    play(state, diverges)
    line = cell_line(state, cells(state)[1])
    assert (line.state, line.val_loss) == ("no winner", None)
    assert line.note == (
        "has no loss: its member 60k 8k ar seed 2 diverged; name other seeds in confirm_seeds"
    )
    assert state.finished()


def test_the_members_weights_stay(tmp_path):
    state = state_of(study())
    collector, ar = CheckpointCollector(state, tmp_path), cells(state)[0]
    while ready := state.ready():
        (one,) = state.start(ready[0])
        (tmp_path / one.name).mkdir()
        state.apply(one.ended("complete", bowl(one)))
        collector.collect(one.key.cell)
    kept = {path.name for path in tmp_path.iterdir()}
    best = state.cell_state(ar).winner.result.key.name
    members = {key.name for key in state.cell_state(ar).kept}
    assert len(members) == 3
    assert kept == {best, *members}


def test_a_plan_counts_its_members():
    """Seeds 2 and 3 on top of the one that is confirmed anyway; nothing twice."""
    with_it, ar = study(), cells(state_of(study()))[0]
    counted = forecast(with_it, [one.cell for one in with_it.cell_specs], "", lambda one: one.flops)
    assert counted.confirmations.runs == 3
    by_cell = {one.cell: one for one in counted.cells}
    assert by_cell[ar].kept_runs == 4
    (both,) = [one for cell, one in by_cell.items() if cell != ar]
    assert (both.search.runs, both.confirmations.runs, both.kept_runs) == (0, 0, 0)
    assert both.winner == by_cell[ar].winner
    assert counted.confirmations.device_seconds == pytest.approx(
        3 * by_cell[ar].confirmations.flops / 3
    )


def test_a_recipe_that_was_an_ensemble_and_is_none_any_more_is_searched():
    """What is on record under its name from then does not win."""
    first = state_of(study())
    play(first)
    table = copy.deepcopy(MINI) | {"sizes": ["60k"], "budgets": ["8k"]}
    table["recipes"] = {"ar": table["recipes"]["ar"], "both": {"inherit": "ar"}}
    state = state_of(study_of(table), known=copy.deepcopy(first.known))
    (one,) = play(state, lambda spec: 99.0)  # worse than the ensemble
    assert one.key.kind == "run"
    assert cell_line(state, cells(state)[1]).val_loss == 99.0


def test_a_key_is_of_winner_and_seeds():
    state = state_of(study())
    play(state)
    names = set()
    for seeds in ([1, 2, 3], [1, 2, 4], [3, 2, 1]):
        other = state_of(study(confirm_seeds=seeds))
        names.add(play(other)[-1].name)
    assert len(names) == 3
    assert all(isinstance(key, RunKey) for key in state.cell_state(cells(state)[0]).kept)
