"""What the driver writes while a run reports, on a real record."""

from dataclasses import replace

import pytest

from dcray.config.run import RunConfig, override
from dcray.corpus.manifest import Corpus
from dcray.driver.recorder import RunRecorder
from dcray.driver.resources import Machine, place_run
from dcray.reports import Outcome, Point, Report
from dcray.search.specs import single_run
from dcray.track import runs
from dcray.track.store import Store
from dcray.types import RunReport, result_of
from tests.training import TINY

CPUS = Machine(2, 0, "a CPU", "", 0)


def placed(corpus):
    """A run in its place."""
    config = override(RunConfig(), dict(word.split("=") for word in TINY))
    spec = single_run(config, corpus, study="train", recipe="ar")
    return replace(spec, place=place_run(spec.config, CPUS, lambda _: None).runtime)


@pytest.mark.parametrize(
    ("outcome", "seconds"),
    [
        (Outcome("diverged", 8, 7.0), 7.0),
        (Outcome("stopped", 8, 7.0), 7.0),
        (Outcome("lost", 8, 0.0), 5.0),  # of its last report
        (Outcome("failed", 8, 0.0), 5.0),
    ],
)
def test_what_came_to_no_result_has_taken_its_time_too(tiny_corpus, tmp_path, outcome, seconds):
    """`dcray status` adds them up."""
    corpus = Corpus.open(tiny_corpus)
    with Store.open(tmp_path, study="train") as store:
        spec, recorder = placed(corpus), RunRecorder(store, corpus, CPUS)
        last = Report(8, 16, 2.0, 496, 5.0, 0, 99.0, [])
        recorder.write(RunReport(spec, last))
        recorder.write(result_of(spec, vars(outcome), "", last))
        assert [row.device_seconds for row in store.every()] == [seconds]


def test_a_rate_that_was_not_measured_is_no_rate(tiny_corpus, tmp_path):
    """A run restored behind its last step says its points again, and has trained nothing."""
    corpus = Corpus.open(tiny_corpus)
    points = [Point(8, 2.0, 496, {"train/loss": 3.0}, 1.0)]
    with Store.open(tmp_path, study="train") as store:
        spec, recorder = placed(corpus), RunRecorder(store, corpus, CPUS)
        recorder.write(RunReport(spec, Report(16, 16, 4.0, 992, 1.0, 0, 0.0, points)))
        run_id = recorder.open[spec.key].run_id
    (found,) = runs.curve(tmp_path, run_id)
    assert found.values == {"train/loss": 3.0}
