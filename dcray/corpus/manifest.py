"""A corpus on disk: its manifest, and the token stream that its shards hold.

manifest.json           what it was made of, counts, hashes
tokenizer.json          needs no network to be read again
train-00000.bin ...     the stream of the training documents, flat little-endian ids
train_offsets.npy       where each document (or row) starts in it
validation.bin, validation_offsets.npy
validation_bytes.bin    int16: source bytes of each validation token, -1 at <|endoftext|>
"""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import ValidationError

from dcray.sections import Frozen
from dcray.corpus import tokenizers
from dcray.errors import ConfigError

FORMAT = 1  # of the folder; rises when an older dcray could not read it
MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.json"
VALIDATION = "validation.bin"
VALIDATION_BYTES = "validation_bytes.bin"
NO_TEXT = -1  # source bytes of <|endoftext|>
HASH_BYTES = 1 << 24

Array = np.ndarray[Any, np.dtype[Any]]


class TokenizerRecord(Frozen):
    """The tokenizer's name and ids; its file holds the rest."""

    name: str
    sha256: str
    vocab_size: int
    eot_id: int
    mask_id: int


class Part(Frozen):
    """Counts of the training stream or of the validation set; source_bytes is None where there is no text."""

    documents: int
    tokens: int
    source_bytes: int | None


class Budget(Frozen):
    """One budget and the sha256 of its prefix of the stream."""

    tokens: int
    sha256: str


class ShardRecord(Frozen):
    """One file of the stream: its first token's place in it, how many it holds, its hash."""

    file: str
    start: int
    tokens: int
    sha256: str


class Notes(Frozen):
    """How often something was met, in how many documents, and the first few of them by id."""

    count: int = 0
    documents: int = 0
    examples: tuple[str, ...] = ()


class Overlap(Frozen):
    """What the validation set shares with the training stream, counted after both were written."""

    shared_documents: int
    duplicates_removed: int  # exact copies, kept once


class Manifest(Frozen):
    """What a corpus is. Holds no time and no path of its own: equal requests give equal manifests."""

    format: int = FORMAT
    dcray: str
    python: str
    request: dict[str, Any]
    source: dict[str, Any]
    split: Literal["document", "row"]
    seed: int
    tokenizer: TokenizerRecord
    dtype: Literal["uint16", "uint32"]
    train: Part
    validation: Part
    available_tokens: int  # of training text in the source
    available_exact: bool  # False: estimated, the rest of the source was not encoded
    budgets: tuple[Budget, ...]
    shards: tuple[ShardRecord, ...]
    files: dict[str, str]  # every other file's sha256
    invalid_utf8: Notes = Notes()
    empty_documents: Notes = Notes()
    overlap: Overlap


class Shard(NamedTuple):
    """A file that holds tokens start ... start + count of the stream (count: of those asked for)."""

    path: Path
    start: int
    count: int
    sha256: str


