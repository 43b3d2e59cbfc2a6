"""How long a trial takes to start: python -m tests.bench.bench_trial

Trials one after the other on one place: in-process, where an actor is used again, and as a worker
group of two. A start is the time from the end of the trial before (for the first: from handing
over the list) to the report of the first step, both seen by the driver; it holds Tune's hand-out,
the configuration's way there, the group's start, building the model and one step. The whole
overhead is all that a trial takes beyond its training: its checkpoint and its end, too.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

from dcray.corpus.stream import StreamRefs, publish
from dcray.types import RunResult, RunSpec
from tests.bench.common import (
    cluster_and_corpus,
    configuration,
    in_turn,
    lone_run,
    machine,
    spread,
)


def starts(
    specs: list[RunSpec], refs: StreamRefs, checkpoints: Path
) -> tuple[list[float], list[float]]:
    """Seconds from handing out to the first step, and beyond the training; trial by trial."""
    found: dict[str, float] = {}
    beyond: list[float] = []
    trained: list[float] = []
    began = time.perf_counter()
    for event in in_turn(specs, refs, checkpoints):
        now = time.perf_counter()
        if isinstance(event, RunResult):
            assert event.state == "complete", event.traceback or event.reason
            trained.append(event.device_seconds)
            beyond.append(now - began - event.device_seconds)
            began = now
        elif event.report is not None:
            name = event.spec.name
            assert name in found or event.report.step == 1, "it went on from a checkpoint"
            found.setdefault(name, now - began)
    assert min(trained) > 0
    assert len(found) == len(beyond) == len(specs)
    return list(found.values()), beyond


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("overrides", nargs="*", help="field=value")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--trials", type=int, default=6, help="in-process, two or more")
    parser.add_argument(
        "--groups", type=int, default=3, help="worker groups of two; 0: none, else two or more"
    )
    args = parser.parse_args()
    found = {}
    kinds = (("in-process", 1, args.trials), ("worker group of 2", 2, args.groups))
    for name, workers, count in kinds:
        if not count:
            continue
        # As many CPUs as one trial takes, so that one trial runs at a time.
        with cluster_and_corpus(args.device, num_cpus=workers) as (place, corpus):
            more = {"runtime.workers": workers, "runtime.microbatch_size": 4}
            run = configuration(args.device, 20, corpus, args.overrides, **more)
            refs = publish(corpus, run.data.unique_tokens, run.data.val_tokens, "resident")
            home = place / "study" / "checkpoints"
            specs = [lone_run(f"t{i}", run) for i in range(count)]
            (first, *rest), (_, *beyond) = starts(specs, refs, home)
            found[name] = statistics.median(rest)
            print(
                f"{name}: first {first:.2f} s, then {spread(rest)} s; whole overhead of the later "
                f"{spread(beyond)} s",
                flush=True,
            )
    print(machine(args.device))
    if len(found) == 2:
        one, group = found.values()
        print(f"worker group / in-process: {group / one:.1f}")


if __name__ == "__main__":
    main()
