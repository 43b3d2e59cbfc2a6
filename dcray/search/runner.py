"""Trials to Ray Tune and their reports back to the driver; the only place that knows Tune.

Trials are handed out one by one by a Searcher under FIFO. Each start is a fresh Tuner with a fresh
name; nothing of Tune's is read back: the record and the checkpoints are what a restart goes by.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import psutil

from dcray import plugins
from dcray.config import RunConfig
from dcray.corpus.stream import StreamRefs
from dcray.train.meter import Point
from dcray.train.progress import Outcome, Report
from dcray.train.worker import STOP_FILE, Leg, resources, trial

_NOTHING = (object, ())  # Tune saves its state as it goes; nothing of ours is ever read back


@dataclass(frozen=True)
class Trial:
    """One trial: what it trains one after the other, and which data its workers read."""

    legs: tuple[Leg, ...]
    data: str  # a key of the published streams

    @property
    def run(self) -> RunConfig:
        """The first leg's placed configuration: all are computed in its place."""
        return self.legs[0].run


class HandOut(Protocol):
    """What the runner asks: a trial that may start now, or None; and whether all has ended.

    `left` says that a trial has left its place: not before is there room for another one. (Tune
    would stage it beside the actor that it is then given, and take its placement group back;
    where Ray is just reserving that, the CPUs are lost to the cluster.)
    """

    def next(self) -> Trial | None: ...
    def left(self, trial: Trial) -> None: ...
    def finished(self) -> bool: ...


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
            self._ask(folder)

    def watch(self, folder: Path) -> None:
        """A trial starts in this folder: it is asked too, now or later."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / STOP_FILE).unlink(missing_ok=True)
        self.folders.append(folder)
        if self.event.is_set():
            self._ask(folder)

    def leave(self, folder: Path) -> None:
        """The trial in this folder has ended: nobody is there to be asked."""
        self.folders.remove(folder)

    @staticmethod
    def _ask(folder: Path) -> None:
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
    hand_out: HandOut,
    refs: Mapping[str, StreamRefs],
    listener: Listener,
    *,
    logs: Path,
    stop: StopRequest,
    scheduler: Any = None,
    num_pending: int = 1,
) -> None:
    """Run what is handed out on the connected Ray; each leg says how it ended exactly once.

    scheduler: Tune's, for whole trunks; None: FIFO. num_pending: trials that may wait for a place,
    so that an autoscaler sees them.
    """
    import ray.tune
    from ray.tune.execution.placement_groups import PlacementGroupFactory

    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # a lost trial is told by us
    os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(num_pending)
    _clear_dead_tunes(logs)
    name = f"tune-{time.time_ns()}-{os.getpid()}-{socket.gethostname()}"
    callback = _callback(listener, stop)
    tuner = ray.tune.Tuner(
        ray.tune.with_resources(
            ray.tune.with_parameters(
                partial(trial), refs=dict(refs), plugin_files=plugins.carried()
            ),
            lambda config: PlacementGroupFactory(config["bundles"]),
        ),
        tune_config=ray.tune.TuneConfig(
            num_samples=-1,
            search_alg=_searcher(hand_out, callback, stop),
            scheduler=scheduler,
            reuse_actors=scheduler is None,
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


def _clear_dead_tunes(logs: Path) -> None:
    """Delete Tune's folders of our processes on this machine that were killed."""
    ours = re.compile(rf"tune-\d+-(\d+)-{re.escape(socket.gethostname())}")
    for folder in logs.glob("tune-*"):
        named = ours.fullmatch(folder.name)
        if named and not psutil.pid_exists(int(named[1])):
            shutil.rmtree(folder, ignore_errors=True)


def asha(first: int, longest: int) -> Any:
    """Ray's ASHA over whole trunks: rungs at first, twice that, ... epochs; half of them go on."""
    from ray.tune.schedulers import ASHAScheduler

    return ASHAScheduler(
        time_attr="num_epochs",
        metric="val_loss",
        mode="min",
        grace_period=first,
        max_t=longest,
        reduction_factor=2,
    )


def _searcher(hand_out: HandOut, callback: Any, stop: StopRequest) -> Any:
    """A Searcher that asks what may start now; after a stop it hands out no more."""
    from ray.tune.search import Searcher

    class Ask(Searcher):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(metric="val_loss", mode="min")
            self.running: dict[str, Trial] = {}

        def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
            if stop.event.is_set() or hand_out.finished():
                return str(Searcher.FINISHED)
            one = hand_out.next()
            if one is None:
                return None
            self.running[trial_id] = one
            for leg in one.legs:
                stop.watch(leg.folder)
            callback.expect(leg.name for leg in one.legs if leg.answered is None)
            return {
                "legs": [leg.plain() for leg in one.legs],
                "data": one.data,
                "bundles": resources(one.run, gpu=one.run.runtime.device == "cuda"),
            }

        def __reduce__(self) -> Any:
            return _NOTHING

        def on_trial_complete(
            self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
        ) -> None:
            one = self.running.pop(trial_id)
            for leg in one.legs:
                stop.leave(leg.folder)
            hand_out.left(one)

    return Ask()


def _callback(listener: Listener, stop: StopRequest) -> Any:
    """Tune's callback in the driver: reports and outcomes to the listener, as they come in."""
    from ray.tune import Callback

    class Forward(Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.open: dict[str, None] = {}
            self.step: dict[str, int] = {}

        def __reduce__(self) -> Any:
            return _NOTHING

        def expect(self, names: Iterable[str]) -> None:
            self.open |= dict.fromkeys(names)

        def on_trial_result(
            self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **_: Any
        ) -> None:
            name = result.get("name", "")
            if "report" in result and name in self.open:
                said = dict(result["report"])
                points = [Point(*point) for point in said.pop("points")]
                self.step[name] = said["step"]
                listener.on_report(name, Report(**said, points=points))
            if "outcome" in result:
                outcome = dict(result["outcome"])
                self.end(name, outcome.pop("traceback", ""), outcome)

        def on_trial_complete(
            self, iteration: int, trials: list[Any], trial: Any, **_: Any
        ) -> None:
            """What is still open then was stopped: by a scheduler, or with the legs before it."""
            state = "stopped" if stop.event.is_set() else "dropped"
            self.end_all(trial, {"state": state, "reason": "its trunk was stopped"})

        def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
            """What is our own error is an outcome: here the process itself is gone."""
            path = trial.error_file
            trace = Path(path).read_text() if path and Path(path).exists() else ""
            self.end_all(trial, {"state": "lost", "reason": _first_sentence(trace)}, trace)

        def end_all(self, trial: Any, outcome: dict[str, Any], trace: str = "") -> None:
            for leg in trial.config["legs"]:
                self.end(leg["name"], trace, outcome)

        def end(self, name: str, trace: str, outcome: dict[str, Any]) -> None:
            if name in self.open:
                del self.open[name]
                said = {"step": self.step.get(name, 0), "seconds": 0.0}
                listener.on_end(name, Outcome(**said | outcome), trace)

        def settle(self) -> None:
            """Trials that never said how they ended were not started, or their processes died."""
            for name in sorted(self.open):
                self.end(name, "", {"state": "stopped", "reason": "it was not started"})

    return Forward()


def _first_sentence(trace: str) -> str:
    """Of what Ray says of a dead process; the rest of it guesses at causes."""
    said = re.search(r"The actor (?:is dead|died|never ran)[^.\n]*", trace)
    return said[0] if said else "its process ended without a word"
