"""A list of runs on a real Ray: each says how it ended, whatever came between."""

import copy
import os
import signal

from dcray.config import RunConfig, override
from dcray.corpus.manifest import Corpus
from dcray.search import execute as module
from dcray.search.place import Machine
from dcray.search.request import request
from dcray.track.store import Store
from tests.search.player import MINI, queue_of, study_of
from tests.training import TINY


class Silent:
    """A view that shows nothing."""

    def note(self, text):
        pass

    begin = report = end = lambda self, *_: None


def test_what_was_stopped_before_it_was_handed_out_says_so(tiny_corpus, tmp_path, monkeypatch):
    """Ctrl-C while the corpus is loaded, which takes long where it is large."""
    corpus, published = Corpus.open(tiny_corpus), module._published

    def interrupted(*args):
        os.kill(os.getpid(), signal.SIGINT)
        return published(*args)

    monkeypatch.setattr(module, "_published", interrupted)
    config = override(RunConfig(), dict(word.split("=") for word in TINY))
    wanted = [
        request(override(config, {"seed": seed}), corpus, study="train", recipe="ar")
        for seed in (1, 2)
    ]
    with Store.open(tmp_path, study="train") as store:
        ended = module.execute(wanted, corpus, store, directory=tmp_path, view=Silent())
        assert store.every() == []
    assert [(one.request, one.state) for one in ended] == [(one, "stopped") for one in wanted]


def test_a_refused_trunk_leaves_nothing_under_way(tiny_corpus, tmp_path):
    """ASHA's trial is a whole trunk; 7 sequences do not divide among all eight GPUs."""
    table = copy.deepcopy(MINI) | {"sizes": ["60k"], "budgets": ["8k"]}
    axes = {"num_epochs": [4, 8], "batch_size": [7]}
    table["recipes"] = {"ar": {"space": [axes], "search": {"stopping": "asha"}}}
    table["base"] |= {"runtime.workers": "auto"}
    queue, corpus = queue_of(study_of(table)), Corpus.open(tiny_corpus)
    with Store.open(tmp_path, study="toy") as store:
        site = module.Site(corpus, store, tmp_path, Silent())
        site.machine = Machine(64, 8, "a CPU", "a GPU", 80e9)
        book = module.Book(store, corpus, site.machine, Silent(), queue.end)
        assert module._HandOut(queue, site, book).next() is None
    assert queue.finished()
    assert {one.state for one in queue.trained.values()} == {"refused"}
