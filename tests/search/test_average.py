"""Averages in a study: from which fork a branch goes on, and what is refused beforehand."""

import copy

import pytest

from dcray.cost import training_flops
from dcray.errors import ConfigError
from dcray.train.schedule import fork_step
from tests.search.player import MINI, play, state_of, study_of

RUNGS = [4, 5, 8, 16]


def study_with(average, rungs=RUNGS, **axes):
    table = copy.deepcopy(MINI) | {"sizes": ["60k"], "budgets": ["16k"]}
    table["base"]["average"] = average
    space = {"num_epochs": rungs, "lr": [1e-3], **axes}
    table["recipes"] = {"ar": {"objective": "ar", "space": [space]}}
    return study_of(table)


@pytest.mark.parametrize("last_frac", [0.05, 0.2, 0.4, 0.6, 1.0])
def test_a_branch_goes_on_from_the_newest_fork_before_its_mean(last_frac):
    found = play(state_of(study_with({"kind": "mean", "last_frac": last_frac})))
    forks = [0]
    for one in found:
        steps = one.config.num_steps
        begin = steps - max(1, round(last_frac * steps))
        own = fork_step(steps, one.config.schedule)
        assert one.forked_from == max(fork for fork in forks if fork <= min(begin, own))
        assert one.flops == training_flops(one.config) * (steps - one.forked_from) / steps
        forks.append(own)
    assert [one.config.num_epochs for one in found] == RUNGS
    starts = [one.forked_from for one in found]
    assert starts == sorted(starts)  # so that no state before the next branch's must be kept
    far = [one.forked_from for one in found if one.config.num_epochs == 5]
    assert far == ([forks[1]] if last_frac < 0.3 else [0])


def test_a_trunk_costs_an_ema_nothing():
    plain, kept = (
        [(one.forked_from, one.flops) for one in play(state_of(study_with(average)))]
        for average in ({"kind": "none"}, {"kind": "ema", "tau_epochs": 4})
    )
    assert plain == kept


def test_every_epoch_count_is_checked():
    with pytest.raises(ConfigError) as said:
        study_with({"kind": "ema", "tau_epochs": 6})
    assert [problem.split(", for")[0] for problem in said.value.problems] == [
        "recipes.ar: average.tau_epochs (6) must be at most num_epochs (4)",
        "recipes.ar: average.tau_epochs (6) must be at most num_epochs (5)",
    ]
    assert study_with({"kind": "ema", "tau_epochs": 20}, rungs=[32, 64])  # the default is 16 epochs
    axis = {"average.tau_epochs": [0.5, 4.5]}
    with pytest.raises(ConfigError, match=r"tau_epochs \(4\.5\) must be at most num_epochs \(4\)"):
        study_with({"kind": "ema"}, **axis)
    with pytest.raises(ConfigError, match=r'read only with average\.kind = "ema", got "mean"'):
        study_with({"kind": "mean"}, **axis)
    both = {"average.kind": ["none", "ema"], "average.tau_epochs": [0.5, 1]}
    with pytest.raises(ConfigError, match=r'read only with average\.kind = "ema", got "none"'):
        study_with({"kind": "ema"}, **both)


def study_beside(tau_epochs, **other):
    """ar searches 20 and 40 epochs of 8k; `other`, of 8k or 16k, averages over tau_epochs."""
    small = copy.deepcopy(MINI) | {"sizes": ["60k"], "budgets": ["8k"]}
    small["recipes"] = {"ar": {"space": [{"num_epochs": [20, 40], "lr": [1e-3]}]}}
    table = copy.deepcopy(MINI) | {"sizes": ["60k"]}
    table["base"]["average"] = {"kind": "ema", "tau_epochs": tau_epochs}
    table["recipes"] = other
    return study_of(small, table | {"budgets": ["16k"] if "ar" in other else ["8k"]})


@pytest.mark.parametrize(
    "other",
    [
        {"averaged": {"inherit": "toy:ar"}},
        {"averaged": {"inherit": "between"}, "between": {"inherit": "toy:ar"}},
        {"ar": {"space": [{"num_epochs": {"winners": ["8k"]}, "lr": [1e-3]}]}},
    ],
)
def test_epochs_of_another_cell_s_winner_are_checked_too(other):
    """The default of 16 epochs is none of theirs; 40 epochs would do, 20 would not."""
    assert study_beside(18, **other)
    with pytest.raises(ConfigError) as said:
        study_beside(30, **other)
    assert sorted(problem.split(", for")[0] for problem in said.value.problems) == [
        f"recipes.{name}: average.tau_epochs (30) must be at most num_epochs (20)"
        for name in sorted(other)
    ]


def test_epochs_of_a_recipe_s_own_replace_the_inherited_ones():
    with pytest.raises(ConfigError, match=r"tau_epochs \(18\) must be at most num_epochs \(9\)"):
        study_beside(18, averaged={"inherit": "toy:ar", "base": {"num_epochs": 9}})


def test_kinds_and_times_are_axes():
    """Each is a trunk of its own, and its settings are told as those of any axis."""
    kinds = study_with({"kind": "none"}, **{"average.kind": ["none", "ema", "mean"]})
    found = play(state_of(kinds))
    assert {one.settings["average.kind"] for one in found} == {"none", "ema", "mean"}
    assert len({one.trunk for one in found}) == 3
    assert {one.config.average.tau_epochs for one in found} == {None, 0.5}
    times = study_with({"kind": "ema"}, **{"average.tau_epochs": [0.25, 2]})
    found = play(state_of(times))
    assert {one.settings["average.tau_epochs"] for one in found} == {0.25, 2}


def test_a_recipe_takes_another_kind_than_the_base():
    table = copy.deepcopy(MINI) | {"sizes": ["60k"], "budgets": ["16k"]}
    table["base"]["average"] = {"kind": "ema", "tau_epochs": 2}
    table["recipes"] = {
        "ema": {},
        "mean": {"base": {"average": {"kind": "mean", "last_frac": 0.1}}},
        "raw": {"base": {"average.kind": "none"}},
    }
    found = {spec.cell.recipe: spec.base().average for spec in study_of(table).cell_specs}
    assert {name: average.fields() for name, average in found.items()} == {
        "ema": {"kind": "ema", "tau_epochs": 2},
        "mean": {"kind": "mean", "last_frac": 0.1},
        "raw": {},
    }
