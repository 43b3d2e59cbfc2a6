"""Recipes side by side: planted worths come back, a twin lies in its null, FLOPs are exact."""

import csv
import io
import json
from dataclasses import replace
from itertools import pairwise

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

import dcray.api as dc
from dcray.config.run import RunConfig
from dcray.config.sizes import SIZES as SHAPES
from dcray.cost import training_flops
from dcray.errors import ConfigError
from dcray.fit.ranking import EQUALS, INFERENCE, PARAMETERS, TRAINING
from dcray.report.analysis import Asked, analyze
from dcray.report.cells import Cell
from dcray.report.data import as_dict, cells_csvs, recipes_csv
from dcray.report.figures import draw
from dcray.report.figures.ranking import by_worth as figure_of
from dcray.report.figures.style import AbsentError, drawing, settle
from dcray.report.page import page
from dcray.report.recipes.spending import Spending, forward_of
from dcray.report.tables.contents import brief, side_by_side
from dcray.report.tables.recipes import by_worth
from dcray.track.store import Store
from dcray.types import Cell as Place
from tests.fit.test_cli_fit import invoke
from tests.report.planted import BUDGETS, SIZES, plant
from tests.report.rows import row
from tests.report.side_by_side import WORTHS, config, configs, softq, study

FEW = [
    row(3.5 + 0.01 * (seed == 1), size="60k", N=SIZES["60k"], U=16_000, recipe="few", seed=seed,
        kind="branch" if seed == 42 else "confirmation", objective="ar")
    for seed in (42, 1, 2)
]  # fmt: skip


def analyzed(rows, *asked, bootstrap=40, **options):
    return analyze("s", rows, [], Asked(*asked, bootstrap=bootstrap, **options),
                   config_of=configs(rows))  # fmt: skip


@pytest.fixture(scope="module")
def found():
    """Three and one recipes of known worth, and one that has a single cell."""
    return analyzed([*study(), *FEW])


def standing(found, recipe, at_equal=PARAMETERS):
    (one,) = [s for s in found.standings if (s.recipe, s.at_equal) == (recipe, at_equal)]
    return one


@pytest.mark.parametrize("recipe", WORTHS)
def test_planted_worths_come_back_within_their_intervals(found, recipe):
    one = standing(found, recipe)
    assert [a.unique_tokens for a in one.worths] == pytest.approx(BUDGETS)
    for a in one.worths:
        assert a.low <= WORTHS[recipe] <= a.high
        assert a.data_efficiency == pytest.approx(WORTHS[recipe], rel=0.08)


def test_the_order_is_that_of_the_planted_worths(found):
    assert list(dict.fromkeys(s.recipe for s in found.standings)) == [
        "better", "mir", "same", "worse", "few",
    ]  # fmt: skip
    assert [s.at_equal for s in found.standings] == list(EQUALS) * 5


def test_a_twin_of_the_baseline_lies_in_its_null_and_the_others_outside(found):
    (table,) = by_worth(found)
    rows = {(r[0], r[1]): r for r in table.rows}
    assert rows["same", "parameters"][5] == "no budget"
    assert rows["better", "parameters"][5] == rows["worse", "parameters"][5] == "each budget"
    for at_equal in EQUALS:
        assert rows["same", at_equal][5] == "no budget"
    for a in standing(found, "same").worths:
        assert a.null_low <= 1 <= a.null_high
        assert a.null_low <= a.data_efficiency <= a.null_high
    for a in standing(found, "same", INFERENCE).worths:
        assert (a.null_low or 0) <= 1 <= (a.null_high or np.inf)


def test_a_recipe_of_the_very_losses_of_the_baseline_is_worth_one():
    rows = study({})
    twins = [replace(one, recipe="twin", run_id=f"twin-{one.run_id}") for one in rows]
    found = analyzed([*rows, *twins], bootstrap=0)
    for at_equal in EQUALS:
        numbers = [a.data_efficiency for a in standing(found, "twin", at_equal).worths
                   if a.data_efficiency is not None]  # fmt: skip
        assert numbers == pytest.approx([1.0] * len(numbers))
        assert len(numbers) >= 3
        assert standing(found, "twin", at_equal).difference == pytest.approx(0, abs=1e-12)


