"""Rows for the workers by Ray Data, in the exact order asked for.

Ray Data loads the shards once. If the tokens fit, they stay resident in the object store and
every worker indexes them; if not, each worker runs an index pipeline over the shards. Both give
the rows of the same ids in the same order: `order.py` alone decides it. Rows of documents that are
packed anew every epoch are joined of pieces of the stream, which itself stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dcray.config.run import RunConfig
from dcray.config.sections import rows_in
from dcray.corpus.manifest import Array, Corpus, Shard, one_document, verify_shard
from dcray.corpus.order import (
    DocumentRows,
    Ids,
    Packing,
    cut_rows,
    document_starts,
    pack,
    split_spans,
)
from dcray.corpus.spool import cause_in_task, quiet
from dcray.corpus.validation_rows import ValidationRows
from dcray.errors import ConfigError

RESIDENT_FRAC = 0.4  # of the object store: a larger stream is read from its shards


@dataclass(frozen=True)
class StreamRefs:
    """The references by which a worker reads a run's rows; small, and sent to any node."""

    shards: tuple[Shard, ...]
    dtype: str
    num_tokens: int
    resident: Any | None  # an object reference to the flat stream, or None: read the shards
    validation: Any  # an object reference to (tokens, source bytes or None)
    mask_id: int
    eot_id: int


def publish(
    corpus: Corpus,
    unique_tokens: int,
    val_tokens: int | None,
    mode: str,
    note: Callable[[str], None] = lambda text: None,
) -> StreamRefs:
    """Put what a run reads in the object store: verified shards' tokens, validation tokens.

    mode: "resident", "pipeline", or "auto": resident if it takes at most a share of the object
    store; `note` is called with a sentence if it does not. Raises ConfigError that names a
    truncated or edited shard.
    """
    import ray

    shards = tuple(corpus.shards(unique_tokens))
    size = unique_tokens * np.dtype(corpus.dtype).itemsize
    store = ray.cluster_resources().get("object_store_memory", 0)
    resident = mode == "resident" or (mode == "auto" and size <= store * RESIDENT_FRAC)
    if resident:
        flat = ray.put(_load(shards, unique_tokens, corpus.dtype))
    else:
        flat = None
        if mode == "auto":
            note(
                f"the {unique_tokens:,} tokens take {size / 1e9:,.1f} GB, more than "
                f"{RESIDENT_FRAC:.0%} of Ray's object store ({store / 1e9:,.1f} GB): trials read "
                'them from the shards (runtime.stream = "pipeline")'
            )
        for shard in shards:
            verify_shard(shard.path, shard.sha256)
    validation = ray.put(corpus.validation(val_tokens))
    ids = corpus.mask_id, corpus.eot_id
    return StreamRefs(shards, str(corpus.dtype), unique_tokens, flat, validation, *ids)


def fetch_rows(refs: StreamRefs, config: RunConfig, all_ids: Iterable[Ids]) -> Iterator[Array]:
    """Yield the rows (n, T + 1) for each array of row ids (n,), in that order.

    Raises ConfigError if documents are to be packed anew and there is only one.
    """
    if refs.resident is None:
        return _pipeline(refs, config, all_ids)
    import ray

    flat, data = ray.get(refs.resident), config.data
    if data.order == "documents":
        stream = _Stream([flat])
        starts = stream.documents(data.unique_tokens, refs.eot_id)

        def packing(epoch: int) -> Packing:
            return pack(starts, data.unique_tokens, seed=config.seed, epoch=epoch)

        rows_of = DocumentRows(data, lru_cache(maxsize=2)(packing))
        return (stream.join(*rows_of.spans(ids), len(ids)) for ids in all_ids)
    rows = cut_rows(flat, data.seq_len, data.stride)
    return (rows[ids] for ids in all_ids)


def validation_rows(refs: StreamRefs, seq_len: int) -> ValidationRows:
    """Cut the validation stream into floor((tokens - 1) / T) rows; neighbors share one token."""
    import ray

    tokens, text_bytes = ray.get(refs.validation)
    assert rows_in(len(tokens), seq_len, seq_len) > 0, "checked by the driver"
    return ValidationRows(
        cut_rows(tokens, seq_len, seq_len),
        None if text_bytes is None else cut_rows(text_bytes, seq_len, seq_len),
    )


def _load(shards: tuple[Shard, ...], num_tokens: int, dtype: Any) -> NDArray[Any]:
    """Load the first `num_tokens` of the stream, the shards read and verified in parallel."""
    import ray.data

    flat = np.empty(num_tokens, dtype=dtype)
    pieces = ray.data.from_items([{"shard": i} for i in range(len(shards))]).map(
        lambda row: {
            "start": shards[row["shard"]].start,
            "tokens": _read(shards[row["shard"]], dtype),
        }
    )
    quiet(pieces)
    try:
        for piece in pieces.iter_rows():
            flat[piece["start"] : piece["start"] + len(piece["tokens"])] = piece["tokens"]
    except Exception as error:  # another node's copy may differ from the one the driver verified
        raise cause_in_task(error) or error from None
    return flat


