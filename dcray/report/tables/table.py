"""A table as a value: columns with a sentence above and notes below."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dcray.fit.output import text


@dataclass(frozen=True)
class Table:
    """Columns with a sentence above and notes below; the first column is text."""

    header: Sequence[str]
    rows: Sequence[Sequence[Any]]
    above: str = ""
    below: Sequence[str] = ()

    @staticmethod
    def texts(row: Sequence[Any]) -> list[str]:
        """Format the values of a row: losses with four decimals, a missing value as "-"."""
        return [_cell(value) for value in row]

    def only(self, keep: Callable[[Sequence[Any]], bool]) -> Table:
        """Return the table with the rows for which `keep` is true."""
        return replace(self, rows=[row for row in self.rows if keep(row)])

    def markdown(self) -> str:
        """Format the table as Markdown."""
        lines = [_line(self.header), _line(["---", *["---:"] * (len(self.header) - 1)])]
        lines += [_line(self.texts(row)) for row in self.rows]
        parts = [self.above, "\n".join(lines), "\n".join(f"- {note}" for note in self.below)]
        return "\n\n".join(part for part in parts if part)

    def plain(self) -> str:
        """Format the table as columns of equal width, for a terminal."""
        rows = [self.texts(row) for row in self.rows]
        parts = [self.above, text.table(self.header, rows), *self.below]
        return "\n".join(part for part in parts if part)


def _line(values: Sequence[str]) -> str:
    return "| " + " | ".join(value.replace("|", "/") for value in values) + " |"


def _cell(value: Any) -> str:
    if value is None or value == "":
        return "-"
    return f"{value:.4f}" if isinstance(value, float) else str(value)
