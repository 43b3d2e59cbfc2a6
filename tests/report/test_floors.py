"""Which recipes are floors, and what an analysis with one says first."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from dcray.report.analysis import Asked, analyze
from dcray.report.basis import choose
from dcray.report.figures import draw as figures
from dcray.report.floors import floors_of
from dcray.report.page import answers, commands, page, qualifications
from dcray.report.tables.study import family
from tests.report.rows import row
from tests.report.test_page import Reader, grid


def with_weak():
    """ar and mir as in `grid`, and weak, whose losses are those of ar at half the data."""
    own = [replace(one, weight_decay=0.8 * (1 + one.num_epochs)) for one in grid()]
    weak = []
    for one in own:
        if one.recipe == "ar" and one.config_hash == "a":
            loss = (
                2 + (2e3 * one.num_params**-0.6 + 3e2 * (one.unique_tokens / 2) ** -0.4) ** 1.25 / 4
            )
            where = {"size": one.size, "N": one.num_params, "U": one.unique_tokens}
            for config, epochs, more in (("w4", 4, 0.0), ("w8", 8, 0.2)):
                weak.append(row(loss + more, recipe="weak", objective="ar", config=config,
                                epochs=epochs, decay=0.1, **where))  # fmt: skip
    return [*own, *weak]


def test_a_fixed_decay_below_the_tuned_ones_is_a_floor():
    (floor,) = floors_of(choose(with_weak()), "ar")
    assert floor.recipe == "weak"
    assert floor.subject == "Tuned weight decay"
    assert floor.described == "weight decay fixed at 0.1, its epochs tuned as well"
    assert floors_of(choose(with_weak()), "mir") == ()  # another objective
    assert floors_of(choose(grid()), "ar") == ()


def test_a_recipe_of_another_optimizer_is_no_floor_and_none_of_the_papers():
    def with_optimizer(one, name):
        return replace(one, tags={**one.tags, "optimizer": name})

    rows = [with_optimizer(one, "muon") if one.recipe == "weak" else one for one in with_weak()]
    assert floors_of(choose(rows), "ar") == ()
    named = [with_optimizer(one, "adamw") for one in with_weak()]
    assert len(floors_of(choose(named), "ar")) == 1
    mixed = [with_optimizer(one, "adamw") if one.recipe == "weak" else one for one in with_weak()]
    assert len(floors_of(choose(mixed), "ar")) == 1  # "ar" was recorded before they had names
    weak = [one for one in rows if one.recipe == "weak"]
    assert family(weak) is None
    assert family([with_optimizer(one, "adamw") for one in weak]) == "multi-epoch"


def test_one_epoch_count_is_not_said_to_isolate_the_decay():
    rows = [one for one in with_weak() if one.config_hash != "w8"]
    (floor,) = floors_of(choose(rows), "ar")
    assert (floor.subject, floor.described) == (
        "", "weight decay fixed at 0.1, its epochs not tuned",
    )  # fmt: skip


@pytest.fixture(scope="module")
def found():
    return analyze("s", with_weak(), [], Asked(bootstrap=0))


def worth_in(sentence):
    """The figures before "times"."""
    return [float(figure) for figure in re.findall(r"([\d.]+) times", sentence)]


def test_the_first_sentence_says_what_tuned_decay_is_worth(found):
    first, second = answers(found)
    assert first.startswith("Tuned weight decay is worth ")
    assert worth_in(first) == pytest.approx([2, 2], abs=0.05)
    assert "ar against weak (weight decay fixed at 0.1, its epochs tuned as well)" in first
    assert second.startswith("mir is worth ")
    assert set(worth_in(second)) <= {1.24, 1.25, 1.26}
    text = " ".join(Reader(page(found, *figures.of_study(found))).text)
    assert text.index(first) < text.index(second)
    assert commands(found).endswith("dcray fit cells.csv --floor weak --bootstrap 0")


def test_named_recipes_are_the_only_comparisons():
    found = analyze("s", with_weak(), [], Asked("ar", ("mir",), bootstrap=0))
    assert [one.recipe.recipe for one in found.answer.comparisons] == ["mir"]


def test_a_floor_without_a_grid_is_told_beside_the_answer():
    """The quickstart's weak recipe once had one budget."""
    rows = [one for one in with_weak() if one.recipe != "weak" or one.unique_tokens == 100_000]
    found = analyze("s", rows, [], Asked(bootstrap=0))
    (only,) = answers(found)
    assert only.startswith("mir is worth")
    said = "What ar is worth in weak's data is not told: recipe weak has one budget only"
    assert [one for one in qualifications(found) if one.startswith(said)]
