"""One suite for every optimizer: a new file in dcray/optimizers is held to it as it is."""

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dcray import plugins
from dcray.config.run import RunConfig, override
from dcray.config.sections import OptimConfig
from dcray.config.sizes import num_params
from dcray.cost import checkpoint_bytes
from dcray.optimizers import faults, is_decayed
from dcray.train import loop
from dcray.train.optim import build_optimizer, set_lr
from dcray.train.shard import RankContext, build_model
from dcray.train.steps import DeviceSteps
from tests.support import VOCAB_SIZE, run_tiny, tiny_config

NAMES = plugins.names("optimizers")
CPU = RankContext(torch.device("cpu"))
SHAPES = {
    "embed.weight": (9, 4),
    "blocks.0.mlp.up.weight": (6, 4),
    "blocks.0.attn_norm.weight": (4,),
    "blocks.1.attn.out.weight": (4, 4),
    "norm.weight": (4,),
    "head.weight": (9, 4),
}


def weights(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        (name, torch.nn.Parameter(torch.randn(shape, generator=generator)))
        for name, shape in SHAPES.items()
    ]


def give_gradients(named, seed):
    generator = torch.Generator().manual_seed(seed)
    for _, parameter in named:
        parameter.grad = torch.randn(parameter.shape, generator=generator)


@pytest.mark.parametrize("name", NAMES)
def test_it_has_no_fault(name):
    assert faults(plugins.plugin("optimizers", name)) == []


@pytest.mark.parametrize("name", NAMES)
def test_options_are_plain_and_build_the_same_optimizer(name):
    optimizer = plugins.load("optimizers", name)
    options = json.loads(json.dumps(optimizer.options()))
    assert plugins.load("optimizers", name, **options) == optimizer
    config = override(RunConfig(), {"optimizer": {"name": name, **options}})
    assert config.optimizer.build() == optimizer
    assert RunConfig.model_validate(config.to_dict()).optimizer.build() == optimizer
    with pytest.raises(ValueError, match="colour"):
        plugins.load("optimizers", name, colour="red")
    assert isinstance(optimizer.shards, bool)
    assert isinstance(optimizer.capturable, bool)


@pytest.mark.parametrize("name", NAMES)
def test_a_step_moves_every_parameter_of_a_model(name):
    config = tiny_config(optimizer=name)
    model = build_model(config, CPU)
    before = {label: p.detach().clone() for label, p in model.named_parameters()}
    optimizer = build_optimizer(model, config)
    give_gradients(list(model.named_parameters()), 0)
    optimizer.step()
    for label, parameter in model.named_parameters():
        assert torch.isfinite(parameter).all(), label
        assert (parameter != before[label]).any(), label


