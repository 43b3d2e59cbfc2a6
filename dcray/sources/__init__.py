"""Sources: where a corpus comes from, one file for each kind of source.

A source gives documents (Ray Data), or tokens if the text is tokenized already:

    documents() -> ray.data.Dataset   columns id (stable str), text (str), and replaced (int, may be
                                      missing): how many invalid UTF-8 sequences became U+FFFD
    tokens() -> Iterator[ndarray]     one row of ids each; vocabulary: str | None says what the
                                      ids mean (None: the caller of prepare says so)

Its `describe()` returns what the manifest records of the source. Its `left_out()`, which may be
missing, returns what is found there and not read, as LeftOut records it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import pyarrow as pa
from pydantic import ValidationError

from dcray import plugins
from dcray.config.sections import Frozen
from dcray.errors import ConfigError, did_you_mean, plural, rule_of
from dcray.progress import counted

if TYPE_CHECKING:
    import ray.data

SCHEMA = pa.schema([("id", pa.string()), ("text", pa.large_string()), ("replaced", pa.int64())])
TABLE_BYTES = 16_000_000  # of text in one table of documents: what a task holds at a time
TABLE_DOCUMENTS = 10_000
EXAMPLES = 3  # by name, of what is left out for one reason
TOLD_REASONS = 8  # in a line


class Document(NamedTuple):
    """One document; `replaced` counts the invalid UTF-8 sequences that became U+FFFD."""

    id: str
    text: str
    replaced: int = 0


class LeftOut:
    """A count of files and folders that are not read, by reason, with the first few names."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._examples: dict[str, list[str]] = {}

    def add(self, reason: str, name: str) -> None:
        """Count one file; `reason` is its kind or ending, `name` the path to show."""
        self._counts[reason] = self._counts.get(reason, 0) + 1
        examples = self._examples.setdefault(reason, [])
        if len(examples) < EXAMPLES:
            examples.append(name)

    def record(self) -> dict[str, Any]:
        """Return the counts for the manifest: {reason: {"count": int, "examples": [name, ...]}}."""
        return {
            reason: {"count": self._counts[reason], "examples": self._examples[reason]}
            for reason in sorted(self._counts)
        }


def left_out_line(record: Mapping[str, Any]) -> str:
    """Format a record of LeftOut, most first: "2 hidden (.git/, ._a.txt), 1 .png (b.png)"."""
    most = sorted(record.items(), key=lambda item: -item[1]["count"])
    parts = [
        f"{held['count']:,} {reason} ({', '.join(held['examples'])}"
        f"{', ...' if held['count'] > len(held['examples']) else ''})"
        for reason, held in most[:TOLD_REASONS]
    ]
    if rest := most[TOLD_REASONS:]:
        more = sum(held["count"] for _, held in rest)
        parts.append(f"{more:,} of {plural(len(rest), 'other kind')}")
    return ", ".join(parts)


class SourceOptions(Frozen):
    """The base of the built-in sources; the fields are a source's options."""

    ARGUMENT: ClassVar[str | None] = None  # the option that NAME:VALUE on the command line sets
    LATER: ClassVar[frozenset[str]] = frozenset()  # options that corpora of old do not know

    def request(self) -> dict[str, Any]:
        """Return what was asked for: equal requests give equal corpora. Needs no network.

        Options of LATER are part of the request only if they differ from the default: so a corpus
        that was made before such an option existed still answers the same request.
        """
        asked = self.model_dump(mode="json")
        fields = type(self).model_fields
        for name in self.LATER:
            if getattr(self, name) == fields[name].default:
                del asked[name]
        return {"source": source_name(self), **asked}

    def describe(self) -> dict[str, Any]:
        """Return the source, revision, licence and what else the manifest records of it."""
        return {"revision": None, "licence": None, **self.request()}

    def documents(self) -> ray.data.Dataset:
        """Return the documents; raises NotImplementedError for a source of tokens."""
        raise NotImplementedError


def source_name(source: Any) -> str:
    """Return the name of a built source: its module's, or the `name` of a plug-in."""
    return str(getattr(source, "name", None) or type(source).__module__.rpartition(".")[2])


