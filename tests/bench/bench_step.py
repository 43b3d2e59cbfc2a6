"""A training step through Ray Train against the bare loop: python -m tests.bench.bench_step

Both sides train the same configuration with the same reports, in a fresh process each time, by
turns: one as a trial of Ray Tune with Ray Train in-process, rows from the object store; one as a
plain process that calls `train` with rows from a memory map. The time runs from the first report
after the warm-up to the last step, waiting for whoever reads the reports included.
"""

from __future__ import annotations

import argparse
import statistics
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from dcray.config import RunConfig
from dcray.corpus.manifest import Corpus
from dcray.corpus.order import cut_rows
from dcray.corpus.stream import StreamRefs, publish
from dcray.search.runner import Listener, StopRequest, Trial, run_trials
from dcray.train.progress import Outcome, Report
from tests.bench.common import cluster_and_corpus, configuration, machine, spread

Marks = list[tuple[int, float]]  # (steps done, seconds spent) at each report


def step_seconds(marks: Marks, warm_up: int) -> float:
    """Seconds a step between the first report after the warm-up and the last one."""
    first = next(mark for mark in marks if mark[0] >= warm_up)
    last = marks[-1]
    assert last[0] > first[0], "too few steps: ask for more --steps"
    return (last[1] - first[1]) / (last[0] - first[0])


def through_ray(run: RunConfig, refs: StreamRefs, folder: Path) -> tuple[Marks, float]:
    """The reports and the final loss of one in-process trial."""
    marks: Marks = []
    losses: list[float] = []

    def on_report(_name: str, report: Report) -> None:
        marks.append((report.step, report.seconds))

    def on_end(_name: str, outcome: Outcome, traceback: str) -> None:
        assert outcome.val_loss is not None, traceback or outcome.reason
        losses.append(outcome.val_loss)

    run_trials(
        [Trial("bench", run, folder)],
        refs,
        Listener(on_report, on_end),
        logs=folder.parent / "logs",
        stop=StopRequest(),
    )
    return marks, losses[0]


def bare(config: dict[str, Any], corpus_path: str, folder: str) -> tuple[Marks, float]:
    """The same by the loop alone; runs in a process of its own."""
    import torch

    from dcray.train.checkpoint import Checkpoints
    from dcray.train.evaluate import ValidationRows
    from dcray.train.loop import Data, train
    from dcray.train.shard import Place

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
    place = Place(torch.device(run.runtime.device, *([0] if run.runtime.device == "cuda" else [])))
    outcome = train(
        run,
        Data(lambda all_ids: (rows[ids] for ids in all_ids), validation, corpus.mask_id),
        place,
        microbatch_size=run.runtime.microbatch_size,
        report=lambda report: marks.append((report.step, report.seconds)),
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
        rate = run.batch_size * run.data.seq_len
        print(f"{machine(args.device)}; {run.size_name}, {run.num_steps} steps of {rate:,} tokens")
        ratios = []
        for pair in range(args.pairs):
            found = {}
            sides = ("ray", "bare") if pair % 2 == 0 else ("bare", "ray")
            for side in sides:
                folder = place / f"{side}-{pair}" / "checkpoints"
                if side == "ray":
                    found[side] = through_ray(run, refs, folder)
                else:
                    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                        task = (run.to_dict(), str(corpus.path), str(folder))
                        found[side] = pool.submit(bare, *task).result()
            assert args.device == "cuda" or found["ray"][1] == found["bare"][1], "other losses"
            ray, alone = (step_seconds(found[side][0], args.warm_up) for side in ("ray", "bare"))
            ratios.append(ray / alone)
            print(
                f"pair {pair + 1} ({sides[0]} first): through Ray {ray * 1e3:.2f} ms a step "
                f"({rate / ray:,.0f} tokens/s, {len(found['ray'][0])} reports), bare "
                f"{alone * 1e3:.2f} ms ({rate / alone:,.0f} tokens/s, {len(found['bare'][0])} "
                f"reports), ratio {ratios[-1]:.4f}",
                flush=True,
            )
        print(f"through Ray / bare, {spread(ratios)}: costs {statistics.median(ratios) - 1:+.2%}")


if __name__ == "__main__":
    main()
