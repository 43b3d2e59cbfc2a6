"""Steps from fixed buffers, and when a graph takes their place; on a CPU, with stand-in graphs."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from dcray.train import loop
from dcray.train.launch.graphed import TIMED, WARM, GraphedFunction
from dcray.train.launch.staging import StagingBuffer
from dcray.train.shard import RankContext
from dcray.train.steps import DeviceSteps
from tests.support import run_tiny, tiny_config

CPU = torch.device("cpu")


class Clockwork:
    """A device whose graphs run the captured function: `launch` and `device` seconds a call."""

    def __init__(self, *, launch: float, device: float, graph: float | None) -> None:
        self.launch, self.device, self.graph = launch, device, graph
        self.now = self.busy_until = 0.0
        self.captured = self.replayed = self.released = 0

    def clock(self) -> float:
        return self.now

    def work(self, launch: float, device: float) -> None:
        """A call: the host launches, the device works beside it and is through no sooner."""
        self.busy_until = max(self.now + launch, max(self.now, self.busy_until) + device)
        self.now += launch

    def wait(self) -> None:
        self.now = max(self.now, self.busy_until)

    def capture(self, function: Callable[[], torch.Tensor]) -> Any:
        if self.graph is None:
            return None
        self.captured += 1
        result = torch.empty(())

        def replay() -> torch.Tensor:
            self.replayed += 1
            self.work(0.0, self.graph or 0.0)
            return result.set_(torch.as_tensor(function.plain()))  # type: ignore[attr-defined]

        return replay

    def release(self) -> None:
        self.released += 1


class Counting:
    """Counts its calls and takes a clockwork's time for each."""

    def __init__(self, device: Clockwork) -> None:
        self.device, self.calls = device, 0

    def __call__(self) -> torch.Tensor:
        self.device.work(self.device.launch, self.device.device)
        return self.plain()

    def plain(self) -> torch.Tensor:
        self.calls += 1
        return torch.tensor(float(self.calls))


@pytest.mark.parametrize(
    ("times", "captured", "kept"),
    [
        ({"launch": 10.0, "device": 3.0, "graph": 3.4}, 1, True),  # 5.5m
        ({"launch": 20.0, "device": 40.0, "graph": 40.0}, 1, False),  # 31.5m, 128 rows: no faster
        ({"launch": 20.0, "device": 200.0, "graph": 1.0}, 0, False),  # 72m: the host is far ahead
        ({"launch": 10.0, "device": 3.0, "graph": None}, 0, False),  # it cannot be captured
    ],
)
def test_a_graph_is_kept_where_it_is_measured_to_be_faster(times, captured, kept):
    device = Clockwork(**times)
    function = Counting(device)
    replayed = GraphedFunction(function, device, clock=device.clock)
    results = [float(replayed()) for _ in range(20)]
    assert results == list(range(1, 21))  # each call does its work once, whoever runs it
    assert (device.captured, replayed.is_captured) == (captured, kept)
    assert device.replayed == (20 - WARM - TIMED if kept else TIMED * captured)
    assert device.released == (captured and not kept)
    replayed.release()
    assert [float(replayed()) for _ in range(2)] == [21, 22]
    assert (replayed.is_captured, device.released) == (False, captured)


@pytest.mark.parametrize(("capture", "replays"), [(True, 18), (False, 0)])
def test_a_wish_is_not_measured(capture, replays):
    device = Clockwork(launch=1.0, device=9.0, graph=9.0)
    replayed = GraphedFunction(Counting(device), device, capture=capture, clock=device.clock)
    assert [float(replayed()) for _ in range(20)] == list(range(1, 21))
    assert (device.replayed, replayed.spans) == (replays, {})


def test_results_of_a_graph_are_copies():
    """It writes to the same place each time."""
    device = Clockwork(launch=10.0, device=1.0, graph=1.0)
    replayed = GraphedFunction(Counting(device), device, clock=device.clock)
    results = [replayed() for _ in range(12)]
    assert [float(result) for result in results] == list(range(1, 13))


