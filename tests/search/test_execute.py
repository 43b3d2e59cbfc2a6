"""A list of runs on a real Ray: each says how it ended, whatever came between."""

import os
import signal

from dcray.config import RunConfig, override
from dcray.corpus.manifest import Corpus
from dcray.search import execute as module
from dcray.search.request import request
from dcray.track.store import Store
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
