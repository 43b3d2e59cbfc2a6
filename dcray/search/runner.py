"""Trials to Ray Tune and their reports back to the driver; the only place that knows Tune.

Trials are handed out one by one by a Searcher under FIFO. Each start is a fresh Tuner with a fresh
name; nothing of Tune's is read back: the record and the checkpoints are what a restart goes by.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from dcray import plugins
from dcray.config import RunConfig
from dcray.corpus.stream import StreamRefs
from dcray.train.meter import Point
from dcray.train.progress import Outcome, Report
from dcray.train.worker import STOP_FILE, resources, trial

_NOTHING = (object, ())  # Tune saves its state as it goes; nothing of ours is ever read back


@dataclass(frozen=True)
class Trial:
    """One trial: a placed configuration and the folder of its checkpoints."""

    name: str
    run: RunConfig
    folder: Path


@dataclass
class Listener:
    """What the driver does with what trials say."""

    on_report: Callable[[str, Report], None]
    on_end: Callable[[str, Outcome, str], None]  # name, outcome, traceback ("" where there is none)


@dataclass
class StopRequest:
    """Set by Ctrl-C or SIGTERM: once, trials save and end; twice, the command ends at once."""

    event: threading.Event = field(default_factory=threading.Event)
    folders: list[Path] = field(default_factory=list)

    def set(self) -> None:
        """Ask every trial to save and end, and hand out no more."""
        self.event.set()
        for folder in self.folders:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / STOP_FILE).touch()


@contextmanager
def stop_on_signals(on_first: Callable[[], None]) -> Iterator[StopRequest]:
    """SIGINT and SIGTERM as a StopRequest while the block runs; a second one raises."""
    request = StopRequest()

    def handle(_number: int, _frame: FrameType | None) -> None:
        if request.event.is_set():
            raise KeyboardInterrupt
        request.set()
        on_first()

    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_trials(
    trials: Sequence[Trial],
    refs: StreamRefs,
    listener: Listener,
    *,
    logs: Path,
    stop: StopRequest,
) -> None:
    """Run every trial to its outcome on the connected Ray; each says how it ended exactly once.

    All trials of one call have the same kind of place: in-process, or a worker group.
    """
    import ray.tune
    from ray.tune.execution.placement_groups import PlacementGroupFactory

    for one in trials:
        one.folder.mkdir(parents=True, exist_ok=True)
        (one.folder / STOP_FILE).unlink(missing_ok=True)
    stop.folders = [one.folder for one in trials]
    if stop.event.is_set():
        stop.set()
    in_process = all(one.run.runtime.workers == 1 for one in trials)
    bundles = {one.name: resources(one.run, gpu=one.run.runtime.device == "cuda") for one in trials}
    name = f"tune-{time.time_ns()}-{os.getpid()}"
    callback = _callback(listener, {one.name for one in trials})
    tuner = ray.tune.Tuner(
        ray.tune.with_resources(
            ray.tune.with_parameters(partial(trial), refs=refs, plugin_files=plugins.carried()),
            lambda config: PlacementGroupFactory(bundles[config["name"]]),
        ),
        tune_config=ray.tune.TuneConfig(
            num_samples=-1,
            search_alg=_hand_out(trials, stop.event),
            reuse_actors=in_process,
            max_concurrent_trials=None if in_process else _groups_at_once(trials),
        ),
        run_config=ray.tune.RunConfig(
            name=name,
            storage_path=str(logs.absolute()),
            verbose=0,
            callbacks=[callback],
            failure_config=ray.tune.FailureConfig(max_failures=0),
        ),
    )
    tuner.fit()
    callback.settle()
    shutil.rmtree(logs / name, ignore_errors=True)


def _groups_at_once(trials: Sequence[Trial]) -> int:
    """How many worker groups the cluster holds at once: more would wait for each other for ever."""
    import ray

    have = ray.cluster_resources()
    largest = max(int(one.run.runtime.workers) for one in trials)
    threads = max(one.run.runtime.threads for one in trials)
    fits = [have.get("CPU", 0) // (largest * threads)]
    if any(one.run.runtime.device == "cuda" for one in trials):
        fits.append(have.get("GPU", 0) // largest)
    return max(1, int(min(fits)))


def _hand_out(trials: Sequence[Trial], stopped: threading.Event) -> Any:
    """A Searcher that gives each trial once, in order, and no more after a stop."""
    from ray.tune.search import Searcher

    class HandOut(Searcher):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(metric=None, mode=None)
            self.left = list(trials)

        def suggest(self, trial_id: str) -> dict[str, Any] | str:
            if not self.left or stopped.is_set():
                return str(Searcher.FINISHED)
            one = self.left.pop(0)
            return {
                "name": one.name,
                "run": one.run.to_dict(),
                "folder": str(one.folder.absolute()),
            }

        def __reduce__(self) -> Any:
            return _NOTHING

        def on_trial_complete(
            self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
        ) -> None:
            pass

    return HandOut()


def _callback(listener: Listener, names: set[str]) -> Any:
    """Tune's callback in the driver: reports and outcomes to the listener, in the trials' order."""
    from ray.tune import Callback

    class Forward(Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.open = set(names)

        def __reduce__(self) -> Any:
            return _NOTHING

        def on_trial_result(
            self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **_: Any
        ) -> None:
            name = trial.config["name"]
            if "report" in result:
                said = dict(result["report"])
                points = [Point(*point) for point in said.pop("points")]
                listener.on_report(name, Report(**said, points=points))
            if "outcome" in result:
                outcome = dict(result["outcome"])
                self.end(name, outcome.pop("traceback", ""), outcome)

        def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
            path = trial.error_file
            trace = Path(path).read_text() if path and Path(path).exists() else ""
            reason = (trace.strip().splitlines() or ["its process ended without a word"])[-1]
            self.end(trial.config["name"], trace, {"state": "failed", "reason": reason})

        def end(self, name: str, trace: str, outcome: dict[str, Any]) -> None:
            if name in self.open:
                self.open.discard(name)
                listener.on_end(name, Outcome(**{"step": 0, "seconds": 0.0} | outcome), trace)

        def settle(self) -> None:
            """Trials that never said how they ended were not started, or their processes died."""
            for name in sorted(self.open):
                self.end(name, "", {"state": "stopped", "reason": "it was not started"})

    return Forward()
