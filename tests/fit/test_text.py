"""The sentence that leads, where a grid is unusual: it claims no more than the table below it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dcray.fit.answer import Question, answer
from dcray.fit.grid import Row
from dcray.fit.output.as_json import as_json
from dcray.fit.output.headline import headline, short
from dcray.fit.output.text import answer_text
from dcray.fit.paper import published
from dcray.fit.uncertainty.diagnose import diagnose


@pytest.fixture
def found():
    """MIR beside the baseline on the paper's grids, with a few resamples."""
    rows = [*published.rows("dclm_ar"), *published.rows("dclm_mir")]
    return answer(rows, Question(laws=("softq",), bootstrap=10))


def changed(found, *, every=False, **fields):
    """The comparison with other figures at its first budget, or everywhere."""
    (one,) = found.comparisons
    first, *others = one.equivalences
    if every:
        others = [replace(other, **fields) for other in others]
    return replace(one, equivalences=(replace(first, **fields), *others))


def said_of(found):
    """The headline of the only comparison."""
    (one,) = found.comparisons
    return headline(one)


def test_an_interval_without_an_end_is_told_as_such(found):
    assert "(95 % intervals 1." in said_of(found)
    assert "to no upper end; null " in headline(changed(found, high=None))
    assert "(95 % intervals no lower end to 1." in headline(changed(found, low=None))


def test_a_budget_without_an_answer_is_named(found):
    none = {"status": "none", "data_efficiency": None, "high": None, "beyond": "at least"}
    said = headline(changed(found, **none))
    assert "1.12 times (at 400m) to at least 16.00 times (at 100m) ar's unique data" in said
    assert "At 100m no amount of ar's data reaches mir's loss, by softq." in said


def test_the_verdict_is_of_the_budgets_that_have_a_worth(found):
    """Intervals and nulls of a budget without a worth are not those of the others."""
    wide = {"null_low": 0.1, "null_high": 9.0}
    assert "It lies inside its null: it cannot be told from nothing." in headline(
        changed(found, every=True, **wide)
    )
    said = headline(changed(found, **wide))  # at the first budget, 100m
    assert "null 0.10 to 9.00)" in said
    assert "It lies outside of its null at 200m, 300m, 400m; elsewhere it cannot be told" in said
    gone = {"status": "none", "data_efficiency": None, "beyond": None, **wide}
    assert "null 0.10" not in headline(changed(found, **gone))


def test_without_a_size_in_common_and_without_a_limit_nothing_is_claimed():
    """Losses that hardly fall with size: "no amount of ar's data" would be a lie."""
    noise = iter([3, -2, 1, -1, 2, -3, 2, 1, -2, -1, 3, -2, 1, 2, -3, 1, -1, 2])
    rows = [
        Row(size, budget, 2 + (1e6 / (worth * budget)) ** 0.25 + 4e-3 * next(noise), 16, recipe)
        for recipe, worth, size_of in (("ar", 1.0, 60_000), ("mir", 1.2, 61_000))
        for size in (size_of, 2 * size_of, 4 * size_of)
        for budget in (16_000, 32_000, 64_000)
    ]
    said = said_of(answer(rows, Question()))
    assert said.startswith("What mir is worth cannot be told under ")
    assert "no size of mir is one of ar's" in said


def test_which_grid_no_law_describes_and_whose_prediction_it_is():
    """Chance alone beside a grid that SoftQ describes: it is not said to fail on both."""
    ar = published.rows("dclm_ar")
    losses = [3 + (37 * i % 20) / 20 for i in range(len(ar))]
    chance = [
        replace(row, recipe="mir", val_loss=loss) for row, loss in zip(ar, losses, strict=True)
    ]
    asked = Question(laws=("softq", "muennighoff_c4"), predict=("num_params=3b,unique_tokens=1b",))
    found = answer([*ar, *chance], asked)
    said = said_of(found)
    assert said.startswith("No law leads: even softq (lowest AICc) fails on the grid of mir (")
    text, _, of_mir = answer_text(found).partition("predictions for mir:")
    lines = [line.split() for line in text.partition("predictions for ar:")[2].splitlines()]
    of_law = {words[0]: words for words in lines if words[1:3] == ["3b", "1b"]}
    assert of_mir.count("fails on this grid") == 2
    assert of_law["muennighoff_c4"][-4:] == ["fails", "on", "this", "grid"]
    assert of_law["softq"][-1] == "-"


def test_a_count_just_below_a_unit_is_one_of_it():
    assert [short(count) for count in (999_700_000, 999_400, 1_439_273_984)] == [
        "1b", "999k", "1.44b",
    ]  # fmt: skip


def test_a_bound_is_called_one_wherever_it_stands_beside_a_loss():
    """Its targets are other tokens, too (the first of a row is one)."""
    ar = published.rows("dclm_ar")
    bounds = [
        replace(row, recipe="mdlm", val_loss=row.val_loss + 0.1, bound="upper bound") for row in ar
    ]
    found = answer([*ar, *bounds], Question(laws=("softq",), recipes=("mdlm",)))
    note = "Each loss of mdlm is an upper bound, over other tokens."
    assert note in said_of(found)
    assert as_json(found)["recipes"]["mdlm"]["bound"] == "upper bound"
    (pairs,) = [p for p in answer_text(found).splitlines() if p.startswith("mdlm minus ar")]
    assert pairs.endswith(note)


def test_a_term_that_is_zero_puts_no_warning_on_the_screen(found, recwarn):
    """Some fits end there: its logarithm is none."""
    one = found.fits["ar"]["softq"]
    E, A, _, alpha, rho = one.theta
    flags = diagnose(replace(one, theta=(E, A, 0.0, alpha, rho))).flags
    assert "B is at its bound 0" in flags
    assert recwarn.list == []
