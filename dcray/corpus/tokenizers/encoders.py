"""The kinds of tokenizers, each a value that can be written as JSON.

A text longer than PIECE_CHARS is encoded in pieces. A piece is cut before a single space between
two words if there is one in its second half (then the pieces' ids are those of the whole text),
else at PIECE_CHARS. So the longest run without a space is bounded, and with it the time that a
byte-pair merge or a backtracking expression can take.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from dcray.errors import ConfigError

PIECE_CHARS = 100_000
Ids = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class ByteTokenizer:
    """A tokenizer with one id for each byte; 256 is <|endoftext|>, 257 is [MASK]."""

    name: str = "byte"
    vocab_size: int = 258
    eot_id: int = 256
    mask_id: int = 257

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        return [np.frombuffer(text.encode(), np.uint8).astype(np.uint32) for text in texts]

    def token_bytes(self, text: str, ids: Ids) -> Ids:
        return np.ones(len(ids), np.int64)

    def decode(self, ids: Sequence[int] | Ids) -> str:
        return bytes(int(i) for i in ids if i < 256).decode(errors="replace")

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "byte"}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> ByteTokenizer:
        return cls()


@dataclass(frozen=True)
class TokenIds:
    """A vocabulary without its text: its ids can be counted, but not encoded or decoded."""

    name: str
    vocab_size: int
    eot_id: int
    mask_id: int

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        raise ConfigError(f'the tokenizer "{self.name}" of this corpus is known by its ids alone')

    def token_bytes(self, text: str, ids: Ids) -> Ids:
        raise ConfigError(f'the tokenizer "{self.name}" of this corpus is known by its ids alone')

    def decode(self, ids: Sequence[int] | Ids) -> str:
        raise ConfigError(f'the tokenizer "{self.name}" of this corpus is known by its ids alone')

    def to_dict(self) -> dict[str, Any]:
        fields = ("name", "vocab_size", "eot_id", "mask_id")
        return {"kind": "ids", **{field: getattr(self, field) for field in fields}}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> TokenIds:
        return cls(**{key: value for key, value in record.items() if key != "kind"})


@dataclass(frozen=True)
class BytePairTokenizer:
    """Byte-level byte pairs, encoded by tiktoken: `ranks` are the bytes of ids 0, 1, 2, ..."""

    name: str
    pattern: str
    ranks: tuple[bytes, ...]
    vocab_size: int
    eot_id: int
    mask_id: int

    @cached_property
    def _encoding(self) -> Any:
        import tiktoken

        ranks = {token: rank for rank, token in enumerate(self.ranks)}
        return tiktoken.Encoding(
            self.name, pat_str=self.pattern, mergeable_ranks=ranks, special_tokens={}
        )

    @cached_property
    def _lengths(self) -> Ids:
        return np.array([len(token) for token in self.ranks], np.int64)

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        return [self._encode(text) for text in texts]

    def _encode(self, text: str) -> Ids:
        encode = self._encoding.encode_to_numpy
        if len(text) <= PIECE_CHARS:
            return np.asarray(encode(text, disallowed_special=()))
        return np.concatenate([encode(piece, disallowed_special=()) for piece in pieces(text)])

    def token_bytes(self, text: str, ids: Ids) -> Ids:
        return self._lengths[ids]

    def decode(self, ids: Sequence[int] | Ids) -> str:
        known = len(self.ranks)
        return b"".join(self.ranks[i] for i in ids if i < known).decode(errors="replace")

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": "bpe",
            "name": self.name,
            "pattern": self.pattern,
            "ranks": [base64.b64encode(token).decode() for token in self.ranks],
            "vocab_size": self.vocab_size,
            "eot_id": self.eot_id,
            "mask_id": self.mask_id,
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> BytePairTokenizer:
        fields = {key: value for key, value in record.items() if key not in ("kind", "ranks")}
        return cls(**fields, ranks=tuple(base64.b64decode(token) for token in record["ranks"]))


@dataclass(frozen=True)
class HuggingFaceTokenizer:
    """A tokenizer.json; if it has no <|endoftext|> or [MASK], an id is added after its own."""

    EOT: ClassVar[tuple[str, ...]] = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]")
    MASK: ClassVar[tuple[str, ...]] = ("[MASK]", "<mask>", "<|mask|>")

    name: str
    json: str
    vocab_size: int
    eot_id: int
    mask_id: int

    @classmethod
    def from_file(cls, path: Path) -> HuggingFaceTokenizer:
        """Read `path`, a tokenizer.json or its folder; raises ConfigError if it is none."""
        path = tokenizer_file(path)
        try:
            text = path.read_text(encoding="utf-8")
            built = _hugging_face(text)
        except OSError as error:
            raise ConfigError(f"hf:{path} cannot be read: {error.strerror or error}") from None
        except Exception as error:
            raise ConfigError(f"hf:{path} is not a tokenizer.json: {error}") from None
        vocabulary = built.get_vocab(with_added_tokens=True)
        size = max(vocabulary.values()) + 1
        special = []
        for names in (cls.EOT, cls.MASK):
            ids = [vocabulary[name] for name in names if name in vocabulary]
            special.append(ids[0] if ids else size)
            size += not ids
        return cls(f"hf:{path.parent.name}", text, size, *special)

    @cached_property
    def _built(self) -> Any:
        return _hugging_face(self.json)

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        cut = [list(pieces(text)) for text in texts]
        flat = [piece for parts in cut for piece in parts]
        encoded = iter(self._built.encode_batch(flat, add_special_tokens=False))
        return [
            np.concatenate([np.array(next(encoded).ids, np.uint32) for _ in parts]) for parts in cut
        ]

    def token_bytes(self, text: str, ids: Ids) -> Ids:
        """Count the bytes by character offsets, so also if characters are normalized or dropped.

        Characters that no token covers belong to the token after them (at the end of the text, to
        the last one); a character that is cut into several belongs to the first of them.
        """
        ends: list[Ids] = []
        before = 0
        for piece in pieces(text):
            code_points = np.frombuffer(piece.encode("utf-32-le"), np.uint32)
            widths = 1 + sum(
                (code_points >= edge).astype(np.int64) for edge in (0x80, 0x800, 0x10000)
            )
            upto = np.concatenate([[0], np.cumsum(widths)])
            offsets = self._built.encode(piece, add_special_tokens=False).offsets
            ends.append(before + upto[np.array([end for _, end in offsets], np.int64)])
            before += int(upto[-1])
        covered = np.maximum.accumulate(np.concatenate(ends)) if ends else np.zeros(0, np.int64)
        assert len(covered) >= len(ids), "the ids are not those of the text"
        if len(covered):
            covered[-1] = before
        return np.diff(covered, prepend=0)[: len(ids)]

    def known_characters(self, text: str) -> tuple[int, int]:
        """Count the characters of `text` but white space: (those its ids stand for, all).

        The others become the unknown id, or vanish if the tokenizer's model has no such id.
        """
        known = np.zeros(len(text), bool)
        start = 0
        for piece in pieces(text):
            encoded = self._built.encode(piece, add_special_tokens=False)
            for one, (first, end) in zip(encoded.ids, encoded.offsets, strict=True):
                known[start + first : start + end] |= one != self._unknown_id
            start += len(piece)
        written = ~np.array([character.isspace() for character in text], bool)
        return int(known[written].sum()), int(written.sum())

    @cached_property
    def _unknown_id(self) -> int | None:
        model = json.loads(self.json)["model"]
        if model.get("unk_id") is not None:  # of Unigram
            return int(model["unk_id"])
        token = model.get("unk_token")
        return None if token is None else self._built.token_to_id(token)

    def decode(self, ids: Sequence[int] | Ids) -> str:
        known = [int(i) for i in ids if i not in (self.eot_id, self.mask_id)]
        return str(self._built.decode(known))

    def to_dict(self) -> dict[str, Any]:
        fields = ("name", "json", "vocab_size", "eot_id", "mask_id")
        return {"kind": "hf", **{field: getattr(self, field) for field in fields}}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> HuggingFaceTokenizer:
        return cls(**{key: value for key, value in record.items() if key != "kind"})


def tokenizer_file(path: Path) -> Path:
    """Return `path` itself, or the path of tokenizer.json in it if `path` is a folder."""
    return path / "tokenizer.json" if path.is_dir() else path


def pieces(text: str, limit: int | None = None) -> Iterator[str]:
    """Yield `text` in consecutive pieces of at most `limit` characters (see the module's text)."""
    limit = limit or PIECE_CHARS
    start = 0
    while len(text) - start > limit:
        cut = _space_between_words(text, start + limit // 2, start + limit) or start + limit
        yield text[start:cut]
        start = cut
    yield text[start:]


def _space_between_words(text: str, low: int, high: int) -> int | None:
    """Find the last index in [low, high] of a space with no white space beside it; None: none."""
    at = text.rfind(" ", low, high + 1)
    while at > 0:
        if not text[at - 1].isspace() and not text[at + 1 : at + 2].isspace():
            return at
        at = text.rfind(" ", low, at)
    return None


def _hugging_face(text: str) -> Any:
    import tokenizers

    built = tokenizers.Tokenizer.from_str(text)
    built.encode_special_tokens = True  # "</s>" in a document is text
    built.no_truncation()
    built.no_padding()
    return built
