"""Text that is tokenized already: flat ids (.bin, .npy) or the paper's packed rows (.pt).

The starts of the documents are not known, so such a corpus is split by row, keeps its order,
and has no bits per byte. A .pt file is a table of `chunks` (flat tensors, each batch_size rows of
sequence_size = T + 1 ids, the last one padded) and `valid_counts` (how many rows of each are real);
it is loaded with weights_only, so it can run no code.

A val.bin beside train.bin (nanoGPT's layout), or a file with such a word in its name
(fineweb_val_000000.bin), is the validation set; a test set is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from dcray.errors import ConfigError
from dcray.sources import LeftOut, SourceOptions, content, left_out_line
from dcray.sources._ids import flat_ids, is_raw
from dcray.sources._walk import HIDDEN

Array = np.ndarray[Any, np.dtype[Any]]
SUFFIXES = (".bin", ".npy", ".pt")
PACKED = ("chunks", "valid_counts", "batch_size", "sequence_size")
ROLES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "validation"),
    "test": "test",
}
ROLE = re.compile(rf"(?<![a-z])({'|'.join(ROLES)})(?![a-z])")  # a word of a file's name


class Tokens(SourceOptions):
    """The ids of one file, or of a folder's files sorted by name."""

    ARGUMENT: ClassVar[str] = "path"

    path: Path
    validation: Path | None = None  # a file; None: one that is named so, else the first rows
    vocabulary: str | None = None  # what the ids mean: gpt2, byte, bpe:V, ids:V or hf:PATH
    dtype: Literal["uint16", "uint32", "int32", "int64"] = "uint16"  # of files that do not say
    row_tokens: int = Field(2048, ge=2)  # of flat files: the unit of the split
    licence: str | None = None

    def request(self) -> dict[str, Any]:
        """Return the options and the files: a file that was edited makes another request."""
        found = self.paths()
        held = [*found, *self.validation_paths()]
        return {
            **super().request(),
            "path": str(self.path.resolve()),
            "files": len(found),
            "bytes": sum(path.stat().st_size for path in found),
            "content": content(Path("/"), [path.resolve() for path in held]),
        }

    def describe(self) -> dict[str, Any]:
        """Describe the source for the manifest, with validation files and what is left out."""
        return {
            **super().describe(),
            "validation_files": [path.name for path in self.validation_paths()],
            "left_out": self.left_out(),
        }

    def left_out(self) -> dict[str, Any]:
        """Return what is not read, as LeftOut records it."""
        return self._listed()[2].record()

    def paths(self) -> list[Path]:
        """List the files to train on, sorted by name; raises ConfigError for none."""
        return self._listed()[0]

    def validation_paths(self) -> list[Path]:
        """List the files of the validation set; none if that is the first rows."""
        return self._listed()[1]

    def _listed(self) -> tuple[list[Path], list[Path], LeftOut]:
        left_out = LeftOut()
        if not self.path.exists():
            raise ConfigError(f"{self.path} does not exist: tokens needs a file or a folder")
        if self.validation and not self.validation.is_file():
            raise ConfigError(f"tokens.validation: {self.validation} is no file")
        if self.path.is_dir():
            found, named = _by_role(sorted(_known(self.path, left_out)), left_out)
        else:
            found = [self.path] if self.path.suffix.lower() in SUFFIXES else []
            named = _beside(self.path)
        if self.validation:
            chosen = self.validation.resolve()
            found = [path for path in found if path.resolve() != chosen]
            for path in (path for path in named if path.resolve() != chosen):
                left_out.add("for validation, where another file is given", path.name)
            named = [self.validation]
        if not found:
            left = f"; left out: {left_out_line(left_out.record())}" if left_out.record() else ""
            raise ConfigError(
                f"{self.path} holds no tokens to train on: needs a file or folder of "
                f"{', '.join(SUFFIXES)}{left}"
            )
        return found, named, left_out

    def tokens(self) -> Iterator[Array]:
        """Yield rows of ids, file by file."""
        return chain.from_iterable(map(self._rows, self.paths()))

    def validation_tokens(self) -> Iterator[Array] | None:
        """Yield rows of the validation files; None if the corpus gives its own first rows."""
        found = self.validation_paths()
        return chain.from_iterable(map(self._rows, found)) if found else None

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise ConfigError for raw files whose assumed dtype cannot hold the vocabulary."""
        if "dtype" in self.model_fields_set or vocab_size <= 2**16:
            return
        raw = [p for p in (*self.paths(), *self.validation_paths()) if _is_flat(p) and is_raw(p)]
        if raw:
            raise ConfigError(
                f"a vocabulary of {vocab_size:,} ids does not fit in {self.dtype}, as which "
                f"{raw[0]} would be read: give --option dtype=uint32 (or int32, int64; or "
                f"dtype={self.dtype}, if that is what it is)"
            )

    def _rows(self, path: Path) -> Iterator[Array]:
        try:
            if not _is_flat(path):
                yield from packed_rows(path)
            else:
                flat = flat_ids(path, self.dtype, sure="dtype" in self.model_fields_set)
                for start in range(0, len(flat), self.row_tokens):
                    yield flat[start : start + self.row_tokens]
        except (OSError, ValueError, EOFError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"{path} cannot be read: {error}") from error


def _known(folder: Path, left_out: LeftOut) -> Iterator[Path]:
    """Yield the files of a folder that can hold ids; count all else as left out."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            left_out.add(HIDDEN, path.name)
        elif path.is_dir():
            left_out.add("folders, not looked into", f"{path.name}/")
        elif path.suffix.lower() not in SUFFIXES:
            left_out.add(path.suffix.lower() or "without an ending", path.name)
        elif not path.is_file():
            raise ConfigError(f"{path} cannot be read: it is no file, or links to nothing")
        else:
            yield path