def test_pairs_on_equal_seeds_stand_in_the_table(found):
    """better minus ar by hand: the mean over 16 cells and the three fresh seeds."""
    loss = {(r.recipe, r.size, r.unique_tokens, r.seed): r.val_loss for r in study()}
    keys = [(N, U, s) for N in SIZES for U in BUDGETS for s in (1, 2, 3)]
    mean = np.mean([loss["better", *key] - loss["ar", *key] for key in keys])
    one = standing(found, "better")
    assert one.difference == pytest.approx(mean)
    assert one.low < mean < one.high < 0
    assert one.sample == "48 pairs (16 cells, 3 seeds), fresh seeds"


def test_a_recipe_with_too_few_cells_has_its_difference_and_the_reason(found):
    loss = {(r.recipe, r.size, r.unique_tokens, r.seed): r.val_loss for r in [*study(), *FEW]}
    own = [loss["few", "60k", 16_000, s] - loss["ar", "60k", 16_000, s] for s in (1, 2)]
    one = standing(found, "few")
    assert one.worths == ()
    assert one.difference == pytest.approx(np.mean(own))
    assert "recipe few has one model size only" in one.why[0]
    (table,) = by_worth(found)
    assert any(
        note.startswith("few at equal parameters: recipe few has one") for note in table.below
    )
    (short,) = side_by_side(found)
    assert any(note.startswith("few at equal parameters") for note in short.below)
    assert len(short.below) < len(table.below)


def test_at_equal_training_flops_a_pass_more_is_paid_for():
    """At equal parameters mir and its twin with one pass are the same; at equal compute not."""
    found = analyzed(study({"mir": 1.2, "once": 1.2}, random=np.random.default_rng(5)), bootstrap=0)
    told = {recipe: standing(found, recipe, TRAINING) for recipe in ("mir", "once")}
    assert told["mir"].middle < told["once"].middle
    assert standing(found, "mir", INFERENCE).middle == pytest.approx(
        standing(found, "once", INFERENCE).middle, rel=0.1
    )
    for recipe, passes in (("mir", 2), ("once", 1)):
        flops = training_flops(config("60k", 16_000)) * passes
        cells = found.choice.of(recipe)
        each = {
            (s.unique_tokens, s.flops) for s in found.spending.spent(cells, "confirmed", TRAINING)
        }
        assert min(each) == (16_000, pytest.approx(flops))


def test_flops_are_those_of_the_configuration_and_members_count():
    run = config("226k", 32_000, "mir", epochs=8)
    one = row(3.0, size="226k", N=SIZES["226k"], U=32_000, recipe="mir", epochs=8,
              train_tokens=str(run.train_tokens))  # fmt: skip
    four = replace(one, tags={**one.tags, "ensemble": "4"})
    spending = Spending(lambda _: run.to_dict())
    for member, times in ((one, 1), (four, 4)):
        cell = Cell(member, (member,))
        assert spending.training(cell, member) == pytest.approx(times * training_flops(run))
        columns = spending.columns(cell, member)
        assert columns["num_members"] == times
        assert columns["inference_flops"] == pytest.approx(times * by_hand(run))


