"""Muon: torch's own for the blocks' matrices, AdamW for the others; what an update is."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from dcray import plugins
from dcray.config.sections import OptimConfig
from dcray.optimizers import is_decayed
from dcray.optimizers.muon import Muon
from dcray.train.optim import build_optimizer, set_lr
from dcray.train.shard import RankContext, build_model
from tests.support import tiny_config

CPU = RankContext(torch.device("cpu"))
SHAPES = {
    "blocks.0.a.weight": (32, 32),
    "blocks.0.b.weight": (16, 48),
    "blocks.1.c.weight": (48, 16),
    "embed.weight": (20, 16),
    "blocks.0.norm.weight": (16,),
    "head.weight": (20, 16),
}
MATRICES = [name for name, shape in SHAPES.items() if name.startswith("blocks") and len(shape) == 2]


def weights(seed):
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.nn.Parameter(torch.randn(shape, generator=generator))
        for name, shape in SHAPES.items()
    }


@pytest.mark.parametrize(
    "options",
    [{}, {"adjust_lr_fn": "original"}, {"momentum": 0.9, "nesterov": False}, {"ns_steps": 3}],
)
@given(seed=st.integers(0, 999), lr=st.floats(1e-4, 1e-2), decay=st.floats(0.0, 2.0))
@settings(max_examples=10, deadline=None)
def test_matrices_take_torch_s_step_and_the_others_adamw_s_bit_for_bit(options, seed, lr, decay):
    optim = OptimConfig(lr=lr, weight_decay=decay)
    ours, theirs = weights(seed), weights(seed)
    optimizer = Muon(**options).build(list(ours.items()), optim)
    rest = theirs.keys() - set(MATRICES)
    muon = torch.optim.Muon(
        [theirs[name] for name in MATRICES],
        lr=lr,
        weight_decay=decay,
        **({"adjust_lr_fn": "match_rms_adamw"} | options),
    )
    adamw = torch.optim.AdamW(
        [
            {"params": [theirs[name]], "weight_decay": decay * is_decayed(name, theirs[name])}
            for name in sorted(rest)
        ],
        lr=lr,
        betas=optim.betas,
        eps=optim.eps,
        fused=True,
    )
    generator = torch.Generator().manual_seed(seed)
    for step in range(5):
        for name, parameter in ours.items():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
            theirs[name].grad = parameter.grad.clone()
        for one in (optimizer, muon, adamw):
            set_lr(one, lr * (1 - step / 5))
            one.step()
    for name, parameter in ours.items():
        assert torch.equal(parameter, theirs[name]), name


def test_the_matrices_of_the_blocks_are_muon_s_and_no_others():
    config = tiny_config(optimizer="muon")
    model = build_model(config, CPU)
    optimizer = build_optimizer(model, config)
    matrices, *others = (group["params"] for group in optimizer.param_groups)
    names = {id(p): name for name, p in model.named_parameters()}
    found = {names[id(p)] for p in matrices}
    assert len(found) == 2 * 7
    assert all(name.startswith("blocks.") and "norm" not in name for name in found)
    rest = {names[id(p)] for group in others for p in group}
    assert found | rest == set(names.values())
    assert {"embed.weight", "head.weight", "norm.weight"} <= rest


def moved(shape, *, options, seed=0):
    """The update of a matrix of zeros by one step at lr 1."""
    weight = torch.nn.Parameter(torch.zeros(shape))
    optimizer = Muon(**options).build(
        [("blocks.0.w", weight)], OptimConfig(lr=1.0, weight_decay=0.0)
    )
    weight.grad = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    optimizer.step()
    return weight.detach()


@pytest.mark.parametrize("shape", [(64, 64), (64, 192), (192, 64), (32, 256)])
def test_an_update_has_the_size_of_adamw_s_whatever_the_shape(shape):
    """Its root mean square is near 0.2 lr; by torch's "original" it falls with the dimension."""
    size = float(moved(shape, options={}).square().mean().sqrt())
    assert 0.15 < size < 0.25
    small = float(moved(shape, options={"adjust_lr_fn": "original"}).square().mean().sqrt())
    assert small < 0.15


@pytest.mark.parametrize("shape", [(64, 192), (192, 64)])
def test_an_update_is_near_the_orthogonal_matrix_of_the_svd(shape):
    """-U V^T of the gradient: the same singular directions, singular values near 1."""
    update = moved(shape, options={"nesterov": False}) / -(0.2 * max(shape) ** 0.5)
    gradient = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    u, _, vt = torch.linalg.svd(gradient, full_matrices=False)
    values = u.T @ update @ vt.T
    on = values.diagonal()
    assert 0.5 < float(on.min()) <= float(on.max()) < 1.3
    assert float((values - torch.diag(on)).abs().max()) < 0.1


@pytest.mark.parametrize("shape", [(24, 24), (16, 40), (40, 16)])
@pytest.mark.parametrize("ns_steps", [1, 5])
def test_its_flops_are_those_that_torch_counts(shape, ns_steps):
    with FlopCounterMode(display=False) as counter:
        moved(shape, options={"ns_steps": ns_steps})
    assert Muon(ns_steps=ns_steps).update_flops([shape]) == counter.get_total_flops()


def test_adamw_counts_none():
    assert plugins.load("optimizers", "adamw").update_flops([(9, 9)]) == 0.0
