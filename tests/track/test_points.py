"""Values of the record: names fit for paths, points that survive JSON, rows that never repeat."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcray.errors import ConfigError
from dcray.track.points import Point, new_metrics, run_name
from dcray.types import Cell, RunKey
from tests.track.support import CELL, key, point

FLOATS = st.floats(allow_nan=True, allow_infinity=True, width=64)
POINTS = st.builds(
    Point,
    st.integers(0, 20),
    st.integers(0, 10**12),
    st.floats(0, 1e4),
    st.dictionaries(st.sampled_from(["train/loss", "val/loss", "optim/lr"]), FLOATS),
    st.floats(1e9, 2e9),
)


def test_names_are_unique_and_fit_for_a_path():
    assert CELL.name == "mini_64k_ar"
    assert key().name == "mini_64k_ar_abc123_seed42_branch"
    assert len({key(seed=s, kind=k).name for s in (1, 2) for k in ("run", "confirmation")}) == 4


@pytest.mark.parametrize("bad", ["it's", 'a"b', "a/b", "a\\b", "a`b", "a\nb", ""])
def test_a_name_that_would_break_a_filter_or_a_path_is_refused(bad):
    with pytest.raises(ConfigError, match="recipe"):
        Cell("study", "mini", 1000, bad)


def test_all_bad_names_are_told_at_once():
    with pytest.raises(ConfigError) as caught:
        Cell("a/b", "c/d", 1000, "e/f")
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize(
    ("params", "kind", "name"),
    [
        ({"num_epochs": 16, "weight_decay": 0.8, "lr": 3e-3}, "run", "ep16 wd0.8 lr3e-3 seed42"),
        ({"num_epochs": 4, "lr": 1.5e-4}, "branch", "ep4 lr1.5e-4 seed42"),
        ({"num_epochs": 4, "lr": 0.03}, "confirmation", "ep4 lr0.03 seed42 confirmation"),
    ],
)
def test_run_names_are_for_people(params, kind, name):
    assert run_name(key(kind=kind), params) == f"mini 64k ar {name}"


@given(POINTS.filter(lambda p: all(math.isfinite(v) for v in p.values.values())))
def test_a_point_survives_json(point):
    assert Point.from_dict(json.loads(json.dumps(point.to_dict()))) == point


@given(st.lists(POINTS, max_size=20), st.integers(0, 20))
def test_a_key_and_step_give_one_finite_row_however_often_they_are_logged(points, cut):
    recorded = set()
    rows = []
    for batch in (points[:cut], points, points[cut:], points):
        rows += new_metrics(batch, recorded)[0]
    places = [(name, step) for name, _, _, step in rows]
    assert len(places) == len(set(places))
    assert all(math.isfinite(value) for _, value, _, _ in rows)
    finite = {(k, p.step) for p in points for k, v in p.values.items() if math.isfinite(v)}
    assert finite <= set(places)


def test_the_instant_of_a_point_is_kept():
    rows, _ = new_metrics([Point(1, 2, 0.5, {"train/loss": 3.0}, at=1.5e9)], set())
    assert rows[0] == ("train/loss", 3.0, 1_500_000_000_000, 1)
    assert [row[0] for row in rows[1:]] == ["progress/tokens_seen", "progress/epoch"]


def test_a_metric_key_that_mlflow_would_refuse_is_our_own_mistake():
    with pytest.raises(AssertionError, match="metric key"):
        new_metrics([point(1, **{"train/loss (%)": 1.0})], set())


def test_an_unknown_kind_is_our_own_mistake():
    with pytest.raises(AssertionError):
        RunKey(CELL, "abc", 1, "rerun")
