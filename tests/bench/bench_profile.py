"""Where a step of a GPU goes: python -m tests.bench.bench_profile TOKENS SIZE:OBJECTIVE:MICRO ...

The product's own loop on text; after a warm-up two steps under torch's profiler, their kernels
summed by kind and the costliest listed, in milliseconds of a step. The step without the profiler
stands beside the sum: the rest is time in which the device had nothing to do.
"""

from __future__ import annotations

import argparse
import re
import time
from collections import defaultdict
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from dcray.corpus.order import cut_rows
from dcray.train.evaluate import ValidationRows
from dcray.train.loop import Data, train
from dcray.train.shard import RankContext
from tests.bench.bench_gpu import MASK_ID, SEQ_LEN, configuration

WARM, PLAIN, PROFILED = 4, 8, 2  # steps
KINDS = {  # the first that matches a kernel's name
    "loss": "nats_and_gradient",
    "attention": r"sdpa|fmha|flash|flex|fprop_.*knob|cudnn_generated",
    "matmul": r"gemm|nvjet|cutlass|xmma|cublas",
    "optimizer": r"multi_tensor|adam|foreach",
    "gather": r"embedding|index|scatter",
    "fused": r"triton",
    "copy": r"Memcpy|Memset|copy",
    "elementwise": r"elementwise|reduce|vectorized",
}


def kind_of(name: str) -> str:
    return next((kind for kind, words in KINDS.items() if re.search(words, name, re.I)), "other")


def show(name: str, profiler: Any, plain: float) -> None:
    spent: dict[str, float] = defaultdict(float)
    kernels: dict[str, list[float]] = defaultdict(list)
    for event in profiler.events():
        if event.device_type == torch.autograd.DeviceType.CUDA and not event.is_user_annotation:
            took = event.device_time_total / PROFILED / 1e3
            spent[kind_of(event.name)] += took
            kernels[event.name].append(took)
    total = sum(spent.values())
    print(f"{name}: {plain:.1f} ms a step, its kernels {total:.1f} ms")
    for kind, took in sorted(spent.items(), key=lambda pair: -pair[1]):
        print(f"  {took:8.1f} ms {took / total:6.1%}  {kind}")
    costliest = sorted(kernels.items(), key=lambda pair: -sum(pair[1]))[:32]
    for kernel, each in costliest:
        print(f"    {sum(each):8.2f} ms  {len(each) / PROFILED:5.0f} x  {kernel[:110]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokens")
    parser.add_argument("cases", nargs="+", metavar="SIZE:OBJECTIVE:MICRO")
    args = parser.parse_args()
    rows = np.asarray(cut_rows(np.fromfile(args.tokens, dtype=np.uint16), SEQ_LEN, SEQ_LEN))
    for case in args.cases:
        size, objective, micro = case.split(":")
        profiler = profile(activities=[ProfilerActivity.CUDA], acc_events=True)
        marks: list[float] = []

        def fetch(all_ids: Any, profiler: Any = profiler, marks: list[float] = marks) -> Any:
            for step, ids in enumerate(all_ids):
                if step in (WARM, WARM + PLAIN, WARM + PLAIN + PROFILED):
                    torch.cuda.synchronize()
                    marks.append(time.perf_counter())
                    if step == WARM + PLAIN:
                        profiler.start()
                    elif step > WARM:
                        profiler.stop()
                yield rows[ids]

        train(
            configuration(size, objective, len(rows)),
            Data(fetch, ValidationRows(rows[:4], None), MASK_ID),
            RankContext(torch.device("cuda", 0)),
            microbatch_size=int(micro),
            report=lambda _said: None,
            should_stop=lambda marks=marks: len(marks) > 2,  # type: ignore[misc]
        )
        show(case, profiler, (marks[1] - marks[0]) / PLAIN * 1e3)
        torch._dynamo.reset()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
