"""What a run costs beside its steps, on this GPU: python -m tests.bench.bench_economy TOKENS SIZE

start        seconds to build the model, to read a checkpoint, and to the first step of the second
             run of a size in one process
evaluation   its share of the training time at a budget of 100M tokens, 16 epochs, AR and MDLM, by
             the epochs that "auto" chooses and the measured time of a row each way
masks        share of a step in which inputs are masked (MIR)
checkpoint   share of the time that saving takes from training: saved every ten seconds against
             never, scaled to the interval that a run has by default; and how long a save halts it

The loop is the product's own, on text, the paper's rows and batch.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.profiler import ProfilerActivity, profile

from dcray.config.run import RunConfig, override
from dcray.corpus.order import cut_rows
from dcray.corpus.validation_rows import ValidationRows
from dcray.cost import fitting_microbatch, validation_epochs
from dcray.rng import keyed
from dcray.train.batching import make_batch
from dcray.train.checkpoint.manager import Checkpoints
from dcray.train.evaluate import FINAL_DRAW, evaluate
from dcray.train.loop import Data, train
from dcray.train.optim import build_optimizer
from dcray.train.shard import RankContext, build_model
from tests.bench.bench_gpu import MASK_ID, SEQ_LEN, WARM, configuration

PLACE = RankContext(torch.device("cuda", 0))
BUDGET, EPOCHS, OFTEN = 100_000_000, 16, 10.0
VAL_TOKENS, VAL_ROWS = 10_000_000, 256  # in a study; and timed here


@dataclass(frozen=True)
class Case:
    """One size on one text."""

    size: str
    tokens: NDArray[np.uint16]  # (rows, T + 1)
    micro: int

    def config(self, objective: str, **changes: Any) -> RunConfig:
        return override(configuration(self.size, objective, len(self.tokens)), changes)


def step_seconds(case: Case, config: RunConfig, seconds: float, folder: Path | None = None) -> Any:
    """Seconds a step after the warm-up, all halts included; to the first step; halts of saves."""
    marks: list[tuple[int, float]] = []
    halts: list[float] = []
    began = time.perf_counter()
    held = None
    if folder is not None:
        held = Checkpoints(folder, config, PLACE, keep=2)
        save = held.save

        def timed(*args: Any, **kwargs: Any) -> None:
            at = time.perf_counter()
            save(*args, **kwargs)
            halts.append(time.perf_counter() - at)

        held.save = timed  # type: ignore[method-assign]
    train(
        config,
        Data(
            lambda all_ids: (case.tokens[ids] for ids in all_ids),
            ValidationRows(case.tokens[:4], None),
            MASK_ID,
        ),
        PLACE,
        microbatch_size=case.micro,
        report=lambda said: marks.append((said.step, time.perf_counter() - began)),
        checkpoints=held,
        should_stop=lambda: (
            len(marks) > WARM + 2 and time.perf_counter() - began - marks[0][1] > seconds
        ),
    )
    (first, at), (last, end) = marks[WARM], marks[-1]
    return (end - at) / (last - first), marks[0][1], halts[:-1]  # the last is the stop's own


def evaluation_share(case: Case, objective: str, step: float) -> str:
    """Of the training time at 100M tokens, by the epochs after which a run is scored."""
    config = case.config(objective, num_epochs=EPOCHS)
    wanted = override(config, {"data.unique_tokens": BUDGET, "validation.epochs": "auto"})
    rows = ValidationRows(case.tokens[:VAL_ROWS], None)
    model, scorer = build_model(config, PLACE), config.objective.build()

    def scored(how: Any, draw: int) -> float:
        PLACE.wait()
        began = time.perf_counter()
        evaluate(model, how, rows, PLACE, mask_id=MASK_ID, microbatch_size=case.micro, draw=draw)
        return (time.perf_counter() - began) / VAL_ROWS

    scored(scorer, 0)
    a_row = scored(scorer, 1)
    num_val = VAL_TOKENS // SEQ_LEN
    times = len(validation_epochs(wanted, num_rows=num_val))
    spent = times * num_val * a_row
    if scorer.keeps_best:
        spent += num_val * scored(scorer.final(), FINAL_DRAW)
    training = wanted.num_steps * step
    return (
        f"{objective}: {spent / training:.2%} of the training ({times} of {EPOCHS} epochs scored, "
        f"{num_val * SEQ_LEN:,} tokens; a row takes {a_row / (step / config.batch_size):.3f} of "
        f"its training step)"
    )


def device_seconds(function: Callable[[], Any], times: int = 20) -> float:
    """What its kernels take on the device: the host launches them far ahead of their turn."""
    function()
    PLACE.wait()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(times):
            function()
        PLACE.wait()
    return sum(event.device_time_total for event in profiler.key_averages()) / times / 1e6


def mask_seconds(case: Case, config: RunConfig) -> float:
    """Of one step: masks of every micro-batch."""
    ids = np.arange(case.micro)
    batch = make_batch(
        case.tokens[ids], np.ones(case.micro, bool), mask_id=MASK_ID, device=PLACE.device
    )
    key = PLACE.put(keyed.row_keys(0, np.zeros(case.micro), ids))
    objective: Any = config.objective.build()
    once = device_seconds(lambda: objective.masked_inputs(batch, key))
    return once * config.batch_size / case.micro


def start_seconds(case: Case, config: RunConfig, folder: Path) -> tuple[float, float]:
    began = time.perf_counter()
    model = build_model(config, PLACE)
    PLACE.wait()
    built = time.perf_counter()
    with Checkpoints(folder, config, PLACE, keep=2) as held:
        assert held.load(model, build_optimizer(model, config)) is not None
    PLACE.wait()
    return built - began, time.perf_counter() - built


def measure(case: Case, seconds: float) -> None:
    mir, mdlm = case.config("mir"), case.config("mdlm")
    ar = case.config("ar", **{"runtime.checkpoint_seconds": OFTEN})
    never, cold, _ = step_seconds(case, ar, seconds)
    with TemporaryDirectory(prefix="bench-") as folder:
        often, warm, halts = step_seconds(case, ar, 3.5 * OFTEN, Path(folder))
        built, read = start_seconds(case, ar, Path(folder))
    default = RunConfig().runtime.checkpoint_seconds
    print(
        f"{case.size}, micro-batch {case.micro}\n"
        f"  start: first step after {cold:.1f} s, of the next run {warm:.1f} s; "
        f"model {built:.2f} s, checkpoint read {read:.2f} s\n"
        f"  checkpoint: {(often / never - 1) * OFTEN / default:+.2%} of the time at every "
        f"{default:g} s (a step {never * 1e3:.1f} ms without, {often * 1e3:.1f} ms with one every "
        f"{OFTEN:g} s; a save halts training for {', '.join(f'{h:.2f}' for h in halts)} s)\n"
        f"  evaluation, {evaluation_share(case, 'ar', never)}",
        flush=True,
    )
    torch._dynamo.reset()
    step, _, _ = step_seconds(case, mir, seconds)
    masks = mask_seconds(case, mir)
    print(
        f"  MIR step / AR step {step / never:.3f}; masks {masks * 1e3:.3f} ms, "
        f"{masks / step:.3%} of its step",
        flush=True,
    )
    torch._dynamo.reset()
    step, _, _ = step_seconds(case, mdlm, seconds)
    print(f"  evaluation, {evaluation_share(case, 'mdlm', step)}", flush=True)
    torch._dynamo.reset()
    torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokens")
    parser.add_argument("sizes", nargs="+")
    parser.add_argument("--seconds", type=float, default=8)
    args = parser.parse_args()
    tokens = np.asarray(cut_rows(np.fromfile(args.tokens, dtype=np.uint16), SEQ_LEN, SEQ_LEN))
    print(torch.cuda.get_device_name(), f"torch {torch.__version__}", flush=True)
    for size in args.sizes:
        config = configuration(size, "mdlm", len(tokens))
        available = 0.5 * torch.cuda.get_device_properties(0).total_memory  # two models at once
        micro = fitting_microbatch(config, world_size=1, available=available, half=True)
        measure(Case(size, tokens, micro), args.seconds)


if __name__ == "__main__":
    main()
