"""Trials on Ray Tune and their reports; the only file that knows Tune.

Tune's own loop runs in a thread, one step at a time, only while the driver waits in `step`. So the
driver decides and writes between two steps, as if it were Tune's callback, and no part of the
driver needs a lock. Each loop is a fresh Tuner with a fresh name, under FIFO or ASHA. Tune's saved
state is never read back: a restart follows the record and the checkpoints.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dcray import plugins
from dcray.cluster.process import Process, this_process
from dcray.corpus.stream import StreamRefs
from dcray.driver.silence import Silence
from dcray.driver.stop import StopRequest
from dcray.reports import Point, Report
from dcray.train.failure import outcome_of_files
from dcray.train.worker import resources, trial
from dcray.types import Chain, Event, RunReport, RunSpec, result_of

NOT_STARTED = "it was not started"
ABORT_SECONDS = 10.0  # for Tune's step to come to its end after a second Ctrl-C
_NOTHING = (object, ())  # Tune saves its state as it goes; ours is never read back


class TuneLoop:
    """One Tuner. A trial is one chain of placed runs; all are computed in the first one's place.

    checkpoints: the folder of all runs' checkpoints. on_silence is called for a run that has been
    silent for long, with its last report. scheduler: Tune's, for whole trunks; None: FIFO.
    num_pending: trials that may wait for a place, so that an autoscaler sees them.
    """

    def __init__(
        self,
        refs: Mapping[str, StreamRefs],
        *,
        checkpoints: Path,
        logs: Path,
        stop: StopRequest,
        on_silence: Callable[[RunSpec, Report | None, float], None] = lambda *_: None,
        scheduler: Any = None,
        num_pending: int = 1,
    ) -> None:
        self.running: list[Chain] = []  # handed over, and not known to have left their places
        self.waiting: tuple[Chain, str] | None = None  # handed over, and not yet asked for by Tune
        self.checkpoints, self.stop, self.on_silence = checkpoints, stop, on_silence
        self.events: list[Event] = []  # events of trials that `step` has not yet returned
        self.finished = False  # no trial will be handed over any more
        self.left: list[Chain] = []  # out of their places, since the last step
        self._over = False
        self._error: BaseException | None = None  # raised by Tune
        self._abort: BaseException | None = None  # to be raised in Tune's loop
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)
        fit = (refs, logs, scheduler, num_pending)
        self._thread = threading.Thread(target=self._run, args=fit, name="tune", daemon=True)

    def submit(self, chain: Chain, data: str) -> None:
        """Hand over a trial, which Tune takes in a step; data: key of the stream that it reads."""
        assert self.waiting is None, "Tune has not taken the trial before"
        self.waiting, self.running = (chain, data), [*self.running, chain]
        for spec in chain:
            self.stop.watch(self.checkpoints / spec.name)

    def step(self) -> list[Event]:
        """Let Tune take one step, 0.1 s at most if nothing happens; return the events since."""
        if self.stop.event.is_set() and self.waiting is not None:
            return self._withdraw(self.waiting[0])
        assert not self._over, "Tune has ended before its trials"
        if self._thread.ident is None:
            self._thread.start()
        self._go.release()
        self._done.acquire()
        if self._error is not None:
            raise self._error
        while self.left:
            self._leave(self.left.pop())
        events, self.events = self.events, []
        return events

    def close(self) -> None:
        """Let Tune come to its end, after every trial has left."""
        self.finished = True
        while self._thread.ident is not None and not self._over:
            self.step()

    def abort(self, error: BaseException) -> None:
        """End Tune's loop as soon as its step is over, since the driver ends with this error.

        Tune ends its trials if the error is an Exception; after Ctrl-C they are left to Ray's end.
        """
        at_once = not isinstance(error, Exception)
        self._abort = KeyboardInterrupt() if at_once else RuntimeError("the driver has failed")
        if self._thread.ident is not None:
            self._go.release()
            self._thread.join(ABORT_SECONDS)

    def yield_to_driver(self) -> None:
        """Wait until the driver lets Tune go on; called by Tune's thread between two steps."""
        self._done.release()
        self._go.acquire()
        if self._abort is not None:
            raise self._abort

    def take(self) -> tuple[Chain, str] | None:
        """Take what was handed over, None if nothing was; called by Tune's thread."""
        taken, self.waiting = self.waiting, None
        return taken

    def _withdraw(self, chain: Chain) -> list[Event]:
        """Take back a trial that Tune has not asked for; return its runs as stopped."""
        self.waiting = None
        self._leave(chain)
        return [s.ended("stopped", reason=NOT_STARTED) for s in chain if s.answered is None]

    def _leave(self, chain: Chain) -> None:
        self.running.remove(chain)
        for spec in chain:
            self.stop.leave(self.checkpoints / spec.name)

    def _run(self, *fit: Any) -> None:
        self._go.acquire()
        try:
            _fit(self, *fit)
        except BaseException as error:
            self._error = error
        finally:
            self._over = True
            self._done.release()


