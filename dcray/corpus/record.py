"""The manifest of a corpus, as values."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from dcray.config.sections import Frozen
from dcray.errors import ConfigError

FORMAT = 1  # of the folder; rises when an older dcray could not read it
MANIFEST = "manifest.json"


class TokenizerRecord(Frozen):
    """The tokenizer's name and ids; the tokenizer's file holds the rest."""

    name: str
    sha256: str
    vocab_size: int
    eot_id: int
    mask_id: int


class Part(Frozen):
    """Counts of the stream or the validation set; source_bytes is None if there is no text."""

    documents: int
    tokens: int
    source_bytes: int | None


class Budget(Frozen):
    """One budget and the sha256 of its prefix of the stream."""

    tokens: int
    sha256: str


class ShardRecord(Frozen):
    """One file of the stream: the place of its first token, its number of tokens, its hash."""

    file: str
    start: int
    tokens: int
    sha256: str


class Notes(Frozen):
    """The number of findings, of the documents that have them, and the ids of the first few."""

    count: int = 0
    documents: int = 0
    examples: tuple[str, ...] = ()


class Overlap(Frozen):
    """The overlap of validation set and training stream, counted after both were written."""

    shared_documents: int
    duplicates_removed: int  # exact copies, kept once


class Manifest(Frozen):
    """The description of a corpus, without times: equal requests give equal manifests."""

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
    used_ids: int | None = None  # of the vocabulary, that occur in the training stream
    known_frac: float | None = None  # of the text's characters (its first MB): not <unk>, not lost


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a corpus folder; raises ConfigError if it cannot be used."""
    path = folder / MANIFEST
    if not path.is_file():
        raise ConfigError(
            f"{folder} is no corpus: it has no {MANIFEST}; make one with dcray prepare"
        )
    try:
        record = json.loads(path.read_bytes())
        if int(record["format"]) > FORMAT:
            raise ConfigError(
                f"{path} was written by a newer dcray ({record.get('dcray')}, format "
                f"{record['format']}; this one reads up to {FORMAT}): upgrade dcray, or prepare "
                "the corpus again"
            )
        return Manifest.model_validate(record)
    except ConfigError:
        raise
    except (ValueError, KeyError, TypeError, OSError, ValidationError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(damaged(path, f"cannot be read ({reason})")) from None


def refuse_missing(path: Path) -> None:
    """Raise ConfigError if a file of a corpus is missing, or its folder is not on this machine."""
    if path.exists():
        return
    folder = path.parent
    if folder.is_dir():
        raise ConfigError(damaged(path, "is missing"))
    raise ConfigError(
        f"the corpus folder {folder} is not on {socket.gethostname()}; every machine that trains "
        "must see it under this path: put it on a shared disk, or copy it there"
    )


def damaged(path: Path, what: str) -> str:
    """Write the sentence for a file that differs from the manifest, with the remedy."""
    return (
        f"{path} {what}; copy that file from an intact copy of the corpus, or give dcray prepare "
        f"again with --out of a new folder in place of {path.parent}"
    )
