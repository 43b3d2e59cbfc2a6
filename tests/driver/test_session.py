"""A list of runs on a real Ray: each says how it ended, whatever came between."""

import copy
import os
import signal
import threading
import time

import pytest

from dcray.config.run import RunConfig, override
from dcray.corpus.manifest import Corpus
from dcray.driver import session as module
from dcray.driver.driver import drive, train_runs
from dcray.driver.recorder import RunRecorder
from dcray.driver.resources import Machine
from dcray.driver.session import Session
from dcray.search.cell import ListedRuns
from dcray.search.specs import single_run
from dcray.search.state import StudyState
from dcray.track.store import Store
from dcray.types import RunReport
from tests.search.player import MINI, state_of, study_of
from tests.training import TINY


class Silent:
    """A view that shows nothing."""

    def note(self, text):
        pass

    def show(self, event):
        pass


def test_what_was_stopped_before_it_was_handed_out_says_so(tiny_corpus, tmp_path, monkeypatch):
    """Ctrl-C while the corpus is loaded, which takes long where it is large."""
    corpus, published = Corpus.open(tiny_corpus), module.published

    def interrupted(*args):
        os.kill(os.getpid(), signal.SIGINT)
        return published(*args)

    monkeypatch.setattr(module, "published", interrupted)
    config = override(RunConfig(), dict(word.split("=") for word in TINY))
    wanted = [
        single_run(override(config, {"seed": seed}), corpus, study="train", recipe="ar")
        for seed in (1, 2)
    ]
    with Store.open(tmp_path, study="train") as store:
        ended = train_runs(wanted, Session(corpus, store, tmp_path, Silent()))
        assert store.every() == []
    assert [(one.spec, one.state) for one in ended] == [(one, "stopped") for one in wanted]


def test_a_refused_trunk_leaves_nothing_under_way(tiny_corpus, tmp_path):
    """ASHA's trial is a whole trunk; 7 sequences do not divide among all eight GPUs."""
    table = copy.deepcopy(MINI) | {"sizes": ["60k"], "budgets": ["8k"]}
    axes = {"num_epochs": [4, 8], "batch_size": [7]}
    table["recipes"] = {"ar": {"space": [axes], "search": {"stopping": "asha"}}}
    table["base"] |= {"runtime.workers": "auto"}
    state, corpus = state_of(study_of(table)), Corpus.open(tiny_corpus)
    with Store.open(tmp_path, study="toy") as store:
        session = Session(corpus, store, tmp_path, Silent())
        session.machine = Machine(64, 8, "a CPU", "a GPU", 80e9)
        with session.trials([]):
            drive(state, session, RunRecorder(store, corpus, session.machine))
    assert state.finished()
    assert {one.state for one in state.ended.values()} == {"refused"}
    assert len(state.ended) == 2


class Failing(RunRecorder):
    """A recorder whose disk is full when a run has trained for a while."""

    def write(self, event):
        if isinstance(event, RunReport) and event.report is not None:
            raise OSError("no space left")
        return super().write(event)


def test_a_driver_that_fails_ends_its_trials(tiny_corpus, tmp_path):
    """Its own error is raised; Tune's loop is over, and no trial holds a CPU any more."""
    import ray

    corpus = Corpus.open(tiny_corpus)
    long = dict(word.split("=") for word in TINY) | {"num_epochs": 20_000}
    config = override(RunConfig(), long | {"runtime.report_seconds": 0.1})
    spec = single_run(config, corpus, study="train", recipe="ar")
    state = StudyState("train", {spec.key.cell: ListedRuns((spec,))})
    with Store.open(tmp_path, study="train") as store:
        session = Session(corpus, store, tmp_path, Silent())
        session.machine = Machine(2, 0, "a CPU", "", 0)
        recorder = Failing(store, corpus, session.machine)
        with pytest.raises(OSError, match="no space left"), session.trials([config]):
            drive(state, session, recorder)
    deadline = time.monotonic() + 120
    while "tune" in {thread.name for thread in threading.enumerate()}:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    while ray.available_resources().get("CPU") != 2.0:
        assert time.monotonic() < deadline, ray.available_resources()
        time.sleep(0.1)
