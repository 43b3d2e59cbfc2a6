"""The rows that workers read: the same resident or from the shards, and whoever holds the CPUs."""

import numpy as np
import ray

from dcray.corpus.manifest import Corpus
from dcray.corpus.order import cut_rows
from dcray.corpus.stream import fetch_rows, publish
from tests.support import tiny_config

IDS = [np.array([3, 0]), np.array([30, 7]), np.array([1])]


def test_the_pipeline_runs_if_trials_hold_every_cpu(tiny_corpus, ray_session):
    """It waited for a CPU for ever, without a word; so nothing heard a first SIGTERM either."""
    refs = publish(Corpus.open(tiny_corpus), 500, None, "pipeline")

    @ray.remote(num_cpus=2)
    class Trial:
        def rows(self):
            config = tiny_config(data__unique_tokens=500)
            return np.concatenate(list(fetch_rows(refs, config, IDS)))

    trial = Trial.remote()
    try:
        found = ray.get(trial.rows.remote(), timeout=90)
    finally:
        ray.kill(trial)
    shards = [np.fromfile(shard.path, refs.dtype) for shard in refs.shards]
    rows = cut_rows(np.concatenate(shards)[:500], 16, tiny_config().data.stride)
    assert np.array_equal(found, rows[np.concatenate(IDS)])


def test_auto_says_that_it_reads_from_the_shards(tiny_corpus, ray_session, monkeypatch):
    notes = []
    monkeypatch.setattr("dcray.corpus.stream.RESIDENT_FRAC", 1e-12)
    refs = publish(Corpus.open(tiny_corpus), 500, None, "auto", notes.append)
    assert refs.resident is None
    (note,) = notes
    assert "the 500 tokens take 0.0 GB, more than 0% of Ray's object store" in note
    assert "from the shards" in note
    publish(Corpus.open(tiny_corpus), 500, None, "pipeline", notes.append)
    assert len(notes) == 1  # asked for: nothing to say
