"""Small models on one GPU: python -m tests.bench.bench_small TOKENS SIZE:OBJECTIVE:ROWS ...

    python -m tests.bench.bench_small train-00000.bin 5.5m:ar:32 31.5m:mir:32 --seconds 5
    python -m tests.bench.bench_small train-00000.bin 5.5m:mir:32 --check

Each case is the product's own loop on rows of 512 tokens, in one call on all sides: the product as
it chooses (auto), steps as graphs (True), steps launched by the host (False), and a plain compiled
loop of the same model (plain, ar alone). Said of each: tokens/s by the wall clock after the
warm-up, MFU, the graph alone (replays after the run, by device events) and the loop over it.
--check trains 40 steps either way, in micro-batches and with a short last batch, is killed and goes
on, and compares every bit. --profile FOLDER writes the kernels of a replay.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

from dcray.config.run import RunConfig, override
from dcray.config.sizes import pad_vocab
from dcray.corpus.order import cut_rows
from dcray.cost import row_flops
from dcray.reports import Outcome, Report
from dcray.train import loop
from dcray.train.checkpoint.manager import Checkpoints
from dcray.train.evaluate import ValidationRows
from dcray.train.shard import RankContext
from dcray.train.steps import DeviceSteps
from tests.bench import bench_eager

VOCAB_SIZE, MASK_ID, SEQ_LEN = 4_097, 4_096, 512
PEAK_FLOPS = 989e12  # an H100 or H200, dense bfloat16
REPLAYS, PROFILED, VALIDATION = 50, 3, 70  # the last: rows, a short batch among them
WARM_SECONDS = 0.7


class Seen:
    """The steps that the loop built, and a thing to do with them while they are there."""

    def __init__(self) -> None:
        self.steps: DeviceSteps | None = None
        build = loop.build_steps

        def kept(*args: Any, **more: Any) -> Any:
            self.steps = build(*args, **more)  # type: ignore[assignment]
            return self.steps

        loop.build_steps = kept


SEEN = Seen()


def configuration(case: str, **changes: Any) -> tuple[RunConfig, int]:
    """The configuration of SIZE:OBJECTIVE:ROWS, and its micro-batch."""
    size, objective, rows = case.split(":")
    base = {
        "size": size,
        "objective": objective,
        "batch_size": int(rows),
        "data.seq_len": SEQ_LEN,
        "data.unique_tokens": 1_000_000,
        "num_epochs": 100_000,
        "runtime.device": "cuda",
        "runtime.report_seconds": 0.5,
        "validation.epochs": "end",
    }
    return override(RunConfig(), base | changes).resolved(vocab_size=VOCAB_SIZE), int(rows)


def run(
    config: RunConfig,
    rows: Any,
    micro: int,
    *,
    report: Callable[[Report], None],
    stop: Callable[[], bool] = lambda: False,
    folder: Path | None = None,
) -> Outcome:
    """The product's loop over `rows`; the last of them are the validation set."""
    place = RankContext(torch.device("cuda", 0))
    held = Checkpoints(folder, config, place, keep=2) if folder else None
    val = np.asarray(rows[-VALIDATION:])
    data = loop.Data(
        lambda all_ids: (rows[ids] for ids in all_ids),
        ValidationRows(val, np.ones(val.shape, dtype=np.int16)),
        MASK_ID,
    )
    return loop.train(
        config,
        data,
        place,
        microbatch_size=micro,
        report=report,
        checkpoints=held,
        should_stop=stop,
    )


