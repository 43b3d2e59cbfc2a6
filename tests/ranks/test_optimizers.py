"""Every optimizer that shards, on two and three real gloo processes against one."""

import numpy as np
import pytest
import torch
from torch.distributed.tensor import DTensor, distribute_tensor

from dcray import plugins
from dcray.train.optim import build_optimizer, set_lr
from dcray.train.shard import RankContext, build_model
from tests.support import on_ranks, run_tiny, tiny_config

CPU = RankContext(torch.device("cpu"))
NAMES = [name for name in plugins.names("optimizers") if plugins.plugin("optimizers", name).shards]


def stepped(place, names=NAMES):
    """The whole weights after five steps from given gradients: {optimizer: {name: array}}."""
    found = {}
    for optimizer in names:
        config = tiny_config(optimizer=optimizer, size__dim=20)  # on 3 ranks 7, 7 and 6 rows
        model = build_model(config, place)
        built = build_optimizer(model, config)
        generator = torch.Generator().manual_seed(0)
        for step in range(5):
            for parameter in model.parameters():
                whole = torch.randn(parameter.shape, generator=generator)
                sharded = isinstance(parameter, DTensor)
                mesh = (parameter.device_mesh, parameter.placements) if sharded else ()
                parameter.grad = distribute_tensor(whole, *mesh) if sharded else whole
            set_lr(built, 0.01 * (5 - step))
            built.step()
        found[optimizer] = {
            name: (p.full_tensor() if isinstance(p, DTensor) else p).detach().numpy()
            for name, p in model.named_parameters()
        }
    return found


def check_steps(found, alone):
    for optimizer in NAMES:
        for name, weight in alone[optimizer].items():
            np.testing.assert_allclose(
                found[optimizer][name], weight, atol=1e-6, err_msg=f"{optimizer} {name}"
            )


def trained(place, folder=None, stop_at=None, **changes):
    outcome, reports = run_tiny(
        tiny_config(runtime__num_points=1000, **changes), place, folder=folder, stop_at=stop_at
    )
    points = [p for said in reports for p in said.points if "train/loss" in p.values]
    return outcome, [p.values["train/loss"] for p in points]


DOUBLE = {"runtime__precision": "float64"}
LONG = {"num_epochs": 19, "optim__lr": 3e-3}


def on_two(place, folder):
    """The steps; of every optimizer but AdamW, which has its own tests, runs and a long one."""
    runs = {}
    for name in set(NAMES) - {"adamw"}:
        runs[name] = [
            trained(place, folder / name / "two", optimizer=name, **DOUBLE),
            trained(place, folder / name / "begun", optimizer=name, **DOUBLE),
            trained(place, folder / name / "handed-back", 6, optimizer=name, **DOUBLE),
            trained(place, optimizer=name, **LONG),
        ]
    return stepped(place), runs


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Holds runs that one rank has begun."""
    found = tmp_path_factory.mktemp("ranks")
    for name in set(NAMES) - {"adamw"}:
        begun, _ = trained(CPU, found / name / "begun", 6, optimizer=name, **DOUBLE)
        assert begun.state == "stopped"
    return found


@pytest.fixture(scope="module")
def two(folder):
    """`on_two` of the first of two ranks, all in one start of them."""
    return on_ranks(2, on_two, folder)[0]


def test_a_step_over_shards_is_that_of_whole_weights(two):
    """A matrix is not orthogonalized shard by shard; shards may be of different sizes."""
    alone = stepped(CPU)
    check_steps(two[0], alone)
    for found in on_ranks(3, stepped):
        check_steps(found, alone)


def test_shards_orthogonalized_alone_would_be_found():
    """The comparison can tell: half a matrix has another orthogonalization."""
    halves = []
    for rows in (slice(None), slice(0, 9)):
        weight = torch.nn.Parameter(torch.zeros(18, 18)[rows])
        weight.grad = torch.randn(18, 18, generator=torch.Generator().manual_seed(0))[rows]
        torch.optim.Muon([weight], lr=0.01, weight_decay=0).step()
        halves.append(weight.detach()[:9])
    assert (halves[0] - halves[1]).abs().max() > 1e-4


@pytest.mark.parametrize("name", [name for name in NAMES if name != "adamw"])
def test_two_ranks_train_as_one_and_take_over_its_checkpoint(name, two, folder):
    """float64, a whole run: 1e-8; begun on one rank and finished on two, and the other way."""
    alone, curve = trained(CPU, optimizer=name, **DOUBLE)
    for outcome, losses in two[1][name][:3]:
        if outcome.state == "complete":
            assert outcome.val_loss == pytest.approx(alone.val_loss, abs=1e-8)
        assert losses[-1] == pytest.approx(curve[len(losses) - 1], abs=1e-8)
    finished, _ = trained(CPU, folder / name / "handed-back", optimizer=name, **DOUBLE)
    assert finished.val_loss == pytest.approx(alone.val_loss, abs=1e-8)


def test_muon_s_float32_curves_agree_as_far_as_bfloat16_allows(two):
    """Its momentum is rounded to bfloat16: the last digit of float32 may flip one of eight bits.

    So the first four losses agree to 1e-5, as AdamW's first fifty do, and Muon's fifty to 1e-3.
    """
    alone, other = trained(CPU, optimizer="muon", **LONG)[1], two[1]["muon"][3][1]
    apart = np.abs(np.array(alone) - np.array(other))[:50]
    assert len(apart) == 50
    assert apart[:4].max() <= 1e-5
    assert apart.max() <= 1e-3
