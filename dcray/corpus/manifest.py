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

from dcray.corpus.record import Manifest, damaged, read_manifest, refuse_missing
from dcray.corpus.tokenizers import tokenizer as tokenizers
from dcray.errors import ConfigError

TOKENIZER = "tokenizer.json"
TRAIN_OFFSETS = "train_offsets.npy"
VALIDATION = "validation.bin"
VALIDATION_OFFSETS = "validation_offsets.npy"
VALIDATION_BYTES = "validation_bytes.bin"
NO_TEXT = -1  # source bytes of <|endoftext|>
HASH_BYTES = 1 << 24
SCANNED = 1 << 22  # tokens that are searched for a document's start at a time

Array = np.ndarray[Any, np.dtype[Any]]


class Shard(NamedTuple):
    """One file's part of the flat stream: `num_tokens` of the tokens asked for, from `start` on."""

    path: Path
    start: int
    num_tokens: int
    sha256: str  # of the whole file


class Corpus:
    """A prepared corpus on disk; `Corpus.open` checks its manifest, `verify` its files."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest

    @classmethod
    def open(cls, path: str | Path) -> Corpus:
        """Open a corpus folder; raises ConfigError if it is none, or a newer dcray wrote it."""
        folder = Path(path).absolute()  # trials run in other folders than this one
        return cls(folder, read_manifest(folder))

    @property
    def num_tokens(self) -> int:
        """Return the number of tokens of the stored training stream: the largest budget."""
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
        """Load the tokenizer from the corpus's own file; raises ConfigError if that was edited."""
        verify_shard(self.path / TOKENIZER, self.manifest.files[TOKENIZER])
        return tokenizers.load(self.path / TOKENIZER)

    def shards(self, num_tokens: int | None = None) -> list[Shard]:
        """List the files that hold the first `num_tokens` tokens of the stream (None: all).

        Raises ConfigError if the corpus holds fewer tokens.
        """
        wanted = self.num_tokens if num_tokens is None else num_tokens
        self.check_budget(wanted)
        return [
            Shard(self.path / s.file, s.start, min(s.tokens, wanted - s.start), s.sha256)
            for s in self.manifest.shards
            if s.start < wanted
        ]

    def tokens(self, num_tokens: int | None = None, *, verify: bool = False) -> Array:
        """Read the first `num_tokens` tokens, 1-D: mapped if one shard holds them, else copied.

        `verify` checks the hashes of the shards that are read. Raises ConfigError for a shard that
        is missing or has another size.
        """
        shards = self.shards(num_tokens)
        if verify:
            for path, _, _, sha256 in shards:
                verify_shard(path, sha256)
        mapped = [self._map(path.name)[:count] for path, _, count, _ in shards]
        return mapped[0] if len(mapped) == 1 else np.concatenate(mapped)

    def validation(self, num_tokens: int | None = None) -> tuple[Array, Array | None]:
        """Read the first `num_tokens` validation tokens (None: all) and each one's source bytes.

        Both are 1-D. The bytes are int16, -1 at <|endoftext|>; None if the corpus has no text.
        Raises ConfigError if the corpus holds fewer tokens.
        """
        held = self.manifest.validation.tokens
        wanted = held if num_tokens is None else num_tokens
        if not 0 < wanted <= held:
            raise ConfigError(
                f"data.val_tokens must be in 1 ... {held}, the corpus's, got {wanted}"
            )
        tokens = self._map(VALIDATION)[:wanted]
        if VALIDATION_BYTES not in self.manifest.files:
            return tokens, None
        return tokens, self._map(VALIDATION_BYTES)[:wanted]

    def offsets(self) -> Array:
        """Map the start of each document (or row) in the training stream, int64, from 0 upwards."""
        found: Array = np.load(self.path / TRAIN_OFFSETS, mmap_mode="r")
        return found

    def verify(self, num_tokens: int | None = None) -> None:
        """Hash every file that holds the first `num_tokens` tokens or the validation set.

        Raises ConfigError that names each truncated or edited file.
        """
        shards = {path.name: sha256 for path, _, _, sha256 in self.shards(num_tokens)}
        files = dict(self.manifest.files)
        if num_tokens is not None:  # a run reads no more than this
            files = {n: sha for n, sha in files.items() if n in (VALIDATION, VALIDATION_BYTES)}
        problems: list[str] = []
        for name, digest in {**files, **shards}.items():
            try:
                verify_shard(self.path / name, digest)
            except ConfigError as error:
                problems += error.problems
        if problems:
            raise ConfigError(problems)

    def verify_shard(self, path: str | Path) -> None:
        """Hash one shard; raises ConfigError if it was truncated or edited."""
        known = {shard.file: shard.sha256 for shard in self.manifest.shards}
        if Path(path).name not in known:
            raise ConfigError(f"{path} is no shard of {self.path}")
        verify_shard(self.path / Path(path).name, known[Path(path).name])

    def prefix_sha256(self, num_tokens: int) -> str:
        """Return the sha256 of the first `num_tokens` stored tokens; a budget's is on record."""
        self.check_budget(num_tokens)
        for budget in self.manifest.budgets:
            if budget.tokens == num_tokens:
                return budget.sha256
        digest = hashlib.sha256()
        for path, _, count, _ in self.shards(num_tokens):
            _update(digest, self._map(path.name)[:count])
        return digest.hexdigest()

    def reads(self, unique_tokens: int, val_tokens: int | None = None) -> str:
        """Compute the identity of what a run reads, a sha256 over tokenizer, prefix and validation.

        It does not depend on the corpus's list of budgets, its shards or its source's folder.
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
        """Raise ConfigError if the corpus holds fewer tokens, or none are asked for."""
        if unique_tokens < 1:
            raise ConfigError(f"data.unique_tokens must be at least 1, got {unique_tokens}")
        if unique_tokens > self.num_tokens:
            raise ConfigError(
                f"data.unique_tokens must be at most {self.num_tokens}, the training tokens of "
                f"{self.path}, got {unique_tokens}; prepare it with a larger budget into another "
                "folder"
            )

    def check_documents(self, num_tokens: int) -> None:
        """Raise ConfigError if no second document starts in the first `num_tokens` tokens."""
        for path, start, count, _ in self.shards(num_tokens):
            tokens = self._map(path.name)[:count]
            for first in range(0, count, SCANNED):  # one is found in the first piece as a rule
                found = np.flatnonzero(tokens[first : first + SCANNED] == self.eot_id)
                if len(found) and start + first + found[-1]:
                    return
        raise ConfigError(one_document(num_tokens, self.eot_id))

    def _map(self, name: str) -> Array:
        """Map a file of the corpus; raises ConfigError if its size is not the manifest's."""
        counts = {shard.file: shard.tokens for shard in self.manifest.shards}
        dtype = np.dtype("<i2") if name == VALIDATION_BYTES else self.dtype
        expected = counts.get(name, self.manifest.validation.tokens) * dtype.itemsize
        path = self.path / name
        refuse_missing(path)
        size = path.stat().st_size
        if size != expected:
            raise ConfigError(damaged(path, f"holds {size} bytes, not {expected}"))
        return np.asarray(np.memmap(path, dtype, "r"))


