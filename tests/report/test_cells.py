"""The five rules, on rows that are written out by hand."""

import itertools
import random

import pytest

from dcray.errors import ConfigError
from dcray.report.analysis import Asked, analyze
from dcray.report.basis import choose
from dcray.report.data import as_dict, cells_csvs
from dcray.report.tables.study import pairs, recipes
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
    assert cell.searched == 2.90
    assert cell.confirmed == pytest.approx(3.25)
    assert [r.seed for r in cell.fresh] == [1, 2]
    assert len(cell.candidates) == 3
    assert cell.spread() == (2.90, 3.30)


def test_losses_come_from_fresh_seeds_where_every_cell_has_them():
    choice = choose(CELL)
    assert choice.source_of("ar") == choice.shown("ar") == "confirmed"
    assert only(choice).loss("confirmed") == pytest.approx(3.25)
    losses = choice.losses(["ar"], "confirmed")
    assert [(loss.seed, loss.val_loss) for loss in losses] == [(1, 3.20), (2, 3.30)]


def test_one_recipe_has_one_source_in_a_figure_and_what_is_selected_is_said():
    other = row(2.5, size="226k", N=226_000)
    choice = choose([*CELL, other])
    assert choice.shown("ar") == "search"
    assert "ar: losses at the search seed (1 of 2 cells have fresh seeds" in choice.why
    assert "the lowest of up to 3 candidates in 1 of 2 cells: selected minima" in choice.why
    asked = choose([*CELL, other], source="confirmed")
    assert [cell.size for cell in asked.cells] == ["60k"]
    assert [(one.run_id, "no fresh seed" in one.reason) for one in asked.left] == [
        (other.run_id, True)
    ]
    assert only(choose(CELL, source="search")).searched == 2.90


def test_nothing_is_selected_of_a_single_candidate():
    twice = [row(3.0), row(3.1, kind="run")]  # one configuration, run twice
    assert only(choose(twice)).num_candidates == 1
    assert choose(twice).why == "ar: losses at the search seed, each its cell's only candidate"


SIZES = {"5.5m": 5_500_000, "31.5m": 31_500_000}


def mini_gpu():
    """The shipped mini_gpu: ar searched among 12, mir its winner's settings, weak without seeds.

    Fresh seeds: mir - ar = -0.050 in every cell and seed. At the search seed ar's winner is the
    luckiest of 12 (0.159 below its mean) and mir a single run: +0.109.
    """
    found = []
    for (size, N), U in itertools.product(SIZES.items(), (1_000_000, 2_000_000)):
        where, mean = {"size": size, "N": N, "U": U}, 3.5 - N / 1e8 - U / 1e7
        found += [row(mean - 0.159 + 0.02 * i, config=f"c{i}", **where) for i in range(12)]
        found += [row(mean - 0.050, recipe="mir", config="c0", **where)]
        found += [
            row(mean + 1 + 0.1 * i, recipe="weak", config=f"w{i}", decay=0.1, **where)
            for i in range(3)
        ]
        for seed, luck in ((1, 0.08), (2, -0.08)):
            fresh = {"seed": seed, "kind": "confirmation", "config": "c0", **where}
            found += [row(mean + luck, **fresh)]
            found += [row(mean + luck - 0.050, recipe="mir", **fresh)]
    return found


def test_a_recipe_without_fresh_seeds_costs_only_its_own_pairs():
    found = analyze("mini_gpu", mini_gpu(), [], Asked(bootstrap=0))
    told = {(one.recipe, one.seeds): one for one in found.pairs}
    assert set(told) == {("mir", "fresh seeds"), ("weak", "search seed")}
    mir, weak = told["mir", "fresh seeds"], told["weak", "search seed"]
    assert mir.found[0].mean == pytest.approx(-0.050)
    assert (mir.found[0].num_pairs, mir.found[0].num_cells, mir.found[0].num_seeds) == (8, 4, 2)
    assert mir.bias == ""
    assert weak.found[0].mean == pytest.approx(1.159)
    assert weak.bias == (
        "At the search seed ar is the lowest of up to 12 candidates and weak is the lowest of up "
        "to 3 candidates: the difference is biased against weak."
    )
    (table,) = pairs(found)
    assert weak.bias in table.below
    assert table.below[:2] == [
        "On fresh seeds an interval over all cells speaks of further cells and seeds.",
        "On search seed an interval over all cells speaks of further cells at this seed.",
    ]
    asked = analyze("mini_gpu", mini_gpu(), [], Asked(source="search", bootstrap=0))
    by_search = next(o for o in asked.pairs if (o.recipe, o.seeds) == ("mir", "search seed"))
    assert by_search.found[0].mean == pytest.approx(0.109)
    assert "mir is a single candidate: the difference is biased against mir" in by_search.bias


