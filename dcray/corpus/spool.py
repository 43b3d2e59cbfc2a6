"""Documents of a source, written once to scratch files by Ray Data and known by small records.

The text of a corpus may be larger than memory: the driver keeps 52 bytes a document (its keyed
place in the order, the hash of its text, its file and offset); the text is read from that file.
"""

from __future__ import annotations

import hashlib
import logging
import re
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from dcray.corpus.manifest import Array, sha256_file
from dcray.corpus.record import Notes
from dcray.corpus.tokenizers import tokenizer as tokenizers
from dcray.errors import ConfigError

if TYPE_CHECKING:
    import ray.data

PIECE_BYTES = 4_000_000  # of text that one task encodes
PIECE_DOCUMENTS = 8_192
EXAMPLES = 5

# One row a document. key: its place in the order; text: the first half of its sha256
RECORD = np.dtype(
    [
        ("key", "<u8", 2),
        ("text", "<u8", 2),
        ("offset", "<i8"),
        ("size", "<i8"),
        ("file", "<i4"),
    ]
)
RECORD_SCHEMA = pa.schema(
    [
        ("key", pa.binary(16)),
        ("text", pa.binary(16)),
        ("file", pa.string()),
        ("offset", pa.int64()),
        ("size", pa.int64()),
        ("replaced", pa.int64()),
        ("note", pa.string()),  # the id, of a document that is empty or had invalid UTF-8
    ]
)


@dataclass(frozen=True)
class Spool:
    """The documents in their order, each text once; `files` are the scratch files."""

    files: tuple[Path, ...]
    records: Array  # RECORD, sorted by key
    duplicates_removed: int
    invalid_utf8: Notes
    empty: Notes

    def __len__(self) -> int:
        return len(self.records)

    def text(self, index: int) -> str:
        """Read the text of document `index` of the order."""
        record = self.records[index]
        return _read(self.files[record["file"]], int(record["offset"]), int(record["size"]))

    def texts(self, start: int, *, max_bytes: int) -> Iterator[str]:
        """Yield the texts of the documents from `start` on, until `max_bytes` are reached."""
        for index in range(start, len(self)):
            if max_bytes <= 0:
                return
            max_bytes -= int(self.records[index]["size"])
            yield self.text(index)


def scan(
    documents: ray.data.Dataset, folder: Path, *, seed: int, on_documents: Callable[[int], None]
) -> Spool:
    """Read every document once, in parallel; the result does not depend on the cut into tasks."""
    folder.mkdir()
    quiet(documents)
    spooled = documents.map_batches(
        spool_table,
        batch_size=None,
        batch_format="pyarrow",
        fn_kwargs={"folder": str(folder), "seed": seed},
    )
    found: list[Array] = []
    notes: list[tuple[str, int, int]] = []
    names: dict[str, int] = {}
    done = 0
    for batch in spooled.iter_batches(batch_size=None, batch_format="pyarrow"):
        found.append(_records(batch, names))
        noted = batch.filter(pa.compute.not_equal(batch["note"], ""))
        notes += [(row["note"], row["replaced"], row["size"]) for row in noted.to_pylist()]
        done += batch.num_rows
        on_documents(done)
    records = np.concatenate(found) if found else np.zeros(0, RECORD)
    ordered, removed = in_order(records[records["size"] > 0])
    notes.sort()
    replaced = [(note, count) for note, count, _ in notes if count]
    empty = [(note, 1) for note, _, size in notes if not size]
    return Spool(
        tuple(folder / name for name in names), ordered, removed, _notes(replaced), _notes(empty)
    )


def spool_table(table: pa.Table, folder: str, seed: int) -> pa.Table:
    """Write a table's texts to a scratch file of its own; a repeated task writes another one."""
    name = f"{uuid.uuid4().hex}.txt"
    texts = table["text"].cast(pa.large_string())
    replaced = (
        table["replaced"].to_pylist() if "replaced" in table.column_names else [0] * len(texts)
    )
    rows: list[tuple[Any, ...]] = []
    offset = 0
    with (Path(folder) / name).open("wb") as file:
        for key, text, count in zip(table["id"].cast(pa.string()), texts, replaced, strict=True):
            raw = text.as_buffer() or b""
            digest = hashlib.sha256(raw).digest()[:16]
            size = file.write(raw)
            note = "" if size and not count else str(key)
            rows.append((place(str(key), seed), digest, name, offset, size, count, note))
            offset += size
    columns = zip(*rows, strict=True) if rows else ([] for _ in RECORD_SCHEMA)
    return pa.table([list(column) for column in columns], schema=RECORD_SCHEMA)


def place(name: str, seed: int) -> bytes:
    """Hash (seed, id) to a document's place in the shuffled order; nothing else enters."""
    return hashlib.blake2b(name.encode(), digest_size=16, key=b"dcray %d" % seed).digest()


def in_order(records: Array) -> tuple[Array, int]:
    """Sort the records by place, keep each text once (the first), and count the copies removed."""
    by_place = np.lexsort(
        (records["text"][:, 1], records["text"][:, 0], records["key"][:, 1], records["key"][:, 0])
    )
    ordered = records[by_place]
    by_text = np.lexsort((np.arange(len(ordered)), ordered["text"][:, 1], ordered["text"][:, 0]))
    texts = ordered["text"][by_text]
    fresh = np.ones(len(texts), bool)
    fresh[1:] = (texts[1:] != texts[:-1]).any(axis=1)
    kept = np.sort(by_text[fresh])
    return ordered[kept], len(ordered) - len(kept)


