"""What a search keeps between two looks at the record, and in it."""

import pytest

from dcray.corpus.manifest import Corpus
from dcray.errors import ConfigError
from dcray.search.book import columns
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


def test_a_size_that_is_another_model_than_on_record_is_refused(tiny_corpus, tmp_path):
    """Somebody edits [sizes.tiny]: the old model's results would stand in its cells as winners."""
    path, corpus = write_study(tmp_path), Corpus.open(tiny_corpus)
    with Store.open(tmp_path / "runs", study="micro") as store:
        site = Site(corpus, store, tmp_path / "runs", Silent())

        def task():
            wishes = Study.read(str(path)).wishes
            return Search(wishes, readings(corpus, wishes), site, Budget(), lambda lines: None)

        before = task()
        before._read()
        one = before.queue.ready()[0][0]
        params, config = columns(one.config), one.config.to_dict()
        store.begin(one.key, config=config, params=params).finish({"val_loss": 3.0})
        task()._read()
        path.write_text(path.read_text().replace("mlp_dim = 32", "mlp_dim = 64"))
        with pytest.raises(ConfigError, match=r"tiny 500 ar .* another model: [0-9,]+ parameters"):
            task().run()


@pytest.mark.parametrize("number", [0, 1, 400, 1000])
def test_what_asha_stopped_is_kept_whole(number):
    known = {(f"{at:016x}", 42): Found("dropped", None, 0) for at in range(number)}
    text = dropped_tag({("f" * 16, 42): Found("complete", 3.0, 4), **known})
    assert len(text) <= TAG_CHARACTERS
    slots = [(one.split("/")[0], int(one.split("/")[1])) for one in text.split(",") if one]
    assert slots == list(known)[: len(slots)]
    assert len(slots) == min(number, 400)
