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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from dcray.corpus.encoders import (
    BytePairTokenizer,
    ByteTokenizer,
    HuggingFaceTokenizer,
    Ids,
    TokenIds,
)
from dcray.errors import ConfigError, did_you_mean


class Tokenizer(Protocol):
    """What a corpus is encoded by. Ids run from 0 to vocab_size - 1, special ones included."""

    @property
    def name(self) -> str: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def eot_id(self) -> int: ...
    @property
    def mask_id(self) -> int: ...

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """The ids of each text, uint32; no special ids."""

    def token_bytes(self, text: str, ids: Ids) -> Ids:
        """How many UTF-8 bytes of `text` each of its `ids` stands for, int64; they sum to all.

        `ids` may be the first of the text's ids alone: then the first of the numbers.
        """

    def decode(self, ids: Sequence[int] | Ids) -> str: ...

    def to_dict(self) -> dict[str, Any]:
        """Everything that from_dict needs, JSON."""


KINDS: dict[str, Any] = {
    "byte": ByteTokenizer,
    "ids": TokenIds,
    "bpe": BytePairTokenizer,
    "hf": HuggingFaceTokenizer,
}


def from_dict(record: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of a record that to_dict wrote."""
    kind = record.get("kind")
    if kind not in KINDS:
        raise ConfigError(
            f'no kind of tokenizer is called "{kind}"{did_you_mean(str(kind), KINDS)}'
        )
    built: Tokenizer = KINDS[kind].from_dict(record)
    return built


def dumps(tokenizer: Tokenizer) -> bytes:
    """The tokenizer as the bytes of its file; equal tokenizers give equal bytes."""
    return json.dumps(tokenizer.to_dict(), sort_keys=True, ensure_ascii=True).encode()


def sha256(tokenizer: Tokenizer) -> str:
    """The tokenizer's identity."""
    return hashlib.sha256(dumps(tokenizer)).hexdigest()


def load(path: Path) -> Tokenizer:
    """The tokenizer of a corpus's file."""
    return from_dict(json.loads(path.read_bytes()))
