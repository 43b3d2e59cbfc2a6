"""What the driver writes while a run reports, on a real record."""

import pytest

from dcray.config import RunConfig, override
from dcray.corpus.manifest import Corpus
from dcray.search.book import Book
from dcray.search.place import Machine, place_run
from dcray.search.request import request
from dcray.track import runs
from dcray.track.store import Store
from dcray.train.meter import Point
from dcray.train.progress import Outcome, Report
from tests.search.test_execute import Silent
from tests.training import TINY

CPUS = Machine(2, 0, "a CPU", "", 0)


def begun(store, corpus):
    """A request, and a book that expects it."""
    config = override(RunConfig(), dict(word.split("=") for word in TINY))
    one = request(config, corpus, study="train", recipe="ar")
    book = Book(store, corpus, CPUS, Silent(), lambda _: None)
    book.expect(one, place_run(one.config, CPUS, lambda _: None))
    return one, book


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
        one, book = begun(store, corpus)
        book.on_report(one.name, Report(8, 16, 2.0, 496, 5.0, 0, 99.0, []))
        book.on_end(one.name, outcome, "")
        assert [row.device_seconds for row in store.every()] == [seconds]


def test_a_rate_that_was_not_measured_is_no_rate(tiny_corpus, tmp_path):
    """A run restored behind its last step says its points again, and has trained nothing."""
    corpus = Corpus.open(tiny_corpus)
    points = [Point(8, 2.0, 496, {"train/loss": 3.0}, 1.0)]
    with Store.open(tmp_path, study="train") as store:
        one, book = begun(store, corpus)
        book.on_report(one.name, Report(16, 16, 4.0, 992, 1.0, 0, 0.0, points))
        run_id = book.open[one.name].run_id
    (found,) = runs.curve(tmp_path, run_id)
    assert found.values == {"train/loss": 3.0}
