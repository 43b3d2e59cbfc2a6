"""Tables of losses as people have them: a file of columns, or a pandas frame."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcray.errors import ConfigError
from dcray.fit.table.parse import Table, parse_table

if TYPE_CHECKING:
    import pandas as pd

FRAME = Path("frame")  # its name in sentences


def read_table(
    path: str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    units: Mapping[str, str] | None = None,
    keep: str | None = None,
) -> Table:
    """Read the rows of a CSV (or one with tabs or semicolons) with sizes, tokens and losses.

    The other arguments and errors are those of `parse_table`.
    """
    path = Path(path)
    return parse_table(path, *_lines(path), columns=columns, units=units, keep=keep)


def read_frame(
    frame: pd.DataFrame,
    *,
    columns: Mapping[str, str] | None = None,
    units: Mapping[str, str] | None = None,
    keep: str | None = None,
) -> Table:
    """Read the rows of a frame as `read_table` reads a file; a missing value is an empty field.

    A line of the frame is numbered from 1 in sentences, whatever its index. The other arguments and
    errors are those of `parse_table`.
    """
    header = [str(name).strip() for name in frame.columns]
    missing = frame.isna().to_numpy()
    lines = (
        (number, ["" if away else _text(value) for value, away in zip(values, none, strict=True)])
        for number, (values, none) in enumerate(
            zip(frame.itertuples(index=False, name=None), missing, strict=True), start=1
        )
        if not all(none)
    )
    return parse_table(FRAME, header, lines, columns=columns, units=units, keep=keep)


def _text(value: Any) -> str:
    """Write a value as a CSV would hold it, with every digit of a number."""
    return repr(float(value)) if isinstance(value, float) else str(value).strip()


def _lines(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Read the header, and (line number, fields) of each later line that is not blank."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is no text in UTF-8: save the table as a CSV file") from None
    first = text.partition("\n")[0]
    separator = max(",;\t", key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    try:
        header = [name.strip() for name in next(reader, [])]
        lines = [
            (reader.line_num, [value.strip() for value in values])
            for values in reader
            if any(value.strip() for value in values)
        ]
    except csv.Error as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    return header, lines
