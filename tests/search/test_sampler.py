"""Proposals: a pure function of history and seed, no point twice, every one inside the space."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcray.search.sampler import STARTUP, propose, seed_of, trunk_value
from dcray.study.axes import parse_space
from dcray.study.space import build_space, rounded

MODELS = ("gp", "tpe")
SAMPLERS = (*MODELS, "random")
LR = [1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2]
TAU = [0.25, 0.5, 1, 2, 4]
THIRTY = [{"num_epochs": [4, 8, 16], "lr": LR, "tau": TAU}]
RANGES = [{"num_epochs": [4, 8], "lr": {"low": 1e-3, "high": 1e-1}, "tau": {"low": 0.5, "high": 8}}]


def space(boxes):
    return build_space(parse_space(boxes, "space"), 16)


def bowl(values):
    """A loss with its minimum, 3, at lr 8e-3 and tau 1."""
    point = dict(values)
    lr, tau = math.log10(point["lr"] / 8e-3), math.log10(point["tau"])
    return 3 + lr**2 + 0.5 * tau**2


def search(where, sampler, number, *, generation=2, seed=1, loss=bowl, first=()):
    """The trunks of a whole search with their losses, as cells.py asks for them."""
    history = []
    while len(history) < number:
        wanted = min(generation, number - len(history))
        new = propose(where, sampler, history, wanted, seed=seed, first=first)
        assert len(new) <= wanted
        if not new:
            break
        history += [(values, loss(values)) for values in new]
    return history


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_same_history_and_seed_give_the_same_points(sampler):
    whole = search(space(RANGES), sampler, 6)
    # A search that was killed after four trunks and starts anew from the record of them.
    assert propose(space(RANGES), sampler, whole[:4], 2, seed=1) == [v for v, _ in whole[4:]]
    assert search(space(RANGES), sampler, 6) == whole
    assert propose(space(RANGES), sampler, [], 2, seed=2) != [v for v, _ in whole[:2]]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_thirty_proposals_to_a_thirty_point_space_are_its_thirty_points(sampler):
    where = space(THIRTY)
    found = search(where, sampler, 40, generation=5)
    assert len(found) == 30
    assert {values for values, _ in found} == {trunk.values for trunk in where.trunks()}
    assert propose(where, sampler, found, 1, seed=9) == []


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["random", "tpe"]),
    st.lists(st.sampled_from([3.0, 3.1, 4.0, math.inf]), max_size=12),
    st.integers(1, 8),
    st.integers(0, 2**31 - 13),
)
def test_no_point_twice_whatever_the_losses(sampler, losses, number, seed):
    where = space(THIRTY)
    points = [trunk.values for trunk in where.trunks()]
    history = list(zip(points, losses, strict=False))
    new = propose(where, sampler, history, number, seed=seed)
    assert len(new) == min(number, 30 - len(history))
    assert len(set(new)) == len(new)
    assert set(new) <= set(points) - {values for values, _ in history}


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_box_of_one_point_gives_it_once(sampler):
    where = space([{"num_epochs": [4], "lr": [1e-3], "tau": [1]}])
    only = (("lr", 1e-3), ("tau", 1))
    assert propose(where, sampler, [], 3, seed=0) == [only]
    assert propose(where, sampler, [(only, 3.0)], 3, seed=0) == []


@pytest.mark.parametrize("sampler", MODELS)
def test_a_divergence_is_told_as_worse_than_the_worst_by_the_spread(sampler):
    where = space(RANGES)
    history = search(where, "random", 6)
    finite = sorted(loss for _, loss in history)[:-1]
    told = finite[-1] + (finite[-1] - finite[0])
    worst = max(loss for _, loss in history)

    def with_worst(value):
        return [(values, value if loss == worst else loss) for values, loss in history]

    assert finite[-1] - finite[0] > 0.1
    found = propose(where, sampler, with_worst(math.inf), 2, seed=1)
    assert found == propose(where, sampler, with_worst(told), 2, seed=1)


@pytest.mark.parametrize("sampler", MODELS)
def test_a_search_in_which_all_diverge_goes_on(sampler):
    found = search(space(RANGES), sampler, 7, loss=lambda values: math.inf)
    assert len({values for values, _ in found}) == 7


def test_divergences_keep_a_model_away():
    """All above lr 1e-2 diverge: half of the axis, of which the model's points take less."""

    def loss(values):
        return math.inf if dict(values)["lr"] > 1e-2 else bowl(values)

    found = search(space(RANGES), "gp", 12, loss=loss)[STARTUP:]
    assert sum(math.isinf(loss) for _, loss in found) < len(found) / 2


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_wish_that_comes_again_on_a_range_does_not_end_the_search(sampler):
    """The model asks for the corner, and asks again; a range has points left."""
    found = search(space(RANGES), sampler, 10, loss=lambda values: -dict(values)["lr"])
    assert len({values for values, _ in found}) == 10
    few = space([{"num_epochs": [4], "lr": {"low": 1.0, "high": 1.02}, "tau": [1]}])
    assert {dict(v)["lr"] for v, _ in search(few, sampler, 5)} == {1.0, 1.01, 1.02}


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_ranges_stay_inside_the_box_and_keep_three_digits(sampler):
    """The loss falls towards a corner beyond the box, so a model presses against it."""
    where = space(RANGES)
    for values, _ in search(where, sampler, 9, loss=lambda v: -dict(v)["lr"] - dict(v)["tau"]):
        point = dict(values)
        assert where.holds(point)
        assert 1e-3 <= point["lr"] <= 1e-1
        assert 0.5 <= point["tau"] <= 8
        assert point == {name: rounded(value) for name, value in point.items()}


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_union_of_boxes_keeps_out_of_the_gap_and_mixes_with_names(sampler):
    boxes = [
        {"num_epochs": [4], "lr": {"low": 1e-3, "high": 2e-3}, "schedule.kind": ["wsd"]},
        {"num_epochs": [4], "lr": {"low": 5e-2, "high": 1e-1}, "schedule.kind": ["wsd", "cosine"]},
    ]
    where = space(boxes)
    found = search(where, sampler, 8, loss=lambda values: dict(values)["lr"])
    assert len({values for values, _ in found}) == 8
    assert all(where.holds(dict(values)) for values, _ in found)