def _read(shard: Shard, dtype: Any) -> NDArray[Any]:
    verify_shard(shard.path, shard.sha256)
    return np.fromfile(shard.path, dtype=dtype, count=shard.num_tokens)


def _pipeline(refs: StreamRefs, config: RunConfig, all_ids: Iterable[Ids]) -> Iterator[Array]:
    """Yield the rows of each step's ids, gathered by Ray Data from memory-mapped shards."""
    import ray
    import ray.data

    steps = list(all_ids)
    if not steps:
        return
    size = len(steps[0])  # every step holds as many, but for the last
    chunk = max(1, 4096 // size) * size
    ids = np.concatenate(steps)
    blocks = [ids[start : start + chunk] for start in range(0, len(ids), chunk)]
    documents = None
    if config.data.order == "documents":
        stream = _Stream.of_shards(refs)
        documents = ray.put(stream.documents(config.data.unique_tokens, refs.eot_id))
    gather = _Gather(refs, config, documents)
    # no task of it asks for a CPU: the trials may hold them all (from_numpy's would, and wait)
    given = ray.data.from_blocks([pa.table({"ids": block}) for block in blocks])
    rows = given.map_batches(gather, batch_size=None, num_cpus=0)
    quiet(rows)
    rows.context.execution_options.preserve_order = True
    yield from (b["rows"] for b in rows.iter_batches(batch_size=size, prefetch_batches=2))


class _Gather:
    """Gathers rows of ids from memory-mapped shards; a row may lie across two of them."""

    def __init__(self, refs: StreamRefs, config: RunConfig, documents: Any | None) -> None:
        self.refs, self.config = refs, config
        self.documents = documents  # a reference to where they start, or None: the rows are fixed

    def __call__(self, batch: dict[str, Array]) -> dict[str, Array]:
        ids, data = batch["ids"], self.config.data
        if self.documents is None:
            spans = ids * data.stride, ids * data.stride + data.seq_len + 1
        else:
            spans = DocumentRows(data, self._packing).spans(ids)
        return {"rows": _Stream.of_shards(self.refs).join(*spans, len(ids))}

    def _packing(self, epoch: int) -> Packing:
        """Draw an epoch's packing once in a process: its tasks follow each other through epochs."""
        import ray

        assert self.documents is not None
        num_tokens, seed = self.config.data.unique_tokens, self.config.seed
        key = (self.documents.hex(), num_tokens, seed, epoch)
        if key not in _packings:
            while len(_packings) > 1:
                del _packings[next(iter(_packings))]
            starts = ray.get(self.documents)
            _packings[key] = pack(starts, num_tokens, seed=seed, epoch=epoch)
        return _packings[key]


_packings: dict[tuple[Any, ...], Packing] = {}  # the last two


class _Stream:
    """The flat stream as one array or the arrays of its shards, and pieces of it joined."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        self.arrays, self.dtype = arrays, arrays[0].dtype
        self.borders = np.cumsum([0, *map(len, arrays)])
        self._views = [array.data for array in arrays]

    @classmethod
    def of_shards(cls, refs: StreamRefs) -> _Stream:
        """Map the shards into memory."""
        return cls(
            [np.memmap(s.path, refs.dtype, mode="r", shape=(s.num_tokens,)) for s in refs.shards]
        )

    def documents(self, num_tokens: int, eot_id: int) -> Ids:
        """Find the starts of the first `num_tokens`' documents; raises ConfigError for only one."""
        starts = document_starts(self.arrays, eot_id, num_tokens)
        if len(starts) < 2:  # the driver looked before if no axis of a space gives the order
            raise ConfigError(one_document(num_tokens, eot_id))
        return starts

    def join(self, starts: Ids, stops: Ids, num_rows: int) -> Array:
        """Join the tokens [start, stop) of the stream, in order, into (num_rows, T + 1)."""
        if len(self._views) == 1:
            (view,) = self._views
            pieces = [view[a:b] for a, b in zip(starts.tolist(), stops.tolist(), strict=True)]
        else:
            number, starts, stops = split_spans(starts, stops, self.borders)
            first = self.borders[number]
            spans = (number.tolist(), (starts - first).tolist(), (stops - first).tolist())
            pieces = [self._views[n][a:b] for n, a, b in zip(*spans, strict=True)]
        return np.frombuffer(b"".join(pieces), self.dtype).reshape(num_rows, -1)
