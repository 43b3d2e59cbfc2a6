"""A training step through Ray Train against the bare loop: python -m tests.bench.bench_step

Both sides train the same configuration with the same reports, in a fresh process each time, by
turns: one as a trial of Ray Tune with Ray Train in-process, rows from the object store, its points
written to MLflow on SQLite by the driver; one as a plain process that calls `train` with rows from
a memory map. The time runs from the first report
after the warm-up to the last but one, waiting for whoever reads the reports included. Processor
seconds are given beside it: on a busy machine they are what can be compared.
"""

from __future__ import annotations

import argparse
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

from dcray.config.run import RunConfig
from dcray.corpus.manifest import Corpus
from dcray.corpus.order import cut_rows
from dcray.corpus.stream import StreamRefs, publish
from dcray.driver.recorder import RunRecorder
from dcray.driver.resources import this_machine
from dcray.search.specs import single_run
from dcray.track.store import Store
from dcray.types import RunResult
from tests.bench.common import (
    cluster_and_corpus,
    configuration,
    in_turn,
    machine,
    spread,
)


class Mark(NamedTuple):
    """Where a run stood at a report."""

    step: int
    seconds: float  # spent so far, all waiting included
    rate: float  # tokens/s since the report before, waiting left out
    cpu: float  # processor seconds of the training process so far, all threads


class Step(NamedTuple):
    """A step between the first report after the warm-up and the last one but the final."""

    seconds: float
    waiting: float  # seconds of it in which the loop waited for whoever reads its reports
    cpu: float


def a_step(marks: list[Mark], warm_up: int, step_tokens: int) -> Step:
    """The mean step; the final report is left out, since it follows the validation."""
    kept = [mark for mark in marks[:-1] if mark.step >= warm_up]
    assert len(kept) > 2, "too few reports: ask for more --steps"
    first, last = kept[0], kept[-1]
    steps = last.step - first.step
    pairs = pairwise(kept)
    training = sum((b.step - a.step) * step_tokens / b.rate for a, b in pairs)
    seconds = last.seconds - first.seconds
    return Step(seconds / steps, (seconds - training) / steps, (last.cpu - first.cpu) / steps)


def trainer_cpu() -> float:
    """Processor seconds of the trial's process, which waits while its report is read."""
    spent = [0.0]
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if process.name().startswith("ray::"):
                times = process.cpu_times()
                spent.append(times.user + times.system)
    return max(spent)


def through_ray(
    run: RunConfig, corpus: Corpus, refs: StreamRefs, folder: Path
) -> tuple[list[Mark], float]:
    """The reports and the final loss of one in-process trial that is kept in MLflow."""
    marks, losses = list[Mark](), list[float]()
    with Store.open(folder.parent, study=folder.parent.name) as store:
        spec = single_run(run, corpus, study=store.study, recipe=run.objective.name)
        recorder = RunRecorder(store, corpus, this_machine())
        for event in in_turn([replace(spec, place=run.runtime)], refs, folder):
            event = recorder.write(event)
            if isinstance(event, RunResult):
                assert event.val_loss is not None, event.traceback or event.reason
                losses.append(event.val_loss)
            elif (said := event.report) is not None:
                mark = Mark(said.step, said.seconds, said.tokens_per_second, trainer_cpu())
                marks.append(mark)
    (loss,) = losses
    return marks, loss


def bare(config: dict[str, Any], corpus_path: str, folder: str) -> tuple[list[Mark], float]:
    """The same by the loop alone; runs in a process of its own."""
    import torch

    from dcray.train.checkpoint.manager import Checkpoints
    from dcray.train.evaluate import ValidationRows
    from dcray.train.loop import Data, train
    from dcray.train.shard import RankContext

    run, corpus = RunConfig.model_validate(config), Corpus.open(corpus_path)
    torch.set_num_threads(run.runtime.threads)
    seq_len, marks = run.data.seq_len, []
    rows = cut_rows(corpus.tokens(run.data.unique_tokens), seq_len, run.data.stride)
    tokens, text_bytes = corpus.validation(run.data.val_tokens)
    assert text_bytes is not None
    assert run.runtime.microbatch_size is not None
    validation = ValidationRows(
        np.asarray(cut_rows(tokens, seq_len, seq_len)),
        np.asarray(cut_rows(text_bytes, seq_len, seq_len)),
    )
    place = RankContext(
        torch.device(run.runtime.device, *([0] if run.runtime.device == "cuda" else []))
    )
    outcome = train(
        run,
        Data(lambda all_ids: (rows[ids] for ids in all_ids), validation, corpus.mask_id),
        place,
        microbatch_size=run.runtime.microbatch_size,
        report=lambda said: marks.append(
            Mark(said.step, said.seconds, said.tokens_per_second, time.process_time())
        ),
        checkpoints=Checkpoints(Path(folder), run, place, keep=run.runtime.keep_checkpoints),
    )
    assert outcome.val_loss is not None
    return marks, outcome.val_loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("overrides", nargs="*", help="field=value")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--warm-up", type=int, default=40)
    parser.add_argument("--pairs", type=int, default=7)
    args = parser.parse_args()
    with cluster_and_corpus(args.device) as (place, corpus):
        run = configuration(args.device, args.steps, corpus, args.overrides)
        refs = publish(corpus, run.data.unique_tokens, run.data.val_tokens, "resident")
        tokens = run.batch_size * run.data.seq_len
        print(
            f"{machine(args.device)}; {run.size_name}, {run.num_steps} steps of {tokens:,} tokens"
        )
        ratios: dict[str, list[float]] = {"seconds": [], "cpu": []}
        for pair in range(args.pairs):
            found = {}
            sides = ("ray", "bare") if pair % 2 == 0 else ("bare", "ray")
            for side in sides:
                folder = place / f"{side}-{pair}" / "checkpoints"
                if side == "ray":
                    found[side] = through_ray(run, corpus, refs, folder)
                else:
                    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                        task = (run.to_dict(), str(corpus.path), str(folder))
                        found[side] = pool.submit(bare, *task).result()
            assert args.device == "cuda" or found["ray"][1] == found["bare"][1], "other losses"
            ray, alone = (a_step(found[side][0], args.warm_up, tokens) for side in ("ray", "bare"))
            for name in ratios:
                ratios[name].append(getattr(ray, name) / getattr(alone, name))
            told = ", ".join(f"{name} {values[-1]:.4f}" for name, values in ratios.items())
            print(
                f"pair {pair + 1} ({sides[0]} first): through Ray {describe(ray)}; "
                f"bare {describe(alone)}; ratios: {told}",
                flush=True,
            )
        for name, values in ratios.items():
            cost = statistics.median(values) - 1
            print(
                f"{name} a step, through Ray and MLflow / bare: {spread(values)}, costs {cost:+.2%}"
            )


def describe(step: Step) -> str:
    """One side's step in milliseconds."""
    seconds, waiting, cpu = (1e3 * value for value in step)
    return f"{seconds:.2f} ms a step ({waiting:.2f} of it waiting, {cpu:.2f} of processor time)"


if __name__ == "__main__":
    main()
