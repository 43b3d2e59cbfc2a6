"""What a search keeps between two looks at the record, and in it."""

import pytest

from dcray.corpus.manifest import Corpus
from dcray.search.budget import Budget
from dcray.search.cells import Found
from dcray.search.drive import TAG_CHARACTERS, Search, dropped_tag
from dcray.search.execute import Site
from dcray.search.grid import Study
from dcray.search.request import readings
from dcray.track.store import Store
from tests.search.test_execute import Silent
from tests.studies import write_study


def test_what_a_sampler_proposed_is_not_asked_for_at_every_look(tiny_corpus, tmp_path):
    """A Gaussian process over 16 trunks takes 0.6 s a cell; a start looks three times."""
    asked, corpus = Study.read(str(write_study(tmp_path))), Corpus.open(tiny_corpus)
    with Store.open(tmp_path / "runs", study="micro") as store:
        site = Site(corpus, store, tmp_path / "runs", Silent())
        reads = readings(corpus, asked.wishes)
        task = Search(asked.wishes, reads, site, Budget(), lambda lines: None)
        task._read()
        before = task.queue
        task._read()
    assert task.queue is not before
    assert [*map(id, task.queue.searches.values())] == [*map(id, before.searches.values())]


@pytest.mark.parametrize("number", [0, 1, 400, 1000])
def test_what_asha_stopped_is_kept_whole(number):
    known = {(f"{at:016x}", 42): Found("dropped", None, 0) for at in range(number)}
    text = dropped_tag({("f" * 16, 42): Found("complete", 3.0, 4), **known})
    assert len(text) <= TAG_CHARACTERS
    slots = [(one.split("/")[0], int(one.split("/")[1])) for one in text.split(",") if one]
    assert slots == list(known)[: len(slots)]
    assert len(slots) == min(number, 400)
