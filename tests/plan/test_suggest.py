"""Where to start a new cell: published figures, and averages by hand."""

import json
import math
import statistics

import pytest

from dcray.config.run import RunConfig, override
from dcray.config.sizes import PAPER_SIZES, num_params
from dcray.plan.suggest import Known, published, recorded, snap_lr, suggest
from tests.plan.test_estimate import ROW


def start(size, budget, known):
    config = override(RunConfig(), {"size": size, "data.unique_tokens": budget})
    return suggest(config, num_params(PAPER_SIZES[size], 50_258), known)


def test_the_decay_timescale_of_the_paper_s_twenty_winners():
    taus = [one.tau for one in published()]
    assert len(taus) == 20
    assert (round(min(taus), 2), round(max(taus), 2)) == (0.55, 1.64)
    assert statistics.geometric_mean(taus) == pytest.approx(0.99, abs=0.005)


@pytest.mark.parametrize(
    ("size", "budget", "best"),
    [("72m", "100m", (32, 0.4, 1e-2)), ("257m", "300m", (32, 0.8, 1e-3)),
     ("1.4b", "400m", (32, 0.8, 1e-3))],
)  # fmt: skip
def test_a_cell_of_the_paper_answers_with_its_own_winner(size, budget, best):
    found = start(size, budget, published())
    assert (found.num_epochs, found.lr) == (best[0], best[2])
    assert found.weight_decay == pytest.approx(best[1], rel=0.01)  # tau is rounded to 3 digits
    assert [weight for _, weight in found.used] == [1.0]
    assert found.beyond == ()


def test_halfway_between_two_cells_is_their_geometric_mean():
    count = num_params(PAPER_SIZES["72m"], 50_258)
    known = [
        Known("half", count, 50_000_000, 8, 1e-3, 0.5),
        Known("double", count, 200_000_000, 32, 1e-2, 2.0),
    ]
    found = start("72m", "100m", known)
    assert [weight for _, weight in found.used] == [0.5, 0.5]
    assert found.num_epochs == 16  # sqrt(8 * 32)
    assert found.tau == 1.0  # sqrt(0.5 * 2)
    assert found.lr == 3e-3  # sqrt(1e-3 * 1e-2) = 3.16e-3, snapped
    assert found.weight_decay == float(f"{262_144 / (3e-3 * 1.0 * 99_999_744):.3g}")
    assert found.box == {
        "num_epochs": [4, 8, 16],
        "lr": [1e-3, 3e-3, 1e-2],
        "tau": [0.5, 1.0, 2.0],
    }


def test_the_nearer_cell_weighs_by_the_square_of_its_distance():
    count = num_params(PAPER_SIZES["72m"], 50_258)
    known = [Known("one", count, 50_000_000, 8, 1e-3, 1.0),
             Known("two", count, 400_000_000, 8, 1e-3, 2.0)]  # fmt: skip
    found = start("72m", "100m", known)  # one doubling and two: weights 4 to 1
    assert [weight for _, weight in found.used] == pytest.approx([0.8, 0.2])
    assert found.tau == float(f"{math.exp(0.2 * math.log(2)):.3g}")


def test_beyond_the_cells_it_repeats_them_and_says_so():
    found = start("1.4b", "4b", published())
    assert found.lr == 1e-3
    (sentence,) = found.beyond
    assert sentence.startswith("10 times more unique tokens than any of these cells")
    assert start("72m", "25m", published()).beyond[0].startswith("4 times fewer unique tokens")


def test_learning_rates_snap_in_the_logarithm():
    assert [snap_lr(lr) for lr in (1e-3, 1.7e-3, 1.8e-3, 5.4e-3, 5.6e-3, 9.9e-5)] == [
        1e-3, 1e-3, 3e-3, 3e-3, 1e-2, 1e-4,
    ]  # fmt: skip


def test_results_on_record_count_by_their_lowest_loss():
    from dataclasses import replace

    rows = [
        replace(ROW, val_loss=3.0, lr=1e-3),
        replace(ROW, val_loss=2.9, lr=3e-3),
        replace(ROW, val_loss=2.0, lr=1e-2, kind="confirmation"),
        replace(ROW, val_loss=1.0, recipe="mir"),
        replace(ROW, val_loss=1.0, state="interrupted"),
    ]
    (one,) = recorded(rows, "ar")
    assert (one.name, one.lr, one.num_params) == ("60k 16k", 3e-3, 59_616)


def test_epochs_are_whole_numbers_also_in_json():
    known = [Known("one", num_params(PAPER_SIZES["72m"], 50_258), 50_000_000, 8, 1e-3, 1.0)]
    said = json.loads(json.dumps(start("72m", "50m", known).box))
    assert said["num_epochs"] == [2, 4, 8]
    assert all(isinstance(epochs, int) for epochs in said["num_epochs"])
