"""Documents from files that hold many: JSON lines, one JSON value, and Parquet."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from dcray.errors import ConfigError, did_you_mean
from dcray.sources import Document, text_of, valid_text
from dcray.sources._encoding import REMEDY, decode_line
from dcray.sources._streams import lines

NOT_JSON = (ValueError, RecursionError)  # also numbers and lists without end


@dataclass(frozen=True)
class RowFile:
    """A file of many documents; each method raises ConfigError that names file and row."""

    path: Path
    name: str  # what its documents' ids begin with
    text_column: str
    not_utf8: str

    def begins(self, stream: Any) -> bool:
        """Tell whether a file begins with a line of JSON that has the column of the text."""
        if stream.peek(1)[:1] != b"{":
            return False
        value = _value_or_none(stream.readline())
        stream.seek(0)
        return text_of(value, self.text_column) is not None

    def read_lines(self, stream: Any) -> Iterator[Document]:
        """Yield the documents of JSON lines, ids NAME:LINE from 1; blank lines hold none."""
        yield from self._of_lines(enumerate(lines(stream), 1))

    def read_json(self, stream: Any) -> Iterator[Document]:
        """Yield the documents of JSON lines (as in C4 and Dolma), an array of objects, or one."""
        numbered = enumerate(lines(stream), 1)
        first = next((found for found in numbered if found[1].strip()), None)
        if first is None:
            return
        if isinstance(_value_or_none(first[1]), dict):
            yield from self._of_lines(chain([first], numbered))
            return
        whole = b"".join([first[1], *(line for _, line in numbered)])
        text, replaced = self._decode(whole, "the file")
        try:
            value = json.loads(text)
        except NOT_JSON as error:
            raise ConfigError(
                f"{self.path} is neither JSON lines nor one JSON value: {error}"
            ) from None
        for number, row in enumerate(value if isinstance(value, list) else [value], 1):
            yield self._document(row, number, f"entry {number}", 0 if number > 1 else replaced)

    def read_parquet(self) -> Iterator[Document]:
        """Yield the documents of a Parquet file's rows, ids NAME:ROW from 0."""
        with pyarrow.parquet.ParquetFile(self.path) as file:
            columns = file.schema_arrow.names
            if self.text_column not in columns:
                raise ConfigError(
                    f'{self.path} has no column "{self.text_column}"; name the column of the text '
                    f"by text_column{did_you_mean(self.text_column, columns)}"
                )
            row = 0
            for batch in file.iter_batches(batch_size=256, columns=[self.text_column]):
                for raw in batch.column(0).cast(pa.large_binary()).to_pylist():
                    yield Document(f"{self.name}:{row}", *self._decode(raw or b"", f"row {row}"))
                    row += 1

    def _of_lines(self, numbered: Iterable[tuple[int, bytes]]) -> Iterator[Document]:
        for number, line in numbered:
            if not line.strip():
                continue
            decoded, replaced = self._decode(line, f"line {number}")
            try:
                row = json.loads(decoded)
            except NOT_JSON as error:
                raise ConfigError(f"{self.path}, line {number} is not JSON: {error}") from None
            yield self._document(row, number, f"line {number}", replaced)

    def _document(self, row: Any, number: int, where: str, replaced: int) -> Document:
        text = text_of(row, self.text_column)
        if text is None:
            columns = row if isinstance(row, dict) else ()
            raise ConfigError(
                f'{self.path}, {where} has no text in "{self.text_column}"; name the column by '
                f"text_column{did_you_mean(self.text_column, columns)}, or leave the file out by "
                f"leave_out={self.path.name}"
            )
        text, lone = valid_text(text)
        return Document(f"{self.name}:{number}", text, replaced + lone)

    def _decode(self, raw: bytes, where: str) -> tuple[str, int]:
        try:
            return decode_line(raw, self.not_utf8)
        except ValueError as error:
            raise ConfigError(f"{self.path}, {where} {error}: {REMEDY}") from None


def _value_or_none(line: bytes) -> Any:
    try:
        return json.loads(line.decode("utf-8", errors="replace"))
    except NOT_JSON:
        return None