def encode(
    spool: Spool, tokenizer: Path, dtype: np.dtype[Any], wanted: Callable[[], float]
) -> Generator[tuple[int, Array], None, None]:
    """Yield (index, ids) of every document in the order, encoded in parallel by Ray Data.

    `tokenizer` is the tokenizer's file, `dtype` that of the ids. `wanted` estimates how many bytes
    of text the caller still needs: one execution encodes so many. An execution is read to its end
    even if the caller stops: a Ray Data iterator left half-read keeps threads that outlive the
    cluster.
    """
    names = [str(path) for path in spool.files]
    ends = np.cumsum(spool.records["size"])
    start = 0
    while start < len(spool):
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, before + max(wanted(), PIECE_BYTES / 4))) + 1
        blocks = [
            _block(spool, start + first, start + last, names)
            for first, last in _cuts(spool.records["size"][start:stop])
        ]
        batches = _encoded(blocks, tokenizer, dtype)
        try:
            for batch in batches:
                for index, raw in zip(batch["index"].to_pylist(), batch["ids"], strict=True):
                    assert index == start, f"document {index} came where {start} was due"
                    start += 1
                    yield index, np.frombuffer(raw.as_buffer(), dtype)
        except GeneratorExit:
            for _ in batches:
                pass
            raise


def _encoded(blocks: list[pa.Table], tokenizer: Path, dtype: np.dtype[Any]) -> Iterator[pa.Table]:
    import ray.data

    listed = ray.data.from_arrow(blocks)
    quiet(listed)
    listed.context.execution_options.preserve_order = True
    encoded = listed.map_batches(
        encode_table,
        batch_size=None,
        batch_format="pyarrow",
        fn_kwargs={
            "tokenizer": str(tokenizer),
            "digest": sha256_file(tokenizer),
            "dtype": dtype.str,
        },
    )
    return iter(encoded.iter_batches(batch_size=None, batch_format="pyarrow"))


def encode_table(table: pa.Table, tokenizer: str, digest: str, dtype: str) -> pa.Table:
    """Encode the documents that a table points to, into columns index and ids (bytes)."""
    rows = table.to_pylist()
    texts = [_read(Path(row["file"]), row["offset"], row["size"]) for row in rows]
    ids = _tokenizer(tokenizer, digest).encode_batch(texts)
    raw = [one.astype(dtype, copy=False).tobytes() for one in ids]
    return pa.table({"index": table["index"], "ids": pa.array(raw, pa.large_binary())})


_loaded: dict[str, tokenizers.Tokenizer] = {}


def _tokenizer(path: str, digest: str) -> tokenizers.Tokenizer:
    """Load the tokenizer once a process."""
    if digest not in _loaded:
        _loaded.clear()
        _loaded[digest] = tokenizers.load(Path(path))
    return _loaded[digest]


def quiet(dataset: Any) -> None:
    """Turn off the bars and log lines of Ray Data: the command shows its own progress."""
    dataset.context.enable_progress_bars = False
    dataset.context.print_on_execution_start = False
    for handler in logging.getLogger("ray.data").handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setLevel(logging.CRITICAL + 1)


def cause_in_task(error: BaseException) -> Exception | None:
    """Find the ConfigError or OSError in the traceback text of an error of Ray Data, or None."""
    text = str(error)
    if found := re.findall(
        r"^dcray\.errors\.ConfigError: (.*(?:\n(?!\s*$|The above).*)*)", text, re.M
    ):
        return ConfigError(found[-1].strip().splitlines())
    if found := re.findall(r"^(?:\w*Error): \[Errno (\d+)\] (.*)$", text, re.M):
        return OSError(int(found[-1][0]), found[-1][1])
    return None


def _records(batch: pa.Table, names: dict[str, int]) -> Array:
    records = np.zeros(batch.num_rows, RECORD)
    for field in ("key", "text"):
        raw = b"".join(batch[field].to_pylist())
        records[field] = np.frombuffer(raw, ">u8").reshape(-1, 2)
    for field in ("offset", "size"):
        records[field] = batch[field].to_numpy()
    records["file"] = [names.setdefault(name, len(names)) for name in batch["file"].to_pylist()]
    return records


def _notes(found: list[tuple[str, int]]) -> Notes:
    return Notes(
        count=sum(count for _, count in found),
        documents=len(found),
        examples=tuple(name for name, _ in found[:EXAMPLES]),
    )


def _cuts(sizes: Array) -> Iterator[tuple[int, int]]:
    """Yield [start, stop) of neighboring documents that one task encodes."""
    ends = np.cumsum(sizes)
    start = 0
    while start < len(sizes):
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, before + PIECE_BYTES, side="right"))
        stop = min(max(stop, start + 1), start + PIECE_DOCUMENTS)
        yield start, stop
        start = stop


def _block(spool: Spool, start: int, stop: int, names: list[str]) -> pa.Table:
    records = spool.records[start:stop]
    columns: Mapping[str, Any] = {
        "index": np.arange(start, stop),
        "file": [names[i] for i in records["file"]],
        "offset": records["offset"],
        "size": records["size"],
    }
    return pa.table(dict(columns))


def _read(path: Path, offset: int, size: int) -> str:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(size).decode("utf-8")
