"""What docs/differences.md says of dcray's side, and that the tests that it names exist."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from dcray.config.run import RunConfig, override
from dcray.config.sections import ScheduleConfig
from dcray.model.rotary import rotary_tables, rotate
from dcray.objectives.mdlm import MDLM
from dcray.objectives.mir import MIR
from dcray.rng import keyed
from dcray.rng.masking import mask_positions, mask_ratios
from dcray.train.evaluate import FINAL_DRAW
from dcray.train.optim import build_optimizer
from dcray.train.schedule import lr_factor
from dcray.train.shard import RankContext, build_model
from tests.support import tiny_config

ROOT = Path(__file__).parent.parent
TABLE = (ROOT / "docs" / "differences.md").read_text(encoding="utf-8")


def test_every_row_names_tests_that_exist():
    rows = [line for line in TABLE.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 15
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
        assert named, row
        for path, name in named:
            assert f"\ndef {name}(" in (ROOT / path).read_text(encoding="utf-8"), f"{path}::{name}"


@pytest.mark.parametrize(("steps", "released", "apart"), [(6096, 0.0116, 0.0016), (50, 0.208, 0.2)])
def test_the_last_step_has_the_floor_and_the_released_one_has_more(steps, released, apart):
    """0.01 + 0.99 / w is the closed form of a decay that reaches its floor one step too late."""
    schedule = ScheduleConfig(warmup_frac=0.01)
    factors = [lr_factor(step, steps, schedule) for step in range(steps)]
    decayed = sum(factor < 1 for factor in factors[steps // 2 :])
    assert decayed == round(0.1 * steps)
    assert factors[-1] == pytest.approx(0.01, abs=1e-12)
    theirs = 0.01 + 0.99 / decayed
    assert theirs == pytest.approx(released, abs=5e-5 if steps > 50 else 1e-9)
    assert theirs - factors[-1] == pytest.approx(apart, abs=0.02 * apart)


def test_cosine_falls_from_its_first_step_and_ends_at_the_minimum():
    schedule = ScheduleConfig(kind="cosine", warmup_steps=10, min_lr_frac=0.1)
    factors = [lr_factor(step, 110, schedule) for step in range(110)]
    assert factors[9] == 1.0
    assert factors[10] == pytest.approx(0.1 + 0.45 * (1 + math.cos(math.pi / 100)))
    assert factors[10] < 1.0
    assert factors[-1] == pytest.approx(0.1)


def test_rope_turns_the_other_way_and_scores_the_same():
    """Turned by minus the angle after half of the features changed sign: the same scores."""
    cos, sin = rotary_tables(16, 8, 10_000.0, torch.device("cpu"), torch.float64)
    q, k = torch.randn(2, 1, 1, 16, 8, dtype=torch.float64, generator=torch.manual_seed(0))
    flip = torch.tensor([1.0] * 4 + [-1.0] * 4, dtype=torch.float64)

    def scores(q, k, sin):
        return rotate(q, cos, sin) @ rotate(k, cos, sin).transpose(-1, -2)

    torch.testing.assert_close(scores(q, k, sin), scores(q * flip, k * flip, -sin))
    assert not torch.allclose(scores(q, k, sin), scores(q, k, -sin))
    one = torch.tensor([1.0, 0.0], dtype=torch.float64).view(1, 1, 1, 2)
    angle = torch.tensor([[0.3]], dtype=torch.float64)
    turned = rotate(one, angle.cos(), angle.sin())  # (1, 0) by +0.3: (cos, sin)
    assert turned.flatten().tolist() == pytest.approx([math.cos(0.3), math.sin(0.3)])


def test_rope_s_angles_are_exact_at_the_end_of_a_row():
    """Position 2,047 turns the first pair by 2,047 radians, the fourth by 2,047 / 1,000."""
    cos, sin = rotary_tables(2048, 8, 10_000.0, torch.device("cpu"), torch.float32)
    assert cos[-1].tolist() == pytest.approx([math.cos(2047 / 10**i) for i in range(4)], abs=1e-7)
    assert sin[-1].tolist() == pytest.approx([math.sin(2047 / 10**i) for i in range(4)], abs=1e-7)


def test_16_epochs_of_100m_tokens_take_6104_steps():
    def config(**more):
        fields = {"size": "72m", "data.unique_tokens": 10**8, "data.seq_len": 2048, **more}
        return override(RunConfig(), {"num_epochs": 16, "batch_size": 128, **fields})

    assert (config().data.num_rows, config().num_steps) == (48_828, 6_104)
    theirs = config(**{"data.row_stride": 2049, "data.order": "paper"})
    assert (theirs.data.num_rows, theirs.num_steps) == (48_804, 6_096)
    assert theirs.data.num_rows - theirs.usable_rows == 36


def test_mir_masks_the_first_input_too():
    assert MIR().mask_from == 0
    keys = torch.from_numpy(keyed.row_keys(42, np.zeros(4000, int), np.arange(4000)))
    ratios = mask_ratios(keys, 0.0, 0.5)
    hidden = mask_positions(keys, ratios, 16)
    assert hidden[:, 0].double().mean() == pytest.approx(0.25, abs=0.03)  # of r ~ U(0, 0.5)
    assert not mask_positions(keys, ratios, 16, mask_from=8)[:, :8].any()


def test_every_weight_and_gain_is_float32():
    model = build_model(tiny_config(), RankContext(torch.device("cpu")))
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    optimizer = build_optimizer(model, tiny_config())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    moments = {state["exp_avg"].dtype for state in optimizer.state.values()}
    assert moments == {torch.float32}
    gain = torch.tensor(1.0, dtype=torch.bfloat16)  # what a step of lr = 1e-3 does to one of theirs
    assert gain - torch.tensor(1e-3, dtype=torch.bfloat16) == gain


def test_the_dllm_scores_its_best_checkpoint_again_with_fresh_draws():
    objective = MDLM()
    assert (objective.draws, objective.final().draws) == (4, 32)
    assert objective.keeps_best
    assert FINAL_DRAW > 10**9  # no step has this number: the draws are no epoch's
