"""Spaces: boxes as written, their trunks counted by hand, snapping against brute force."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcray.config.run import RunConfig, override
from dcray.errors import ConfigError
from dcray.study.axes import parse_space
from dcray.study.space import build_space, changes_of, early_rungs, rounded

PRINTED_72M = [  # the paper's two boxes for 72M at 100M tokens
    {"num_epochs": [16, 32, 64], "weight_decay": [0.4, 0.8, 1.6], "lr": [1e-3, 3e-3, 1e-2]},
    {"num_epochs": [16, 32, 64], "weight_decay": [0.1, 0.2, 0.4], "lr": [3e-3, 1e-2, 3e-2]},
]
LISTS = [{"num_epochs": [4, 8], "lr": [1e-3, 3e-3, 1e-2], "tau": [0.5, 1, 2]}]
RANGES = [{"num_epochs": [4, 8], "lr": {"low": 1e-3, "high": 1e-2}, "tau": [0.5, 1, 2]}]


def space(boxes, num_epochs=16):
    return build_space(parse_space(boxes, "space"), num_epochs)


def test_a_point_in_two_boxes_is_one_trunk():
    trunks = space(PRINTED_72M).trunks()
    assert len(trunks) == 9 + 9 - 2
    assert len({trunk.values for trunk in trunks}) == 16
    assert sum(len(trunk.rungs) for trunk in trunks) == 48


def test_a_shared_point_has_the_rungs_of_both():
    boxes = [{"num_epochs": [8, 16], "lr": [1e-3]}, {"num_epochs": [16, 32], "lr": [1e-3, 3e-3]}]
    assert [trunk.rungs for trunk in space(boxes).trunks()] == [(8, 16, 32), (16, 32)]


def test_a_box_without_epochs_has_the_one_rung_of_the_configuration():
    assert [t.rungs for t in space([{"lr": [1e-3, 3e-3]}], 20).trunks()] == [(20,), (20,)]


def test_weight_decay_from_tau_by_its_definition():
    config = override(
        RunConfig(), {"data.unique_tokens": "64k", "data.seq_len": 128, "batch_size": 8}
    )
    changes = changes_of((("lr", 3e-3), ("tau", 2.0)), config)
    unique = (64_000 - 1) // 128 * 128
    assert changes["optim.lr"] == 3e-3
    assert changes["optim.weight_decay"] == float(f"{1024 / (3e-3 * 2.0 * unique):.3g}")
    assert override(config, changes).tau == pytest.approx(2.0, rel=5e-3)


@settings(max_examples=200, deadline=None)
@given(st.floats(1e-4, 1e-1), st.floats(0.1, 10), st.integers(0, 9))
def test_a_wish_snaps_to_the_nearest_free_point(lr, tau, number):
    """Against every point, measured in logarithms by hand."""
    whole = space(LISTS)
    points = [trunk.values for trunk in whole.trunks()]
    taken = points[:number]

    def distance(values):
        given = dict(values)
        a = math.log(given["lr"] / lr) / math.log(10)
        b = math.log(given["tau"] / tau) / math.log(4)
        return a * a + b * b

    found = whole.snap({"lr": lr, "tau": tau}, taken)
    free = [point for point in points if point not in taken]
    if not free:
        assert found is None
    else:
        assert found in free
        assert distance(found) == pytest.approx(min(map(distance, free)))


@settings(max_examples=200, deadline=None)
@given(st.floats(1e-6, 1.0), st.floats(0.01, 100))
def test_what_a_range_gives_lies_in_it(lr, tau):
    whole = space(RANGES)
    found = dict(whole.snap({"lr": lr, "tau": tau}))
    assert whole.holds(found)
    assert found["lr"] == min(max(rounded(lr), 1e-3), 1e-2)


def test_edges_are_the_ends_of_axes_that_vary():
    whole = space(LISTS)
    assert whole.edges((("lr", 3e-3), ("tau", 1)), 4) == ["num_epochs"]
    assert whole.edges((("lr", 1e-2), ("tau", 0.5)), 8) == ["num_epochs", "lr", "tau"]
    three = space([{**LISTS[0], "num_epochs": [4, 8, 16]}])
    assert three.edges((("lr", 3e-3), ("tau", 1)), 8) == []
    assert space([{"num_epochs": [4], "lr": [1e-3]}]).edges((("lr", 1e-3),), 4) == []


def test_a_rung_below_a_quarter_of_the_longest_is_warned_of():
    assert early_rungs(space(LISTS)) is None
    early = {"num_epochs": [4, 8, 32]}
    assert "rung 4 lies below a quarter" in early_rungs(space([early | {"lr": [1e-3, 3e-3]}]))
    assert early_rungs(space([early])) is None  # one trunk competes with nobody


@pytest.mark.parametrize(
    ("boxes", "sentence"),
    [
        ([{"tau": [1], "weight_decay": [1.0]}], "one of tau and weight_decay, not both"),
        ([{"num_epochs": [16, 8]}], r"num_epochs must rise, got \[16, 8\]"),
        ([{"num_epochs": [8, 8]}], "each value once"),
        ([{"num_epochs": [0, 8]}], "whole numbers from 1 on"),
        ([{"num_epochs": {"low": 1, "high": 4}}], "must be a list: its values are the rungs"),
        ([{"lr": []}], "a list must hold a value"),
        ([{"lr": {"low": 2.0, "high": 1.0}}], "low must be less than high, got 2 and 1"),
        ([{"lr": {"low": 0.0, "high": 1.0}}], "low must be above 0 where log is true"),
        ([{"lr": {"lo": 1.0, "high": 2.0}}], "lo"),
        ([{"lr": [[1]]}], "must hold numbers or names"),
        ([{"lr": [1e-3]}, {"tau": [1]}], "every box must have the same axes, got lr and tau"),
    ],
)
def test_a_box_that_cannot_be_is_refused_by_name(boxes, sentence):
    with pytest.raises(ConfigError, match=sentence):
        parse_space(boxes, "recipes.ar.space")


def test_every_problem_at_once():
    with pytest.raises(ConfigError) as caught:
        parse_space([{"lr": [], "num_epochs": [2, 1]}], "space")
    assert len(caught.value.problems) == 2