def _fit(
    loop: TuneLoop, refs: Mapping[str, StreamRefs], logs: Path, scheduler: Any, num_pending: int
) -> None:
    import ray.tune
    from ray.tune.execution.placement_groups import PlacementGroupFactory

    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # dcray itself reports a lost trial
    os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(num_pending)
    clear_dead_tunes(logs)
    name = f"tune-{time.time_ns()}-{this_process().mark()}"
    callback, files = _callback(loop), plugins.carried()
    tuner = ray.tune.Tuner(
        ray.tune.with_resources(
            ray.tune.with_parameters(partial(trial), refs=dict(refs), plugin_files=files),
            lambda config: PlacementGroupFactory(config["bundles"]),
        ),
        tune_config=ray.tune.TuneConfig(
            num_samples=-1,
            search_alg=_searcher(loop, callback),
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
    shutil.rmtree(logs / name, ignore_errors=True)


def clear_dead_tunes(logs: Path) -> None:
    """Delete Tune's folders of processes that are known to have ended."""
    for folder in logs.glob("tune-*-*"):
        owner = Process.of_mark(folder.name.split("-", 2)[2])
        if owner is not None and owner.lives() is False:
            shutil.rmtree(folder, ignore_errors=True)


def asha(rungs: Sequence[int]) -> Any:
    """Build Ray's ASHA on whole trunks: rungs at the first epoch count, 2x, 4x, ...; half go on."""
    from ray.tune.schedulers import ASHAScheduler

    return ASHAScheduler(
        time_attr="num_epochs",
        metric="val_loss",
        mode="min",
        grace_period=rungs[0],
        max_t=rungs[-1],
        reduction_factor=2,
    )


def _searcher(loop: TuneLoop, callback: Any) -> Any:
    """Build a Searcher that gives Tune what the driver has handed over.

    A trial's place is free when Tune says here that the trial has left, not before. Otherwise Tune
    would stage the next trial beside the actor that it is then given, and take its placement group
    back; if Ray is just reserving that group, the CPUs are lost to the cluster.
    """
    from ray.tune.search import Searcher

    class HandedOver(Searcher):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(metric="val_loss", mode="min")
            self.chains: dict[str, Chain] = {}

        def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
            if loop.finished:
                return str(Searcher.FINISHED)
            taken = loop.take()
            if taken is None:
                return None
            self.chains[trial_id], data = taken
            callback.expect(self.chains[trial_id])
            first = self.chains[trial_id][0].run
            return {
                "runs": list(self.chains[trial_id]),
                "checkpoints": str(loop.checkpoints.absolute()),
                "data": data,
                "bundles": resources(first, gpu=first.runtime.device == "cuda"),
            }

        def __reduce__(self) -> Any:
            return _NOTHING

        def on_trial_complete(
            self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
        ) -> None:
            loop.left.append(self.chains.pop(trial_id))

    return HandedOver()


def _callback(loop: TuneLoop) -> Any:
    """Build Tune's callback, which turns reports into events; each run ends exactly once."""
    from ray.tune import Callback

    class Events(Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.open: dict[str, RunSpec] = {}
            self.last: dict[str, Report] = {}
            self.silence = Silence(self.tell_silence)

        def __reduce__(self) -> Any:
            return _NOTHING

        def expect(self, chain: Chain) -> None:
            self.open |= {spec.name: spec for spec in chain if spec.answered is None}

        def on_step_end(self, iteration: int, trials: list[Any], **_: Any) -> None:
            for chain in (one.config["runs"] for one in trials if one.status == "RUNNING"):
                spec = next((spec for spec in chain if spec.name in self.open), None)
                if spec is not None:  # the first open run of a trial is the one that should speak
                    self.silence.look(spec.name, spec.run.runtime.hang_seconds)
            loop.yield_to_driver()

        def tell_silence(self, name: str, seconds: float) -> None:
            loop.on_silence(self.open[name], self.last.get(name), seconds)

        def on_trial_result(
            self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **_: Any
        ) -> None:
            name = result.get("name", "")
            self.silence.hear(name)
            if "report" in result and name in self.open:
                said = dict(result["report"])
                points = [Point(*point) for point in said.pop("points")]
                self.last[name] = Report(**said, points=points)
                loop.events.append(RunReport(self.open[name], self.last[name]))
            if "outcome" in result:
                self.end(name, **result["outcome"])

        def on_trial_complete(
            self, iteration: int, trials: list[Any], trial: Any, **_: Any
        ) -> None:
            """End the runs that are still open: a scheduler stopped them, or a stop request did."""
            state = "stopped" if loop.stop.event.is_set() else "dropped"
            self.end_all(trial, state=state, reason="its trunk was stopped")

        def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
            """End the open runs by the error files: usually the process itself is gone."""
            self.end_all(trial, **outcome_of_files(trial.pickled_error_file, trial.error_file))

        def end_all(self, trial: Any, traceback: str = "", **outcome: Any) -> None:
            for spec in trial.config["runs"]:
                self.end(spec.name, traceback, **outcome)

        def end(self, name: str, traceback: str = "", **outcome: Any) -> None:
            if name in self.open:
                self.silence.leave(name)
                spec, last = self.open.pop(name), self.last.pop(name, None)
                loop.events.append(result_of(spec, outcome, traceback, last))

    return Events()
