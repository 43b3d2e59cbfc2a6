"""The sentence that leads, where a grid is unusual: it claims no more than the table below it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dcray.fit import published
from dcray.fit.answer import Question, answer
from dcray.fit.as_json import as_json
from dcray.fit.diagnose import diagnose
from dcray.fit.grid import Row
from dcray.fit.text import _short, answer_text, headline


@pytest.fixture
def found():
    """MIR beside the baseline on the paper's grids, with a few resamples."""
    rows = [*published.rows("dclm_ar"), *published.rows("dclm_mir")]
    return answer(rows, Question(laws=("softq",), bootstrap=10))


def changed(found, **fields):
    """The answer with other figures at its first budget."""
    first, *others = found.equivalences["mir"]
    return replace(found, equivalences={"mir": [replace(first, **fields), *others]})


def test_an_interval_without_an_end_is_told_as_such(found):
    assert "(95 % intervals 1." in headline(found, "mir")
    assert "to no upper end)" in headline(changed(found, high=None), "mir")
    assert "(95 % intervals no lower end to 1." in headline(changed(found, low=None), "mir")


def test_a_budget_without_an_answer_is_named(found):
    said = headline(changed(found, status="none", data_efficiency=None, high=None), "mir")
    assert "times (at 400m) to 1.13 times (at 200m) ar's unique data" in said
    assert "At 100m no amount of it is." in said
    same = replace(
        found,
        equivalences={"mir": [replace(a, data_efficiency=1.1) for a in found.equivalences["mir"]]},
    )
    said = headline(changed(same, status="none", data_efficiency=None, high=None), "mir")
    assert "1.10 times (at 200m, 300m, 400m)" in said


def test_without_a_size_in_common_and_without_a_limit_nothing_is_claimed():
    """Losses that hardly fall with size: "no amount of ar's data" would be a lie."""
    noise = iter([3, -2, 1, -1, 2, -3, 2, 1, -2, -1, 3, -2, 1, 2, -3, 1, -1, 2])
    rows = [
        Row(size, budget, 2 + (1e6 / (worth * budget)) ** 0.25 + 4e-3 * next(noise), 16, recipe)
        for recipe, worth, size_of in (("ar", 1.0, 60_000), ("mir", 1.2, 61_000))
        for size in (size_of, 2 * size_of, 4 * size_of)
        for budget in (16_000, 32_000, 64_000)
    ]
    said = headline(answer(rows, Question()), "mir")
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
    said = headline(found, "mir")
    assert said.startswith("No law leads: even softq (lowest AIC) fails on the grid of mir (")
    lines = [line.split() for line in answer_text(found).splitlines()]
    of_law = {words[0]: words for words in lines if words[1:3] == ["3b", "1b"]}
    assert of_law["muennighoff_c4"][-4:] == ["fails", "on", "this", "grid"]
    assert of_law["softq"][-1] == "-"


def test_a_count_just_below_a_unit_is_one_of_it():
    assert [_short(count) for count in (999_700_000, 999_400, 1_439_273_984)] == [
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
    assert note in headline(found, "mdlm")
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
