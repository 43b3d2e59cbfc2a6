"""How long a trial takes to start: python -m tests.bench.bench_trial

Trials one after the other on one place: in-process, where an actor is used again, and as a worker
group of two. A start is the time from the end of the trial before (for the first: from handing
over the list) to the report of the first step, both seen by the driver; it holds Tune's hand-out,
the configuration's way there, the group's start, building the model and one step.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

from dcray.corpus.stream import publish
from dcray.search.runner import Listener, StopRequest, Trial, run_trials
from dcray.train.progress import Outcome, Report
from tests.bench.common import cluster_and_corpus, configuration, machine, spread


def starts(trials: list[Trial], refs: object, logs: Path) -> list[float]:
    """Seconds from handing out to the first step, trial by trial."""
    found: dict[str, float] = {}
    began = [time.perf_counter()]

    def on_report(name: str, _report: Report) -> None:
        found.setdefault(name, time.perf_counter() - began[0])

    def on_end(_name: str, outcome: Outcome, traceback: str) -> None:
        assert outcome.state == "complete", traceback or outcome.reason
        began[0] = time.perf_counter()

    run_trials(trials, refs, Listener(on_report, on_end), logs=logs, stop=StopRequest())  # type: ignore[arg-type]
    return list(found.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("overrides", nargs="*", help="field=value")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--trials", type=int, default=6, help="in-process")
    parser.add_argument("--groups", type=int, default=3, help="worker groups of two; 0: none")
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
            trials = [Trial(f"t{number}", run, home / f"t{number}") for number in range(count)]
            first, *rest = starts(trials, refs, home.parent / "logs")
            found[name] = statistics.median(rest or [first])
            print(f"{name}: first {first:.2f} s, then {spread(rest or [first])} s", flush=True)
    print(machine(args.device))
    if len(found) == 2:
        one, group = found.values()
        print(f"worker group / in-process: {group / one:.1f}")


if __name__ == "__main__":
    main()