def by_hand(run: RunConfig) -> float:
    """2 FLOPs a weight of each product and of each attended pair: the mean of T positions."""
    shape, T = SHAPES[run.size], run.data.seq_len
    weights = (
        shape.num_layers * (4 * shape.dim**2 + 3 * shape.dim * shape.mlp_dim) + 512 * shape.dim
    )
    short = sum(min(t + 1, T // 2 + 1) for t in range(T))
    whole = T * (T + 1) / 2
    pairs = (shape.num_layers - 1) * short + whole
    return 2 * weights + 2 * 2 * shape.dim * pairs / T


def test_what_is_not_on_record_is_said():
    found = analyze("s", study({"mir": 1.2}), [], Asked(bootstrap=0))
    one = standing(found, "mir", TRAINING)
    assert (one.worths, one.why) == ((), ("FLOPs are not known: no configuration is on record",))
    assert standing(found, "mir").worths
    with pytest.raises(ConfigError, match="none that this dcray reads"):
        forward_of({"num_epochs": -1})
    with pytest.raises(ConfigError, match="has no vocab_size"):
        forward_of({})


def test_recipes_that_share_no_seed_are_compared_cell_by_cell():
    """An ensemble is of no one seed. Its interval is that of seeds, four of which it averages."""
    rows = [r for r in study({"four": 1.2}, seeds=(1, 2)) if r.recipe == "ar" or r.seed == 42]
    made = [
        replace(r, seed=7, tags={**r.tags, "ensemble": "4"}) if r.recipe == "four" else r
        for r in rows
    ]
    seeds = {"ar": "42", "four": "7"}
    tags = {(r.size, r.unique_tokens, r.recipe): {"search_seed": seeds[r.recipe]} for r in made}
    found = analyze("s", made, [], Asked(bootstrap=20), tags=tags, config_of=configs(made))
    one = standing(found, "four")
    loss = {(r.recipe, r.size, r.unique_tokens, r.seed): r.val_loss for r in made}
    own = [loss["four", N, U, 7] - loss["ar", N, U, 42] for N in SIZES for U in BUDGETS]
    assert one.difference == pytest.approx(np.mean(own))
    assert one.low < np.mean(own) < one.high
    assert (one.sample, one.num_members) == ("16 cells, search seed, not paired", 4)
    # four members read every token, and ar is compared at no more than the most that it spent
    spent = found.spending.spent
    most = {name: max(s.flops for s in spent(found.choice.of(name), "search", INFERENCE))
            for name in ("ar", "four")}  # fmt: skip
    assert most["four"] == pytest.approx(4 * most["ar"])
    told = standing(found, "four", INFERENCE).flops
    assert told == pytest.approx(dict.fromkeys(BUDGETS, most["ar"]))


def test_results_of_the_search_seed_are_an_envelope():
    """Without fresh seeds each result counts at its own cost: fewer epochs cost less."""
    rows = study({"mir": 1.0}, seeds=(), sizes=("60k",))
    half = {"num_epochs": 8, "config_hash": "b"}
    cheap = [
        replace(
            one, key=f"{one.key}-8", run_id=f"{one.run_id}-8", val_loss=one.val_loss + 0.2, **half,
            params={"train_tokens": str(int(one.params["train_tokens"]) // 2)},
        )
        for one in rows if one.recipe == "mir"
    ]  # fmt: skip
    found = analyzed([*rows, *cheap], bootstrap=0)
    one = standing(found, "mir", TRAINING)
    # mir at 8 epochs costs what ar costs at 16, the one size that both have
    assert one.flops == pytest.approx({U: training_flops(config("60k", U)) for U in BUDGETS})
    losses = {(r.recipe, r.unique_tokens): r.val_loss for r in rows}
    gaps = [losses["mir", U] + 0.2 - losses["ar", U] for U in BUDGETS]
    assert one.difference == pytest.approx(np.mean(gaps))
    assert "mir is the lowest of up to 2 candidates" in one.bias


@pytest.mark.parametrize(
    ("asked", "recipes"),
    [
        ((None, ("mir", "better")), ["better", "mir"]),
        ((None, ("mir", "mir")), ["mir"]),
        (("mir", ("ar", "better")), ["better", "ar"]),
        (("same",), ["better", "mir", "ar", "worse"]),
    ],
)
def test_any_recipe_may_be_the_baseline_and_several_may_be_asked_for(asked, recipes):
    found = analyzed(study(), *asked, bootstrap=0)
    assert list(dict.fromkeys(s.recipe for s in found.standings)) == recipes
    assert len(found.headlines) == len(recipes)
    ratio = WORTHS | {"ar": 1.0}
    for recipe in recipes:
        expected = ratio[recipe] / ratio[asked[0] or "ar"]
        assert standing(found, recipe).middle == pytest.approx(expected, rel=0.05)


def test_an_asked_recipe_without_enough_cells_keeps_no_other_from_its_worth():
    found = analyzed([*study({"mir": 1.2}), *FEW], None, ("few", "mir"), bootstrap=0)
    assert standing(found, "mir").worths
    assert "one model size only" in standing(found, "few").why[0]
    assert any("few is worth in ar's data is not told" in said for said in found.answer.untold)
    alone = analyzed([*study({}), *FEW], None, ("few",), bootstrap=0)
    assert "recipe few has one model size only" in alone.no_law
    assert standing(alone, "few").difference is not None


def test_bounds_are_not_compared_at_equal_flops_unless_asked_for():
    rows = study({"mir": 1.2})
    bounds = [
        replace(r, recipe="mdlm", tags={**r.tags, "bound": "upper bound"}, run_id=f"b{r.run_id}")
        for r in rows
        if r.recipe == "mir"
    ]
    found = analyzed([*rows, *bounds], bootstrap=0)
    one = standing(found, "mdlm", TRAINING)
    assert one.label == "mdlm (upper bound)"
    assert (one.flops, one.why[0][:24]) == ({}, "its losses are bounds, o")
    assert standing(
        analyzed([*rows, *bounds], None, ("mdlm",), bootstrap=0), "mdlm", TRAINING
    ).flops


def test_a_floor_stands_in_the_baseline_s_data():
    """The answer says what ar is worth in the floor's data; the table has all in one currency."""
    rows = study({"weak": 0.75, "mir": 1.2})
    rows = [replace(r, weight_decay=0.1) if r.recipe == "weak" else r for r in rows]
    found = analyzed(rows, bootstrap=0)
    assert found.headlines[0].startswith("ar is worth")
    assert standing(found, "weak").middle == pytest.approx(0.75, rel=0.05)


def test_csv_and_json_hold_each_number(found):
    lines = list(csv.DictReader(io.StringIO(recipes_csv(found))))
    assert {line["recipe"] for line in lines} == {*WORTHS, "few"}
    plain = as_dict(found)["by_worth"]
    assert len(plain) == len(lines)
    for line, one in zip(lines, plain, strict=True):
        assert (line["recipe"], line["at_equal"]) == (one["recipe"], one["at_equal"])
        for name in ("worth", "low", "null_high", "flops", "difference"):
            assert (float(line[name]) if line[name] else None) == one[name]
    first = plain[0]
    assert first["worth"] == standing(found, "better").worths[0].data_efficiency
    assert first["outside_null"] is True
    cells = list(csv.DictReader(io.StringIO(cells_csvs(found)["cells.csv"])))
    assert {c["num_members"] for c in cells} == {"1"}
    place = ("mir", "60k", "16000")
    its = [c for c in cells if (c["recipe"], c["size"], c["unique_tokens"]) == place]
    (one,) = {c["training_flops"] for c in its}
    assert float(one) == pytest.approx(2 * training_flops(config("60k", 16_000)))


def test_the_figure_shows_every_number_and_cuts_nothing_off(found):
    title, alt, figure = figure_of(found)
    assert title == "Recipes by worth in unique data"
    panels = {axes.get_title(): axes for axes in figure.axes}
    assert set(panels) == {f"at equal {name}" for name in EQUALS}
    for at_equal in EQUALS:
        axes = panels[f"at equal {at_equal}"]
        drawn = sorted(
            line.get_xdata()[0] for line in axes.get_lines()
            if line.get_linestyle() == "None" and line.get_marker() not in "<>"
        )  # fmt: skip
        numbers = sorted(a.data_efficiency for s in found.standings if s.at_equal == at_equal
                         for a in s.worths if a.data_efficiency is not None)  # fmt: skip
        assert drawn == pytest.approx(numbers)
    assert [t.get_text() for t in panels["at equal parameters"].get_yticklabels()] == list(WORTHS)
    assert "Not told apart from no gain: same at equal parameters" in alt
    assert alt.endswith("Without a worth: few.")
    with drawing():
        settle(figure)
    renderer = FigureCanvasAgg(figure).get_renderer()
    box, (width, height) = figure.get_tightbbox(renderer), figure.get_size_inches()
    assert figure.get_figwidth() == 3.5
    assert -0.02 <= box.x0 < box.x1 <= width + 0.02
    assert -0.02 <= box.y0 < box.y1 <= height + 0.02
    assert min(t.get_fontsize() for t in figure.findobj(mpl.text.Text) if t.get_text()) >= 6.5
    (legend,) = figure.legends
    under = legend.get_window_extent(renderer)
    assert not any(under.overlaps(axes.get_tightbbox(renderer)) for axes in figure.axes)
    names = sorted((t.get_window_extent() for t in panels["at equal parameters"].get_yticklabels()),
                   key=lambda box: box.y0)  # fmt: skip
    assert all(lower.y1 < upper.y0 for lower, upper in pairwise(names))


def test_one_recipe_alone_has_no_figure_side_by_side_and_no_table_on_the_screen():
    one = analyzed(study({"mir": 1.2}), bootstrap=0)
    with pytest.raises(AbsentError, match="need two that have a worth"):
        figure_of(one)
    assert side_by_side(one) == []
    assert not [t for t in brief(one) if t.header[1] == "at equal"]
    (table,) = by_worth(one)
    assert [r[1] for r in table.rows] == list(EQUALS)


def recorded(directory):
    """A record of ar, mir, muon and a recipe of one cell, each run with its configuration."""
    with Store.open(directory, study="many") as store:
        for recipe, worth in (("ar", 1.0), ("mir", 1.2), ("muon", 1.4), ("few", 1.1)):
            objective = "mir" if recipe == "mir" else "ar"
            for size in ("60k", "226k", "431k") if recipe != "few" else ("60k",):
                for budget in BUDGETS[:3] if recipe != "few" else BUDGETS[:1]:
                    run = config(size, budget, objective)
                    place, loss = Place("many", size, budget, recipe), softq(size, budget, worth)
                    plant(store, place, loss=loss, objective=objective, config=run.to_dict(),
                          train_tokens=run.train_tokens, name=recipe)  # fmt: skip


@pytest.mark.slow
def test_the_command_sets_recipes_of_a_record_side_by_side(tmp_path):
    recorded(tmp_path)
    words = ("analyze", "many", "--dir", tmp_path, "--bootstrap", 0)
    said = invoke(*words).output
    assert "Worth in ar's unique data, from the lowest to the highest budget" in said
    table = [
        words
        for words in map(str.split, said.splitlines())
        if words[1:2] != ["equal"] and "FLOPs" in words[2:3]
    ]
    assert [line[0] for line in table] == ["muon", "muon", "mir", "mir", "few", "few"]
    assert "few at equal parameters: recipe few has one model size only" in said
    folder = tmp_path / "many" / "analysis"
    assert (folder / "recipes-by-worth.svg").exists()
    assert "## Recipes by worth" in (folder / "tables.md").read_text()
    lines = list(csv.DictReader((folder / "recipes.csv").open()))
    (flops,) = {float(line["flops"]) for line in lines if (line["recipe"], line["unique_tokens"])
                == ("muon", "16000") and line["at_equal"] == TRAINING}  # fmt: skip
    assert flops == pytest.approx(training_flops(config("431k", 16_000)))

    asked = json.loads(invoke(*words, "--recipe", "mir", "--recipe", "muon", "--json").output)
    assert {line["recipe"] for line in asked["by_worth"]} == {"mir", "muon"}
    for line in (one for one in asked["by_worth"] if one["at_equal"] == PARAMETERS):
        assert line["worth"] == pytest.approx({"mir": 1.2, "muon": 1.4}[line["recipe"]], rel=0.02)
    turned = json.loads(invoke(*words, "--baseline", "muon", "--recipe", "ar", "--json").output)
    assert turned["by_worth"][0]["worth"] == pytest.approx(1 / 1.4, rel=0.02)
    only = invoke(*words, "--recipe", "mir").output
    assert "at equal" not in only
    for wrong, sentence in (
        (
            ("--recipe", "mir", "--recipe", "muo"),
            '"muo" (did you mean "muon"?)',
        ),
        (("--baseline", "mu0n"), '"mu0n" (did you mean "muon"?)'),
        (("--recipe", "mir", "--recipe", "ar"), "--recipe ar is the baseline itself"),
    ):
        refused = invoke(*words, *wrong)
        assert refused.exit_code == 2
        assert sentence in " ".join(refused.output.split())

    study = dc.read_study("many", dir=tmp_path, recipe=["mir", "muon"])
    assert study.recipes.recipe.unique().tolist() == ["muon", "mir"]
    assert "muon" in str(study).partition("outside its null at")[2]
    assert study._repr_html_().count("<table") == 2
    fitted = dc.fit(folder / "cells.csv", recipe=["mir", "muon"])
    at_parameters = study.recipes[study.recipes.at_equal == PARAMETERS]
    assert fitted.recipes.worth.tolist() == pytest.approx(at_parameters.worth.tolist())
    assert "Worth in ar's unique data" in fitted.text


def test_the_page_has_the_table_and_the_figure_and_leads_as_before(found):
    written = page(found, *draw.of_study(found))
    assert written.index('class="answer"') < written.index("Recipes by worth")
    assert 'id="by-worth"' in written
    assert "recipes-by-worth-" in written
    leading = written[written.index("</section>") : written.index('id="limits"')]
    assert leading.count("<svg") == 2
    assert "recipes-by-worth-" not in leading
