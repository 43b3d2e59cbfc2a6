"""Text that is tokenized already: flat ids (.bin, .npy) or the paper's packed rows (.pt).

Where the documents begin is not known, so such a corpus is split by row, keeps the order it has,
and has no bits per byte. A .pt file is a table of `chunks` (flat tensors, each batch_size rows of
sequence_size = T + 1 ids, the last one padded) and `valid_counts` (how many rows of each are real);
it is loaded with weights_only, so it can run no code.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from dcray.errors import ConfigError
from dcray.sources import SourceOptions, content

Array = np.ndarray[Any, np.dtype[Any]]
SUFFIXES = (".bin", ".npy", ".pt")
PACKED = ("chunks", "valid_counts", "batch_size", "sequence_size")


class Tokens(SourceOptions):
    """The ids of one file, or of a folder's files by name."""

    ARGUMENT: ClassVar[str] = "path"

    path: Path
    validation: Path | None = None  # a file of its own; None: the first rows
    vocabulary: str | None = None  # what the ids mean: gpt2, byte, bpe:V, ids:V or hf:PATH
    dtype: Literal["uint16", "uint32"] = "uint16"  # of .bin files, which do not say
    row_tokens: int = Field(2048, ge=2)  # of flat files: the unit of the split
    licence: str | None = None

    def request(self) -> dict[str, Any]:
        """The options, and the files: one that was edited is another request."""
        found = self.paths()
        held = [*found, *([self.validation] if self.validation else [])]
        if self.validation and not self.validation.is_file():
            raise ConfigError(f"tokens.validation: {self.validation} is no file")
        return {
            **super().request(),
            "path": str(self.path.resolve()),
            "files": len(found),
            "bytes": sum(path.stat().st_size for path in found),
            "content": content(Path("/"), [path.resolve() for path in held]),
        }

    def paths(self) -> list[Path]:
        """The files, sorted by name; raises ConfigError where there is none."""
        if not self.path.exists():
            raise ConfigError(f"{self.path} does not exist: tokens needs a file or a folder")
        found = [self.path] if self.path.is_file() else sorted(self.path.glob("*"))
        found = [path for path in found if path.suffix in SUFFIXES and path.is_file()]
        if not found:
            raise ConfigError(
                f"{self.path} holds no tokens: needs a file or folder of {', '.join(SUFFIXES)}"
            )
        return found

    def tokens(self) -> Iterator[Array]:
        """Rows of ids, file by file."""
        for path in self.paths():
            yield from self._rows(path)

    def validation_tokens(self) -> Iterator[Array] | None:
        """Rows of the validation file; None where the corpus gives its own first rows."""
        return None if self.validation is None else self._rows(self.validation)

    def _rows(self, path: Path) -> Iterator[Array]:
        try:
            if path.suffix == ".pt":
                yield from packed_rows(path)
            else:
                flat = self._flat(path)
                for start in range(0, len(flat), self.row_tokens):
                    yield flat[start : start + self.row_tokens]
        except (OSError, ValueError, EOFError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"{path} cannot be read: {error}") from error

    def _flat(self, path: Path) -> Array:
        if not path.stat().st_size:
            raise ConfigError(f"{path} is empty")
        if path.suffix == ".npy":
            array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
            if array.dtype.kind not in "ui":
                raise ConfigError(f"{path} must hold whole numbers, has dtype {array.dtype}")
            if array.dtype.kind == "i" and array.size and int(array.min()) < 0:
                raise ConfigError(f"{path} holds the id {int(array.min())}; ids are not negative")
            return array.reshape(-1)
        dtype = np.dtype(self.dtype).newbyteorder("<")
        if path.stat().st_size % dtype.itemsize:
            raise ConfigError(
                f"{path} is no whole number of {self.dtype} ids: cut off, or another dtype"
            )
        return np.memmap(path, dtype, "r")


def packed_rows(path: Path) -> Iterator[Array]:
    """The real rows of a packed file, each (T + 1,); raises ConfigError for another format."""
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
