"""Ensembles in a study file: the seeds of their members, and what is refused in a sentence."""

import copy

import pytest

from dcray.errors import ConfigError
from tests.search.player import MINI, study_of


def table(**recipes):
    found = copy.deepcopy(MINI)
    found["recipes"] |= recipes
    return found


def cell_of(study, recipe, size="60k", budget="8k"):
    (found,) = [
        one
        for one in study.cell_specs
        if (one.cell.recipe, one.size, one.budget) == (recipe, size, budget)
    ]
    return found


def ensemble(number=3, **more):
    return {"inherit": "ar", "ensemble": number, **more}


def test_an_ensemble_is_its_parent_s_winner_and_has_no_run_of_its_own():
    weighted = {"objective": "mir", "inherit": "ar", "base": {"objective.weight": 0.2}}
    study = study_of(table(mir=weighted, both={"inherit": "mir", "ensemble": 2}))
    found, parent = cell_of(study, "both"), cell_of(study, "mir")
    assert found.base() == parent.base()
    assert found.base().objective.weight == 0.2
    assert found.needs == [parent.cell]
    assert found.confirm_seeds == ()


@pytest.mark.parametrize(
    ("own", "parents", "members"),
    [
        ([], [], (1, 2, 3)),
        ([], [7], (7, 1, 2)),
        ([], [2, 9, 4, 5], (2, 9, 4)),
        ([], [1, 3], (1, 3, 2)),
        ([5, 6, 7], [1], (5, 6, 7)),
        ([8, 6, 7, 9], [1], (8, 6, 7)),
    ],
)
def test_seeds_that_exist_are_used_and_missing_ones_are_added(own, parents, members):
    """The parent trains each once: those of its confirmations, then what ensembles still need."""
    recipes = table(both=ensemble(confirm_seeds=own))
    recipes["recipes"]["ar"]["confirm_seeds"] = parents
    study = study_of(recipes)
    assert cell_of(study, "both").member_seeds == members
    added = tuple(seed for seed in members if seed not in parents)
    assert cell_of(study, "ar").confirm_seeds == (*parents, *added)
    assert cell_of(study, "ar").kept_seeds == members


def test_the_search_s_seed_is_no_member():
    """The run that won was chosen for its loss."""
    recipes = table(both=ensemble()) | {"seed": 2}
    assert cell_of(study_of(recipes), "both").member_seeds == (1, 3, 4)


def test_an_ensemble_of_some_cells_asks_only_there():
    study = study_of(table(both=ensemble(4, sizes=["60k"], budgets=["16k"])))
    seeds = {
        (one.size, one.budget): one.confirm_seeds
        for one in study.cell_specs
        if one.cell.recipe == "ar"
    }
    assert seeds.pop(("60k", "16k")) == (1, 2, 3, 4)
    assert set(seeds.values()) == {(1,)}


def test_members_run_also_where_confirmations_are_not_wanted():
    recipes = table(both=ensemble(2))
    recipes["recipes"]["ar"]["confirm_cells"] = ["119k/8k"]
    assert cell_of(study_of(recipes), "ar").confirm_seeds == (1, 2)


def test_two_ensembles_share_their_members():
    study = study_of(table(two=ensemble(2), four=ensemble(4)))
    assert cell_of(study, "ar").confirm_seeds == (1, 2, 3, 4)


def test_with_an_ensemble_the_cell_of_its_members_is_selected():
    study = study_of(table(both=ensemble()))
    chosen = study.select(recipes=["both"], sizes=["60k"], budgets=["8k"])
    assert [one.cell.recipe for one in chosen] == ["ar", "both"]


@pytest.mark.parametrize(
    ("recipes", "said"),
    [
        (
            {"both": {"ensemble": 3}},
            r"recipes\.both\.ensemble needs inherit = RECIPE.*got no inherit",
        ),
        (
            {"both": ensemble(inherit="other:ar")},
            r"another study may have another tokenizer or validation set\), got 'other:ar'",
        ),
        ({"both": ensemble(inherit="as")}, r'recipes\.both\.inherit must name a recipe.*"as"'),
        (
            {"both": ensemble(), "more": ensemble(inherit="both")},
            r'recipes\.more\.inherit must name a recipe that is trained.*write inherit = "ar"',
        ),
        (
            {"both": ensemble(), "more": {"objective": "mir", "inherit": "both"}},
            r'recipes\.more\.inherit must name.*both is an ensemble: write inherit = "ar", whose',
        ),
        (
            {"both": ensemble(4, confirm_seeds=[1, 2, 3])},
            r"ensemble must be at most the number of its confirm_seeds, 3, got 4: name more seeds",
        ),
        (
            {"both": ensemble(2, confirm_seeds=[1, 42])},
            r"recipes\.both\.confirm_seeds must be fresh",
        ),
        (
            {"both": ensemble(objective="mir")},
            r"recipes\.both\.objective is not for an ensemble, whose members are ar's winner",
        ),
        ({"both": ensemble(space=[{"lr": [1e-3]}])}, r"recipes\.both\.space is not for an ensemb"),
        ({"both": ensemble(base={"batch_size": 4})}, r"both\.base .*or write it in recipes\.ar"),
        (
            {"d": {"objective": "mdlm", "inherit": "ar"}, "both": ensemble(inherit="d")},
            r"ensemble cannot average d, whose objective is mdlm: its loss is an upper bound",
        ),
        (
            {"mir": {"inherit": "ar", "sizes": ["60k"]}, "both": ensemble(inherit="mir")},
            r"both\.sizes must be among those of mir, whose runs the members are, .*got 119k too",
        ),
    ],
)
def test_what_cannot_be_averaged_is_refused_before_anything_trains(recipes, said):
    with pytest.raises(ConfigError, match=said) as refused:
        study_of(table(**recipes))
    assert len(refused.value.problems) == 1


@pytest.mark.parametrize("number", [1, 0, -2, 65, 2.5])
def test_a_number_of_members_is_two_at_least(dcray, tmp_path, number):
    path = tmp_path / "study.toml"
    path.write_text(
        'study = "toy"\nsizes = ["60k"]\nbudgets = ["8k"]\n[recipes.ar]\n'
        f'[recipes.both]\ninherit = "ar"\nensemble = {number}\n'
    )
    code, _, err = dcray("plan", path)
    assert code == 2
    assert "recipes.both.ensemble must be" in err
    assert f"got {number}" in err
