"""Averaged weights against averages of the weights of every step, recomputed in float64."""

import math
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint import FileSystemReader, state_dict_loader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.tensor import DTensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from dcray.config.sizes import num_params
from dcray.cost import WEIGHT_BYTES, checkpoint_bytes, memory, training_flops, validation_flops
from dcray.errors import ConfigError
from dcray.train.average import Average, in_place
from dcray.train.checkpoint.manager import BEST, steps_in
from dcray.train.checkpoint.metadata import read_meta
from dcray.train.checkpoint.weights import load_weights
from dcray.train.evaluate import evaluate
from dcray.train.schedule import average_share, fork_step, last_shared_step
from dcray.train.shard import RankContext, build_model
from dcray.train.steps import DeviceSteps, PlainSteps
from tests.support import MASK_ID, VOCAB_SIZE, on_ranks, run_tiny, tiny_config, tiny_data
from tests.train.test_forks import branch
from tests.train.test_graphed import on_buffers

CPU = RankContext(torch.device("cpu"))
EMA = {"average__kind": "ema", "average__tau_epochs": 0.5}
MEAN = {"average__kind": "mean", "average__last_frac": 0.4}
KINDS = pytest.mark.parametrize("kind", [EMA, MEAN], ids=["ema", "mean"])
STEPS_PER_EPOCH = 22 / 8  # of tests/support.py's rows and batch


@contextmanager
def watched(steps=PlainSteps) -> Iterator[list[dict[str, np.ndarray]]]:
    """Collects the weights after every step, as the optimizer left them."""
    seen: list[dict[str, np.ndarray]] = []
    plain = steps.train

    def train(self, *given, **named):
        found = plain(self, *given, **named)
        seen.append({name: full(weight).copy() for name, weight in self.model.named_parameters()})
        return found

    steps.train = train
    try:
        yield seen
    finally:
        steps.train = plain


def full(tensor: torch.Tensor) -> np.ndarray:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().numpy()


def brute_force(seen, config, *, until: int | None = None) -> dict[str, np.ndarray]:
    """The average by its definition, over all weights that were seen, in float64."""
    number = until or len(seen)
    if config.average.kind == "ema":
        decay = math.exp(-1 / (config.average.tau_epochs * STEPS_PER_EPOCH))
        shares = np.array([decay ** (number - step) for step in range(1, number + 1)])
    else:
        last = max(1, round(config.average.last_frac * config.num_steps))
        begin = config.num_steps - last  # until there, the average is the weights themselves
        shares = np.array([float(step > begin or step == number) for step in range(1, number + 1)])
    shares /= shares.sum()
    return {
        name: np.tensordot(shares, np.stack([w[name].astype(float) for w in seen[:number]]), 1)
        for name in seen[0]
    }


def averaged(folder: Path) -> dict[str, np.ndarray]:
    """What an evaluation loads of a run."""
    _, model = load_weights(folder, CPU.device)
    return {name: weight.numpy() for name, weight in model.state_dict().items()}


def assert_equal(found, expected, tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=tolerance, err_msg=name)


