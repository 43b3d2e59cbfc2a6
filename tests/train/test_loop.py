"""The loop alone: restarts, exact epochs, stops, divergence, validation times."""

import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter

import numpy as np
import pytest

from dcray.config.run import RunConfig, override
from dcray.cost import validation_epochs
from dcray.errors import ConfigError
from dcray.train import loop
from dcray.train.reporting.metrics import Meter
from tests.support import run_tiny, tiny_config

CHILD = """
import sys, time
from pathlib import Path
import tests.support as support
from dcray.config.run import RunConfig
config = support.tiny_config(runtime__checkpoint_seconds=0, data__order=sys.argv[2])
class Slow(list):
    def append(self, ids):
        print(*ids, flush=True)
        time.sleep(0.05)
outcome, _ = support.run_tiny(config, folder=Path(sys.argv[1]), seen=Slow())
print("done", outcome.val_loss, flush=True)
"""


@pytest.mark.parametrize("order", ["rows", "documents"])
def test_killed_in_epoch_2_of_4_and_run_again(tmp_path, order):
    """kill -9: every row is seen once an epoch, the loss is the undisturbed run's to the bit."""
    whole, _ = run_tiny(tiny_config(data__order=order))
    rows, done = [], []
    for attempt in range(2):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path), order],
            stdout=subprocess.PIPE,
            text=True,
        )
        for line in child.stdout:
            if line.startswith("done"):
                done.append(float(line.split()[1]))
                break
            rows.append([int(i) for i in line.split()])
            if attempt == 0 and len(rows) == 5:  # 22 rows an epoch, 8 a batch: epoch 2
                os.kill(child.pid, signal.SIGKILL)
                break
        child.wait()
    steps = sorted(int(p.name[5:]) for p in tmp_path.glob("step-*"))
    assert steps[-1] == 11
    assert done == [whole.val_loss]
    first = [tuple(r) for r in rows[:5]]
    second = [tuple(r) for r in rows[5:]]
    resumed_at = 11 - len(second)  # what was read and not yet saved is read again, nothing else
    assert 3 <= resumed_at <= 5
    used = Counter(i for batch in first[:resumed_at] + second for i in batch)
    new = order == "documents"  # then rows of another epoch are others, by their ids too
    assert used == (dict.fromkeys(range(4 * 22), 1) if new else dict.fromkeys(range(22), 4))


@pytest.mark.parametrize(
    ("objective", "order"),
    [("ar", "rows"), ("mir", "rows"), ("mdlm", "rows"), ("mir", "documents")],
)
@pytest.mark.parametrize("stop_at", [3, 7])
def test_stopped_and_run_again_is_the_same_run_bit_for_bit(tmp_path, objective, order, stop_at):
    config = tiny_config(
        objective=objective, data__order=order, runtime__num_points=4, validation__epochs=2
    )
    whole, reports = run_tiny(config, folder=tmp_path / "whole")
    begun, before = run_tiny(config, folder=tmp_path / "parts", stop_at=stop_at)
    assert begun.state == "stopped"
    assert stop_at <= begun.step < config.num_steps  # a slow report puts the next one off
    ended, after = run_tiny(config, folder=tmp_path / "parts")
    assert (ended.val_loss, ended.val_bpb) == (whole.val_loss, whole.val_bpb)
    curves = [
        {(p.step, *p.values): p.values for r in part for p in r.points}
        for part in (reports, before + after)
    ]
    assert curves[0] == curves[1]
    again, _ = run_tiny(config, folder=tmp_path / "parts")  # nothing left to do
    assert again.val_loss == whole.val_loss


def test_microbatches_do_not_change_a_run():
    double = tiny_config(runtime__precision="float64")
    losses = [run_tiny(double, microbatch_size=size)[0].val_loss for size in (1, 2, 8)]
    assert max(losses) - min(losses) <= 1e-8


def test_new_documents_every_epoch_give_another_run_of_the_same_length():
    (fixed, one), (packed, other) = (
        run_tiny(tiny_config(data__order=order)) for order in ("rows", "documents")
    )
    assert fixed.val_loss != packed.val_loss
    assert (fixed.step, fixed.trained_tokens) == (packed.step, packed.trained_tokens)
    last = [reports[-1].points[-1] for reports in (one, other)]
    assert last[0].tokens_seen == last[1].tokens_seen