def verify_shard(path: Path, sha256: str) -> None:
    """Hash one file of a corpus; raises ConfigError if it is missing, truncated or edited."""
    refuse_missing(path)
    if sha256_file(path) != sha256:
        raise ConfigError(damaged(path, "was truncated or edited: its sha256 is another"))


def one_document(num_tokens: int, eot_id: int) -> str:
    """Write the sentence for a stream in which there is nothing to shuffle."""
    return (
        'data.order = "documents" needs at least two documents, and behind the first of its '
        f"{num_tokens:,} tokens the corpus holds no <|endoftext|> (id {eot_id}): they are one "
        'document, or ids without ends of documents; take data.order = "rows", or a larger '
        "data.unique_tokens"
    )


def stored_dtype(name: str) -> np.dtype[Any]:
    """Return the little-endian dtype for "uint16" or "uint32"."""
    return np.dtype(name).newbyteorder("<")


def dtype_for(vocab_size: int) -> Literal["uint16", "uint32"]:
    """Choose the smallest stored dtype that holds every id; raises ConfigError above 2^32 ids."""
    if vocab_size > 2**32:
        raise ConfigError(f"a vocabulary must have at most 2^32 ids, got {vocab_size}")
    return "uint16" if vocab_size <= 2**16 else "uint32"


def sha256_file(path: Path) -> str:
    """Compute the sha256 of a file, read in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _update(digest: Any, tokens: Array) -> None:
    step = HASH_BYTES // tokens.itemsize
    for start in range(0, len(tokens), step):
        digest.update(np.ascontiguousarray(tokens[start : start + step]))
