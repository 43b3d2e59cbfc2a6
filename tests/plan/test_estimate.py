"""A run's cost before it is trained: arithmetic, and which measurements count."""

from dataclasses import replace

import pytest

from dcray.config.run import RunConfig, override
from dcray.config.sizes import SIZES, num_params
from dcray.cost import training_flops
from dcray.plan.estimate import CPU_CORE_FLOPS, TABLE, estimate, gpu_flops
from dcray.track.rows import Row

MINI = {"size": "60k", "data.unique_tokens": "16k", "data.seq_len": 128, "batch_size": 8}
RUN = override(RunConfig(), MINI | {"num_epochs": 3}).resolved(vocab_size=512)
TAGS = {"objective": "ar", "world_size": "1", "device_type": "cpu", "threads": "1"}
ROW = Row(
    study="train", size="60k", num_params=59_616, unique_tokens=16_000, recipe="ar", num_epochs=4,
    weight_decay=0.1, lr=1e-3, tau=1.0, seed=42, kind="run", config_hash="x", key="x",
    state="complete", val_loss=3.0, val_bpb=1.0, device_seconds=9.0, run_id="x", started_at=0.0,
    reason=None, owner=None, heartbeat_at=None, params={}, metrics={"tokens_per_second": 1000.0},
    tags=TAGS,
)  # fmt: skip


def test_the_numbers_of_a_mini_run():
    found = estimate(RUN, device="cpu").to_dict()
    rows = 15_999 // 128
    assert found["num_params"] == num_params(SIZES["60k"], 512) == 59_616
    assert found["num_rows"] == rows
    assert found["num_steps"] == -(-3 * rows // 8)
    assert found["train_tokens"] == 3 * rows * 128
    assert found["flops_6nd"] == 6.0 * 59_616 * 3 * rows * 128
    assert found["training_flops"] == training_flops(RUN)
    assert found["num_microbatches"] * found["microbatch_size"] * found["num_workers"] == 8
    assert found["warmup_steps"] == max(1, round(0.01 * found["num_steps"]))
    assert found["memory_bytes"] == found["state_bytes"] + found["activation_bytes"]
    assert found["checkpoint_bytes"] == 12 * 59_616  # weights and two moments in float32
    assert found["expected_seconds"] == training_flops(RUN) / CPU_CORE_FLOPS
    assert found["expected_seconds_from"] == TABLE


def test_muon_s_cost_is_adamw_s_and_its_orthogonalizations():
    """60k: two layers of four 32 x 32 and three 96 x 32 matrices, five iterations a step each."""
    muon = override(RUN, {"optimizer": "muon"})
    once = 5 * 2 * (4 * (4 * 32**3 + 2 * 32**3) + 3 * (4 * 32**2 * 96 + 2 * 32**3))
    rows = 3 * RUN.usable_rows
    assert training_flops(muon) == pytest.approx(training_flops(RUN) + once * rows / 8, rel=1e-12)
    found, plain = (estimate(run, device="cpu").to_dict() for run in (muon, RUN))
    assert (found["optimizer"], plain["optimizer"]) == ("muon", "adamw")
    matrices = 2 * (4 * 32**2 + 3 * 96 * 32)  # one moment each in place of two
    assert plain["checkpoint_bytes"] - found["checkpoint_bytes"] == 4 * matrices
    assert plain["state_bytes"] - found["state_bytes"] == 4 * matrices


def test_only_runs_of_the_same_optimizer_say_how_fast_one_is():
    """A result that does not name its optimizer is of AdamW."""
    muon = override(RUN, {"optimizer": "muon"})
    theirs = replace(ROW, tags=TAGS | {"optimizer": "muon"}, metrics={"tokens_per_second": 500.0})
    sources = {
        run.optimizer.name: estimate(run, device="cpu", measured=[ROW, theirs]).seconds
        for run in (RUN, muon)
    }
    assert sources["muon"] == 2 * sources["adamw"] == RUN.train_tokens / 500.0


def test_exact_causal_flops_lie_below_6nd_only_by_the_embedding():
    """6ND counts the embedding, which is a lookup, and not the attention's own products."""
    run = override(RunConfig(), {"size": "257m"}).resolved(vocab_size=50_258)
    found = estimate(run, device="cuda").to_dict()
    without = 6.0 * (found["num_params"] - 50_304 * 1024) * found["train_tokens"]
    assert without < found["training_flops"] < 1.3 * without
    assert found["expected_seconds"] == found["training_flops"] / gpu_flops(found["num_params"])


def test_larger_models_use_more_of_a_gpu():
    """As measured (tests/bench/LOG.md): 40.2, 46.1, 48.6 and 52.2 %; planned some 5 % below."""
    measured = {"72m": 0.402, "257m": 0.461, "664m": 0.486, "1.4b": 0.522}
    for size, share in measured.items():
        count = num_params(SIZES[size], 50_258)
        assert 0.91 * share < gpu_flops(count) / 989e12 < 0.97 * share
    for size, share in {"5.5m": 0.16, "31.5m": 0.31}.items():  # rows of 512 tokens
        assert 0.91 * share < gpu_flops(num_params(SIZES[size], 4_097)) / 989e12 < 0.97 * share
    assert gpu_flops(10**6) == gpu_flops(5_500_000)
    assert gpu_flops(10**10) == gpu_flops(1_440 * 10**6)
    between = gpu_flops(round((72e6 * 1.44e9) ** 0.5))  # their geometric mean
    assert between == pytest.approx(989e12 * (0.38 + 0.49) / 2)


def test_a_second_objective_costs_its_passes():
    mir = override(RUN, {"objective": "mir"})
    assert training_flops(mir) == 2 * training_flops(RUN)
    assert training_flops(override(mir, {"objective.weight": 0.0})) == training_flops(RUN)


def test_measured_runs_of_this_store_count_by_their_median():
    rows = [replace(ROW, metrics={"tokens_per_second": rate}) for rate in (500.0, 1000.0, 9000.0)]
    found = estimate(RUN, device="cpu", measured=rows)
    assert found.seconds == RUN.train_tokens / 1000.0
    assert found.seconds_from == "3 runs of this store, 1,000 tokens/s"


@pytest.mark.parametrize(
    "other",
    [
        {"state": "interrupted"},
        {"size": "119k"},
        {"metrics": {}},
        *({"tags": TAGS | change} for change in (
            {"objective": "mir"}, {"world_size": "2"}, {"device_type": "cuda"}, {"threads": "4"}
        )),
    ],
)  # fmt: skip
def test_runs_of_another_kind_do_not_count(other):
    found = estimate(RUN, device="cpu", measured=[replace(ROW, **other)])
    assert found.seconds_from == TABLE


def test_two_workers_halve_the_table_s_time():
    two = override(RUN, {"runtime.workers": 2})
    assert estimate(two, device="cpu").seconds == estimate(RUN, device="cpu").seconds / 2