def test_the_loss_falls():
    outcome, reports = run_tiny(tiny_config(num_epochs=30, optim__lr=2e-2))
    losses = [p.values["train/loss"] for r in reports for p in r.points if "train/loss" in p.values]
    assert losses[-1] < losses[0] - 1.5
    assert outcome.val_loss < math.log(98) - 0.5


def test_a_run_that_blows_up_is_diverged_within_a_report():
    outcome, reports = run_tiny(tiny_config(optim__lr=1e38, optim__weight_decay=0.0))
    assert outcome.state == "diverged"
    assert "not finite" in outcome.reason
    assert len(reports) <= 4


@pytest.mark.parametrize("lr", [1e1, 1e3])
def test_a_loss_that_no_model_has_is_a_divergence_at_the_next_report(lr):
    """Clipped AdamW at lr = 1e3 stays finite for a while, at millions of nats."""
    outcome, reports = run_tiny(tiny_config(num_epochs=8, optim__lr=lr))
    assert outcome.state == "diverged"
    assert "above 100 nats" in outcome.reason
    assert len(reports) <= 2


def test_points_carry_tokens_and_epochs():
    _, reports = run_tiny(tiny_config())
    last = reports[-1].points[-1]
    assert (last.step, last.epoch, last.tokens_seen) == (11, 4.0, 4 * 22 * 16)


def test_no_checkpoint_is_left_half_written(tmp_path):
    run_tiny(tiny_config(runtime__checkpoint_seconds=0), folder=tmp_path)
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == ["step-00000010", "step-00000011"]  # two are kept


@pytest.mark.parametrize(
    ("wish", "expected"),
    [("end", {12}), (5, {5, 10, 12}), ((1, 2, 4), {1, 2, 4, 12})],
)
def test_validation_epochs_as_written(wish, expected):
    config = tiny_config(num_epochs=12, validation__epochs=wish)
    assert validation_epochs(config, num_rows=5) == expected


@pytest.mark.parametrize("num_rows", [1, 5, 22, 200])
def test_automatic_validation_costs_at_most_its_share(num_rows):
    config = tiny_config(num_epochs=40, validation__epochs="auto", validation__max_cost_frac=0.1)
    epochs = validation_epochs(config, num_rows=num_rows)
    training = 3 * 22 * 40  # forward passes of rows: backward counts two
    between = len(epochs - {40}) * num_rows
    assert between <= 0.1 * training
    assert 40 in epochs


