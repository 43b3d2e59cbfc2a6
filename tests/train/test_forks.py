"""Branches of one trunk: each equals the separate run of its length, bit for bit on a CPU."""

import math
import shutil
from pathlib import Path

import pytest
import torch

from dcray.errors import ConfigError
from dcray.train.checkpoint.manager import Checkpoints
from dcray.train.loop import train
from dcray.train.schedule import fork_step
from dcray.train.shard import RankContext
from tests.support import on_ranks, run_tiny, tiny_config, tiny_data

CPU = RankContext(torch.device("cpu"))
RUNGS = (2, 4, 8)


def rung(num_epochs: int, **changes):
    """A run of this length whose warm-up is that of the longest."""
    return tiny_config(num_epochs=num_epochs, schedule__warmup_steps=2, **changes)


def branch(config, folder: Path, place: RankContext = CPU, *, stop_at: int | None = None):
    """Train one branch of the trunk in `folder`; the outcome and the steps it trained itself."""
    torch.set_num_threads(1)
    steps: list[int] = []
    held = Checkpoints(
        folder / f"{config.num_epochs}",
        config,
        place,
        keep=2,
        trunk=folder / "trunk",
        save_at_fork=True,
    )
    outcome = train(
        config,
        tiny_data(config),
        place,
        microbatch_size=4,
        report=lambda said: steps.append(said.step),
        checkpoints=held,
        should_stop=lambda: stop_at is not None and bool(steps) and steps[-1] + 1 >= stop_at,
    )
    return outcome, steps


def weights(folder: Path, config, place: RankContext = CPU) -> list[torch.Tensor]:
    from dcray.train.optim import build_optimizer
    from dcray.train.shard import build_model

    model = build_model(config, place)
    Checkpoints(folder, config, place, keep=2).load(model, build_optimizer(model, config))
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize(
    "recipe",
    [
        {"objective": "ar"},
        {"objective": "mir"},
        {"data__order": "documents"},
        {"optimizer": "muon"},
    ],
)
def test_a_branch_equals_a_separate_run_bit_for_bit(tmp_path, recipe):
    for num_epochs in RUNGS:
        config = rung(num_epochs, **recipe)
        alone, _ = run_tiny(config, folder=tmp_path / f"alone{num_epochs}")
        branched, _ = branch(config, tmp_path)
        assert (branched.val_loss, branched.val_bpb) == (alone.val_loss, alone.val_bpb)
        pairs = zip(
            weights(tmp_path / f"alone{num_epochs}", config),
            weights(tmp_path / f"{num_epochs}", config),
            strict=True,
        )
        assert all(torch.equal(one, other) for one, other in pairs)


def test_each_branch_trains_its_own_piece_alone(tmp_path):
    """From fork to fork, and the decay behind it: the trunk's stable part is paid once."""
    before = 0
    for num_epochs in RUNGS:
        config = rung(num_epochs)
        outcome, _ = branch(config, tmp_path)
        fork = fork_step(config.num_steps, config.schedule)
        trained = config.num_steps - before  # every batch but the last is whole: 8 rows of 16
        short = config.num_steps * 8 - num_epochs * 22
        assert outcome.trained_tokens == (trained * 8 - short) * 16
        before = fork


def test_the_curve_of_a_branch_holds_the_trunks_points(tmp_path):
    for num_epochs in RUNGS:
        branch(rung(num_epochs), tmp_path)
    held = sorted((tmp_path / "8").glob("step-*"))[-1]
    from dcray.train.checkpoint.manager import read_meta

    steps = [point[0] for point in read_meta(held)["progress"]["points"] if "optim/lr" in point[3]]
    assert steps == list(range(1, 23))


def test_a_stopped_branch_goes_on_and_a_lost_trunk_costs_only_time(tmp_path):
    whole, _ = run_tiny(rung(8))
    for num_epochs in RUNGS[:2]:
        branch(rung(num_epochs), tmp_path)
    stopped, _ = branch(rung(8), tmp_path, stop_at=14)
    assert stopped.state == "stopped"
    assert 14 <= stopped.step < 22  # a slow report puts the next one off
    ended, steps = branch(rung(8), tmp_path)
    assert ended.val_loss == whole.val_loss
    assert min(steps[1:]) > stopped.step
    shutil.rmtree(tmp_path / "trunk")
    shutil.rmtree(tmp_path / "8")
    again, _ = branch(rung(8), tmp_path)
    assert again.val_loss == whole.val_loss
    assert again.trained_tokens == 8 * 22 * 16


def test_a_run_that_lost_all_but_its_own_fork_keeps_its_time_and_tokens(tmp_path):
    """Killed between its fork and its next checkpoint: what it took until there was its own."""
    branch(rung(2), tmp_path)
    whole, _ = branch(rung(4), tmp_path)
    shutil.rmtree(tmp_path / "4")
    again, steps = branch(rung(4), tmp_path)
    assert min(steps) > fork_step(rung(4).num_steps, rung(4).schedule)
    assert (again.val_loss, again.trained_tokens) == (whole.val_loss, whole.trained_tokens)
    assert 0 < again.earlier_seconds < again.seconds


def test_a_fork_behind_the_own_fork_is_not_taken(tmp_path):
    """The longest first: its fork lies in the shorter one's decay, or behind its end."""
    alone, _ = run_tiny(rung(2))
    branch(rung(8), tmp_path)
    outcome, _ = branch(rung(2), tmp_path)
    assert outcome.val_loss == alone.val_loss


def test_another_trunk_is_refused(tmp_path):
    branch(rung(2), tmp_path)
    with pytest.raises(ConfigError, match=r"optim\.lr is 0\.01 there and 0\.02 here"):
        branch(rung(4, optim__lr=2e-2), tmp_path)
    with pytest.raises(ConfigError, match=r"optimizer\.name is 'adamw' there and 'muon' here"):
        branch(rung(4, optimizer="muon"), tmp_path)


def on_two(place, folder):
    found = []
    for num_epochs in RUNGS:
        config = rung(num_epochs, runtime__precision="float64")
        found.append(branch(config, Path(folder), place)[0].val_loss)
    return found


def test_forks_between_two_ranks(tmp_path):
    """Saved and read by two gloo processes; in float64 within 1e-8 of one process."""
    losses = on_ranks(2, on_two, str(tmp_path))
    assert losses[0] == losses[1]
    for num_epochs, loss in zip(RUNGS, losses[0], strict=True):
        alone, _ = run_tiny(rung(num_epochs, runtime__precision="float64"))
        assert math.isclose(loss, alone.val_loss, rel_tol=1e-8)
