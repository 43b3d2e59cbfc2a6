"""Recipes of a table of losses side by side, at equal parameters: worths by construction."""

import json

import numpy as np
import pytest

from dcray.errors import ConfigError
from dcray.fit.answer import Question, answer
from dcray.fit.compare import Floor
from dcray.fit.grid import Row
from dcray.fit.output.ranking import columns, notes
from dcray.fit.output.text import answer_text
from dcray.fit.ranking import EQUALS, INFERENCE, PARAMETERS, Standing, by_worth, lines, standings_of
from tests.fit.planted import planted
from tests.fit.test_cli_fit import invoke

THETA = (0.30565, 39.2962, 92.4362, 0.1425, 0.79608)  # SoftQ on the paper's grid
WORTHS = {"low": 0.8, "mir": 1.15, "muon": 1.4}


def rows(worths=WORTHS):
    """Losses of ar and of recipes that are worth so many times its data, exactly."""
    found = []
    for recipe, worth in {"ar": 1.0, **worths}.items():
        points = planted("softq", THETA, worth=worth)
        cells = zip(points.N, points.U, points.L, strict=True)
        found += [Row(round(N * 1e9), round(U * 1e9), float(L), recipe=recipe, seed=1)
                  for N, U, L in cells]  # fmt: skip
    return found


FEW = [Row(71_965_952, 100_000_000, 3.6, recipe="few", seed=1)]


def test_recipes_stand_by_their_worth_with_pairs_beside():
    found = answer([*rows(), *FEW], Question(laws=("softq",)))
    standings = standings_of(found)
    assert [one.recipe for one in standings] == ["muon", "mir", "low", "few"]
    for one in standings[:3]:
        assert one.middle == pytest.approx(WORTHS[one.recipe], rel=1e-4)
        loss = {(r.recipe, r.cell): r.val_loss for r in rows()}
        gaps = [loss[one.recipe, r.cell] - r.val_loss for r in rows({})]
        assert one.difference == pytest.approx(np.mean(gaps))
    few = standings[3]
    assert (few.worths, few.sample) == ((), "1 pair")
    assert few.difference == pytest.approx(3.6 - rows({})[0].val_loss)
    assert "recipe few has one model size only" in few.why[0]
    text = answer_text(found)
    assert text.index("muon is worth") < text.index("Worth in ar's unique data")
    assert "few at equal parameters: recipe few has" in text


def test_a_floor_has_its_place_too():
    found = answer(rows(), Question(laws=("softq",), floors=(Floor("low"),)))
    assert [one.recipe for one in standings_of(found)] == ["muon", "mir", "low"]
    assert standings_of(found)[2].middle == pytest.approx(0.8, rel=1e-4)


def test_a_recipe_that_is_asked_for_and_has_too_few_cells_is_told():
    found = answer([*rows(), *FEW], Question(laws=("softq",), recipes=("few", "mir", "mir")))
    assert [one.recipe.recipe for one in found.comparisons] == ["mir"]
    assert found.untold[0].startswith("What few is worth in ar's data is not told: recipe few has")
    with pytest.raises(ConfigError, match="recipe few has one model size only"):
        answer([*rows(), *FEW], Question(laws=("softq",), recipes=("few",)))


def test_one_recipe_alone_is_told_as_before():
    found = answer(rows({"mir": 1.15}), Question(laws=("softq",)))
    assert "Worth in ar's unique data" not in answer_text(found)


def test_json_has_the_recipes_by_worth(tmp_path):
    table = tmp_path / "losses.csv"
    table.write_text("num_params,unique_tokens,val_loss,recipe\n" + "\n".join(
        f"{r.num_params},{r.unique_tokens},{r.val_loss!r},{r.recipe}" for r in rows()))  # fmt: skip
    told = json.loads(invoke("fit", table, "--laws", "softq", "--baseline", "mir", "--recipe", "ar",
                             "--recipe", "muon", "--json").output)["by_worth"]  # fmt: skip
    assert [one["recipe"] for one in told] == ["muon"] * 4 + ["ar"] * 4
    assert told[0]["worth"] == pytest.approx(1.4 / 1.15, rel=1e-4)
    assert {one["at_equal"] for one in told} == {PARAMETERS}


def test_recipes_without_a_worth_come_last_the_lowest_difference_first():
    each = [
        Standing("c", "c", PARAMETERS),
        Standing("a", "a", PARAMETERS, difference=0.1),
        Standing("b", "b {x}", INFERENCE, difference=-0.2, sample="1 pair"),
        Standing("b", "b {x}", PARAMETERS, difference=-0.1, why=("too few",)),
    ]
    placed = by_worth(each)
    assert [(one.recipe, one.at_equal) for one in placed] == [
        ("b", PARAMETERS), ("b", INFERENCE), ("a", PARAMETERS), ("c", PARAMETERS),
    ]  # fmt: skip
    assert [line["why"] for line in lines(placed)] == ["too few", None, None, None]
    assert columns(placed)[1][0] == ["b {x}", PARAMETERS, None, None, None, None, "-0.1000", None]
    assert notes(placed) == [
        "b {x} at equal parameters: too few.", "At equal FLOPs the losses of b {x} are on 1 pair.",
    ]  # fmt: skip
    assert EQUALS.index(PARAMETERS) == 0
