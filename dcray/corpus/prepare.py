"""Preparing a corpus folder from the documents of a source, completely or not at all.

    source.documents() -> scan -> order -> tokenizer -> encode -> validation set, then the stream

- The order of documents is by a keyed hash of (seed, id); exact copies of a text are kept once. So
  neither order nor split depends on shards, cores or budgets, and no text is on both sides.
- The first documents of the order are the validation set, until val_tokens; the rest of its last
  document is dropped. The documents after them are the training stream, of exactly max(budgets)
  tokens. Each document starts with <|endoftext|>.
- bpe:V is trained on the documents after the first 4 * val_tokens bytes (twice that, and so on,
  if those give too few tokens), on at most BPE_BYTES; so never on a validation document.
- The driver holds some 50 bytes a document; texts wait in scratch files beside `out`. A source is
  read to its end, since any document may come first; one without end limits itself (huggingface:
  num_documents). Encoding stops when the largest budget is full.
- Text that is tokenized already keeps its order and is split by row: validation rows come from a
  file of their own, or are the first ones; training rows equal to one of them are left out.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import dcray
from dcray.cluster.start import ray_cluster
from dcray.corpus import manifest as m
from dcray.corpus.folder import StreamWriter, cannot_prepare, partial_folder, publish, write_array
from dcray.corpus.record import (
    MANIFEST,
    Manifest,
    Notes,
    Overlap,
    Part,
    TokenizerRecord,
)
from dcray.corpus.request import Request, already_there, checked_tokenizer
from dcray.corpus.split import (
    Split,
    shared_documents,
    shared_rows,
    split_documents,
    split_rows,
)
from dcray.corpus.spool import Spool, cause_in_task, scan
from dcray.corpus.tokenizers import tokenizer as tokenizers
from dcray.corpus.tokenizers import vocabularies
from dcray.errors import ConfigError

SHARD_TOKENS = 100_000_000
BPE_BYTES = 1_000_000_000  # of text that bpe:V is trained on, at most
KNOWN_BYTES = 1_000_000  # of text, about, on which a tokenizer is asked what it knows
ONE_DOCUMENT = (
    "the source is one document (exact copies count once), and at least 2 are needed, since the "
    "validation set is split off by document; a text file is one document: cut it into several "
    'files, or into a .jsonl with a line {"text": "..."} for each document'
)
Progress = Callable[[str, int, int | None], None]  # stage, done, total (None: not known)


def prepare(
    source: Any,
    out: str | Path,
    *,
    tokenizer: str | None,
    budgets: Sequence[int],
    val_tokens: int,
    seed: int = 42,
    shard_tokens: int = SHARD_TOKENS,
    on_progress: Progress | None = None,
) -> Manifest:
    """Prepare `source` (built by sources.parse) as the corpus folder `out`; return its manifest.

    A folder that answers the same request is left as it is (local files are read once, to know that
    they are the same). Raises ConfigError for what cannot be prepared, with nothing left behind.
    """
    out = Path(out)
    name = checked_tokenizer(source, tokenizer, budgets, val_tokens)
    request = Request(source, name, tuple(sorted(set(budgets))), val_tokens, seed)
    if held := already_there(out, request):
        return held
    request.record()  # a source that is not there is refused before Ray starts
    work = Work(request, shard_tokens, on_progress or (lambda stage, done, total: None))
    build = _from_tokens if hasattr(source, "tokens") else _from_documents
    with partial_folder(out, cannot=cannot_prepare) as partial:
        manifest = build(work, partial)
        text = json.dumps(manifest.model_dump(mode="json"), indent=1, sort_keys=True)
        (partial / MANIFEST).write_text(text + "\n", encoding="utf-8")
        _publish(partial, out, request)
    return manifest


@dataclass(frozen=True)
class Work:
    """A request, with the options that change only the sizes of files and the progress shown."""

    request: Request
    shard_tokens: int
    on_progress: Progress

    def split(self, partial: Path, tokenizer: tokenizers.Tokenizer) -> Split:
        """Write the tokenizer's file and return an empty validation set and stream beside it."""
        (partial / m.TOKENIZER).write_bytes(tokenizers.dumps(tokenizer))
        dtype = m.stored_dtype(m.dtype_for(tokenizer.vocab_size))
        budgets = self.request.budgets
        writer = StreamWriter(partial, dtype, budgets, shard_tokens=self.shard_tokens)
        return Split(
            tokenizer,
            writer,
            self.request.val_tokens,
            lambda done: self.on_progress("tokens", done, budgets[-1]),
        )


def _publish(partial: Path, out: Path, request: Request) -> None:
    try:
        publish(partial, out)
    except OSError:
        if not already_there(out, request):  # another run was quicker: the same corpus will do
            raise


def _from_documents(work: Work, partial: Path) -> Manifest:
    source = work.request.source
    fixed = vocabularies.build(work.request.tokenizer)  # before Ray: its file may be missing
    known = None
    with _ray(source):
        spool = scan(
            source.documents(),
            partial / "spool",
            seed=work.request.seed,
            on_documents=lambda done: work.on_progress("documents", done, None),
        )
        if not len(spool):
            raise ConfigError(_no_text(work.request, spool))
        if len(spool) == 1:
            raise ConfigError(ONE_DOCUMENT + work.request.left_out())
        if fixed:
            known = tokenizers.known_frac(fixed, spool.texts(0, max_bytes=KNOWN_BYTES))
            split = work.split(partial, fixed)
            split_documents(split, spool, partial, reserve=len(spool))
        else:
            split = _trained(work, partial, spool)
    split.writer.close()
    split.check_enough(work.request)
    for path in spool.files:
        path.unlink()
    (partial / "spool").rmdir()
    overlap = Overlap(
        shared_documents=shared_documents(split, spool),
        duplicates_removed=spool.duplicates_removed,
    )
    return _finish(work.request, partial, split, overlap, spool, known)


