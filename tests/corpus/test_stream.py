"""The rows that workers read: the same resident or from the shards, and whoever holds the CPUs."""

import numpy as np
import pytest
import ray

from dcray.config.run import override
from dcray.corpus.manifest import Corpus
from dcray.corpus.order import Order, cut_rows
from dcray.corpus.prepare import prepare
from dcray.corpus.stream import fetch_rows, publish
from dcray.errors import ConfigError
from dcray.search.specs import fingerprint
from dcray.sources import parse
from tests.support import packed_rows, tiny_config

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


@pytest.mark.parametrize("mode", ["resident", "pipeline"])
@pytest.mark.parametrize("world", [1, 3])
def test_documents_are_packed_anew_every_epoch(tiny_corpus, ray_session, mode, world):
    """Against documents cut out by the corpus's own offsets; rows lie across shards of 300 tokens.

    The stream is published for a larger budget, as a study does, whose smaller runs read less.
    """
    corpus = Corpus.open(tiny_corpus)
    config = tiny_config(
        data__unique_tokens=2_500, data__order="documents", num_epochs=3, batch_size=6
    )
    refs = publish(corpus, 4_000, None, mode)
    starts = np.array(corpus.offsets())
    expected = packed_rows(corpus.tokens(2_500), starts[starts < 2_500], config)
    assert (expected[0] != expected[config.data.num_rows]).any()
    for rank in range(world):
        parts = [whole.part(rank, world, 2) for whole in Order(config).batches()]
        found = list(fetch_rows(refs, config, (part.row_ids for part in parts)))
        assert len(found) == config.num_steps
        for part, rows in zip(parts, found, strict=True):
            assert np.array_equal(rows, expected[part.row_ids])
    later = [part.row_ids for part in Order(config).batches(60)]  # a resumed run
    assert np.array_equal(
        np.concatenate(list(fetch_rows(refs, config, later))), expected[np.concatenate(later)]
    )


def ids_corpus(folder, ids, *, dtype="uint16", vocabulary="ids:99"):
    """A corpus of these ids, the first 40 of them for validation."""
    np.array(ids, dtype).tofile(folder / "ids.bin")
    options = {"vocabulary": vocabulary, "dtype": dtype, "row_tokens": 20}
    source = parse(f"tokens:{folder / 'ids.bin'}", options)
    budgets = [len(ids) - 40]
    prepare(source, folder / "corpus", tokenizer=None, budgets=budgets, val_tokens=40)
    return Corpus.open(folder / "corpus")


@pytest.mark.parametrize("mode", ["resident", "pipeline"])
def test_documents_of_tokenized_text_end_where_its_ids_say_so(tmp_path, ray_session, mode):
    """Of 32 bits, too; the stream begins within a document, which the split by rows cut."""
    ids = np.random.default_rng(0).integers(0, 90_000, 700)
    ids[30::23] = 99_998
    corpus = ids_corpus(tmp_path, ids, dtype="uint32", vocabulary="ids:100000")
    config = tiny_config(data__unique_tokens=660, data__order="documents", num_epochs=3)
    starts = np.array([0, *(at - 40 for at in range(53, 700, 23))])
    refs = publish(corpus, 660, None, mode)
    found = list(fetch_rows(refs, config, (part.row_ids for part in Order(config).batches())))
    expected = packed_rows(ids[40:], starts, config)
    order = np.concatenate([part.row_ids for part in Order(config).batches()])
    assert np.array_equal(np.concatenate(found), expected[order])


@pytest.mark.parametrize("first", [97, 3])
def test_one_document_is_refused_before_anything_trains(tmp_path, ray_session, first):
    """The budget holds one, or the ids say nowhere where one ends; and so does a worker."""
    ids = np.random.default_rng(0).integers(0, 90, 200)
    ids[40], ids[150] = first, 97
    corpus = ids_corpus(tmp_path, ids)
    fixed = tiny_config(data__unique_tokens=110, data__val_tokens=40)
    config = override(fixed, {"data.order": "documents"})
    said = (
        r'data.order = "documents" needs at least two documents, and behind the first of its 110 '
        r"tokens the corpus holds no <\|endoftext\|> \(id 97\): .*; take data.order"
    )
    fingerprint(corpus, fixed)
    with pytest.raises(ConfigError, match=said):
        fingerprint(corpus, config)
    larger = override(config, {"data.unique_tokens": 111})
    fingerprint(corpus, larger)
    for mode in ("resident", "pipeline"):
        refs = publish(corpus, 160, None, mode)
        with pytest.raises(ConfigError, match=said):
            list(fetch_rows(refs, config, [np.array([0])]))
        list(fetch_rows(refs, larger, [np.array([0])]))