def measure(case: str, rows: Any, seconds: float, capture: Any, folder: Path | None) -> str:
    """One side of a case."""
    config, micro = configuration(case, **{"runtime.capture": capture})
    marks: list[tuple[int, float]] = []
    end: list[tuple[int, float]] = []
    replay: list[float] = []
    began = time.perf_counter()

    def report(said: Report) -> None:
        marks.append((said.step, time.perf_counter()))

    def stop() -> bool:
        warm = [mark for mark in marks if mark[1] > marks[0][1] + WARM_SECONDS]
        if not warm or warm[-1][1] - warm[0][1] < seconds:
            return False
        end.append(marks[-1])
        steps = SEEN.steps
        if not replay and steps is not None and steps._step.is_captured:
            replay.append(replays(steps))
            if folder is not None:
                kernels(steps, folder / f"kernels-{case.replace(':', '-')}.txt")
        return True

    torch.cuda.reset_peak_memory_stats()
    run(config, rows, micro, report=report, stop=stop)
    first = next(mark for mark in marks if mark[1] > marks[0][1] + WARM_SECONDS)
    last = end[0]
    step = (last[1] - first[1]) / (last[0] - first[0])
    tokens = config.batch_size * SEQ_LEN
    flops = 3 * config.objective.build().num_passes * row_flops(config) * config.batch_size
    spans = SEEN.steps._step.spans if SEEN.steps else {}
    told = ", ".join(
        f"{name} {1e3 * span.launched:.2f}/{1e3 * span.done:.2f}" for name, span in spans.items()
    )
    alone = (
        f"graph alone {1e3 * replay[0]:.3f} ms, loop over it {step / replay[0]:.3f}"
        if replay
        else "launched by the host"
    )
    return (
        f"{1e3 * step:8.3f} ms a step, {tokens / step:11,.0f} tokens/s, "
        f"MFU {flops / step / PEAK_FLOPS:.1%}, {alone}; first report {marks[0][1] - began:.1f} s, "
        f"peak {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB; launched/done ms: {told}"
    )


def replays(steps: DeviceSteps) -> float:
    """Seconds of one replay."""
    replay = steps._step._replay
    assert replay is not None
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    torch.cuda.synchronize()
    events[0].record()
    for _ in range(REPLAYS):
        replay()
    events[1].record()
    torch.cuda.synchronize()
    return events[0].elapsed_time(events[1]) / REPLAYS / 1e3


def kernels(steps: DeviceSteps, path: Path) -> None:
    """Write the kernels of a replay, the costliest first."""
    replay = steps._step._replay
    assert replay is not None
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
        for _ in range(PROFILED):
            replay()
        torch.cuda.synchronize()
    each: dict[str, list[float]] = defaultdict(list)
    for event in profiler.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            each[event.name].append(event.device_time_total / PROFILED)
    total, count = sum(map(sum, each.values())), sum(map(len, each.values())) / PROFILED
    lines = [f"{count:.0f} kernels, {total / 1e3:.3f} ms busy"]
    for name, took in sorted(each.items(), key=lambda pair: -sum(pair[1])):
        calls = len(took) / PROFILED
        lines.append(f"{sum(took):9.1f} us {calls:5.0f} x {sum(took) / calls:8.2f}  {name[:150]}")
    path.write_text("\n".join(lines) + "\n")


def plain(case: str, rows: Any, seconds: float) -> str:
    """The loop that one writes after nanoGPT: the whole model compiled, autocast, fused AdamW.

    Its windows are full, so that its attention is the fast kernel; its loss is read each 10 steps.
    """
    config, _ = configuration(case)
    bench_eager.SEQ_LEN, bench_eager.VOCAB = SEQ_LEN, pad_vocab(VOCAB_SIZE)
    torch.set_float32_matmul_precision("high")
    model: Any = bench_eager.Plain(config.shape, config.model.rope_base, "L").cuda()
    model.cos, model.sin = model.cos.cuda(), model.sin.cuda()
    optim = config.optim
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=optim.lr, betas=optim.betas, weight_decay=0.1, fused=True
    )
    model = torch.compile(model)
    rng = np.random.default_rng(0)

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        ids = rng.integers(0, len(rows), config.batch_size)
        host = torch.from_numpy(rows[ids].astype(np.int64)).pin_memory()
        both = host.to("cuda", non_blocking=True)
        return both[:, :-1], both[:, 1:]

    began, marks, step = time.perf_counter(), [], 0
    x, y = batch()
    while not marks or marks[-1] - marks[0] < seconds + WARM_SECONDS:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x).flatten(0, 1), y.reshape(-1))
        x, y = batch()  # while the device is busy
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), optim.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        if step % 10 == 0:
            loss.item()
            marks.append(time.perf_counter())
    warm = [mark for mark in marks if mark > marks[0] + WARM_SECONDS]
    took = (warm[-1] - warm[0]) / (10 * (len(warm) - 1))
    rate = config.batch_size * SEQ_LEN / took
    return f"{1e3 * took:8.3f} ms a step, {rate:11,.0f} tokens/s; started {marks[0] - began:.1f} s"


Curve = dict[Any, Any]


