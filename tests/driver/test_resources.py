"""Where a run is computed: decided by what Ray offers, refused where it is hopeless."""

from dataclasses import replace

import pytest
import torch

from dcray.config.run import RunConfig, override
from dcray.cost import CONTEXT_BYTES, HEADROOM, memory
from dcray.driver import resources as place
from dcray.driver.resources import Machine, cpu_days, missing_gpu, place_run
from dcray.errors import ConfigError

CPUS = Machine(num_cpus=2, num_gpus=0, cpu_name="a CPU", gpu_name="", gpu_bytes=0)
GPUS = Machine(num_cpus=64, num_gpus=8, cpu_name="a CPU", gpu_name="H100", gpu_bytes=80e9)
ONE_GPU = Machine(num_cpus=4, num_gpus=1, cpu_name="a CPU", gpu_name="H100", gpu_bytes=80e9)
TWO_NODES = replace(CPUS, num_cpus=6, node_cpus=(3, 3))
MINI = {"size": "60k", "data.unique_tokens": "16k", "data.seq_len": 128, "batch_size": 8}


def config(**changes) -> RunConfig:
    dotted = {name.replace("__", "."): value for name, value in changes.items()}
    return override(RunConfig(), MINI | dotted).resolved(vocab_size=512)


def placed(run: RunConfig, machine: Machine):
    """(runtime, what was noted)"""
    notes: list[str] = []
    return place_run(run, machine, notes.append).runtime, notes


def test_a_cpu_where_there_is_no_gpu():
    runtime, notes = placed(config(), CPUS)
    assert (runtime.device, runtime.workers, runtime.microbatch_size) == ("cpu", 1, 8)
    assert notes == []
    assert placed(config(runtime__workers="auto"), CPUS)[0].workers == 1
    assert placed(config(runtime__workers=2), CPUS)[0].microbatch_size == 4


def test_one_gpu_of_eight_is_said():
    runtime, notes = placed(config(), GPUS)
    assert (runtime.device, runtime.workers) == ("cuda", 1)
    assert notes == ["1 of 8 GPUs used (--workers auto takes all)"]
    runtime, notes = placed(config(runtime__workers="auto"), GPUS)
    assert (runtime.workers, runtime.microbatch_size, notes) == (8, 1, [])
    assert placed(config(runtime__device="cpu"), GPUS) == (
        placed(config(runtime__device="cpu"), CPUS)[0],
        [],
    )


def test_nothing_but_the_runtime_is_decided():
    run = config(objective="mir")
    decided = place_run(run, GPUS, lambda _: None)
    assert decided.identity("x") == run.identity("x")
    assert run.runtime.device == "auto"


def test_the_micro_batch_fits_and_divides():
    run = override(RunConfig(), {"size": "1.4b"}).resolved(vocab_size=50_258)
    micro = placed(run, GPUS)[0].microbatch_size
    assert 128 % micro == 0
    assert memory(run, world_size=1, microbatch_size=micro, half=True).total <= HEADROOM * 80e9
    twice = memory(run, world_size=1, microbatch_size=2 * micro, half=True)
    assert twice.total > HEADROOM * 80e9
    asked = override(run, {"runtime.microbatch_size": 2})
    assert placed(asked, GPUS)[0].microbatch_size == 2


def test_a_paper_size_on_a_cpu_is_refused_with_days_and_advice():
    run = override(RunConfig(), {"size": "72m"}).resolved(vocab_size=50_258)
    with pytest.raises(ConfigError) as refused:
        placed(run, CPUS)
    (said,) = refused.value.problems
    assert f"about {cpu_days(run):,.0f} days on a CPU" in said
    assert cpu_days(run) > 100
    assert "size=226k" in said
    insisted = override(run, {"runtime.device": "cpu"})
    assert placed(insisted, CPUS)[0].device == "cpu"


