"""The driver's side of "a study has one corpus": the first binds it, each later one checks it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from dcray.config.counts import count_label
from dcray.corpus.manifest import Corpus
from dcray.errors import ConfigError
from dcray.track import runs
from dcray.track.locks.corpus_fingerprint import TAG, Mark, refuse_two
from dcray.track.locks.lease import SETTLE_SECONDS
from dcray.track.locks.owner import Owner, this_process
from dcray.track.store import PATIENCE_SECONDS, Store


def check_corpus(store: Store, corpus: Corpus, reads: Mapping[int, str]) -> None:
    """Raise ConfigError if the study on record has another corpus; writes nothing.

    reads: what each budget reads of this corpus (Corpus.reads).
    """
    store.connection.patiently(lambda: _check(store, corpus, reads), seconds=PATIENCE_SECONDS)


def hold_corpus(store: Store, corpus: Corpus, reads: Mapping[int, str]) -> None:
    """Check the corpus as `check_corpus` does, and bind the study to it if it is not bound yet.

    Of two jobs that start at once the second is refused. Until there is a result, the binding of a
    dead owner does not count.
    """
    with store.connection.lock():
        store.connection.patiently(lambda: _bind(store, corpus, reads), seconds=PATIENCE_SECONDS)
    if not store.connection.uri.startswith("sqlite"):  # another host has a lock of its own
        time.sleep(SETTLE_SECONDS)
        check_corpus(store, corpus, reads)


def _bind(store: Store, corpus: Corpus, reads: Mapping[int, str]) -> None:
    known = _check(store, corpus, reads)
    ours = Mark.of(corpus)
    mark = known.with_budgets(ours) if known else ours
    if known is not None and known.owner and known == Mark.from_json(mark.to_json()):
        return  # the mark is on record, and a living owner or a result keeps it valid
    text = replace(mark, owner=this_process().to_json(), bound_at=time.time()).to_json()
    experiment_id = store.experiment.make({TAG: text})
    store.connection.client.set_experiment_tag(experiment_id, TAG, text)


def _check(store: Store, corpus: Corpus, reads: Mapping[int, str]) -> Mark | None:
    """Read the study's mark, None if none counts; raise ConfigError if the corpus is another."""
    if store.experiment.find() is None:
        return None
    experiment = runs.experiment_of(store.connection, store.study)
    rows = runs.latest(store.connection, store.study)[0]
    mark = refuse_two(store.study, experiment, rows, store.connection.client)
    results = [row for row in rows if "corpus_hash" in row.tags]
    if mark is not None and not results and not _alive(store, mark):
        return None  # it was begun and left before anything came of it
    other = mark.difference(Mark.of(corpus), corpus) if mark is not None else ""
    if other:
        raise ConfigError(_refusal(store.study, str(mark), f"{Mark.of(corpus)} has {other}", mark))
    for row in results:
        ours = reads.get(row.unique_tokens)
        if ours not in (None, row.tags["corpus_hash"]):
            budget = count_label(row.unique_tokens)
            theirs = f"{row.tags.get('corpus', 'a corpus')} ({row.tags['corpus_hash'][:8]})"
            what = f"{corpus.path} ({ours[:8]}) gives other tokens at {budget}, by what it holds "
            raise ConfigError(_refusal(store.study, theirs, what + "or by data.val_tokens", mark))
    return mark


def _alive(store: Store, mark: Mark) -> bool:
    """Tell whether a process that needs the mark is alive: its owner, or the holder of a cell."""
    owner = Owner.from_json(mark.owner)
    if owner is not None and owner != this_process() and owner.alive(mark.bound_at):
        return True
    return any(cell.held for cell in runs.cells_of(store.connection, store.study))


def _refusal(study: str, theirs: str, ours: str, mark: Mark | None) -> str:
    back = f", --corpus {mark.path}" if mark else ""
    return (
        f'a study has one corpus, for losses on two cannot be compared: "{study}" was begun on '
        f"{theirs}, and {ours}. Give --study another name{back}, or another --dir"
    )