@contextmanager
def _ray(source: Any) -> Iterator[None]:
    """Hold a Ray cluster open; an error that a task raised is raised here."""
    with ray_cluster():
        module = type(source).__module__
        if module.startswith("dcray_plugin_"):  # a file: workers cannot import it by its name
            from ray import cloudpickle

            cloudpickle.register_pickle_by_value(sys.modules[module])
        try:
            yield
        except ConfigError:
            raise
        except Exception as error:
            cause = cause_in_task(error)
            if cause is None:
                raise
            raise cause from error


def _trained(work: Work, partial: Path, spool: Spool) -> Split:
    """Train bpe:V after a reserve of documents, doubled until it holds the validation set."""
    ends = np.cumsum(spool.records["size"])
    reserve = 4 * work.request.val_tokens
    while True:
        first = min(int(np.searchsorted(ends, reserve)) + 1, len(spool) - 1)
        work.on_progress("tokenizer", 0, 1)
        texts = spool.texts(first, max_bytes=BPE_BYTES)
        split = work.split(partial, vocabularies.train_bpe(work.request.tokenizer, texts))
        work.on_progress("tokenizer", 1, 1)
        last = first == len(spool) - 1
        if split_documents(split, spool, partial, reserve=len(spool) if last else first):
            return split
        reserve *= 2


def _no_text(request: Request, spool: Spool) -> str:
    named = ", ".join(spool.empty.examples)
    empty = f": {spool.empty.documents} empty documents ({named})" if named else ""
    needed = f"the source holds no text, 0 tokens, where {request.needed} are needed"
    return f"{needed}{empty}{request.left_out()}"


def _from_tokens(work: Work, partial: Path) -> Manifest:
    """Build the corpus from rows of ids, in the source's own order."""
    source = work.request.source
    split = work.split(partial, vocabularies.ids_only(work.request.tokenizer))
    getattr(source, "check_vocabulary", lambda size: None)(split.tokenizer.vocab_size)
    try:
        split_rows(split, source.tokens(), getattr(source, "validation_tokens", lambda: None)())
    finally:
        split.writer.close()
    split.check_enough(work.request)
    parts = [np.fromfile(partial / s.file, split.writer.dtype) for s in split.writer.shards]
    shared = shared_rows(split, np.concatenate(parts), np.array(split.writer.starts))
    overlap = Overlap(shared_documents=shared, duplicates_removed=split.left_out)
    return _finish(work.request, partial, split, overlap, None)


def _finish(
    request: Request,
    partial: Path,
    split: Split,
    overlap: Overlap,
    spool: Spool | None,
    known_frac: float | None = None,
) -> Manifest:
    """Write the files beside the shards, and return the manifest of the corpus."""
    writer, tokenizer = split.writer, split.tokenizer
    files = _write_arrays(partial, split)
    files[m.TOKENIZER] = tokenizers.sha256(tokenizer)
    lengths = np.concatenate([[0], *split.validation_bytes])
    return Manifest(
        dcray=dcray.__version__,
        python=platform.python_version(),
        request=request.record(),
        source=getattr(request.source, "describe", lambda: request.record()["source"])(),
        split="document" if spool else "row",
        seed=request.seed,
        tokenizer=TokenizerRecord(
            name=tokenizer.name,
            sha256=files[m.TOKENIZER],
            vocab_size=tokenizer.vocab_size,
            eot_id=tokenizer.eot_id,
            mask_id=tokenizer.mask_id,
        ),
        dtype=m.dtype_for(tokenizer.vocab_size),
        train=Part(
            documents=split.num_documents,
            tokens=writer.num_tokens,
            source_bytes=split.train_bytes if spool else None,
        ),
        validation=Part(
            documents=len(split.validation),
            tokens=split.num_validation,
            source_bytes=int(lengths[lengths > 0].sum()) if spool else None,
        ),
        available_tokens=split.available_tokens,
        available_exact=split.available_exact,
        budgets=tuple(writer.budgets),
        shards=tuple(writer.shards),
        files=files,
        invalid_utf8=spool.invalid_utf8 if spool else Notes(),
        empty_documents=spool.empty if spool else Notes(),
        overlap=overlap,
        used_ids=int(split.used.sum()),
        known_frac=known_frac,
    )


def _write_arrays(partial: Path, split: Split) -> dict[str, str]:
    """Write the offsets and the validation set; return each file's sha256."""
    lengths = [len(ids) for ids in split.validation]
    arrays: dict[str, m.Array] = {
        m.TRAIN_OFFSETS: np.array(split.writer.starts, np.int64),
        m.VALIDATION_OFFSETS: np.cumsum([0, *lengths[:-1]], dtype=np.int64),
        m.VALIDATION: np.concatenate(split.validation).astype(split.writer.dtype),
    }
    if split.validation_bytes:
        arrays[m.VALIDATION_BYTES] = np.concatenate(split.validation_bytes).astype("<i2")
    return {name: write_array(partial / name, array) for name, array in arrays.items()}