def parse(text: str, options: Mapping[str, Any] | None = None) -> Any:
    """Build the source that "stdlib", "files:PATH", "huggingface:NAME" or "tokens:PATH" names.

    Raises ConfigError for an unknown source or option, and for values that its fields refuse.
    """
    name, colon, value = text.partition(":")
    is_path = not colon and ("/" in text or "." in text)
    if name not in plugins.names("sources") and is_path:
        raise ConfigError(f'no source is called "{text}"; for a file or folder write files:{text}')
    kind = plugins.plugin("sources", name)
    chosen = dict(options or {})
    if colon:
        argument = getattr(kind, "ARGUMENT", None)
        if argument is None:
            raise ConfigError(f'source "{name}" takes nothing after a colon, got "{value}"')
        chosen[argument] = value
    try:
        return plugins.load("sources", name, **chosen)
    except ValidationError as error:
        known = getattr(kind, "model_fields", {})
        raise ConfigError([_sentence(name, d, known) for d in error.errors()]) from None


def _sentence(name: str, detail: Any, known: Iterable[str]) -> str:
    field = ".".join(str(step) for step in detail["loc"])
    if detail["type"] == "extra_forbidden":
        return f'source "{name}" has no option "{field}"{did_you_mean(field, known)}'
    if detail["type"] == "missing":
        return f'source "{name}" needs its option "{field}"'
    message = rule_of(detail)
    colon = "" if message.startswith("must ") else ":"
    return message if not field else f"{name}.{field}{colon} {message}, got {detail['input']!r}"


def content(root: Path, paths: Sequence[Path]) -> str:
    """Hash the files' names below `root` and their bytes; their times do not matter.

    Each file is read once in a process: some 1 GB/s, while encoding the text takes 10 MB/s a core.
    Raises ConfigError that names a file that cannot be read, or whose name is not UTF-8: such a
    name could not be a document's id.
    """
    whole = hashlib.blake2b(digest_size=16)
    with ThreadPoolExecutor() as pool:
        digests = pool.map(_file_hash, paths)
        for path, digest in zip(counted("files", paths), digests, strict=True):
            whole.update(f"{_utf8_name(path, root)}\0{digest}\0".encode())
    return whole.hexdigest()


def _utf8_name(path: Path, root: Path) -> str:
    name = path.relative_to(root).as_posix()
    if not name.isascii() and os.fsencode(name).decode("utf-8", errors="replace") != name:
        raise ConfigError(f"{os.fsencode(path)!r} has a name that is no UTF-8; rename it")
    return name


def _file_hash(path: Path) -> str:
    try:
        state = path.stat()
        return _hash_of(path, state.st_size, state.st_mtime_ns)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from None


@cache
def _hash_of(path: Path, size: int, mtime_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def decode_utf8(raw: bytes) -> tuple[str, int]:
    """Decode `raw`; return the text and how many invalid sequences became U+FFFD."""
    try:
        return raw.decode("utf-8"), 0
    except UnicodeDecodeError:
        text = raw.decode("utf-8", errors="replace")
        return text, text.count("\ufffd") - raw.count(b"\xef\xbf\xbd")


def valid_text(text: str) -> tuple[str, int]:
    """Replace lone surrogates (JSON can hold them, UTF-8 cannot) by U+FFFD, and count those."""
    try:
        text.encode("utf-8")
        return text, 0
    except UnicodeEncodeError:
        return decode_utf8(text.encode("utf-8", errors="surrogatepass"))


def text_of(row: Any, column: str) -> str | None:
    """Return a row's text, "" for a null, None if the row has no text in `column`."""
    held = row.get(column, 0) if isinstance(row, Mapping) else 0
    if held is None:
        return ""
    return held if isinstance(held, str) else None


def tables(documents: Iterable[Document]) -> Iterator[pa.Table]:
    """Yield documents in tables of bounded size, so that a task never holds a file's documents."""
    held: list[Document] = []
    size = 0
    for document in documents:
        held.append(document)
        size += len(document.text)
        if size >= TABLE_BYTES or len(held) >= TABLE_DOCUMENTS:
            yield _table(held)
            held, size = [], 0
    if held:
        yield _table(held)


def _table(documents: list[Document]) -> pa.Table:
    return pa.table([list(column) for column in zip(*documents, strict=True)], schema=SCHEMA)
