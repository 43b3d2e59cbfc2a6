"""The ladder: one table whatever the order, the concurrency, the restarts; its exact keep."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcray.search.ladder import cohort, generation
from dcray.study.keep import counts_problem

RUNGS = st.lists(st.sampled_from([2, 4, 8, 16]), min_size=1, max_size=4, unique=True).map(
    lambda epochs: tuple(sorted(epochs))
)
TRUNKS = st.lists(RUNGS, min_size=1, max_size=12)
SHARES = st.lists(st.floats(0.05, 1.0), min_size=1, max_size=4).map(lambda s: [1.0, *s])


def truth(seed):
    """The loss of every rung, some of them divergences: a function, whoever asks first."""

    def loss(rung):
        rng = random.Random(f"{seed} {rung}")
        return math.inf if rng.random() < 0.1 else round(rng.random(), 1)  # with ties

    return loss


def run(decide, loss, *, concurrency, order, stop_after=None, losses=None):
    """Play a ladder to its end, or until `stop_after` starts: the table, and what was begun."""
    losses = dict(losses or {})
    flying, begun = [], []
    while True:
        for rung in decide(losses).due:
            if rung not in flying and len(flying) < concurrency:
                flying.append(rung)
                begun.append(rung)
        if not flying:
            assert decide(losses).done
            return losses, begun
        ended = flying.pop(order.randrange(len(flying)))
        losses[ended] = loss(ended)
        if stop_after is not None and len(begun) >= stop_after:
            return losses, begun


@settings(max_examples=150, deadline=None)
@given(TRUNKS, SHARES, st.integers(0, 10**6), st.integers(1, 5), st.integers(0, 20))
def test_a_cohorts_table_depends_on_nothing_but_the_losses(trunks, keep, seed, width, kill):
    def decide(losses):
        return cohort(trunks, keep, losses)

    loss = truth(seed)
    alone, begun = run(decide, loss, concurrency=1, order=random.Random(0))
    assert len(begun) == len(set(begun)) == len(alone)
    other, _ = run(decide, loss, concurrency=width, order=random.Random(seed))
    assert other == alone
    part, before = run(decide, loss, concurrency=width, order=random.Random(seed), stop_after=kill)
    again, after = run(decide, loss, concurrency=1, order=random.Random(1), losses=part)
    assert again == alone
    assert set(before) | set(after) == set(alone)
    assert not set(part) & set(after)  # what is on record is never run again
    everything = {(t, e) for t, own in enumerate(trunks) for e in own}
    assert everything == set(alone) | decide(alone).dropped
    assert not set(alone) & decide(alone).dropped


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 20), st.integers(0, 10**6), st.data())
def test_successive_halving_with_an_exact_keep(number, seed, data):
    """Against successive halving as a textbook writes it."""
    second = data.draw(st.integers(1, number))
    third = data.draw(st.integers(1, second))
    loss = truth(seed)
    table, _ = run(
        lambda losses: cohort([(4, 8, 16)] * number, [number, second, third], losses),
        loss,
        concurrency=3,
        order=random.Random(seed),
    )
    expected = {(t, 4) for t in range(number)}
    alive = list(range(number))
    for before, after, quota in ((4, 8, second), (8, 16, third)):
        alive = sorted(
            (t for t in alive if loss((t, before)) < math.inf),
            key=lambda t: (loss((t, before)), t),
        )[:quota]
        expected |= {(t, after) for t in alive}
    assert set(table) == expected


def test_nine_five_three():
    losses = {(t, 4): float(t) for t in range(9)}
    due = cohort([(4, 8, 16)] * 9, [1, 0.56, 0.34], losses).due
    assert due == tuple((t, 8) for t in range(5))
    losses |= {(t, 8): -float(t) for t in range(5)}
    due = cohort([(4, 8, 16)] * 9, [9, 5, 3], losses).due
    assert due == ((2, 16), (3, 16), (4, 16))


def test_boxes_with_other_rungs_are_compared_at_equal_epochs():
    """Two trunks at 2, 4 and two at 4, 8: at 4 the survivor of the first meets the newcomers."""
    trunks = [(2, 4, 8), (2, 4, 8), (4, 8), (4, 8)]
    losses = {(0, 2): 3.0, (1, 2): 2.0, (2, 4): 1.5, (3, 4): 1.0}
    step = cohort(trunks, [1, 0.5], losses)
    assert step.due == ((1, 4),)
    assert step.dropped == {(0, 4), (0, 8)}
    assert step.awaited == {(1, 8), (2, 8), (3, 8)}
    step = cohort(trunks, [1, 0.5], losses | {(1, 4): 1.2})
    assert step.due == ((1, 8), (3, 8))  # two go on: one for each family, the best two of all


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 4), st.integers(1, 5), st.floats(0.1, 1.0), st.integers(0, 10**6))
def test_generations_depend_on_nothing_but_the_losses(size, number, share, seed):
    """Also: a trunk goes on if and only if it is among the best ceil(share) of all so far."""
    loss = truth(seed)
    tables = []
    for width in (1, 3):
        losses = {}
        for newest in range(number):
            rungs = [(4, 8, 16)] * (size * (newest + 1))
            losses, begun = run(
                lambda found, rungs=rungs, newest=newest: generation(
                    rungs, size * newest, share, found
                ),
                loss,
                concurrency=width,
                order=random.Random(seed + width),
                losses=losses,
            )
            assert all(trunk >= size * newest for trunk, _ in begun)
            for trunk in range(size * newest, size * (newest + 1)):
                ever = sorted(
                    (losses[t, 4], t) for t in range(size * (newest + 1)) if (t, 4) in losses
                )
                limit = math.ceil(share * len(ever))
                rank = ever.index((losses[trunk, 4], trunk))
                assert ((trunk, 8) in losses) == (rank < limit and losses[trunk, 4] < math.inf)
        tables.append(losses)
    assert tables[0] == tables[1]


def test_all_diverged_ends_the_ladder():
    losses = {(t, 4): math.inf for t in range(9)}
    step = cohort([(4, 8, 16)] * 9, [9, 5, 3], losses)
    assert step.done
    assert len(step.dropped) == 18


@pytest.mark.parametrize(
    ("rungs", "keep", "problem"),
    [
        ([(4, 8)] * 9, [9, 5], None),
        ([(4, 8)] * 9, [1, 0.5], None),
        ([(4, 8)] * 8, [9, 5], r"keep\[0\] must be the number of trunks, 8, got 9"),
        ([(4, 8), (8, 16)], [2, 1], "needs the same rungs"),
    ],
)
def test_counts_need_one_family_of_trunks(rungs, keep, problem):
    found = counts_problem(rungs, keep)
    if problem is None:
        assert found is None
    else:
        import re

        assert re.search(problem, found)
