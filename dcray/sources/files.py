"""Files and folders: text and code, JSON lines (plain, gzip, zstd) and Parquet.

A text file is one document, a line of JSON and a row of Parquet are one document each. Ids are
paths below the folder (with the line or row), so a corpus does not change when its folder is moved.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pyarrow.parquet
import zstandard

from dcray.errors import ConfigError, did_you_mean
from dcray.sources import Document, SourceOptions, content, decode_utf8, tables, text_of, valid_text

if TYPE_CHECKING:
    import ray.data

PROSE = (".txt", ".md", ".rst", ".tex", ".html", ".css")
CODE = (
    *(".py", ".pyi", ".c", ".h", ".cc", ".cpp", ".cxx", ".hpp", ".cu", ".js", ".jsx", ".ts"),
    *(".tsx", ".vue", ".proto", ".zsh", ".bash", ".ps1", ".vim", ".el", ".nim", ".dart", ".d"),
    *(".rs", ".go", ".java", ".kt", ".scala", ".rb", ".php", ".cs", ".swift", ".lua", ".jl", ".r"),
    *(".m", ".pl", ".sh", ".sql", ".hs", ".ml", ".ex", ".erl", ".clj", ".zig", ".f90"),
)
TEXT = PROSE + CODE
LINES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
MAX_BLOCKS = 256  # of the dataset: enough for every core, few enough to start


class Files(SourceOptions):
    """All files of the known kinds under `path`, or the one file that it is."""

    ARGUMENT: ClassVar[str] = "path"

    path: Path
    text_column: str = "text"  # of JSON lines and Parquet
    licence: str | None = None  # as the user knows it; recorded

    def request(self) -> dict[str, Any]:
        """The options, and the files: a folder that grew or was edited is another request."""
        found = self.paths()
        size = sum(path.stat().st_size for path in found)
        return {
            **super().request(),
            "path": str(self.path.resolve()),
            "files": len(found),
            "bytes": size,
            "content": content(self._root, found),
        }

    @property
    def _root(self) -> Path:
        return self.path if self.path.is_dir() else self.path.parent

    def paths(self) -> list[Path]:
        """The files, sorted by path; raises ConfigError where there is none to read."""
        root = self.path
        if root.is_file():
            if not _known(root):
                raise ConfigError(f"{root} is of no kind that can be read{_kinds()}")
            return [root]
        if not root.is_dir():
            raise ConfigError(f"{root} does not exist: files needs a file or a folder")
        known = (path for path in _below(root) if _known(path))
        found = sorted(path for path in known if path.is_symlink() or path.is_file())
        if not found:
            raise ConfigError(f"{root} holds no file that can be read{_kinds()}")
        if broken := [p for p in found if not p.exists()]:
            raise ConfigError([f"{path} cannot be read: it links to nothing" for path in broken])
        return found

    def documents(self) -> ray.data.Dataset:
        return read_files(self._root, self.paths(), self.text_column)


def _below(root: Path) -> Iterator[Path]:
    """Every path below a folder but folders; ConfigError for one that may not be looked into."""

    def stop(error: OSError) -> None:
        raise ConfigError(f"{error.filename} cannot be read: {error.strerror}")

    for folder, _, names in os.walk(root, onerror=stop):
        yield from (Path(folder, name) for name in names)


def read_files(root: Path, paths: list[Path], text_column: str = "text") -> ray.data.Dataset:
    """The documents of `paths`, with ids relative to `root`."""
    import ray.data

    rows = [{"path": str(path), "id": path.relative_to(root).as_posix()} for path in paths]
    listed = ray.data.from_items(rows, override_num_blocks=min(len(rows), MAX_BLOCKS))
    return listed.map_batches(
        partial(_read_all, text_column=text_column), batch_size=None, batch_format="pyarrow"
    )


def _read_all(listed: pa.Table, text_column: str) -> Iterator[pa.Table]:
    yield from tables(
        document
        for row in listed.to_pylist()
        for document in read_file(Path(row["path"]), row["id"], text_column)
    )


def read_file(path: Path, name: str, text_column: str = "text") -> Iterator[Document]:
    """The documents of one file; raises ConfigError that names the file where it cannot be read."""
    try:
        if _ends(path, LINES):
            yield from _read_lines(path, name, text_column)
        elif path.suffix.lower() == ".parquet":
            yield from _read_parquet(path, name, text_column)
        else:
            yield Document(name, *decode_utf8(path.read_bytes()))
    except (OSError, EOFError, zlib.error, zstandard.ZstdError, pa.ArrowException) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def _read_lines(path: Path, name: str, text_column: str) -> Iterator[Document]:
    with _open(path) as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            decoded, replaced = decode_utf8(line.removeprefix(BOM_UTF8) if number == 1 else line)
            try:
                row = json.loads(decoded)
            except (ValueError, RecursionError) as error:  # also numbers and lists without end
                raise ConfigError(f"{path}, line {number} is not JSON: {error}") from None
            text = text_of(row, text_column)
            if text is None:
                raise ConfigError(
                    f'{path}, line {number} has no text in "{text_column}"; name the column by '
                    f"text_column{did_you_mean(text_column, row if isinstance(row, dict) else ())}"
                )
            text, lone = valid_text(text)
            yield Document(f"{name}:{number}", text, replaced + lone)


def _read_parquet(path: Path, name: str, text_column: str) -> Iterator[Document]:
    with pyarrow.parquet.ParquetFile(path) as file:
        columns = file.schema_arrow.names
        if text_column not in columns:
            raise ConfigError(
                f'{path} has no column "{text_column}"; name the column of the text by '
                f"text_column{did_you_mean(text_column, columns)}"
            )
        row = 0
        for batch in file.iter_batches(batch_size=256, columns=[text_column]):
            for raw in batch.column(0).cast(pa.large_binary()).to_pylist():
                yield Document(f"{name}:{row}", *decode_utf8(raw or b""))
                row += 1


def _open(path: Path) -> io.BufferedIOBase:
    if path.suffix.lower() == ".gz":
        return gzip.open(path)
    if path.suffix.lower() == ".zst":
        stream = zstandard.open(path, "rb")
        return io.BufferedReader(stream, 1 << 20)
    return path.open("rb")


def _ends(path: Path, suffixes: tuple[str, ...]) -> bool:
    return path.name.lower().endswith(suffixes)


def _known(path: Path) -> bool:
    return path.suffix.lower() in TEXT or _ends(path, (*LINES, ".parquet"))


def _kinds() -> str:
    return f" (known: {' '.join([*LINES, '.parquet', *sorted(TEXT)])})"


PLUGIN = Files