def _by_role(paths: list[Path], left_out: LeftOut) -> tuple[list[Path], list[Path]]:
    """Split a folder's files into (training, validation); count those for tests as left out."""
    validation = [path for path in paths if _role(path) == "validation"]
    tests = [path for path in paths if _role(path) == "test"]
    train = [path for path in paths if path not in (*validation, *tests)]
    if not train:  # such files alone are what is meant
        return paths, []
    for path in tests:
        left_out.add("for tests", path.name)
    return train, validation


def _role(path: Path) -> str | None:
    found = ROLE.search(path.stem.lower())
    return ROLES[found[1]] if found else None


def _beside(path: Path) -> list[Path]:
    """Find a training file's validation files: beside it, with the same name up to that word."""
    found = ROLE.search(path.stem.lower())
    if not found or ROLES[found[1]] != "train":
        return []
    begins = path.name.lower()[: found.start()]
    return [
        other
        for other in sorted(path.parent.iterdir())
        if other.suffix == path.suffix and other.is_file() and _role(other) == "validation"
        if other.name.lower().startswith(begins) and ROLE.match(other.stem.lower(), len(begins))
    ]


def _is_flat(path: Path) -> bool:
    return path.suffix.lower() != ".pt"


def packed_rows(path: Path) -> Iterator[Array]:
    """Yield the real rows of a packed file, (T + 1,) each; raises ConfigError for other formats."""
    import torch

    try:
        table = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{path} cannot be loaded as tensors alone: {reason}") from None
    if not isinstance(table, dict) or (missing := [key for key in PACKED if key not in table]):
        lacks = ", ".join(missing) if isinstance(table, dict) else "everything"
        raise ConfigError(f"{path} is not a packed file of rows: it lacks {lacks}")
    shape = (int(table["batch_size"]), int(table["sequence_size"]))
    if len(table["chunks"]) != len(table["valid_counts"]):
        raise ConfigError(f"{path} has {len(table['chunks'])} chunks, not one for each valid count")
    for chunk, valid in zip(table["chunks"], table["valid_counts"], strict=True):
        if chunk.numel() != shape[0] * shape[1] or not 0 <= valid <= shape[0]:
            raise ConfigError(
                f"{path}: a chunk of {chunk.numel()} ids with {valid} valid rows is not "
                f"{shape[0]} rows of {shape[1]}"
            )
        yield from chunk.numpy().reshape(shape)[:valid]


PLUGIN = Tokens
