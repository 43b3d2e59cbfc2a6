"""The defaults over complete tables of two real mini cells: what they cost, what they miss."""

import statistics

import pytest

from dcray.study.schema import DEFAULT_KEEP
from tests.bench.replay import Played, play_asha, play_cohort, read_tables, separate, sub_grids

TABLES = read_tables()


def test_the_tables_are_complete():
    assert [(table.unique_tokens, table.seed) for table in TABLES] == [
        (budget, seed) for budget in (8_000, 16_000) for seed in (1, 2, 42)
    ]
    assert all(len(table.losses) == 7 * 5 * 3 for table in TABLES)


def test_costs_by_hand():
    """Nine trunks at 4, 8, 16: all of them to the end, and 9, 5 and 3 of them."""
    nine = sub_grids(TABLES[0], 3)[0]
    assert separate(nine) == 9 * (4 + 8 + 16)
    whole = play_cohort(TABLES[0], nine, (1,))
    assert whole.epochs == pytest.approx(9 * (0.9 * 16 + 0.1 * (4 + 8 + 16)))
    ladder = play_cohort(TABLES[0], nine, (9, 5, 3))
    assert ladder.epochs == pytest.approx(9 * 4 + 5 * (8 - 3.6) + 3 * (16 - 7.2))


@pytest.mark.parametrize("budget", [8_000, 16_000])
def test_a_grids_default_costs_a_third_and_misses_nothing_at_the_median(budget):
    """The target: at most 0.38 of the separate runs' tokens, at most 0.003 nats."""

    def judge(plays: list[Played]) -> None:
        assert max(play.share_of_own for play in plays) <= 0.38
        assert statistics.median(play.regret_in_own for play in plays) <= 0.003

    tables = [table for table in TABLES if table.unique_tokens == budget]
    judge([play_cohort(table, table.trunks, DEFAULT_KEEP) for table in tables])
    judge([play_cohort(t, grid, DEFAULT_KEEP) for t in tables for grid in sub_grids(t, 3)])


def test_stock_asha_trains_every_first_rung_and_depends_on_the_order():
    table = TABLES[0]
    orders = [table.trunks, table.trunks[::-1]]
    plays = [play_asha(table, trunks, seed=0) for trunks in orders]
    for play in plays:
        assert {trunk for trunk, epochs in play.losses if epochs == 4} == set(range(35))
    kept = [{(p.trunks[t].values, e) for t, e in p.losses} for p in plays]
    assert kept[0] != kept[1]