def test_each_line_of_a_table_stands_beside_a_baseline_of_its_own_source():
    found = analyze("mini_gpu", mini_gpu(), [], Asked(bootstrap=0))
    lines = {(line[0], line[2]): line[3] for line in recipes(found)[0].rows}
    mean = 3.5 - 0.055 - 0.1
    assert lines == {
        ("ar", "fresh seeds"): pytest.approx(mean),
        ("ar", "search seed"): pytest.approx(mean - 0.159),
        ("mir", "fresh seeds"): pytest.approx(mean - 0.050),
        ("weak", "search seed"): pytest.approx(mean + 1),
    }
    assert found.choice.why == (
        "ar, mir: means over fresh seeds of each winner; weak: losses at the search seed, the "
        "lowest of up to 3 candidates: selected minima, which are somewhat low"
    )
    sources = {one["recipe"]: one["source"] for one in as_dict(found)["grid"]}
    assert sources == {"ar": "confirmed", "mir": "confirmed", "weak": "search"}
    files = {name: text.splitlines() for name, text in cells_csvs(found).items()}
    assert {name: len(lines) for name, lines in files.items()} == {
        "cells.csv": 1 + 16, "cells_search.csv": 1 + 8,
    }  # fmt: skip


def laws_grid(without=()):
    """SoftQ-like losses of three recipes in nine cells; `without`: cells of ar without seeds."""
    found = []
    for i, j in itertools.product(range(3), range(3)):
        where = {"size": f"s{i}", "N": 60_000 * 2**i, "U": 16_000 * 2**j}
        mean = 2 + 1.2 * 0.7**i + 1.5 * 0.6**j
        for recipe, better in (("ar", 0.0), ("mir", 0.03), ("weak", -0.4)):
            found += [row(mean - better - 0.1, recipe=recipe, **where)]
            if recipe != "weak" and (recipe, i, j) not in without:
                found += [row(mean - better, recipe=recipe, seed=1, kind="confirmation", **where)]
    return found


def test_laws_of_one_comparison_read_losses_of_one_source():
    found = analyze("s", laws_grid(), [], Asked(bootstrap=0))
    first, second = found.by_source
    assert (first.source, set(first.answer.fits)) == ("confirmed", {"ar", "mir"})
    assert (second.source, set(second.answer.fits)) == ("search", {"ar", "weak"})
    shift = second.answer.grids["ar"].points.L - first.answer.grids["ar"].points.L
    assert shift == pytest.approx([-0.1] * 9)
    told = as_dict(found)
    assert (told["source"], told["second"]["source"]) == ("confirmed", "search")
    assert {one["recipe"] for one in told["second"]["efficiency"]} == {"weak"}
    assert first.on_source == "On fresh seeds: "
    assert second.on_source == "On the search seed: "


def test_a_cell_without_fresh_seeds_is_in_no_law_if_the_others_carry_one():
    some = analyze("s", laws_grid({("ar", 0, 0)}), [], Asked(bootstrap=0, recipes=("mir",)))
    assert some.source == "confirmed"
    assert len(some.answer.grids["ar"].losses) == 8
    assert "1 cell (s0 16k ar): no fresh seeds of the winner, so in no law" in some.answer.excluded
    most = {("ar", i, j) for i in range(3) for j in range(3) if i + j}
    few = analyze("s", laws_grid(most), [], Asked(bootstrap=0, recipes=("mir",)))
    assert few.source == "search"
    assert len(few.answer.grids["mir"].losses) == 9


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
    assert only(choice).searched == 2.90
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


def test_the_noise_of_fresh_seeds_and_of_the_fits_rows_have_keys_of_their_own():
    """seed_noise is that of the baseline's rows in a fit, as `dcray fit` has it; none here."""
    told = as_dict(analyze("s", CELL, [], Asked(bootstrap=0)))
    assert told["seed_noise"] is None
    assert told["fresh_seed_noise"] == pytest.approx(0.05 * 2**0.5)


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
