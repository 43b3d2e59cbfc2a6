"""What the driver writes while a run reports, on a real record."""

from dcray.config import RunConfig, override
from dcray.corpus.manifest import Corpus
from dcray.search.book import Book
from dcray.search.place import Machine, place_run
from dcray.search.request import request
from dcray.track import runs
from dcray.track.store import Store
from dcray.train.meter import Point
from dcray.train.progress import Report
from tests.search.test_execute import Silent
from tests.training import TINY

CPUS = Machine(2, 0, "a CPU", "", 0)


def test_a_rate_that_was_not_measured_is_no_rate(tiny_corpus, tmp_path):
    """A run restored behind its last step says its points again, and has trained nothing."""
    corpus = Corpus.open(tiny_corpus)
    config = override(RunConfig(), dict(word.split("=") for word in TINY))
    one = request(config, corpus, study="train", recipe="ar")
    points = [Point(8, 2.0, 496, {"train/loss": 3.0}, 1.0)]
    with Store.open(tmp_path, study="train") as store:
        book = Book(store, corpus, CPUS, Silent(), lambda _: None)
        book.expect(one, place_run(one.config, CPUS, lambda _: None))
        book.on_report(one.name, Report(16, 16, 4.0, 992, 1.0, 0, 0.0, points))
        run_id = book.open[one.name].run_id
    (found,) = runs.curve(tmp_path, run_id)
    assert found.values == {"train/loss": 3.0}