def test_the_start_is_spread_out():
    """Halton's own promise: bases 2 and 3, so quarters of one axis and thirds of the other."""
    for seed in range(5):
        points = [dict(values) for values in propose(space(RANGES), "gp", [], 4, seed=seed)]
        quarters = {int(4 * math.log(point["lr"] / 1e-3) / math.log(100)) for point in points}
        thirds = {int(3 * math.log(point["tau"] / 0.5) / math.log(16)) for point in points[:3]}
        assert quarters == {0, 1, 2, 3}
        assert thirds == {0, 1, 2}


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_warm_wishes_come_first_and_once(sampler):
    targets = [{"lr": 7e-3, "tau": 1.1}, {"lr": 7e-3, "tau": 1.1}, {"lr": 9.0, "tau": 9.0}]
    nearest = [
        (("lr", 8e-3), ("tau", 1)),
        (("lr", 4e-3), ("tau", 1)),  # the same target again: the next nearest
        (("lr", 3.2e-2), ("tau", 4)),  # a target beyond the box: its corner
    ]
    where = space(THIRTY)
    assert propose(where, sampler, [], 3, seed=1, first=targets) == nearest
    found = [values for values, _ in search(where, sampler, 6, first=targets)]
    assert found[:3] == nearest
    assert len(set(found)) == 6


def test_a_model_finds_the_minimum_of_a_bowl():
    """12 of 30 points, of which chance holds the best one in 2 of 5 searches."""
    for seed in range(3):
        found = search(space(THIRTY), "gp", 12, seed=seed)
        assert min(loss for _, loss in found) == 3.0


def test_the_value_of_a_trunk_by_hand():
    rungs = [(4, 8, 16)] * 4
    losses = {
        (0, 4): 5.0, (0, 8): 4.5, (0, 16): 4.0,
        (1, 4): 5.2, (1, 8): 4.6, (1, 16): 4.4,
        (2, 4): 5.1, (2, 8): 4.7,
        (3, 4): 6.0,
    }  # fmt: skip
    assert trunk_value(rungs, losses, 0) == 4.0
    assert trunk_value(rungs, losses, 2) == pytest.approx(4.7 - (0.5 + 0.2) / 2)
    assert trunk_value(rungs, losses, 3) == pytest.approx(6.0 - (1.0 + 0.8) / 2)
    assert trunk_value(rungs, losses | {(3, 4): math.inf}, 3) == math.inf
    assert trunk_value([(4, 8)], {(0, 4): 3.0}, 0) == 3.0  # nobody has shown a drop yet


@settings(max_examples=30, deadline=None)
@given(st.lists(st.one_of(st.text(max_size=5), st.integers()), max_size=4))
def test_a_seed_fits_and_depends_on_its_parts_alone(parts):
    assert 0 <= seed_of(*parts) == seed_of(*parts) < 2**31
    assert seed_of(*parts) != seed_of(*parts, "more")


def test_a_seed_is_the_same_on_every_machine():
    """The first four bytes of SHA-256 of "a/1", by `printf a/1 | sha256sum`."""
    assert seed_of("a", 1) == int("773232ab", 16) % 2**31