def saved(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    """Every tensor of the newest checkpoint by its part and its name in the file."""
    newest = str(steps_in(folder)[-1])
    found: dict[str, dict[str, torch.Tensor]] = {}
    metadata = FileSystemReader(newest).read_metadata().state_dict_metadata
    for key, kind in metadata.items():
        if isinstance(kind, TensorStorageMetadata):
            part, _, name = key.partition(".")
            found.setdefault(part, {})[name] = torch.zeros(kind.size, dtype=kind.properties.dtype)
    state_dict_loader.load(found, checkpoint_id=newest, no_dist=True)
    return found


def identical(one, other) -> bool:
    """Tell whether two saved states, or parts of them, are equal bit for bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    return one.keys() == other.keys() and all(identical(one[k], other[k]) for k in one)


@KINDS
@pytest.mark.parametrize("num_epochs", [2, 4])
def test_the_average_is_that_of_the_weights_of_every_step(tmp_path, kind, num_epochs):
    config = tiny_config(num_epochs=num_epochs, optim__lr=5e-2, **kind)
    with watched() as seen:
        outcome, reports = run_tiny(config, folder=tmp_path)
    assert len(seen) == config.num_steps
    expected = brute_force(seen, config)
    (last,) = steps_in(tmp_path)[-1:]
    assert_equal(averaged(last), expected, 1e-6)
    moved = max(abs(seen[-1][name] - expected[name]).max() for name in expected)
    assert moved > 1e-4  # the comparison can tell
    assert outcome.val_loss == pytest.approx(loss_of(expected, config), abs=1e-6)
    assert outcome.val_loss_raw == pytest.approx(loss_of(seen[-1], config), abs=1e-6)
    (point,) = [p.values for r in reports for p in r.points if "val/loss" in p.values]
    assert (point["val/loss"], point["val/raw_loss"]) == (outcome.val_loss, outcome.val_loss_raw)


def loss_of(weights, config) -> float:
    """The validation loss of these weights, by a model of its own."""
    model = build_model(config, CPU)
    model.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})
    rows, objective = tiny_data(config).validation, config.objective.build()
    return evaluate(
        model, objective, rows, CPU, mask_id=MASK_ID, microbatch_size=4, draw=config.num_steps
    ).loss


@KINDS
def test_in_float64_it_is_exact(tmp_path, kind):
    config = tiny_config(runtime__precision="float64", **kind)
    with watched() as seen:
        run_tiny(config, folder=tmp_path)
    _, model = load_weights(steps_in(tmp_path)[-1], CPU.device, precision="float64")
    found = {name: weight.numpy() for name, weight in model.state_dict().items()}
    assert_equal(found, brute_force(seen, config), 1e-14)


@KINDS
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_steps_from_buffers_average_too(monkeypatch, tmp_path, kind, precision):
    """As on one GPU: the share comes from the buffer, and half copies follow the exchange."""
    on_buffers(monkeypatch)
    config = tiny_config(
        validation__epochs=1, num_epochs=3, runtime__precision=precision, optim__lr=5e-2, **kind
    )
    with watched(DeviceSteps) as seen:
        outcome, _ = run_tiny(config, folder=tmp_path)
    expected = brute_force(seen, config)
    assert_equal(averaged(steps_in(tmp_path)[-1]), expected, 1e-6)
    near = 1e-6 if precision == "float32" else 1e-2
    assert outcome.val_loss == pytest.approx(loss_of(expected, config), abs=near)
    assert outcome.val_loss_raw == pytest.approx(loss_of(seen[-1], config), abs=near)


@KINDS
@pytest.mark.parametrize("buffers", [False, True])
def test_the_raw_trajectory_is_the_one_without_an_average(monkeypatch, tmp_path, kind, buffers):
    """Bit for bit, validated after every epoch; and so is what the checkpoint holds beside it."""
    if buffers:
        on_buffers(monkeypatch)
    found = []
    for name, more in (("without", {}), ("with", kind)):
        config = tiny_config(objective="mir", validation__epochs=1, **more)
        with watched(DeviceSteps if buffers else PlainSteps) as seen:
            outcome, reports = run_tiny(config, folder=tmp_path / name)
        curve = [
            value
            for report in reports
            for point in report.points
            for key, value in point.values.items()
            if not key.startswith("val/")
        ]
        state = saved(tmp_path / name)
        raw = outcome.val_loss_raw if more else outcome.val_loss
        assert set(state) == {"model", "optim", *(["average"] if more else [])}
        state.pop("average", None)
        found.append((seen, curve, raw, state))
    (seen, *plain, state), (others, *kept, other_state) = found
    assert plain == kept
    for one, other in zip(seen, others, strict=True):
        assert all(np.array_equal(one[name], other[name]) for name in one)
    assert identical(state, other_state)


@KINDS
@pytest.mark.parametrize("stop_at", [3, 9])
@pytest.mark.parametrize("buffers", [False, True])
def test_stopped_and_gone_on_is_uninterrupted(monkeypatch, tmp_path, kind, stop_at, buffers):
    """Bit for bit; a mean of 4 of 11 steps has not begun at step 3, and has at step 9."""
    if buffers:
        on_buffers(monkeypatch)
    config = tiny_config(validation__epochs=1, **kind)
    whole, _ = run_tiny(config, folder=tmp_path / "whole")
    begun, _ = run_tiny(config, folder=tmp_path / "parts", stop_at=stop_at)
    assert begun.state == "stopped"
    ended, _ = run_tiny(config, folder=tmp_path / "parts")
    assert (ended.val_loss, ended.val_loss_raw) == (whole.val_loss, whole.val_loss_raw)
    assert identical(saved(tmp_path / "whole"), saved(tmp_path / "parts"))


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.support import run_tiny, tiny_config
from tests.train.test_average import EMA, MEAN, PlainSteps
train, calls = PlainSteps.train, []
def dying(self, *given, **named):
    calls.append(None)
    if len(calls) == 10:
        os.kill(os.getpid(), signal.SIGKILL)
    return train(self, *given, **named)
PlainSteps.train = dying
kind = {"ema": EMA, "mean": MEAN}[sys.argv[2]]
run_tiny(tiny_config(runtime__checkpoint_seconds=0, **kind), folder=Path(sys.argv[1]))
"""


@KINDS
def test_killed_in_its_last_part_and_run_again(tmp_path, kind):
    """kill -9 in step 10 of 11: averages, weights and losses are the undisturbed run's."""
    name = kind["average__kind"]
    config = tiny_config(runtime__checkpoint_seconds=0, **kind)
    whole, _ = run_tiny(config, folder=tmp_path / "whole")
    child = [sys.executable, "-c", KILLED, str(tmp_path / "parts"), name]
    assert subprocess.run(child, check=False).returncode == -signal.SIGKILL
    assert 0 < int(steps_in(tmp_path / "parts")[-1].name.removeprefix("step-")) < 10
    ended, _ = run_tiny(config, folder=tmp_path / "parts")
    assert (ended.val_loss, ended.val_loss_raw) == (whole.val_loss, whole.val_loss_raw)
    assert identical(saved(tmp_path / "whole"), saved(tmp_path / "parts"))


def test_the_best_epoch_is_the_average_s(tmp_path):
    """Of an objective that keeps its best epoch, averaged weights are kept, scored and loaded."""
    config = tiny_config(objective="mdlm", validation__epochs=1, optim__lr=5e-2, **EMA)
    with watched() as seen:
        outcome, reports = run_tiny(config, folder=tmp_path)
    step = read_meta(tmp_path / BEST)["progress"]["step"]
    points = [p for r in reports for p in r.points if "val/loss" in p.values]
    assert min(points, key=lambda point: point.values["val/loss"]).step == step
    assert_equal(averaged(tmp_path / BEST), brute_force(seen, config, until=step), 1e-6)
    assert outcome.val_loss_raw is None  # it would be of another epoch, and of other draws


@KINDS
def test_a_branch_s_average_is_that_of_a_separate_run_bit_for_bit(tmp_path, kind):
    """A mean of 0.4 of 22 steps begins at 13: before its own fork at 20, behind the one at 10."""
    for num_epochs in (2, 4, 8):
        config = tiny_config(num_epochs=num_epochs, schedule__warmup_steps=2, **kind)
        alone, _ = run_tiny(config, folder=tmp_path / f"alone{num_epochs}")
        branched, _ = branch(config, tmp_path)
        assert (branched.val_loss, branched.val_loss_raw) == (alone.val_loss, alone.val_loss_raw)
        assert identical(saved(tmp_path / f"alone{num_epochs}"), saved(tmp_path / f"{num_epochs}"))
        forks = [fork_step(tiny_config(num_epochs=e).num_steps, config.schedule) for e in (2, 4)]
        taken = [0, *(f for f, e in zip(forks, (2, 4), strict=True) if e < num_epochs)][-1]
        short = config.num_steps * 8 - num_epochs * 22
        assert branched.trained_tokens == ((config.num_steps - taken) * 8 - short) * 16


def test_a_mean_that_begins_before_the_last_fork_takes_an_earlier_one(tmp_path):
    """0.6 of 22 steps begin at step 9: the fork at step 10 is too late, the one at 5 is not."""
    for num_epochs, taken in ((2, 0), (4, 0), (8, 5)):
        mean = {"average__kind": "mean", "average__last_frac": 0.6}
        config = tiny_config(num_epochs=num_epochs, schedule__warmup_steps=2, **mean)
        alone, _ = run_tiny(config)
        branched, _ = branch(config, tmp_path)
        assert branched.val_loss == alone.val_loss
        short = config.num_steps * 8 - num_epochs * 22
        assert branched.trained_tokens == ((config.num_steps - taken) * 8 - short) * 16


def test_a_run_that_is_gone_on_with_keeps_its_kind_of_average(tmp_path):
    run_tiny(tiny_config(**EMA), folder=tmp_path, stop_at=5)
    with pytest.raises(ConfigError, match=r"average\.tau_epochs is 0\.5 there and 1\.0 here"):
        run_tiny(tiny_config(**EMA | {"average__tau_epochs": 1.0}), folder=tmp_path)


@given(st.floats(0.01, 100), st.integers(1, 200), st.integers(1, 60))
def test_shares_of_an_ema_give_exponential_weights(tau, steps, batch_size):
    """By the recursion alone: sum 1, each d times the next, also where d is 1 or 0 in float64."""
    config = tiny_config(
        average__kind="ema", average__tau_epochs=tau, num_epochs=101, batch_size=batch_size
    )
    weights = np.zeros(0)
    for step in range(1, steps + 1):
        share = average_share(step, config)
        assert 0 < share <= 1
        weights = np.append(weights * (1 - share), share)
    ages = np.arange(steps - 1, -1, -1)
    expected = np.exp(-ages * batch_size / (tau * 22))
    np.testing.assert_allclose(weights, expected / expected.sum(), rtol=1e-8, atol=1e-12)


@given(st.floats(0.001, 1), st.integers(1, 50))
def test_shares_of_a_mean_weigh_the_last_part_alike(last_frac, num_epochs):
    config = tiny_config(average__kind="mean", average__last_frac=last_frac, num_epochs=num_epochs)
    weights = np.zeros(0)
    for step in range(1, config.num_steps + 1):
        share = average_share(step, config)
        weights = np.append(weights * (1 - share), share)
    number = max(1, round(last_frac * config.num_steps))
    expected = np.zeros(config.num_steps)
    expected[-number:] = 1 / number
    np.testing.assert_allclose(weights, expected, rtol=1e-9, atol=1e-12)
    assert last_shared_step(config) <= config.num_steps - number


def test_without_an_average_nothing_is_shared_otherwise():
    config = tiny_config(num_epochs=8)
    assert last_shared_step(config) == fork_step(config.num_steps, config.schedule)
    assert last_shared_step(tiny_config(num_epochs=8, **EMA)) == last_shared_step(config)
    assert {average_share(step, config) for step in range(1, 9)} == {1.0}


@pytest.mark.parametrize("tensor", [False, True])
@pytest.mark.parametrize("kind", ["ema", "mean"])
def test_the_update_is_torch_s_own(kind, tensor):
    """swa_utils begins with a copy; then an ema of fixed decay, or an equal mean."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 3))
    theirs = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9) if kind == "ema" else None)
    ours = Average(model)
    for number in range(1, 20):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
        share = 1 / number if kind == "mean" or number == 1 else 1 - 0.9
        ours.update(torch.tensor(share, dtype=ours.dtype) if tensor else share)
        theirs.update_parameters(model)
        for name, found in theirs.module.named_parameters():
            torch.testing.assert_close(ours.tensors[name], found.detach(), rtol=1e-6, atol=1e-6)
            if kind == "ema":
                assert torch.equal(ours.tensors[name], found)


def test_an_exchange_and_one_back_change_nothing():
    model = build_model(tiny_config(), CPU)
    average = Average(model)
    average.update(1.0)
    with torch.no_grad():
        model.head.weight.mul_(3)
    before = [(p.data_ptr(), p.detach().clone()) for p in model.parameters()]
    third = average.tensors["head.weight"].clone()
    with in_place(average):
        assert torch.equal(model.head.weight, third)
        assert [p.data_ptr() for p in model.parameters()] == [place for place, _ in before]
    for parameter, (place, value) in zip(model.parameters(), before, strict=True):
        assert (parameter.data_ptr(), torch.equal(parameter, value)) == (place, True)
    with pytest.raises(ZeroDivisionError), in_place(average):
        _ = 1 / 0
    assert torch.equal(model.head.weight, before[-1][1])
    with in_place(None):
        pass


def test_its_bytes_and_its_scorings_are_counted():
    """4 bytes a parameter in memory and on disk, shared by the ranks; two scorings for one."""
    plain, kept = tiny_config(), tiny_config(**EMA)
    count = num_params(kept.shape, VOCAB_SIZE)
    average = Average(build_model(kept, CPU))
    held = sum(tensor.numel() * tensor.element_size() for tensor in average.tensors.values())
    assert held == WEIGHT_BYTES * count
    assert checkpoint_bytes(kept, VOCAB_SIZE) - checkpoint_bytes(plain, VOCAB_SIZE) == held
    for ranks in (1, 2):
        sizes = [memory(c, world_size=ranks, microbatch_size=1, half=True) for c in (plain, kept)]
        assert sizes[1].state - sizes[0].state == held / ranks
    assert validation_flops(kept, 7) == 2 * validation_flops(plain, 7)
    assert training_flops(kept) == training_flops(plain)


def on_two(place, folder: str, kinds) -> list[tuple[float, float, list]]:
    """Runs on this rank, validated after each epoch; what came out, and the weights seen."""
    found = []
    for number, kind in enumerate(kinds):
        config = tiny_config(validation__epochs=1, **kind)
        with watched() as seen:
            outcome, _ = run_tiny(config, place, folder=Path(folder) / f"{number}")
        found.append((outcome.val_loss, outcome.val_loss_raw, seen))
    return found


def test_on_two_ranks(tmp_path):
    """Each rank averages its shards: the whole is brute force over the weights of every step.

    Without an average the raw trajectory is the same bit for bit: no gathered copy of the averaged
    weights is left behind. In float64 both losses are those of one process.
    """
    double = {"runtime__precision": "float64"}
    kinds = [EMA, MEAN, {}, EMA | double, MEAN | double]
    first, second = on_ranks(2, on_two, str(tmp_path), kinds)
    for (loss, raw, seen), other in zip(first, second, strict=True):
        assert (loss, raw) == other[:2]
        assert all(np.array_equal(seen[-1][name], other[2][-1][name]) for name in seen[-1])
    for number, kind in enumerate(kinds[:2]):
        config = tiny_config(validation__epochs=1, **kind)
        loss, raw, seen = first[number]
        expected = brute_force(seen, config)
        assert_equal(averaged(steps_in(tmp_path / f"{number}")[-1]), expected, 1e-6)
        assert loss == pytest.approx(loss_of(expected, config), abs=1e-5)
        plain_loss, _, plain = first[2]
        assert raw == plain_loss
        for one, other in zip(seen, plain, strict=True):
            assert all(np.array_equal(one[name], other[name]) for name in one)
    for (loss, raw, _), kind in zip(first[3:], kinds[3:], strict=True):
        alone, _ = run_tiny(tiny_config(validation__epochs=1, **kind))
        assert loss == pytest.approx(alone.val_loss, abs=1e-8)
        assert raw == pytest.approx(alone.val_loss_raw, abs=1e-8)


def finished_on(place, folder: str, kinds, stop_at) -> list[float]:
    return [
        run_tiny(tiny_config(**kind), place, folder=Path(folder) / f"{number}", stop_at=stop_at)[0]
        for number, kind in enumerate(kinds)
    ]


def test_two_ranks_go_on_with_the_average_of_one(tmp_path):
    kinds = [kind | {"runtime__precision": "float64"} for kind in (EMA, MEAN)]
    whole = finished_on(CPU, str(tmp_path / "whole"), kinds, None)
    assert {o.state for o in finished_on(CPU, str(tmp_path / "parts"), kinds, 9)} == {"stopped"}
    for ended, alone in zip(
        on_ranks(2, finished_on, str(tmp_path / "parts"), kinds, None)[0], whole, strict=True
    ):
        assert ended.val_loss == pytest.approx(alone.val_loss, abs=1e-8)
        assert ended.val_loss != ended.val_loss_raw
