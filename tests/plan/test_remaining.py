"""What a search still takes, against searches that are played to their end on a clock of their own.

The truth is when the last run ends: runs take FLOPs over a rate that grows with the size, with
noise, and some seconds beside. The outlook knows neither.
"""

import heapq
import random
from dataclasses import replace

import pytest

from dcray.plan.remaining import Outlook, run_flops
from dcray.reports import Report
from dcray.study.study import Study
from dcray.types import RunReport
from tests.search.player import MINI, bowl, state_of, study_of

RATES = {"60k": 18e9, "119k": 26e9, "226k": 36e9}  # FLOP/s of a core
BESIDE = 1.5  # seconds of a run's start and end


def replay(study, *, slots=2, seed=0, val_tokens=51_201, of_gpu=1.0):
    """Each end of a run: (seconds since the first began, outlook in seconds, trials, settled)."""
    state, rng, now = state_of(study), random.Random(seed), [0.0]
    outlook = Outlook(lambda: state, lambda one: one.flops / 40e9, val_tokens, clock=lambda: now[0])
    flying, said, settled = [], [], 0
    while True:
        while len(flying) < slots and (ready := state.ready()):
            (one,) = state.start(ready[0])
            place = {"device": "cuda", "gpu_share": of_gpu} if of_gpu < 1 else {}
            one = replace(one, place=one.config.runtime.model_copy(update=place))
            outlook.hear(RunReport(one))
            rate = RATES[one.config.size_name] * (0.9 if one.config.objective.name == "mir" else 1)
            seconds = run_flops(one, val_tokens) / rate * rng.uniform(0.8, 1.25) / of_gpu
            heapq.heappush(flying, (now[0] + BESIDE + seconds, one.name, seconds, one))
        if not flying:
            return said
        now[0], _, seconds, one = heapq.heappop(flying)
        for end, _, whole, other in flying:
            steps = other.config.num_steps
            share = min(1.0, max(0.0, 1 - (end - now[0]) / whole))
            step = round(other.forked_from + share * (steps - other.forked_from))
            outlook.hear(RunReport(other, said_of(other, step)))
        ended = one.ended("complete", bowl(one), run_id=one.name, device_seconds=seconds)
        state.apply(ended)
        outlook.hear(ended)
        settled += 1
        said.append((now[0], outlook.seconds(), outlook.num_trials(), settled))


def said_of(one, step):
    steps = one.config.num_steps
    return Report(
        step=step, num_steps=steps, epoch=0.0, tokens_seen=0, seconds=0.0,
        first_step=one.forked_from,
        tokens_per_second=0.0, points=[],
    )  # fmt: skip


@pytest.mark.parametrize(("seed", "of_gpu"), [(0, 1.0), (1, 1.0), (2, 1.0), (0, 0.5)])
def test_within_30_percent_from_a_quarter_of_the_way_on(seed, of_gpu):
    """The shipped quickstart on two devices, or on one in halves.

    The last tenth, a run or two, is told to within its length.
    """
    said = replay(Study.read("quickstart"), seed=seed, of_gpu=of_gpu)
    end, _, total, settled = said[-1]
    assert settled == total == said[0][2]  # counted in full from the first run on
    assert said[-1][1] == 0
    errors = [
        (round(at / end, 2), seconds / (end - at) - 1)
        for at, seconds, *_ in said
        if 0.25 * end <= at <= 0.9 * end
    ]
    assert len(errors) > 20
    assert all(abs(error) <= 0.3 for _, error in errors), errors
    assert all(
        abs(seconds - (end - at)) <= 0.05 * end for at, seconds, *_ in said if at > 0.9 * end
    )


def test_members_of_an_ensemble_are_counted_where_they_are_trained():
    """Two seeds more of ar, and one result that takes no time, from the first moment on."""
    plain = {**MINI, "sizes": ["60k"], "budgets": ["8k"]}
    plain["recipes"] = {"ar": MINI["recipes"]["ar"]}
    both = {**plain, "recipes": {**plain["recipes"], "e": {"inherit": "ar", "ensemble": 3}}}
    trials = []
    for table in (plain, both):
        state = state_of(study_of(table))
        outlook = Outlook(lambda state=state: state, lambda one: one.flops / 40e9)
        trials.append(outlook.num_trials())
    assert trials[1] == trials[0] + 2 + 1
    said = replay(study_of(both))
    assert [number for *_, number, _ in said] == [trials[1]] * len(said)