@pytest.mark.parametrize(
    ("budget", "num_epochs", "points"),
    [
        ("100m", 16, 4),  # an epoch's scoring costs 1/30 of its training: every fourth
        ("100m", 1, 1),
        ("100m", 3, 3),
        ("100m", 6, 6),
        ("100m", 9, 5),  # every second, and the last
        ("400m", 16, 16),  # 1/120: each
        ("20m", 16, 4),  # 1/6: more than a hundredth, for a curve
        ("5m", 16, 2),  # 2/3, and its FLOPs take 1.07 times as long: every eighth takes a tenth
        ("1m", 16, 1),  # more than three times the training
    ],
)
def test_by_default_validation_takes_a_hundredth_or_up_to_a_tenth_for_four_points(
    budget, num_epochs, points
):
    """10M tokens are scored."""
    config = override(
        RunConfig(), {"data.unique_tokens": budget, "num_epochs": num_epochs}
    ).resolved(vocab_size=50_258)
    epochs = validation_epochs(config, num_rows=10_000_000 // config.data.seq_len)
    assert len(epochs) == points
    assert num_epochs in epochs


def test_the_share_of_an_objective_that_keeps_its_best_is_written_out():
    """Which epochs are scored decides what is kept: the identity holds the share."""
    config = tiny_config(objective="mdlm")
    assert config.resolved(vocab_size=9).validation.max_cost_frac == 0.1
    assert tiny_config().resolved(vocab_size=9).validation.max_cost_frac is None


def test_validation_happens_where_it_should():
    _, reports = run_tiny(tiny_config(validation__epochs=(1, 3)))
    points = [p for r in reports for p in r.points if "val/loss" in p.values]
    assert [p.step for p in points] == [3, 9, 11]  # 22 rows, batches of 8: ceil(22/8), ceil(66/8)
    assert np.isfinite([p.values["val/bpb"] for p in points]).all()


def test_a_batch_of_several_epochs_validates_where_one_of_them_was_asked_for():
    """3 rows, batches of 8: step 2 ends epochs 3 to 5, step 4 ends 9 and 10."""
    config = tiny_config(data__unique_tokens=16 * 3 + 1, num_epochs=16, validation__epochs=(4, 9))
    _, reports = run_tiny(config)
    points = [p for r in reports for p in r.points if "val/loss" in p.values]
    assert [p.step for p in points] == [2, 4, 6]


def test_a_run_that_goes_on_draws_no_weights(tmp_path, monkeypatch):
    """Only a first start does: what is loaded would take their place."""
    whole, _ = run_tiny(tiny_config())
    drawn: list[int] = []
    draw = loop.init_weights
    monkeypatch.setattr(loop, "init_weights", lambda *a, **k: drawn.append(1) or draw(*a, **k))
    run_tiny(tiny_config(), folder=tmp_path, stop_at=5)
    ended, _ = run_tiny(tiny_config(), folder=tmp_path)
    assert ended.val_loss == whole.val_loss
    assert len(drawn) == 1


def test_time_is_counted_over_attempts(tmp_path):
    started = time.perf_counter()
    stopped, _ = run_tiny(tiny_config(), folder=tmp_path, stop_at=5)
    ended, reports = run_tiny(tiny_config(), folder=tmp_path)
    assert 0 < ended.seconds <= time.perf_counter() - started
    assert stopped.earlier_seconds == 0
    assert 0 < ended.earlier_seconds <= stopped.seconds < ended.seconds
    assert {said.earlier_seconds for said in reports} == {ended.earlier_seconds}


def test_reported_rates_count_the_wait_for_a_device_that_is_behind_once(monkeypatch):
    flush, drained = Meter.flush, []

    def slow(*args):
        found = flush(*args)
        time.sleep(0.05)
        drained.append(time.perf_counter())
        return found

    monkeypatch.setattr(Meter, "flush", slow)
    config = tiny_config()
    _, reports = run_tiny(config)
    steps = np.diff([said.step for said in reports])
    tokens = steps * config.batch_size * config.data.seq_len
    spent = tokens / [said.tokens_per_second for said in reports[1:]]
    assert len(spent) > 3
    assert (spent >= 0.05).all()
    assert sum(spent) <= drained[-1] - drained[0] + 0.2


@pytest.mark.parametrize("num_damaged", [1, 2])
def test_a_run_whose_newest_checkpoints_are_damaged_ends_as_undisturbed(tmp_path, num_damaged):
    """From the intact one before, or where there is none from the beginning; it says so, once."""
    config = tiny_config(runtime__checkpoint_seconds=0, runtime__keep_checkpoints=2)
    whole, _ = run_tiny(config)
    stopped, _ = run_tiny(config, folder=tmp_path, stop_at=6)
    assert stopped.state == "stopped"
    held = sorted(tmp_path.glob("step-*"))
    assert len(held) == 2
    for path in held[-num_damaged:]:
        (path / "__0_0.distcp").write_bytes(b"")
    again, reports = run_tiny(config, folder=tmp_path)
    assert (again.state, again.val_loss) == ("complete", whole.val_loss)
    first = int(held[0].name.removeprefix("step-")) if num_damaged == 1 else 0
    assert reports[0].step == first + 1
    said = [note for report in reports for note in report.notes]
    assert len(said) == num_damaged
    assert all("is damaged" in note for note in said)


def test_a_damaged_best_epoch_is_told_with_what_to_do(tmp_path):
    config = tiny_config(objective="mdlm")
    whole, _ = run_tiny(config, folder=tmp_path)
    kept = tmp_path / "best" / "__0_0.distcp"
    kept.write_bytes(kept.read_bytes()[:100])
    with pytest.raises(ConfigError, match=rf"best epoch, {tmp_path}/best, are damaged .* Delete"):
        run_tiny(config, folder=tmp_path)
    shutil.rmtree(tmp_path)
    again, _ = run_tiny(config, folder=tmp_path)
    assert again.val_loss == whole.val_loss
