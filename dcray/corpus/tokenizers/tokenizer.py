"""Tokenizers: text <-> ids, and how many bytes of the source each id stands for.

`gpt2` (50,257 and [MASK]), `bpe:V` (trained on the corpus; the last two of its V ids are
<|endoftext|> and [MASK]), `hf:PATH` (a tokenizer.json), `byte` (256 and the two), and for text that
is tokenized already `ids:V` (V ids, the last two are the special ones). All of them are stored
inside the corpus, so that nothing that reads it needs a network. Documents are ordinary text:
"<|endoftext|>" in one is encoded like any other characters.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from dcray.corpus.tokenizers.encoders import (
    BytePairTokenizer,
    ByteTokenizer,
    HuggingFaceTokenizer,
    Ids,
    TokenIds,
)
from dcray.errors import ConfigError, did_you_mean


class Tokenizer(Protocol):
    """The encoder of a corpus. Ids run from 0 to vocab_size - 1, special ones included."""

    @property
    def name(self) -> str: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def eot_id(self) -> int: ...
    @property
    def mask_id(self) -> int: ...

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """Encode each text as ids, uint32, without special ids."""

    def token_bytes(self, text: str, ids: Ids) -> Ids:
        """Count the UTF-8 bytes of `text` that each id stands for, int64; they sum to all.

        `ids` may be a prefix of the text's ids: then the result is a prefix of the counts.
        """

    def decode(self, ids: Sequence[int] | Ids) -> str: ...

    def to_dict(self) -> dict[str, Any]:
        """Return everything that from_dict needs, as JSON."""


KNOWN_CHARS = 100_000  # of one text that are looked at
LEAST_KNOWN_FRAC = 0.5  # of the characters of a text: a tokenizer that knows fewer is refused
KINDS: dict[str, Any] = {
    "byte": ByteTokenizer,
    "ids": TokenIds,
    "bpe": BytePairTokenizer,
    "hf": HuggingFaceTokenizer,
}


def from_dict(record: Mapping[str, Any]) -> Tokenizer:
    """Build the tokenizer of a record that to_dict wrote; raises ConfigError for another kind."""
    kind = record.get("kind")
    if kind not in KINDS:
        raise ConfigError(
            f'no kind of tokenizer is called "{kind}"{did_you_mean(str(kind), KINDS)}'
        )
    built: Tokenizer = KINDS[kind].from_dict(record)
    return built


def known_frac(tokenizer: Tokenizer, texts: Iterable[str]) -> float | None:
    """Compute the share of the texts' characters (but white space) that the ids stand for.

    None for a tokenizer that has an id for every byte. Raises ConfigError if most characters become
    <unk> or vanish.
    """
    count = getattr(tokenizer, "known_characters", None)
    if count is None:
        return None
    counts = [count(text[:KNOWN_CHARS]) for text in texts]
    written = sum(written for _, written in counts)
    frac = sum(known for known, _ in counts) / written if written else 1.0
    if frac < LEAST_KNOWN_FRAC:
        raise ConfigError(
            f"the tokenizer {tokenizer.name} knows {frac:.0%} of the characters of this text (all "
            "others become <unk> or vanish), and must know half at least: choose one that was made "
            "for such text, or bpe:V, which is trained on it"
        )
    return frac


def dumps(tokenizer: Tokenizer) -> bytes:
    """Serialize the tokenizer as the bytes of its file; equal tokenizers give equal bytes."""
    return json.dumps(tokenizer.to_dict(), sort_keys=True, ensure_ascii=True).encode()


def sha256(tokenizer: Tokenizer) -> str:
    """Compute the sha256 of the tokenizer's file, which identifies the tokenizer."""
    return hashlib.sha256(dumps(tokenizer)).hexdigest()


def load(path: Path) -> Tokenizer:
    """Load the tokenizer from a corpus's file."""
    return from_dict(json.loads(path.read_bytes()))