def curve(case: str, rows: Any, micro: int, folder: Path | None = None, **changes: Any) -> Curve:
    """Every point of a run of 40 steps and some, with its final loss."""
    config, _ = configuration(case, **{"data.unique_tokens": 330 * SEQ_LEN + 1} | changes)
    points: Curve = {}

    def report(said: Report) -> None:
        points.update({(p.step, *p.values): tuple(p.values.values()) for p in said.points})

    outcome = run(config, rows, micro, report=report, folder=folder)
    return points | {"end": (outcome.state, outcome.val_loss, outcome.val_bpb)}


def compare(name: str, one: Curve, other: Curve) -> None:
    assert one.keys() == other.keys(), (name, set(one) ^ set(other))
    apart = [key for key in one if one[key] != other[key]]
    far = max(
        (abs(a - b) for k in apart for a, b in zip(one[k], other[k], strict=True) if a != b
         and isinstance(a, float)), default=0.0,
    )  # fmt: skip
    print(f"  {name}: {len(one)} points, {len(apart)} differ, by {far:.3g} at most", flush=True)


def check(case: str, rows: Any, corpus: str) -> None:
    """Compare captured steps with launched ones; 4 epochs of 330 rows end in a short batch."""
    size = int(case.split(":")[2])
    base: dict[str, Any] = {"num_epochs": 4, "validation.epochs": 1, "runtime.num_points": 1000}
    off, on = base | {"runtime.capture": False}, base | {"runtime.capture": True}
    plain = curve(case, rows, size, **off)
    compare(f"{case}, launched twice", plain, curve(case, rows, size, **off))
    compare(f"{case}, captured", plain, curve(case, rows, size, **on))
    compare(f"{case}, chosen by itself", plain, curve(case, rows, size, **base))
    plain = curve(case, rows, size // 4, **off)
    compare(f"{case}, captured, 4 micro-batches", plain, curve(case, rows, size // 4, **on))
    with tempfile.TemporaryDirectory() as folder:
        killed(case, corpus, folder)
        plain = curve(case, rows, size, **off)
        again = curve(case, rows, size, Path(folder), **on | {"runtime.checkpoint_seconds": 0.0})
    compare(f"{case}, killed and gone on", plain, again)


def killed(case: str, corpus: str, folder: str) -> None:
    """A child trains with graphs, and is killed after it has kept a checkpoint in the middle."""
    words = [sys.executable, "-m", "tests.bench.bench_small", corpus, case, "--child", folder]
    child = subprocess.Popen(words)
    while child.poll() is None:
        kept = sorted(Path(folder).glob("step-*"))
        if kept and int(kept[-1].name[5:]) >= 15:
            os.kill(child.pid, signal.SIGKILL)
            break
        time.sleep(0.01)
    child.wait()
    kept = sorted(path.name for path in Path(folder).glob("step-*"))
    print(f"  killed by {child.returncode}, checkpoints {kept}", flush=True)


def child(case: str, rows: Any, folder: Path) -> None:
    began = time.perf_counter()
    config, micro = configuration(
        case,
        **{"data.unique_tokens": 330 * SEQ_LEN + 1, "num_epochs": 4, "validation.epochs": 1},
        **{"runtime.num_points": 1000, "runtime.capture": True, "runtime.checkpoint_seconds": 0.0},
    )

    def report(said: Report) -> None:
        if said.step == 1:
            print(f"  first step of a second process {time.perf_counter() - began:.1f} s")
        time.sleep(0.1)

    run(config, rows, micro, report=report, folder=folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokens")
    parser.add_argument("cases", nargs="+", metavar="SIZE:OBJECTIVE:ROWS")
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--sides", nargs="+", default=["auto", "False"])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = cut_rows(np.fromfile(args.tokens, dtype=np.uint16), SEQ_LEN, SEQ_LEN)
    if args.child:
        child(args.cases[0], rows, args.child)
        return
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    for case in args.cases:
        if args.check:
            check(case, rows, args.tokens)
            continue
        for side in args.sides:
            if side == "plain":
                print(f"{case:16s} plain loop    {plain(case, rows, args.seconds)}", flush=True)
                continue
            capture = {"True": True, "False": False}.get(side, side)
            said = measure(case, rows, args.seconds, capture, args.profile)
            print(f"{case:16s} capture={side:5s} {said}", flush=True)


if __name__ == "__main__":
    main()