def test_a_mailbox_holds_what_was_sent_last():
    fields = {
        "lr": (torch.float32, ()),
        "keys": (torch.int64, (3,)),
        "tokens": (torch.int32, (3, 5)),
        "real": (torch.float32, (3,)),
    }
    mail = StagingBuffer(fields, CPU, depth=2)
    held = {name: tensor.data_ptr() for name, tensor in mail.fields.items()}
    rng = np.random.default_rng(0)
    for turn in range(5):
        num_rows = 3 - turn % 2  # a short batch fills the first rows
        sent = {
            "lr": 0.1 * turn,
            "keys": rng.integers(-(2**63), 2**63, num_rows),
            "tokens": rng.integers(0, 2**16, (num_rows, 5), dtype=np.uint16),
            "real": rng.random(num_rows) < 0.5,
        }
        mail.send(**sent)
        for name, tensor in mail.fields.items():
            assert tensor.data_ptr() == held[name]
            found = tensor if name == "lr" else tensor[:num_rows]
            np.testing.assert_array_equal(
                found.numpy(), np.asarray(sent[name], found.numpy().dtype)
            )


class Replays:
    """Graphs that capture what runs anyway: the function is called again each time."""

    def wait(self) -> None:
        pass

    def capture(self, function: Any) -> Any:
        return function

    def release(self) -> None:
        pass


def on_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of this test take their steps as a GPU alone does."""

    def build(
        model: Any, optimizer: Any, objective: Any, config: Any, place: RankContext, **more: Any
    ):
        return DeviceSteps(model, optimizer, objective, config, place, Replays(), **more)

    monkeypatch.setattr(loop, "build_steps", build)


@pytest.mark.parametrize("objective", ["ar", "mir", "mdlm"])
@pytest.mark.parametrize("microbatch_size", [4, 8])
def test_steps_from_buffers_are_the_plain_ones(monkeypatch, tmp_path, objective, microbatch_size):
    """Two micro-batches or one; 88 rows are 11 batches of 8, 5 validation rows a short batch.

    The learning rate is float32 there and the clipping a division, so the bits may differ.
    """
    config = tiny_config(
        objective=objective, runtime__precision="float64", validation__epochs=1, num_epochs=3
    )  # 66 rows: the last batch has 2, and with micro-batches of 4 one of them
    found = []
    for way in ("plain", "buffers"):
        if way == "buffers":
            on_buffers(monkeypatch)
        outcome, reports = run_tiny(config, folder=tmp_path / way, microbatch_size=microbatch_size)
        points = {(p.step, *p.values): [*p.values.values()] for r in reports for p in r.points}
        found.append((outcome, points))
    (plain, its_points), (ours, our_points) = found
    assert its_points.keys() == our_points.keys()
    for key, values in its_points.items():
        np.testing.assert_allclose(our_points[key], values, rtol=1e-5, err_msg=str(key))
    assert ours.val_loss == pytest.approx(plain.val_loss, rel=1e-6)
    assert (ours.best_epoch, ours.step) == (plain.best_epoch, plain.step)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_buffers_go_on_from_a_checkpoint_bit_for_bit(monkeypatch, tmp_path, precision):
    on_buffers(monkeypatch)
    config = tiny_config(objective="mir", validation__epochs=2, runtime__precision=precision)
    whole, _ = run_tiny(config, folder=tmp_path / "whole")
    begun, _ = run_tiny(config, folder=tmp_path / "parts", stop_at=5)
    assert begun.state == "stopped"
    ended, _ = run_tiny(config, folder=tmp_path / "parts")
    assert (ended.val_loss, ended.val_bpb) == (whole.val_loss, whole.val_bpb)


@pytest.mark.parametrize("ways", itertools.permutations(["plain", "buffers"]))
def test_checkpoints_are_the_same_either_way(monkeypatch, tmp_path, ways):
    """A run that began on a GPU alone goes on anywhere, and the other way round."""
    config = tiny_config()
    whole, _ = run_tiny(config)
    for way, stop_at in zip(ways, (5, None), strict=True):
        with monkeypatch.context() as patch:
            if way == "buffers":
                on_buffers(patch)
            outcome, _ = run_tiny(config, folder=tmp_path, stop_at=stop_at)
    assert outcome.val_loss == pytest.approx(whole.val_loss, rel=1e-5)


def test_half_copies_take_gradients_that_are_added_up_in_float32(monkeypatch):
    """bfloat16 compute with the copies is the same as with a cast at each use, bit for bit."""
    config = tiny_config(objective="mir", runtime__precision="bfloat16")
    on_buffers(monkeypatch)
    with_copies, _ = run_tiny(config)
    monkeypatch.setattr("dcray.train.steps.LowPrecisionWeights", lambda *_: None)
    without, _ = run_tiny(config)
    assert with_copies.val_loss == without.val_loss
