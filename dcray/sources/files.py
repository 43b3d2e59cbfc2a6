"""Files and folders: text and code, JSON (lines or one value) and Parquet, compressed or not.

A text file is one document, and so is a line of JSON, an entry of a JSON array or a row of
Parquet. Ids are paths below the folder (with the line or row), so a corpus does not change when
its folder is moved. What is left out is counted; what cannot be read as meant is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
from pydantic import field_validator

from dcray.errors import ConfigError
from dcray.sources import Document, LeftOut, SourceOptions, content, left_out_line, tables
from dcray.sources._encoding import REFUSE, REMEDY, check_not_utf8, decode_file, fault_of, refusal
from dcray.sources._rows import RowFile
from dcray.sources._streams import COMPRESSED, CUT_OFF, opened
from dcray.sources._walk import walk

if TYPE_CHECKING:
    import ray.data

PROSE = (".txt", ".md", ".rst", ".tex", ".html", ".css")
CODE = (
    *(".py", ".pyi", ".c", ".h", ".cc", ".cpp", ".cxx", ".hpp", ".cu", ".js", ".jsx", ".ts"),
    *(".tsx", ".vue", ".proto", ".zsh", ".bash", ".ps1", ".vim", ".el", ".nim", ".dart", ".d"),
    *(".rs", ".go", ".java", ".kt", ".scala", ".rb", ".php", ".cs", ".swift", ".lua", ".jl", ".r"),
    *(".m", ".pl", ".sh", ".sql", ".hs", ".ml", ".ex", ".erl", ".clj", ".zig", ".f90"),
)
TEXT, LINES, JSON, PARQUET, BARE = "text", "lines", "json", "parquet", "bare"
KINDS = {
    **dict.fromkeys(PROSE + CODE, TEXT),
    ".jsonl": LINES,
    ".ndjson": LINES,
    ".json": JSON,
    ".parquet": PARQUET,
    "": BARE,  # no ending: JSON lines if it begins so, else text
}
NO_TEXT = "without an ending, and no text"
MAX_BLOCKS = 256  # of the dataset: enough for every core, few enough to start


class Files(SourceOptions):
    """All files of the known kinds below `path`, or `path` itself if it is a file."""

    ARGUMENT: ClassVar[str] = "path"
    LATER: ClassVar[frozenset[str]] = frozenset({"leave_out", "not_utf8"})

    path: Path
    text_column: str = "text"  # of JSON and Parquet
    leave_out: str = ""  # patterns of names or paths below the folder: "*.json,drafts"
    not_utf8: str = REFUSE  # files in another encoding: "refuse", "replace", or its name
    licence: str | None = None  # as the user knows it; recorded

    @field_validator("not_utf8")
    @classmethod
    def _is_encoding(cls, value: str) -> str:
        return check_not_utf8(value)

    def request(self) -> dict[str, Any]:
        """Return the options and the files: a folder that grew or was edited is another request."""
        found = self.paths()
        size = sum(path.stat().st_size for path in found)
        return {
            **super().request(),
            "path": str(self.path.resolve()),
            "files": len(found),
            "bytes": size,
            "content": content(self._root, found),
        }

    def describe(self) -> dict[str, Any]:
        """Describe the source for the manifest, with what is left out: counts and first names."""
        return {**super().describe(), "left_out": self.left_out()}

    def left_out(self) -> dict[str, Any]:
        """Return what is not read, as LeftOut records it."""
        return self._listed()[1].record()

    @property
    def _root(self) -> Path:
        return self.path if self.path.is_dir() else self.path.parent

    def paths(self) -> list[Path]:
        """List the files, sorted by path; raises ConfigError for none, and for files not text."""
        return self._listed()[0]

    def _listed(self) -> tuple[list[Path], LeftOut]:
        root, left_out = self.path, LeftOut()
        if root.is_file():
            kinds = {root: kind_of(root)}
            if kinds[root] is None:
                raise ConfigError(f"{root} is of no kind that can be read{_kinds()}")
        elif not root.is_dir():
            raise ConfigError(f"{root} does not exist: files needs a file or a folder")
        else:
            kinds = self._known_below(root, left_out)
        if broken := [path for path in kinds if not path.exists()]:
            raise ConfigError([f"{path} cannot be read: it links to nothing" for path in broken])
        found = self._decodable(kinds, left_out)
        if not found:
            left = f"; left out: {left_out_line(left_out.record())}" if left_out.record() else ""
            raise ConfigError(f"{root} holds no file that can be read{_kinds()}{left}")
        return found, left_out

    def _known_below(self, root: Path, left_out: LeftOut) -> dict[Path, str | None]:
        """Find the files of the known kinds, sorted by path, each with its kind."""
        patterns = [part.strip() for part in self.leave_out.split(",") if part.strip()]
        found = {path: kind_of(path) for path in sorted(walk(root, patterns, left_out))}
        for path in (path for path, kind in found.items() if kind is None):
            left_out.add(path.suffix.lower(), path.relative_to(root).as_posix())
        return {path: kind for path, kind in found.items() if kind}

    def _decodable(self, kinds: dict[Path, str | None], left_out: LeftOut) -> list[Path]:
        """Drop files that have no ending and hold no text; raise ConfigError for other faults."""
        bare = [path for path, kind in kinds.items() if kind == BARE and path != self.path]
        texts = [
            path
            for path, kind in kinds.items()
            if (kind == TEXT and not _is_compressed(path)) or (kind == BARE and path == self.path)
        ]
        with ThreadPoolExecutor() as pool:
            faults = list(pool.map(partial(_fault, not_utf8=self.not_utf8), texts))
            no_text = {p for p, fault in zip(bare, pool.map(_fault, bare), strict=True) if fault}
        if refused := refusal(zip(texts, faults, strict=True)):
            raise ConfigError(refused)
        for path in sorted(no_text):
            left_out.add(NO_TEXT, path.relative_to(self._root).as_posix())
        return [path for path in kinds if path not in no_text]

    def documents(self) -> ray.data.Dataset:
        return read_files(self._root, self.paths(), self.text_column, self.not_utf8)


def _fault(path: Path, not_utf8: str = REFUSE) -> str | None:
    try:
        return fault_of(path, not_utf8)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from None


def read_files(
    root: Path, paths: list[Path], text_column: str = "text", not_utf8: str = REFUSE
) -> ray.data.Dataset:
    """Read the documents of `paths` by Ray Data, with ids relative to `root`."""
    import ray.data

    rows = [{"path": str(path), "id": path.relative_to(root).as_posix()} for path in paths]
    listed = ray.data.from_items(rows, override_num_blocks=min(len(rows), MAX_BLOCKS))
    return listed.map_batches(
        partial(_read_all, text_column=text_column, not_utf8=not_utf8),
        batch_size=None,
        batch_format="pyarrow",
    )


def _read_all(listed: pa.Table, text_column: str, not_utf8: str) -> Iterator[pa.Table]:
    yield from tables(
        document
        for row in listed.to_pylist()
        for document in read_file(Path(row["path"]), row["id"], text_column, not_utf8)
    )


def read_file(
    path: Path, name: str, text_column: str = "text", not_utf8: str = REFUSE
) -> Iterator[Document]:
    """Yield the documents of one file; if it holds none, one empty document, which is counted.

    Raises ConfigError that names the file if it cannot be read to its end.
    """
    row_file = RowFile(path, name, text_column, not_utf8)
    empty = True
    try:
        for document in _read(row_file):
            empty = False
            yield document
    except (OSError, pa.ArrowException, UnicodeError, *CUT_OFF) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if empty:
        yield Document(name, "")


def _read(row_file: RowFile) -> Iterator[Document]:
    path, kind = row_file.path, kind_of(row_file.path)
    if kind == PARQUET:
        yield from row_file.read_parquet()
        return
    with opened(path) as stream:
        if kind == LINES:
            yield from row_file.read_lines(stream)
        elif kind == JSON or (kind == BARE and row_file.begins(stream)):
            yield from row_file.read_json(stream)
        else:
            try:
                text, replaced = decode_file(stream.read(), row_file.not_utf8)
            except ValueError as error:
                raise ConfigError(f"{path} {error}: {REMEDY}") from None
            yield Document(row_file.name, text, replaced)


def kind_of(path: Path) -> str | None:
    """Find the kind of a file by its ending, less that of its compression; None: it is not read."""
    ending = path.suffix.lower()
    packed = ending in COMPRESSED
    kind = KINDS.get(Path(path.stem).suffix.lower() if packed else ending)
    return None if packed and kind in (PARQUET, BARE) else kind


def _is_compressed(path: Path) -> bool:
    return path.name.lower().endswith(COMPRESSED)


def _kinds() -> str:
    rows = (ending for ending, kind in KINDS.items() if kind not in (TEXT, BARE))
    texts = sorted(ending for ending, kind in KINDS.items() if kind == TEXT)
    packed = ", ".join(COMPRESSED)
    return f" (known: {' '.join([*rows, *texts])}, compressed by {packed}, and no ending)"


PLUGIN = Files
