"""The winner of a cell, against the rule of the house stated by hand."""

import dataclasses
import time

import pytest

from dcray.track.locks.owner import Owner, heartbeat_of
from dcray.track.rows import Row, candidates, competes, winner, winning_order

BASE = Row(
    study="s", size="60k", num_params=59_616, unique_tokens=16_000, recipe="ar", num_epochs=8,
    weight_decay=1.0, lr=1e-3, tau=1.0, seed=42, kind="branch", config_hash="a", key="k",
    state="complete", val_loss=3.0, val_bpb=None, device_seconds=1.0, run_id="r", started_at=0.0,
    reason=None, owner=None, heartbeat_at=None, params={}, metrics={}, tags={},
)  # fmt: skip


def row(run_id, **changes):
    return dataclasses.replace(BASE, run_id=run_id, **changes)


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        ([], None),
        ([row("a"), row("b", val_loss=2.9)], "b"),
        ([row("a", num_epochs=16), row("b", num_epochs=8)], "b"),  # ties to fewer epochs
        ([row("a"), row("b", val_loss=2.0, kind="confirmation")], "a"),
        ([row("a"), row("b", val_loss=2.0, state="running")], "a"),
        ([row("a"), row("b", val_loss=2.0, seed=1)], "a"),
        ([row("a", val_loss=1.797e308)], None),
    ],
)
def test_the_winner_is_the_lowest_complete_loss_at_the_search_seed(rows, wanted):
    found = winner(rows, seed=42)
    assert (found.run_id if found else None) == wanted


def test_what_competes_stands_once_and_a_winner_is_a_candidate():
    """A search and the record take the same rule: an absurd loss is no winner in either."""
    assert competes("complete", 3.0, confirmation=False)
    for state, loss, confirmation in (
        ("running", 3.0, False), ("complete", None, False), ("complete", 101.0, False),
        ("complete", float("nan"), False), ("complete", 1.797e308, False), ("complete", 3.0, True),
    ):  # fmt: skip
        assert not competes(state, loss, confirmation=confirmation)
    ties = [(3.0, 8, "b"), (3.0, None, "a"), (2.9, 16, "c"), (3.0, 8, "a")]
    ordered = sorted(ties, key=lambda one: winning_order(*one))
    assert ordered == [(2.9, 16, "c"), (3.0, 8, "a"), (3.0, 8, "b"), (3.0, None, "a")]
    rows = [row("a"), row("b", val_loss=2.0, kind="confirmation"), row("c", seed=1), row("d")]
    assert [one.run_id for one in candidates(rows, seed=42)] == ["a", "d"]


def test_device_seconds_are_counted_once_a_device():
    assert row("a").all_device_seconds == 1.0  # of a record from before there was the tag
    assert row("a", tags={"world_size": "8"}).all_device_seconds == 8.0
    assert row("a", device_seconds=None).all_device_seconds is None


def test_of_an_objective_that_was_mended_the_newest_alone_counts():
    """The broken one's lower loss is no winner; other objectives of the cell are as they were."""
    broken = {"objective": "half", "objective_source": "aaaa"}
    mended = {"objective": "half", "objective_source": "bbbb"}
    rows = [
        row("old", val_loss=1.0, started_at=1.0, tags=broken),
        row("new", val_loss=2.0, started_at=2.0, tags=mended),
        row("ar", val_loss=2.5, started_at=0.0, tags={"objective": "ar"}),
    ]
    assert winner(rows).run_id == "new"
    assert winner([*rows[1:], row("old", tags=broken | {"is_winner": "false"})]).run_id == "new"
    assert winner([*rows, row("better", val_loss=1.5, tags={"objective": "ar"})]).run_id == "better"


def test_of_an_optimizer_that_was_mended_the_newest_alone_counts():
    """Also beside results from before optimizers had a name, which are of AdamW."""
    broken = {"objective": "ar", "optimizer": "sgd", "optimizer_source": "aaaa"}
    rows = [
        row("old", val_loss=1.0, started_at=1.0, tags=broken),
        row("new", val_loss=2.0, started_at=2.0, tags=broken | {"optimizer_source": "bbbb"}),
        row("ancient", val_loss=2.4, started_at=0.0, tags={"objective": "ar"}),
        row("named", val_loss=2.5, started_at=3.0, tags={"objective": "ar", "optimizer": "adamw"}),
    ]
    assert winner(rows).run_id == "new"
    assert {one.run_id for one in candidates(rows)} == {"new", "ancient", "named"}


def test_of_an_objective_that_went_back_the_marked_winners_source_counts():
    """A is searched, B is trained, A is put back and the search marks A's best again."""
    first = {"objective": "half", "objective_source": "aaaa"}
    second = {"objective": "half", "objective_source": "bbbb"}
    rows = [
        row("best", val_loss=2.0, started_at=1.0, tags=first | {"is_winner": "true"}),
        row("other", val_loss=2.5, started_at=2.0, tags=first),
        row("newest", val_loss=1.0, started_at=3.0, tags=second),
    ]
    for order in (rows, rows[::-1]):
        assert winner(order).run_id == "best"
    better = row("better", val_loss=1.5, started_at=4.0, tags=first)  # the mark may lag behind
    assert winner([*rows, better]).run_id == "better"


NO_OWNERS = [
    '{"host": "h", "pid": "x", "started": "y"}',
    '{"host": "h", "pid": -5, "started": 1}',
    *("[]", "soon", "", None),
]


@pytest.mark.parametrize("text", NO_OWNERS)
def test_an_owner_that_is_none(text):
    assert Owner.from_json(text) is None


@pytest.mark.parametrize("started", ["", ', "started": null', ', "started": 1.5'])
def test_of_an_owner_of_an_older_dcray_the_heartbeat_decides(started):
    owner = Owner.from_json(f'{{"host": "h", "pid": 1{started}}}')
    assert owner is not None
    assert (owner.host, owner.pid, owner.boot, owner.namespace) == ("h", 1, "", "")
    assert owner.alive(time.time())
    assert not owner.alive(time.time() - 1000)


@pytest.mark.parametrize("text", ["soon", "inf", "nan", ""])
def test_a_heartbeat_that_is_none(text):
    assert heartbeat_of({"dcray.heartbeat": text}) is None
    assert heartbeat_of({}) is None
    assert heartbeat_of({"dcray.heartbeat": "17.5"}) == 17.5
