"""prepare: documents of a source -> a corpus folder, whole or not at all.

    source.documents() -> scan (spool) -> order -> tokenizer -> encode -> validation, then the stream

- The order of documents is by a keyed hash of (seed, id); exact copies of a text are kept once. So
  neither order nor split depends on shards, cores or budgets, and no text is on both sides.
- The first documents of the order are the validation set, until val_tokens; the rest of its last
  document is dropped. Those behind them are the training stream, of exactly max(budgets) tokens.
  Each document starts with <|endoftext|>.
- bpe:V is trained on the documents behind the first 4 * val_tokens bytes (twice that, and so on, where
  those give too few tokens), on at most BPE_BYTES of them; so never on a validation document.
- The driver holds 48 bytes a document; texts wait in scratch files beside `out`. A source is read to its
  end, since any document may come first; a source without end bounds itself (huggingface: the first
  num_documents). Encoding stops where the largest budget is full.
- Text that is tokenized already keeps its order and is split by row: validation rows come from a file of
  their own, or are the first ones; training rows equal to one of them are left out.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import dcray
from dcray.cluster import ray_cluster
from dcray.corpus import manifest as m
from dcray.corpus import tokenizers, vocabularies
from dcray.corpus.folder import StreamWriter, partial_folder, publish, write_array
from dcray.corpus.spool import Spool, cause_in_task, encode, scan
from dcray.errors import ConfigError
from dcray.sources import source_name

SHARD_TOKENS = 100_000_000
BPE_BYTES = 1_000_000_000  # of text that bpe:V is trained on, at most
Progress = Callable[[str, int, int | None], None]  # stage, done, total (None: not known)


@dataclass(frozen=True)
class Request:
    """What a corpus was asked to be; stored, and compared when the folder is there already."""

    source: Any
    tokenizer: str
    budgets: tuple[int, ...]
    val_tokens: int
    seed: int
    shard_tokens: int = SHARD_TOKENS
    on_progress: Progress = field(default=lambda stage, done, total: None, compare=False)

    def record(self) -> dict[str, Any]:
        """JSON; equal records give equal corpora."""
        asked = getattr(self.source, "request", None)
        return {
            "source": asked() if asked else {"source": source_name(self.source)},
            "tokenizer": self.tokenizer,
            "budgets": list(self.budgets),
            "val_tokens": self.val_tokens,
            "seed": self.seed,
        }

    @property
    def needed(self) -> int:
        return self.budgets[-1] + self.val_tokens


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
) -> m.Manifest:
    """Prepare `source` (built: sources.parse) as the corpus folder `out`; its manifest.

    A folder that answers the same request is left as it is and answers at once. Raises ConfigError
    for what cannot be prepared, with nothing left behind.
    """
    out = Path(out)
    request = _request(source, tokenizer, budgets, val_tokens, seed, shard_tokens, on_progress)
    if held := _already_there(out, request):
        return held
    build = _from_tokens if hasattr(source, "tokens") else _from_documents
    with partial_folder(out) as partial:
        manifest = build(request, partial)
        text = json.dumps(manifest.model_dump(mode="json"), indent=1, sort_keys=True)
        (partial / m.MANIFEST).write_text(text + "\n", encoding="utf-8")
        _publish(partial, out, request)
    return manifest


def _request(
    source: Any,
    tokenizer: str | None,
    budgets: Sequence[int],
    val_tokens: int,
    seed: int,
    shard_tokens: int,
    on_progress: Progress | None,
) -> Request:
    problems = []
    if not budgets or min(budgets) < 2:
        problems.append(
            f"budgets must be one or more counts of at least 2 tokens, got {list(budgets)}"
        )
    if val_tokens < 2:
        problems.append(f"val_tokens must be at least 2, got {val_tokens}")
    vocabulary = getattr(source, "vocabulary", None)
    name = tokenizer or vocabulary
    if name is None:
        problems.append(f"tokenizer must be given (one of: {', '.join(vocabularies.NAMES)})")
    elif vocabulary and name != vocabulary:
        problems.append(
            f'tokenizer must be "{vocabulary}", what the source is tokenized by, got "{name}"'
        )
    else:
        try:
            vocabularies.check_name(name)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    assert name is not None
    kept = tuple(sorted(set(budgets)))
    more = {"on_progress": on_progress} if on_progress else {}
    return Request(source, name, kept, val_tokens, seed, shard_tokens, **more)


def _already_there(out: Path, request: Request) -> m.Manifest | None:
    """The manifest of the same request; ConfigError for a folder that is something else."""
    if not out.exists():
        return None
    if out.is_dir() and not any(out.iterdir()):
        return None
    if not (out / m.MANIFEST).is_file():
        raise ConfigError(f"{out} exists and is no corpus; choose another folder")
    held = m.read_manifest(out)
    if differences := list(_differences(held.request, request.record())):
        raise ConfigError(
            f"{out} holds another corpus ({'; '.join(differences)}); delete it, or choose another folder"
        )
    return held


def _differences(held: dict[str, Any], asked: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key in sorted({*held, *asked}):
        old, new = held.get(key), asked.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _differences(old, new, f"{prefix}{key}.")
        elif old != new:
            yield f"{prefix}{key} is {json.dumps(old)} there, {json.dumps(new)} here"


def _publish(partial: Path, out: Path, request: Request) -> None:
    try:
        publish(partial, out)
    except OSError:
        if not _already_there(out, request):  # another run was quicker: the same corpus will do
            raise


def _from_documents(request: Request, partial: Path) -> m.Manifest:
    with _ray(request.source):
        spool = scan(
            request.source.documents(),
            partial / "spool",
            seed=request.seed,
            on_documents=lambda done: request.on_progress("documents", done, None),
        )
        if not len(spool):
            raise ConfigError(_empty(request, spool))
        fixed = vocabularies.build(request.tokenizer)
        if fixed:
            done = _encode_split(request, partial, spool, fixed, len(spool))
        else:
            done = _encode_trained(request, partial, spool)
    for path in spool.files:
        path.unlink()
    (partial / "spool").rmdir()
    assert done is not None
    return _finish(request, partial, done, spool)


@contextmanager
def _ray(source: Any) -> Iterator[None]:
    """Ray, with what a task raised raised here."""
    with ray_cluster():
        module = type(source).__module__
        if module.startswith("dcray_plugin_"):
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


@dataclass
class Split:
    """The two sides as they fill: validation documents in memory, the stream in its files."""

    tokenizer: tokenizers.Tokenizer
    writer: StreamWriter
    val_tokens: int
    validation: list[m.Array] = field(default_factory=list)
    validation_bytes: list[m.Array] | None = field(default_factory=list)
    num_validation: int = 0
    num_documents: int = 0  # of the stream
    train_bytes: int = 0
    available_tokens: int = 0
    available_exact: bool = False
    left_out: int = 0  # training rows equal to a validation row
    shared: int = 0

    def add_validation(self, ids: m.Array) -> int:
        """Append one document or row; how many of its ids were taken."""
        taken = min(len(ids), self.val_tokens - self.num_validation)
        self.validation.append(ids[:taken])
        self.num_validation += taken
        return taken

    @property
    def validating(self) -> bool:
        return self.num_validation < self.val_tokens


def _encode_trained(request: Request, partial: Path, spool: Spool) -> Split:
    """Train bpe:V behind a reserve of documents, which must turn out to hold the validation set."""
    ends = np.cumsum(spool.records["size"])
    reserve = 4 * request.val_tokens
    while True:
        first = min(int(np.searchsorted(ends, reserve)) + 1, len(spool) - 1)
        request.on_progress("tokenizer", 0, 1)
        trained = vocabularies.train_bpe(request.tokenizer, spool.texts(first, max_bytes=BPE_BYTES))
        request.on_progress("tokenizer", 1, 1)
        last_try = first == len(spool) - 1
        done = _encode_split(request, partial, spool, trained, len(spool) if last_try else first)
        if done:
            return done
        reserve *= 2


def _encode_split(
    request: Request, partial: Path, spool: Spool, tokenizer: tokenizers.Tokenizer, reserve: int
) -> Split | None:
    """Encode in order: the validation set, then the stream. None where it takes more than `reserve` documents."""
    dtype = m.stored_dtype(m.dtype_for(tokenizer.vocab_size))
    digest = write_tokenizer(partial, tokenizer)
    writer = StreamWriter(partial, dtype, request.budgets, shard_tokens=request.shard_tokens)
    split = Split(tokenizer, writer, request.val_tokens)
    sizes = spool.records["size"]
    try:
        for index, ids in encode(spool, partial / m.TOKENIZER, digest):
            if split.validating:
                if index >= reserve:
                    return None
                _add_validation(split, spool.text(index), ids)
                continue
            document = np.concatenate([[tokenizer.eot_id], ids])
            taken = writer.add(document)
            split.num_documents += 1
            cut = taken < len(document)
            split.train_bytes += (
                int(tokenizer.token_bytes(spool.text(index), ids)[: taken - 1].sum())
                if cut
                else int(sizes[index])
            )
            request.on_progress("tokens", writer.num_tokens, request.budgets[-1])
            if writer.full:
                break
        _count_available(split, spool)
        _check_enough(request, split, f"{len(spool)} documents")
    finally:
        writer.close()
    return split


def _add_validation(split: Split, text: str, ids: m.Array) -> None:
    taken = split.add_validation(np.concatenate([[split.tokenizer.eot_id], ids]))
    source_bytes = split.tokenizer.token_bytes(text, ids)
    if len(source_bytes) and source_bytes.max() > np.iinfo(np.int16).max:
        raise ConfigError(
            f"a token of the validation set stands for {source_bytes.max()} bytes of the source, more than "
            "32767: this tokenizer drops long stretches of text; choose another"
        )
    assert split.validation_bytes is not None
    split.validation_bytes.append(np.concatenate([[m.NO_TEXT], source_bytes])[:taken])


def _count_available(split: Split, spool: Spool) -> None:
    """All training tokens of the source: counted where all were encoded, else estimated by bytes."""
    encoded = len(split.validation) + split.num_documents
    behind = int(spool.records["size"][encoded:].sum())
    written = split.writer.num_tokens
    split.available_exact = not behind
    split.available_tokens = written + round(behind * written / max(split.train_bytes, 1))


def _check_enough(request: Request, split: Split, what: str) -> None:
    if split.writer.full and not split.validating:
        return
    total = split.num_validation + split.writer.num_tokens
    raise ConfigError(
        f"the source is too small: it gives {total} tokens ({what}), and the largest budget "
        f"({request.budgets[-1]}) + validation ({request.val_tokens}) need {request.needed}; "
        f"after validation {split.writer.num_tokens} are left to train on"
    )


def _empty(request: Request, spool: Spool) -> str:
    named = ", ".join(spool.empty.examples)
    empty = f": {spool.empty.documents} empty documents ({named})" if named else ""
    return f"the source holds no text, 0 tokens, where {request.needed} are needed{empty}"


def _from_tokens(request: Request, partial: Path) -> m.Manifest:
    """Rows of ids, in the source's own order."""
    source = request.source
    tokenizer = vocabularies.ids_only(request.tokenizer)
    write_tokenizer(partial, tokenizer)
    dtype = m.stored_dtype(m.dtype_for(tokenizer.vocab_size))
    writer = StreamWriter(partial, dtype, request.budgets, shard_tokens=request.shard_tokens)
    split = Split(
        tokenizer, writer, request.val_tokens, validation_bytes=None, available_exact=True
    )
    own = getattr(source, "validation_tokens", lambda: None)()
    held = {_row_hash(row) for row in _validation_rows(split, own)} if own else set()
    try:
        for row in _checked(source.tokens(), tokenizer):
            if split.validating and not own:
                held.add(_row_hash(row))
                split.add_validation(row)
            elif not writer.full and _row_hash(row) in held:
                split.left_out += 1
            else:
                split.num_documents += not writer.full
                split.available_tokens += len(row)
                writer.add(row)
                request.on_progress("tokens", writer.num_tokens, request.budgets[-1])
        _check_enough(request, split, f"{len(split.validation) + split.num_documents} rows")
    finally:
        writer.close()
    return _finish(request, partial, split, None)