class Corpus:
    """A prepared corpus, read; `Corpus.open` checks its manifest, `verify` its files."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest

    @classmethod
    def open(cls, path: str | Path) -> Corpus:
        """Raises ConfigError where there is no corpus, or one that a newer dcray wrote."""
        folder = Path(path)
        return cls(folder, read_manifest(folder))

    @property
    def num_tokens(self) -> int:
        """Tokens of the stored training stream: the largest budget."""
        return self.manifest.train.tokens

    @property
    def vocab_size(self) -> int:
        return self.manifest.tokenizer.vocab_size

    @property
    def eot_id(self) -> int:
        return self.manifest.tokenizer.eot_id

    @property
    def mask_id(self) -> int:
        return self.manifest.tokenizer.mask_id

    @property
    def dtype(self) -> np.dtype[Any]:
        return stored_dtype(self.manifest.dtype)

    @cached_property
    def tokenizer(self) -> tokenizers.Tokenizer:
        """Read from the corpus's own file; raises ConfigError where that was edited."""
        self._check(TOKENIZER, self.manifest.files[TOKENIZER])
        return tokenizers.load(self.path / TOKENIZER)

    def shards(self, num_tokens: int | None = None) -> list[Shard]:
        """The files that hold the first `num_tokens` tokens of the stream (None: all)."""
        wanted = self.num_tokens if num_tokens is None else num_tokens
        self.check_budget(wanted)
        return [
            Shard(self.path / s.file, s.start, min(s.tokens, wanted - s.start), s.sha256)
            for s in self.manifest.shards
            if s.start < wanted
        ]

    def tokens(self, num_tokens: int | None = None, *, verify: bool = False) -> Array:
        """The first `num_tokens` tokens, 1-D: memory-mapped where one shard holds them, else copied.

        `verify` checks the hashes of the shards that are read. Raises ConfigError for a shard that is
        missing or has another size.
        """
        shards = self.shards(num_tokens)
        if verify:
            for shard in shards:
                self.verify_shard(shard.path)
        mapped = [self._map(shard.path.name)[: shard.count] for shard in shards]
        return mapped[0] if len(mapped) == 1 else np.concatenate(mapped)

    def validation(self, num_tokens: int | None = None) -> tuple[Array, Array | None]:
        """(tokens, source bytes of each token: int16, -1 at <|endoftext|>); None where there is no text."""
        held = self.manifest.validation.tokens
        wanted = held if num_tokens is None else num_tokens
        if not 0 < wanted <= held:
            raise ConfigError(
                f"data.val_tokens must be in 1 ... {held}, the corpus's, got {wanted}"
            )
        tokens = self._map(VALIDATION)[:wanted]
        if VALIDATION_BYTES not in self.manifest.files:
            return tokens, None
        return tokens, np.memmap(self.path / VALIDATION_BYTES, "<i2", "r")[:wanted]

    def offsets(self) -> Array:
        """Where each document (or row) starts in the training stream, int64, rising from 0."""
        found: Array = np.load(self.path / "train_offsets.npy", mmap_mode="r")
        return found

    def verify(self) -> None:
        """Hash every file; raises ConfigError that names each truncated or edited one."""
        problems: list[str] = []
        expected = {shard.file: shard.sha256 for shard in self.manifest.shards}
        for name, digest in {**self.manifest.files, **expected}.items():
            try:
                self._check(name, digest)
            except ConfigError as error:
                problems += error.problems
        if problems:
            raise ConfigError(problems)

    def verify_shard(self, path: str | Path) -> None:
        """Hash one shard; raises ConfigError where it was truncated or edited."""
        known = {shard.file: shard for shard in self.manifest.shards}
        name = Path(path).name
        if name not in known:
            raise ConfigError(f"{path} is no shard of {self.path}")
        self._check(name, known[name].sha256)

    def prefix_sha256(self, num_tokens: int) -> str:
        """The sha256 of the first `num_tokens` tokens, as stored; from the manifest where it is a budget."""
        self.check_budget(num_tokens)
        for budget in self.manifest.budgets:
            if budget.tokens == num_tokens:
                return budget.sha256
        digest = hashlib.sha256()
        for shard in self.shards(num_tokens):
            _update(digest, self._map(shard.path.name)[: shard.count])
        return digest.hexdigest()

    def reads(self, unique_tokens: int, val_tokens: int | None = None) -> str:
        """The identity of what a run reads: sha256 over the tokenizer, the prefix and the validation tokens.

        The same whatever the corpus's list of budgets, its shards and its source's folder were.
        """
        validation = hashlib.sha256()
        _update(validation, self.validation(val_tokens)[0])
        parts = (
            self.manifest.tokenizer.sha256,
            self.prefix_sha256(unique_tokens),
            validation.hexdigest(),
        )
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def check_budget(self, unique_tokens: int) -> None:
        """Raises ConfigError where the corpus holds fewer tokens, or none are asked for."""
        if unique_tokens < 1:
            raise ConfigError(f"data.unique_tokens must be at least 1, got {unique_tokens}")
        if unique_tokens > self.num_tokens:
            raise ConfigError(
                f"data.unique_tokens must be at most {self.num_tokens}, the training tokens of "
                f"{self.path}, got {unique_tokens}; prepare it with a larger budget into another folder"
            )

    def _map(self, name: str) -> Array:
        """A file of ids, memory-mapped; raises ConfigError where it has not the size of the manifest."""
        expected = {shard.file: shard.tokens for shard in self.manifest.shards}
        count = expected.get(name, self.manifest.validation.tokens)
        path = self.path / name
        size = path.stat().st_size if path.exists() else None
        if size != count * self.dtype.itemsize:
            raise ConfigError(
                _damaged(path, f"holds {size} bytes, not {count * self.dtype.itemsize}")
            )
        return np.memmap(path, self.dtype, "r")

    def _check(self, name: str, expected: str) -> None:
        path = self.path / name
        if not path.exists():
            raise ConfigError(_damaged(path, "is missing"))
        if sha256_file(path) != expected:
            raise ConfigError(
                _damaged(path, "was truncated or edited: its sha256 is not the manifest's")
            )


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a corpus folder; raises ConfigError where it cannot be used."""
    path = folder / MANIFEST
    if not path.is_file():
        raise ConfigError(
            f"{folder} is no corpus: it has no {MANIFEST}; make one with dcray prepare"
        )
    try:
        record = json.loads(path.read_bytes())
        if int(record["format"]) > FORMAT:
            raise ConfigError(
                f"{path} was written by a newer dcray ({record.get('dcray')}, format {record['format']}; "
                f"this one reads up to {FORMAT}): upgrade dcray, or prepare the corpus again"
            )
        return Manifest.model_validate(record)
    except ConfigError:
        raise
    except (ValueError, KeyError, TypeError, OSError, ValidationError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(_damaged(path, f"cannot be read ({reason})")) from None


def stored_dtype(name: str) -> np.dtype[Any]:
    """Little-endian uint16 or uint32."""
    return np.dtype(name).newbyteorder("<")


def dtype_for(vocab_size: int) -> Literal["uint16", "uint32"]:
    """The smallest stored dtype that holds every id."""
    if vocab_size > 2**32:
        raise ConfigError(f"a vocabulary must have at most 2^32 ids, got {vocab_size}")
    return "uint16" if vocab_size <= 2**16 else "uint32"


def sha256_file(path: Path) -> str:
    """The sha256 of a file, read in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _update(digest: Any, tokens: Array) -> None:
    step = HASH_BYTES // tokens.itemsize
    for start in range(0, len(tokens), step):
        digest.update(np.ascontiguousarray(tokens[start : start + step]))


def _damaged(path: Path, what: str) -> str:
    return f"{path} {what}; delete {path.parent} and run dcray prepare again"
