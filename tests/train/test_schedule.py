"""Learning rates and optimizer groups against closed forms."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dcray.config.sections import ScheduleConfig
from dcray.train.optim import build_optimizer
from dcray.train.schedule import fork_step, lr_factor
from tests.support import tiny_config


def test_wsd_is_a_trapezoid():
    schedule = ScheduleConfig(warmup_steps=4)
    factors = [lr_factor(step, 100, schedule) for step in range(100)]
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0]
    assert set(factors[4:90]) == {1.0}
    assert fork_step(100, schedule) == 90
    expected = [1 - 0.99 * (i + 1) / 10 for i in range(10)]
    assert factors[90:] == pytest.approx(expected)
    assert factors[-1] == pytest.approx(0.01)


def test_cosine_ends_at_its_minimum():
    schedule = ScheduleConfig(kind="cosine", warmup_steps=10, min_lr_frac=0.1)
    assert lr_factor(9, 110, schedule) == 1.0
    assert lr_factor(59, 110, schedule) == pytest.approx(0.55)
    assert lr_factor(34, 110, schedule) == pytest.approx(0.1 + 0.45 * (1 + math.cos(math.pi / 4)))
    assert lr_factor(109, 110, schedule) == pytest.approx(0.1)


@given(st.integers(1, 3000), st.integers(1, 50))
def test_branches_share_their_stable_part(steps, warmup):
    schedule = ScheduleConfig(warmup_steps=warmup)
    short, long = steps, 2 * steps
    for step in range(0, fork_step(short, schedule), max(1, steps // 20)):
        assert lr_factor(step, short, schedule) == lr_factor(step, long, schedule)


def test_decay_reaches_matrices_and_the_head_alone():
    from dcray.train.shard import RankContext, build_model

    model = build_model(tiny_config(), RankContext(torch.device("cpu")))
    decayed, plain = build_optimizer(model, tiny_config(optim__weight_decay=0.7)).param_groups
    names = {id(p): n for n, p in model.named_parameters()}
    assert decayed["weight_decay"] == 0.7
    assert plain["weight_decay"] == 0.0
    assert {names[id(p)] for p in plain["params"]} == {
        n for n in names.values() if "norm" in n or n == "embed.weight"
    }
    assert "head.weight" in {names[id(p)] for p in decayed["params"]}
    assert len(decayed["params"]) == 2 * 7 + 1