def _validation_rows(split: Split, rows: Iterable[m.Array]) -> Iterator[m.Array]:
    for row in _checked(rows, split.tokenizer):
        if not split.validating:
            return
        split.add_validation(row)
        yield row


def _checked(rows: Iterable[m.Array], tokenizer: tokenizers.Tokenizer) -> Iterator[m.Array]:
    for row in rows:
        if len(row) and int(row.max()) >= tokenizer.vocab_size:
            raise ConfigError(
                f'the source holds id {int(row.max())}, and its vocabulary "{tokenizer.name}" has '
                f"{tokenizer.vocab_size} ids: name the one it was tokenized by (option vocabulary)"
            )
        yield row


def _row_hash(row: m.Array) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(row, "<u4").tobytes(), digest_size=16).digest()


def write_tokenizer(partial: Path, tokenizer: tokenizers.Tokenizer) -> str:
    """Write the tokenizer's file; its hash."""
    (partial / m.TOKENIZER).write_bytes(tokenizers.dumps(tokenizer))
    return tokenizers.sha256(tokenizer)


def _finish(request: Request, partial: Path, split: Split, spool: Spool | None) -> m.Manifest:
    """Write what stands beside the shards, and the manifest of it all."""
    writer, tokenizer = split.writer, split.tokenizer
    starts = np.cumsum([0, *(len(ids) for ids in split.validation)])[:-1]
    arrays = {
        "train_offsets.npy": np.array(writer.starts, np.int64),
        m.VALIDATION: np.concatenate(split.validation).astype(writer.dtype),
        "validation_offsets.npy": starts.astype(np.int64),
    }
    val_bytes = None
    if split.validation_bytes is not None:
        lengths = np.concatenate(split.validation_bytes)
        arrays[m.VALIDATION_BYTES] = lengths.astype("<i2")
        val_bytes = int(lengths[lengths > 0].sum())
    files = {name: write_array(partial / name, array) for name, array in arrays.items()}
    files[m.TOKENIZER] = tokenizers.sha256(tokenizer)
    describe = getattr(request.source, "describe", request.record)
    shared = _shared(split, spool) if spool else 0
    return m.Manifest(
        dcray=dcray.__version__,
        python=platform.python_version(),
        request=request.record(),
        source=describe(),
        split="document" if spool else "row",
        seed=request.seed,
        tokenizer=m.TokenizerRecord(
            name=tokenizer.name,
            sha256=files[m.TOKENIZER],
            vocab_size=tokenizer.vocab_size,
            eot_id=tokenizer.eot_id,
            mask_id=tokenizer.mask_id,
        ),
        dtype=m.dtype_for(tokenizer.vocab_size),
        train=m.Part(
            documents=split.num_documents,
            tokens=writer.num_tokens,
            source_bytes=split.train_bytes if spool else None,
        ),
        validation=m.Part(
            documents=len(split.validation), tokens=split.num_validation, source_bytes=val_bytes
        ),
        available_tokens=split.available_tokens,
        available_exact=split.available_exact,
        budgets=tuple(writer.budgets),
        shards=tuple(writer.shards),
        files=files,
        invalid_utf8=spool.invalid_utf8 if spool else m.Notes(),
        empty_documents=spool.empty if spool else m.Notes(),
        overlap=m.Overlap(
            shared_documents=shared,
            duplicates_removed=spool.duplicates_removed if spool else split.left_out,
        ),
    )


def _shared(split: Split, spool: Spool) -> int:
    """Texts on both sides: what the report says is counted, not assumed."""
    first = len(split.validation)
    texts = [record.tobytes() for record in spool.records["text"][: first + split.num_documents]]
    return len(set(texts[:first]) & set(texts[first:]))
