"""Filling the two sides of a corpus: the validation set first, then the training stream."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dcray.corpus.folder import StreamWriter
from dcray.corpus.manifest import NO_TEXT, TOKENIZER, Array
from dcray.corpus.request import Request
from dcray.corpus.spool import Spool, encode
from dcray.corpus.tokenizers import tokenizer as tokenizers
from dcray.errors import ConfigError

GUESSED_BYTES = 5  # of text a token, before any was encoded
FIRST_BYTES = 32_000_000  # of text, at most, are encoded on that guess
MAX_BYTES = np.iinfo(np.int16).max  # of the source, that one validation token may stand for


@dataclass
class Split:
    """The validation set in memory and the stream in its files; both cut their last document."""

    tokenizer: tokenizers.Tokenizer
    writer: StreamWriter
    val_tokens: int
    on_tokens: Callable[[int], None]
    validation: list[Array] = field(default_factory=list)
    validation_bytes: list[Array] = field(default_factory=list)
    num_validation: int = 0
    num_dropped: int = 0  # ids of the last validation document (or row) behind val_tokens
    num_documents: int = 0  # of the stream
    train_bytes: int = 0
    available_tokens: int = 0  # for training, in the whole source
    available_exact: bool = True
    left_out: int = 0  # training rows equal to a validation row
    used: Array = field(init=False)  # (vocab_size,) whether the stream holds the id

    def __post_init__(self) -> None:
        self.used = np.zeros(self.tokenizer.vocab_size, bool)

    @property
    def validating(self) -> bool:
        return self.num_validation < self.val_tokens

    def add_validation(self, ids: Array) -> int:
        """Append a document or row to the validation set; return how many ids were taken."""
        taken = min(len(ids), self.val_tokens - self.num_validation)
        self.validation.append(ids[:taken])
        self.num_validation += taken
        self.num_dropped += len(ids) - taken
        return taken

    def add(self, ids: Array) -> int:
        """Append a document or row to the stream unless it is full; return how many ids it took."""
        if self.writer.full:
            return 0
        taken = self.writer.add(ids)
        self.used[ids[:taken]] = True
        self.num_documents += 1
        self.on_tokens(self.writer.num_tokens)
        return taken

    def check_enough(self, request: Request) -> None:
        """Raise ConfigError if a side is not full: the tokens there were, what was left out."""
        if self.writer.full and not self.validating:
            return
        left = self.writer.num_tokens
        total = self.num_validation + self.num_dropped + left
        raise ConfigError(
            f"the source is too small: it gives {total} tokens, and the largest budget + "
            f"validation need {request.budgets[-1]} + {self.val_tokens}; after the "
            f"validation documents, the last of them whole ({self.num_dropped} tokens of it "
            f"unused), {left} are left{request.left_out()}"
        )


def split_documents(split: Split, spool: Spool, partial: Path, *, reserve: int) -> bool:
    """Encode in order until both sides are full; return False if `reserve` was too small."""
    dtype = split.writer.dtype
    encoded = encode(spool, partial / TOKENIZER, dtype, lambda: _wanted_bytes(split, spool))
    with closing(encoded):
        filled = _fill(split, spool, encoded, reserve)
    _count_available(split, spool)
    return filled


def _fill(split: Split, spool: Spool, encoded: Iterator[tuple[int, Array]], reserve: int) -> bool:
    tokenizer = split.tokenizer
    for index, ids in encoded:
        document = np.concatenate([np.array([tokenizer.eot_id], ids.dtype), ids])
        if split.validating:
            if index >= reserve:
                return False
            taken = split.add_validation(document)
            lengths = _source_bytes(tokenizer, spool.text(index), ids[: taken - 1])
            split.validation_bytes.append(lengths)
            continue
        taken = split.add(document)
        if taken == len(document):
            split.train_bytes += int(spool.records[index]["size"])
        else:
            lengths = tokenizer.token_bytes(spool.text(index), ids[: taken - 1])
            split.train_bytes += int(lengths.sum())
        if split.writer.full:
            break
    return True


def _wanted_bytes(split: Split, spool: Spool) -> float:
    """Estimate how many bytes of text are still to be encoded, by the bytes of a token so far."""
    done = len(split.validation) + split.num_documents
    tokens = split.num_validation + split.num_dropped + split.writer.num_tokens
    size = int(spool.records["size"][:done].sum())
    left = split.val_tokens - split.num_validation + split.writer.limit - split.writer.num_tokens
    return left * 1.02 * size / tokens if tokens else min(left * GUESSED_BYTES, FIRST_BYTES)


def split_rows(split: Split, rows: Iterable[Array], validation: Iterable[Array] | None) -> None:
    """Split rows of ids in their own order, without training rows equal to a validation row."""
    held: set[bytes] = set()
    for row in _checked(validation or (), split.tokenizer):
        if not split.validating:
            break
        split.add_validation(row)
        held.add(_row_hash(row))
    if validation is not None and split.validating:
        raise ConfigError(
            f"the validation files hold {split.num_validation:,} tokens, fewer than the "
            f"{split.val_tokens:,} of val_tokens: ask for as many, or give a larger file"
        )
    for row in _checked(rows, split.tokenizer):
        if split.validating:
            split.add_validation(row)
            held.add(_row_hash(row))
        elif not split.writer.full and _row_hash(row) in held:
            split.left_out += 1
        else:
            split.available_tokens += len(row)
            split.add(row)


def shared_documents(split: Split, spool: Spool) -> int:
    """Count the texts on both sides, by the hashes of what was written."""
    first = len(split.validation)
    texts = [text.tobytes() for text in spool.records["text"][: first + split.num_documents]]
    return len(set(texts[:first]) & set(texts[first:]))


def shared_rows(split: Split, stream: Array, starts: Array) -> int:
    """Count the rows of the written stream that are also in the validation set."""
    held = {_row_hash(row) for row in split.validation}
    return sum(_row_hash(row) in held for row in np.split(stream, starts[1:]))


def _source_bytes(tokenizer: tokenizers.Tokenizer, text: str, ids: Array) -> Array:
    lengths = tokenizer.token_bytes(text, ids)
    if len(lengths) and lengths.max() > MAX_BYTES:
        raise ConfigError(
            f"a token of the validation set stands for {lengths.max()} bytes of the source, "
            f"more than {MAX_BYTES}: this tokenizer drops long stretches of text; choose another"
        )
    return np.concatenate([[NO_TEXT], lengths])


def _count_available(split: Split, spool: Spool) -> None:
    """Count the training tokens of the source if all was encoded, else estimate them by bytes."""
    sizes = spool.records["size"][len(split.validation) :]
    behind = int(sizes.sum()) - split.train_bytes
    written = split.writer.num_tokens
    split.available_exact = not behind
    split.available_tokens = written + round(behind * written / max(split.train_bytes, 1))


def _checked(rows: Iterable[Array], tokenizer: Any) -> Iterator[Array]:
    for row in rows:
        if len(row) and int(row.max()) >= tokenizer.vocab_size:
            raise ConfigError(
                f'the source holds id {int(row.max())}, and its vocabulary "{tokenizer.name}" has '
                f"{tokenizer.vocab_size} ids: name the one it was tokenized by (option vocabulary) "
                "or, of a raw file, how its ids are stored (option dtype)"
            )
        yield row


def _row_hash(row: Array) -> bytes:
    return hashlib.blake2b(row.astype("<u4").tobytes(), digest_size=16).digest()
