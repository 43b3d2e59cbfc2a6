"""Rows for the workers by Ray Data, in the exact order asked for.

Ray Data loads the shards once. If the tokens fit, they stay resident in the object store and
every worker indexes them; if not, each worker runs an index pipeline over the shards. Both give
the rows of the same ids in the same order: `order.py` alone decides it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dcray.config.run import RunConfig
from dcray.config.sections import rows_in
from dcray.corpus.manifest import Corpus, Shard, verify_shard
from dcray.corpus.order import cut_rows
from dcray.corpus.spool import cause_in_task, quiet
from dcray.corpus.validation_rows import ValidationRows

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
    return StreamRefs(shards, str(corpus.dtype), unique_tokens, flat, validation, corpus.mask_id)


def fetch_rows(
    refs: StreamRefs, config: RunConfig, all_ids: Iterable[NDArray[np.int64]]
) -> Iterator[NDArray[Any]]:
    """Yield the rows (n, T + 1) for each array of row ids (n,), in that order."""
    seq_len, stride = config.data.seq_len, config.data.stride
    if refs.resident is not None:
        import ray

        rows = cut_rows(ray.get(refs.resident), seq_len, stride)
        return (rows[ids] for ids in all_ids)
    return _pipeline(refs, seq_len, stride, all_ids)


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


def _pipeline(
    refs: StreamRefs, seq_len: int, stride: int, all_ids: Iterable[NDArray[np.int64]]
) -> Iterator[NDArray[Any]]:
    """Yield the rows of each step's ids, gathered by Ray Data from memory-mapped shards."""
    import ray.data

    steps = list(all_ids)
    if not steps:
        return
    size = len(steps[0])  # every step holds as many, but for the last
    chunk = max(1, 4096 // size) * size
    ids = np.concatenate(steps)
    blocks = [ids[start : start + chunk] for start in range(0, len(ids), chunk)]
    gather = _Gather(refs, seq_len, stride)
    # no task of it asks for a CPU: the trials may hold them all (from_numpy's would, and wait)
    given = ray.data.from_blocks([pa.table({"ids": block}) for block in blocks])
    rows = given.map_batches(gather, batch_size=None, num_cpus=0)
    quiet(rows)
    rows.context.execution_options.preserve_order = True
    yield from (b["rows"] for b in rows.iter_batches(batch_size=size, prefetch_batches=2))


class _Gather:
    """Gathers rows of ids from memory-mapped shards; a row may lie across two of them."""

    def __init__(self, refs: StreamRefs, seq_len: int, stride: int) -> None:
        self.refs, self.seq_len, self.stride = refs, seq_len, stride

    def __call__(self, batch: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        ids = batch["ids"]
        rows = np.empty((len(ids), self.seq_len + 1), dtype=self.refs.dtype)
        starts = ids * self.stride
        for shard in self.refs.shards:
            tokens = np.memmap(
                shard.path, dtype=self.refs.dtype, mode="r", shape=(shard.num_tokens,)
            )
            first, stop = shard.start, shard.start + shard.num_tokens
            for i in np.flatnonzero((starts < stop) & (starts + self.seq_len >= first)):
                low, high = max(starts[i], first), min(starts[i] + self.seq_len + 1, stop)
                rows[i, low - starts[i] : high - starts[i]] = tokens[low - first : high - first]
        return {"rows": rows}