@pytest.mark.parametrize(
    ("changes", "machine", "said"),
    [
        ({"runtime__device": "cuda"}, CPUS, 'runtime.device = "cuda", but '),
        ({"runtime__workers": 4}, CPUS, "must be at most what Ray has: 2 CPUs at runtime.threads"),
        ({"runtime__workers": 2, "runtime__threads": 2}, CPUS, "what Ray has: 1 CPUs"),
        ({"runtime__workers": 16, "batch_size": 16}, GPUS, "what Ray has: 8 GPUs"),
        ({"runtime__threads": 8}, ONE_GPU, "runtime.threads (8) must be at most the CPUs of one n"),
        ({"runtime__threads": 8}, CPUS, "for each process needs as many, here 2"),
        ({"runtime__threads": 4}, TWO_NODES, "the CPUs of one node, for each process needs as ma"),
        ({"runtime__threads": 2, "runtime__workers": 4}, TWO_NODES, "what Ray has: 2 CPUs at"),
        ({"runtime__threads": 20, "runtime__workers": 4}, GPUS, "what Ray has: 3 CPUs at"),
        ({"runtime__workers": "auto", "batch_size": 12}, GPUS, "nearest: 8 or 16"),
    ],
)
def test_what_this_machine_cannot_hold(changes, machine, said):
    with pytest.raises(ConfigError) as refused:
        placed(config(**changes), machine)
    assert said in str(refused.value)


def test_a_torch_without_cuda_beside_a_card_is_said(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(place.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert "was built without CUDA beside an NVIDIA card; install the CUDA build: pip" in (
        missing_gpu()
    )
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert missing_gpu() == "Ray sees no GPU on this machine or cluster"


def shared(seconds: float, *, machine=ONE_GPU, **changes) -> float:
    run = override(config(runtime__gpu_share="auto"), changes)
    return place_run(run, machine, seconds=seconds).runtime.gpu_share


def test_short_runs_share_a_gpu_and_long_ones_do_not():
    assert shared(5.0) == 0.25
    assert shared(150.0) == 1.0
    assert shared(5.0, machine=CPUS) == 1.0
    assert shared(5.0, machine=replace(ONE_GPU, num_cpus=3)) == 0.3333  # never above a third
    assert shared(5.0, machine=replace(ONE_GPU, num_cpus=32), **{"runtime.threads": 16}) == 0.5
    assert shared(5.0, **{"runtime.workers": "auto"}) == 0.25  # one GPU: one worker


@pytest.mark.parametrize(
    ("gpu_bytes", "share"), [(80e9, 0.25), (8e9, 0.3333), (5e9, 0.5), (3e9, 1)]
)
def test_a_gpu_is_shared_by_as_many_as_its_memory_holds(gpu_bytes, share):
    run = config(runtime__gpu_share="auto")
    need = memory(run, world_size=1, microbatch_size=8, half=True).total + CONTEXT_BYTES
    assert shared(5.0, machine=replace(ONE_GPU, gpu_bytes=gpu_bytes)) == share
    assert share == 1 or round(1 / share) * need <= HEADROOM * gpu_bytes


def test_a_share_that_is_given_counts_for_memory_and_devices():
    run = override(RunConfig(), {"size": "72m", "runtime.gpu_share": 0.1})
    runtime, _ = placed(run.resolved(vocab_size=50_258), ONE_GPU)
    assert runtime.num_devices == 0.1
    whole = override(run, {"runtime.gpu_share": 1}).resolved(vocab_size=50_258)
    assert runtime.microbatch_size < placed(whole, ONE_GPU)[0].microbatch_size
    assert placed(config(runtime__gpu_share=0.5), CPUS)[0].num_devices == 1.0


def test_a_share_of_several_workers_is_refused():
    with pytest.raises(
        ConfigError, match=r"gpu_share .0.5. is for a run of one process; it must be 1"
    ):
        config(runtime__gpu_share=0.5, runtime__workers=2)
    with pytest.raises(ConfigError, match=r"runtime.gpu_share must be .*, got 0"):
        config(runtime__gpu_share=0)
