"""The training loop on this machine's GPUs: python -m tests.bench.bench_gpu SIZE:OBJECTIVE[:MICRO]

    python -m tests.bench.bench_gpu 72m:ar 72m:mir 257m:ar:32 --seconds 12
    torchrun --nproc-per-node 2 -m tests.bench.bench_gpu 257m:ar      the same over FSDP2

Each case is the product's own loop (`dcray.train.loop.train`, no Ray) on the paper's rows and
batch, dropout on; give --tokens: a card that is short of power runs slower on random ones. Said of
each: tokens/s (steps by the wall clock after the warm-up, reports and all, of all devices together)
and what the loop itself reported, lowest to highest; exact-causal MFU, peak memory beside the
estimate of `dcray.cost`, seconds to the first step, the share of the time in which the loop
waited for rows. MICRO left out: the estimate picks it.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from dcray.config.run import RunConfig, override
from dcray.corpus.order import cut_rows
from dcray.cost import fitting_microbatch, memory, row_flops
from dcray.reports import Report
from dcray.train.evaluate import ValidationRows
from dcray.train.loop import Data, train
from dcray.train.shard import RankContext, this_place

VOCAB_SIZE, MASK_ID, SEQ_LEN = 50_258, 50_257, 2048
PEAK_FLOPS = 989e12  # an H100 or H200, dense bfloat16
ROWS = 4096
WARM = 3  # reports: the first lie close together, and the card is not warm yet


class Mark(NamedTuple):
    """Where the run stood at a report; the device had done all steps by then."""

    step: int
    at: float  # seconds
    rate: float  # tokens/s, as reported
    waited: float  # seconds for rows, so far


class Figures(NamedTuple):
    """What one case showed."""

    rate: float  # tokens/s, all devices
    low: float
    high: float
    mfu: float
    peak: float  # bytes
    estimate: float
    first: float  # seconds
    waiting: float  # share

    def __str__(self) -> str:
        return (
            f"{self.rate:11,.0f} tokens/s ({self.low:,.0f} to {self.high:,.0f}), "
            f"MFU {self.mfu:.1%}, peak {self.peak / 2**30:5.1f} GiB "
            f"(estimate {self.estimate / 2**30:5.1f}), first step {self.first:4.1f} s, "
            f"waiting for rows {self.waiting:.2%}"
        )


def configuration(size: str, objective: str, num_rows: int = ROWS, **changes: Any) -> RunConfig:
    """The paper's rows and batch; far more epochs than are run."""
    base = {
        "size": size,
        "objective": objective,
        "data.unique_tokens": num_rows * SEQ_LEN + 1,
        "num_epochs": 1000,
        "runtime.device": "cuda",
        "validation.epochs": "end",
    }
    return override(RunConfig(), base | changes).resolved(vocab_size=VOCAB_SIZE)


def measure(
    config: RunConfig,
    place: RankContext,
    tokens: NDArray[np.uint16],
    *,
    micro: int | None,
    seconds: float,
) -> Figures:
    """Train for so long after the first report; every rank calls it."""
    world = place.world_size
    available = torch.cuda.get_device_properties(place.device).total_memory
    micro = micro or fitting_microbatch(config, world_size=world, available=available, half=True)
    waited: list[float] = [0.0]
    marks: list[Mark] = []
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()

    def fetch(all_ids: Iterable[Any]) -> Iterator[Any]:
        for ids in all_ids:
            asked = time.perf_counter()
            rows = tokens[ids]
            waited[0] += time.perf_counter() - asked
            yield rows

    def report(said: Report) -> None:
        at = time.perf_counter() - began
        marks.append(Mark(said.step, at, said.tokens_per_second, waited[0]))

    train(
        config,
        Data(fetch, ValidationRows(tokens[:4], None), MASK_ID),
        place,
        microbatch_size=micro,
        report=report,
        should_stop=lambda: (
            len(marks) >= WARM + 3 and time.perf_counter() - began - marks[0].at > seconds
        ),
    )
    first, last = marks[WARM], marks[-1]
    rates = [mark.rate for mark in marks[WARM + 1 :]]
    steps, seconds = last.step - first.step, last.at - first.at
    rate = steps * config.batch_size * SEQ_LEN / seconds
    passes = config.objective.build().num_passes
    flops = 3 * passes * row_flops(config) / SEQ_LEN
    return Figures(
        rate,
        min(rates),
        max(rates),
        flops * rate / world / PEAK_FLOPS,
        float(torch.cuda.max_memory_allocated()),
        memory(config, world_size=world, microbatch_size=micro, half=True).total,
        marks[0].at,
        (last.waited - first.waited) / seconds,
    )


def here() -> RankContext:
    """This process's device; with torchrun the group of all."""
    rank = int(os.environ.get("LOCAL_RANK", 0))
    torch.cuda.set_device(rank)
    if "LOCAL_RANK" in os.environ:
        dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    return this_place(torch.device("cuda", rank))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="+", metavar="SIZE:OBJECTIVE[:MICRO]")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--tokens", help="a shard of a prepared corpus; without: random tokens")
    args = parser.parse_args()
    if args.tokens:
        tokens = np.asarray(cut_rows(np.fromfile(args.tokens, dtype=np.uint16), SEQ_LEN, SEQ_LEN))
    else:
        tokens = np.random.default_rng(0).integers(0, MASK_ID, (ROWS, SEQ_LEN + 1), np.uint16)
    place = here()
    if place.rank == 0:
        print(f"{place.world_size} x {torch.cuda.get_device_name()}, torch {torch.__version__}")
    for case in args.cases:
        size, objective, *micro = case.split(":")
        try:
            found: Any = measure(
                configuration(size, objective, len(tokens)),
                place,
                tokens,
                micro=int(micro[0]) if micro else None,
                seconds=args.seconds,
            )
        except torch.cuda.OutOfMemoryError as error:
            found = f"out of memory: {str(error)[:80]}"
        if place.rank == 0:
            print(f"{case:16s} {found}", flush=True)
        torch._dynamo.reset()


if __name__ == "__main__":
    main()
