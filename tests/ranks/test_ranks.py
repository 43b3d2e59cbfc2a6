"""Two and three real gloo processes against one: gradients, validation, tiny sets, resumes."""

from collections import namedtuple

import numpy as np
import pytest
import torch
from torch.distributed.tensor import DTensor

from dcray.corpus.order import Order
from dcray.errors import ConfigError
from dcray.rng import keyed
from dcray.train.batching import make_batch
from dcray.train.checkpoint import writer
from dcray.train.evaluate import evaluate, target_nats
from dcray.train.shard import RankContext, build_model
from dcray.train.step import accumulate
from tests.support import MASK_ID, on_ranks, run_tiny, tiny_config, tiny_data

CPU = RankContext(torch.device("cpu"))
OBJECTIVES = ("ar", "mir", "mdlm")


def gradients(place, microbatch_size, objectives=OBJECTIVES):
    """Full gradients of the first batch, with dropout on: {objective: {name: array}}."""
    found = {}
    for objective in objectives:
        config = tiny_config(objective=objective)
        model = build_model(config, place)
        part = Order(config).batch(0).part(place.rank, place.world_size)
        (rows,) = tiny_data(config).fetch([part.row_ids])
        keys = torch.from_numpy(keyed.row_keys(config.seed, part.epochs, part.row_ids))
        micro = [
            (
                make_batch(rows[i : i + microbatch_size], part.real[i : i + microbatch_size],
                           mask_id=MASK_ID, device=place.device),
                keys[i : i + microbatch_size],
            )
            for i in range(0, len(part), microbatch_size)
        ]  # fmt: skip
        accumulate(
            model, config.objective.build(), micro, step_tokens=8 * 16, world_size=place.world_size
        )
        found[objective] = {
            name: (p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad).numpy()
            for name, p in model.named_parameters()
        }
    return found


def relative_difference(a, b):
    a, b = (np.concatenate([g.ravel() for g in grads.values()]).astype(float) for grads in (a, b))
    return np.linalg.norm(a - b) / np.linalg.norm(b)


def test_gradients_do_not_depend_on_ranks_or_microbatches():
    whole = gradients(CPU, 8)
    others = {size: gradients(CPU, size) for size in (1, 2)}
    for size in (1, 4):
        for rank, found in enumerate(on_ranks(2, gradients, size)):
            others[f"rank {rank} of 2, {size}"] = found
    for case, found in others.items():
        for objective in OBJECTIVES:
            assert relative_difference(found[objective], whole[objective]) <= 1e-5, (
                case,
                objective,
            )
    assert relative_difference(whole["ar"], whole["mir"]) > 0.01  # the comparison can tell


def validation_loss(place, num_rows):
    config = tiny_config()
    model = build_model(config, place)
    losses = {}
    for rows in num_rows:
        data = tiny_data(config, num_val_rows=rows)
        result = evaluate(
            model,
            config.objective.build(),
            data.validation,
            place,
            mask_id=MASK_ID,
            microbatch_size=8,
            draw=0,
        )
        assert result.num_tokens == rows * 16
        losses[rows] = result.loss
    return losses


@pytest.mark.parametrize("world_size", [2, 3])
def test_validation_is_over_exactly_its_rows(world_size):
    """1,001 rows; and sets smaller than the ranks, which must finish."""
    alone = validation_loss(CPU, [1001, 1, 3])
    for found in on_ranks(world_size, validation_loss, [1001, 1, 3]):
        for rows, loss in alone.items():
            assert loss == pytest.approx(found[rows], abs=1e-6)


def nats_of_targets(place, num_rows):
    config = tiny_config()
    model = build_model(config, place)
    rows = tiny_data(config, num_val_rows=num_rows).validation
    return target_nats(model, rows, place, microbatch_size=4)


def test_two_ranks_give_each_target_the_nats_of_one():
    """7 rows in micro-batches of 4: both ranks pad, and no padding counts."""
    alone = nats_of_targets(CPU, 7)
    assert alone.shape == (7, 16)
    for found in on_ranks(2, nats_of_targets, 7):
        np.testing.assert_allclose(found, alone, atol=1e-6)


def trained(place, folder, stop_at=None, **changes):
    config = tiny_config(**changes)
    outcome, reports = run_tiny(
        config, place, folder=folder, stop_at=stop_at, microbatch_size=changes.get("micro", 4)
    )
    losses = [p.values["train/loss"] for r in reports for p in r.points if "train/loss" in p.values]
    return outcome, losses


@pytest.mark.parametrize("order", ["rows", "documents"])
def test_two_ranks_train_as_one_and_take_over_its_checkpoint(tmp_path, order):
    """float64, a whole run: 1e-8; started on one rank and finished on two, and the other way."""
    double = {"runtime__precision": "float64", "data__order": order}
    alone, curve = trained(CPU, tmp_path / "alone", **double)
    assert trained(CPU, tmp_path / "begun", 6, **double)[0].state == "stopped"
    on_two = on_ranks(2, train_three, tmp_path, double)[0]
    for outcome, losses in on_two:
        if outcome.state == "complete":
            assert outcome.val_loss == pytest.approx(alone.val_loss, abs=1e-8)
        assert losses[-1] == pytest.approx(curve[len(losses) - 1], abs=1e-8)
    finished, _ = trained(CPU, tmp_path / "handed-back", **double)
    assert finished.val_loss == pytest.approx(alone.val_loss, abs=1e-8)


def train_three(place, tmp_path, double):
    """On two ranks: a whole run, the rest of one that a single rank began, the start of one."""
    return [
        trained(place, tmp_path / "two", **double),
        trained(place, tmp_path / "begun", **double),
        trained(place, tmp_path / "handed-back", 6, **double),
    ]


def first_fifty(place):
    config = tiny_config(num_epochs=19, optim__lr=3e-3, runtime__num_points=1000)
    _, reports = run_tiny(config, place)
    points = [p for r in reports for p in r.points if "train/loss" in p.values]
    return [p.values["train/loss"] for p in points][:50]


def test_float32_curves_agree_over_the_first_fifty_steps():
    alone, other = first_fifty(CPU), on_ranks(2, first_fifty)[0]
    assert len(alone) == 50
    assert np.abs(np.array(alone) - np.array(other)).max() <= 1e-5


def refused_by_a_full_disk(place, folder):
    """What this rank is told where rank 0 finds no space."""
    usage = namedtuple("usage", "total used free")
    if place.rank == 0:
        writer.shutil.disk_usage = lambda _: usage(9, 9, 1_000)
    with pytest.raises(ConfigError) as refused:
        run_tiny(tiny_config(), place, folder=folder)
    return str(refused.value)


def test_every_rank_hears_that_the_disk_is_full(tmp_path):
    """None waits for one that has ended already."""
    first, second = on_ranks(2, refused_by_a_full_disk, tmp_path)
    assert "no space left for a checkpoint" in first
    assert second == first
