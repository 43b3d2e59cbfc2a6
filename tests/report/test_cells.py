"""The five rules, on rows that are written out by hand."""

import itertools
import random

import pytest

from dcray.errors import ConfigError
from dcray.report.cells import choose
from tests.report.rows import row

CELL = [
    row(3.00, config="a"),
    row(2.90, config="b"),
    row(3.10, config="c"),
    row(3.20, config="b", seed=1, kind="confirmation"),
    row(3.30, config="b", seed=2, kind="confirmation"),
]


def only(choice):
    (cell,) = choice.cells
    return cell


def test_the_winner_is_the_lowest_at_the_search_seed_and_stays_it():
    """Its fresh seeds average 3.25, more than the runner-up's 3.00: it stays the winner."""
    cell = only(choose(CELL))
    assert cell.winner.config_hash == "b"
    assert cell.selected == 2.90
    assert cell.confirmed == pytest.approx(3.25)
    assert [r.seed for r in cell.fresh] == [1, 2]
    assert len(cell.candidates) == 3
    assert cell.spread() == (2.90, 3.30)


def test_losses_come_from_fresh_seeds_where_every_cell_has_them():
    choice = choose(CELL)
    assert choice.source == "confirmed"
    assert only(choice).loss(choice.source) == pytest.approx(3.25)
    assert [loss.val_loss for loss in choice.losses()] == [3.20, 3.30]
    assert [loss.seed for loss in choice.losses()] == [1, 2]


def test_one_cell_without_fresh_seeds_puts_all_on_the_search():
    other = row(2.5, size="226k", N=226_000)
    choice = choose([*CELL, other])
    assert choice.source == "search"
    assert "1 of 2 cells have fresh seeds" in choice.why
    assert sorted(loss.val_loss for loss in choice.losses()) == [2.5, 2.90]
    asked = choose([*CELL, other], source="confirmed")
    assert [cell.size for cell in asked.cells] == ["60k"]
    assert [(one.run_id, "no fresh seed" in one.reason) for one in asked.left] == [
        (other.run_id, True)
    ]
    assert only(choose(CELL, source="search")).selected == 2.90


def test_confirmed_where_nothing_is_confirmed_is_refused():
    with pytest.raises(ConfigError, match="no cell has one"):
        choose([row(3.0)], source="confirmed")
    with pytest.raises(ConfigError, match="must be one of confirmed, search"):
        choose(CELL, source="confirm")


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        (row(1.0, config="a", seed=1, kind="confirmation"), "not its cell's winner"),
        (row(1.0, config="b", seed=42, kind="confirmation"), "not fresh"),
        (row(1.0, config="b", seed=1, kind="run"), "same configuration and seed, and counts"),
    ],
)
def test_what_counts_nowhere_is_named(extra, reason):
    choice = choose([*CELL, extra])
    assert only(choice).confirmed == pytest.approx(3.25)
    assert [(one.run_id, reason in one.reason) for one in choice.left] == [(extra.run_id, True)]


def test_a_low_loss_at_another_seed_wins_nothing():
    """The winner's configuration at another seed is a fresh seed of it; another's is nothing."""
    choice = choose([*CELL, row(0.5, config="c", seed=7), row(3.4, config="b", seed=3)])
    assert only(choice).selected == 2.90
    assert [r.seed for r in only(choice).fresh] == [1, 2, 3]
    assert [one.name for one in choice.left] == ["60k_16000_ar_c_seed7_branch"]


def test_ties_go_to_fewer_epochs():
    rows = [row(3.0, config="long", epochs=32), row(3.0, config="short", epochs=8)]
    assert only(choose(rows)).winner.config_hash == "short"


def test_the_search_seed_is_the_cells_tag_else_the_commonest():
    rows = [row(2.0, seed=5), row(3.0, seed=42), row(3.1, seed=42, config="b")]
    assert only(choose(rows)).winner.seed == 42
    told = choose(rows, tags={("60k", 16_000, "ar"): {"search_seed": "5"}})
    assert only(told).winner.val_loss == 2.0
    nothing = choose(rows, tags={("60k", 16_000, "ar"): {"search_seed": "9"}})
    assert nothing.cells == ()
    assert all("at the search seed 9" in one.reason for one in nothing.left)


def test_the_order_of_rows_changes_nothing():
    rows = [*CELL, row(2.9, config="d", epochs=8), row(2.0, recipe="mir"), row(2.1, seed=1)]
    first = choose(rows)
    for seed in range(10):
        shuffled = random.Random(seed).sample(rows, len(rows))
        assert choose(shuffled).cells[0].winner is first.cells[0].winner
        assert {one.name for one in choose(shuffled).left} == {one.name for one in first.left}


def test_noise_is_the_pooled_deviation_over_fresh_seeds():
    """Two cells, deviations from the means: +-0.05 twice, and -0.1, 0, 0.1."""
    other = [row(2.0, size="226k", N=226_000)] + [
        row(2.0 + d, size="226k", N=226_000, seed=s, kind="confirmation")
        for s, d in ((1, -0.1), (2, 0.0), (3, 0.1))
    ]
    squares = 2 * 0.05**2 + 2 * 0.1**2
    assert choose([*CELL, *other]).noise() == pytest.approx((squares / (1 + 2)) ** 0.5)
    assert choose([row(3.0)]).noise() is None


def test_flags_say_edge_noise_and_an_unfinished_search():
    tags = {"edges": "lr,num_epochs", "search_state": "searching", "planned": "9"}
    cell = only(choose(CELL, tags={("60k", 16_000, "ar"): tags}))
    edge, state, lead = cell.flags(0.15)
    assert edge == "the winner lies at the edge of lr and num_epochs"
    assert state == "its search is not finished (searching): 3 of 9 results"
    assert "leads by 0.1000 nats" in lead
    assert len(cell.flags(0.05)) == 2
    assert only(choose(CELL)).flags(None) == ()
    other = only(choose(CELL, tags={("60k", 16_000, "ar"): {"winner": "run-x"}}))
    assert other.flags(None) == ("its search named run run-x the winner, from what was there then",)


def test_every_row_is_in_a_cell_or_left_out_with_a_reason():
    rows = [
        row(3.0 + i / 10, config=c, seed=s, kind=k)
        for i, (c, s, k) in enumerate(
            itertools.product("abc", (42, 1, 2), ("branch", "confirmation"))
        )
    ]
    rows.append(row(2.0, N=None, config="z"))
    choice = choose(rows)
    inside = {r.run_id for c in choice.cells for r in (*c.candidates, *c.fresh)}
    outside = [one.run_id for one in choice.left]
    assert len(outside) == len(set(outside))
    assert inside | set(outside) == {r.run_id for r in rows}
    assert not inside & set(outside)
    assert all(one.reason for one in choice.left)
