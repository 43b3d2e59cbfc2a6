"""What is read: every run, one a key, believable, with a reason for each that is left out."""

import math
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dcray.config.sections import ABSURD_NATS
from dcray.errors import ConfigError
from dcray.track import runs
from dcray.track.rows import newest_complete, state_of
from tests.track.support import STUDY, begin, key, point


def create(store, *, seed=1, val_loss=3.0, complete=True, end=True, **tags):
    """A run as another program, or an older dcray, might have left it: straight through MLflow."""
    client = store.connection.client
    which = key(seed=seed)
    marks = {
        "dcray.role": "result",
        "dcray.key": which.name,
        "dcray.complete": str(complete).lower(),
        "size": "mini",
        "unique_tokens": "64000",
        "recipe": "ar",
        "seed": str(seed),
        "kind": "branch",
        "config_hash": "abc123",
    }
    marks = {k: v for k, v in {**marks, **tags}.items() if v is not None}
    run_id = client.create_run(store.experiment_id, tags=marks).info.run_id
    if val_loss is not None:
        client.log_metric(run_id, "val_loss", val_loss)
    if end:
        client.set_terminated(run_id, "FINISHED")
    return run_id


def test_eleven_hundred_runs_give_eleven_hundred_rows(store, directory):
    for seed in range(1100):
        create(store, seed=seed, val_loss=2 + seed / 1000, end=False)
    started = time.perf_counter()
    rows, exclusions = runs.results(directory, study=STUDY)
    assert time.perf_counter() - started < 20
    assert ({r.seed for r in rows}, len(rows), exclusions) == (set(range(1100)), 1100, [])
    assert {r.seed: r.val_loss for r in rows} == {s: 2 + s / 1000 for s in range(1100)}


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.integers(0, 4), max_size=12), st.integers(1, 5))
def test_any_page_size_reads_each_key_once(store, directory, seeds, page):
    before = {r.seed for r in runs.every_result(directory, study=STUDY)}
    for seed in seeds:
        create(store, seed=seed)
    runs.PAGE, kept = page, runs.PAGE
    try:
        rows, exclusions = runs.results(directory, study=STUDY)
    finally:
        runs.PAGE = kept
    assert sorted(r.seed for r in rows) == sorted(before | set(seeds))
    assert all("same key" in e.reason for e in exclusions)


@pytest.mark.parametrize(
    ("loss", "reason"),
    [
        (math.inf, "not finite"),
        (math.nan, "not finite"),
        (1.7976931348623157e308, "not finite"),
        (ABSURD_NATS * 1.01, "outside 0 to 100"),
        (-0.1, "outside 0 to 100"),
        (None, "has no val_loss"),
    ],
)
def test_an_absurd_loss_is_left_out_and_said(store, directory, loss, reason):
    create(store, seed=1)
    run_id = create(store, seed=2, val_loss=loss)
    rows, exclusions = runs.results(directory, study=STUDY)
    assert [r.seed for r in rows] == [1]
    assert [(e.run_id, reason in e.reason) for e in exclusions] == [(run_id, True)]


def test_of_several_runs_of_a_key_the_complete_newest_counts(store, directory):
    first = create(store, val_loss=1.0)
    time.sleep(0.01)
    second = create(store, val_loss=2.0)
    time.sleep(0.01)
    third = create(store, val_loss=3.0, complete=False)
    rows, exclusions = runs.results(directory, study=STUDY)
    assert [(r.run_id, r.val_loss) for r in rows] == [(second, 2.0)]
    assert {e.run_id for e in exclusions} == {first, third}
    assert all(second in e.reason for e in exclusions)


def test_finished_without_our_tag_is_not_complete(store, directory):
    create(store, complete=False)
    rows, exclusions = runs.results(directory, study=STUDY)
    assert rows == []
    assert exclusions[0].reason == "it is interrupted, not complete"


def test_what_did_not_complete_is_named_with_its_reason(store, directory):
    begin(store, key(seed=1)).diverge("train/loss is nan at step 7")
    begin(store, key(seed=2)).fail("KeyError: 'x'")
    begin(store, key(seed=3)).interrupt("budget")
    begin(store, key(seed=4))
    begin(store, key(seed=5)).finish({"val_loss": 3.0})
    rows, exclusions = runs.results(directory, study=STUDY)
    assert [r.seed for r in rows] == [5]
    assert sorted(e.reason for e in exclusions) == [
        "it is diverged, not complete: train/loss is nan at step 7",
        "it is failed, not complete: KeyError: 'x'",
        "it is interrupted, not complete: budget",
        "it is running, not complete",
    ]
    assert len(runs.every_result(directory, study=STUDY)) == 5


def test_a_run_that_cannot_be_read_is_an_exclusion_and_somebody_elses_is_not(store, directory):
    broken = create(store, seed=1, unique_tokens="many")
    create(store, seed=2, size=None)
    create(store, seed=3, **{"dcray.role": None})
    rows, exclusions = runs.results(directory, study=STUDY)
    assert rows == []
    assert len(exclusions) == 2
    assert "cannot be read" in next(e.reason for e in exclusions if e.run_id == broken)


def test_a_run_of_a_newer_dcray_is_refused(store, directory):
    create(store, **{"dcray.format": "2"})
    with pytest.raises(ConfigError, match=r"newer dcray \(format 2"):
        runs.results(directory, study=STUDY)


def test_a_curve_keeps_values_tokens_and_epochs(store, directory):
    result = begin(store)
    points = [point(1, **{"train/loss": 3.0}), point(2, **{"train/loss": 2.0, "val/loss": 2.5})]
    result.log(points)
    result.finish({"val_loss": 2.5})
    read = runs.curve(directory, result.run_id)
    assert [(p.step, p.tokens_seen, p.epoch, p.values) for p in read] == [
        (p.step, p.tokens_seen, p.epoch, p.values) for p in points
    ]


@pytest.mark.parametrize(
    ("status", "tags", "state"),
    [
        ("FINISHED", {"dcray.complete": "true"}, "complete"),
        ("RUNNING", {"dcray.complete": "true"}, "complete"),  # killed before the status was set
        ("FINISHED", {}, "interrupted"),
        ("FINISHED", {"dcray.complete": "false"}, "interrupted"),
        ("KILLED", {}, "interrupted"),
        ("FAILED", {}, "failed"),
        ("FAILED", {"dcray.state": "diverged"}, "diverged"),
        ("RUNNING", {"dcray.state": "running"}, "running"),
    ],
)
def test_the_state_of_a_run(status, tags, state):
    assert state_of(status, tags) == state


def test_there_is_one_newest_complete(store, directory):
    create(store)
    rows = runs.every_result(directory, study=STUDY)
    assert newest_complete(rows) is rows[0]