@pytest.mark.parametrize("name", NAMES)
@given(lr=st.floats(1e-4, 0.1), decay=st.floats(0.01, 5.0), seed=st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_decay_is_apart_from_the_gradient(name, lr, decay, seed):
    """After the same gradients a decayed weight w is less by lr * decay * w, and no other is."""
    found = []
    for weight_decay in (0.0, decay):
        named = weights(seed)
        optimizer = plugins.load("optimizers", name).build(
            named, OptimConfig(lr=lr, weight_decay=weight_decay)
        )
        give_gradients(named, seed + 1)
        optimizer.step()
        found.append(named)
    for (label, without), (_, decayed), (_, before) in zip(*found, weights(seed), strict=True):
        expected = lr * decay * before if is_decayed(label, before) else torch.zeros(())
        assert torch.allclose(without - decayed, expected.expand_as(without), atol=2e-6), label


@pytest.mark.parametrize("name", NAMES)
def test_tau_is_the_epochs_after_which_a_step_is_down_to_1_in_e(name):
    """Without further gradients what is in the weights fades as exp(-epochs / tau)."""
    config = tiny_config(optimizer=name, optim__lr=1e-2, optim__weight_decay=0.5)
    named = weights()
    before = {label: p.detach().clone() for label, p in named}
    optimizer = plugins.load("optimizers", name).build(named, config.optim)
    steps_per_epoch = config.unique_tokens / (config.batch_size * config.data.seq_len)
    for _ in range(round(config.tau * steps_per_epoch)):
        for _, parameter in named:
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    for label, parameter in named:
        left = math.exp(-1) if is_decayed(label, parameter) else 1.0
        assert torch.allclose(parameter, left * before[label], rtol=0.01), label


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_a_step_with_all_on_the_device_is_the_plain_one(name, scale):
    """`scale` divides the gradients; groups are left as they were, for checkpoints."""
    plugin, found = plugins.load("optimizers", name), []
    for on_device in (False, True):
        named = weights()
        optimizer = plugin.build(named, OptimConfig(lr=0.01))
        for step, lr in enumerate((0.01, 0.02, 0.005)):
            give_gradients(named, step)
            set_lr(optimizer, lr)
            kept = [dict(group) for group in optimizer.param_groups]
            if on_device:
                plugin.device_step(optimizer, torch.tensor(lr), torch.tensor(scale))
            else:
                for _, parameter in named:
                    parameter.grad /= scale
                optimizer.step()
            assert [dict(group) for group in optimizer.param_groups] == kept
        found.append(named)
    for (label, plain), (_, ours) in zip(*found, strict=True):
        assert torch.allclose(plain, ours, rtol=1e-5, atol=1e-6), label


@pytest.mark.parametrize("name", NAMES)
def test_its_bytes_are_those_that_it_holds(name):
    config = tiny_config(optimizer=name)
    model = build_model(config, CPU)
    optimizer = build_optimizer(model, config)
    give_gradients(list(model.named_parameters()), 0)
    optimizer.step()
    state = [value for one in optimizer.state.values() for value in one.values()]
    held = 4 * sum(value.numel() for value in state if value.ndim)  # a count of steps is none
    count = num_params(config.shape, VOCAB_SIZE)
    assert checkpoint_bytes(config, VOCAB_SIZE) == 4 * count + held


def trained(config, folder=None, **more):
    outcome, reports = run_tiny(config, folder=folder, **more)
    points = [point for said in reports for point in said.points]
    return outcome, [p.values["train/loss"] for p in points if "train/loss" in p.values]


@pytest.mark.parametrize("name", NAMES)
def test_a_run_learns_and_goes_on_after_a_stop_bit_for_bit(name, tmp_path):
    config = tiny_config(optimizer=name, optim__lr=3e-3, num_epochs=8)
    whole, losses = trained(config)
    assert losses[-1] < losses[0] - 0.2
    assert trained(config, tmp_path, stop_at=7)[0].state == "stopped"
    ended, _ = trained(config, tmp_path)
    assert (ended.val_loss, ended.val_bpb) == (whole.val_loss, whole.val_bpb)


class Replays:
    """Graphs that capture what runs anyway, and count what is captured."""

    def __init__(self):
        self.captured = 0

    def wait(self):
        pass

    def capture(self, function):
        self.captured += 1
        return function

    def release(self):
        pass


@pytest.mark.parametrize("name", NAMES)
def test_a_run_of_captured_steps_is_the_plain_one(name, monkeypatch, tmp_path):
    """In float64 up to the learning rate, which is float32 on the device; also after a stop."""
    config = tiny_config(optimizer=name, runtime__precision="float64", runtime__capture=True)
    plain, losses = trained(config)
    graphs = Replays()

    def build(model, optimizer, objective, config, place, **more):
        return DeviceSteps(model, optimizer, objective, config, place, graphs, **more)

    monkeypatch.setattr(loop, "build_steps", build)
    ours, our_losses = trained(config)
    assert our_losses == pytest.approx(losses, rel=1e-5)
    assert ours.val_loss == pytest.approx(plain.val_loss, rel=1e-5)
    captured = plugins.load("optimizers", name).capturable
    assert graphs.captured == captured  # the step; one batch of validation is not repeated
    trained(config, tmp_path, stop_at=5)
    assert trained(config, tmp_path)[0].val_loss == ours.val_loss
