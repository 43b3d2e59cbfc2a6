"""Decoding bytes: UTF-8, UTF-16 or UTF-32 by a byte order mark, and what to do otherwise."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from dcray.errors import plural
from dcray.sources import decode_utf8

REFUSE, REPLACE = "refuse", "replace"  # any other value of `not_utf8` is the name of an encoding
MARKS = (  # UTF-32's little-endian mark begins with UTF-16's, so it is looked for first
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
REMEDY = (
    "convert to UTF-8, name the encoding (--option not_utf8=cp1252), or let U+FFFD stand for what "
    "is invalid (--option not_utf8=replace)"
)
CHUNK_BYTES = 1 << 20
NAMED = 5  # files in a sentence


def check_not_utf8(value: str) -> str:
    """Return the value itself; raises ValueError if it names no encoding of text."""
    if value not in (REFUSE, REPLACE):
        try:
            "".encode(value)
        except (LookupError, ValueError):
            raise ValueError(
                'must be "refuse", "replace" or the name of an encoding such as cp1252'
            ) from None
    return value


def marked(head: bytes) -> tuple[str, int]:
    """Find a file's byte order mark: (encoding, length of the mark); ("utf-8", 0) without one."""
    for mark, encoding in MARKS:
        if head.startswith(mark):
            return encoding, len(mark)
    return "utf-8", 0


def decode_file(raw: bytes, not_utf8: str) -> tuple[str, int]:
    """Decode a whole file; return the text and how many invalid sequences became U+FFFD.

    Raises ValueError that says what is wrong, if the file is neither UTF-8 nor marked as UTF-16 or
    UTF-32 and `not_utf8` is "refuse", or is an encoding in which the file is invalid too.
    """
    encoding, start = marked(raw)
    body = raw[start:]
    if encoding == "utf-8":
        if not start and not_utf8 != REPLACE and b"\0" in raw:
            return _other(body, not_utf8, NUL)
        return decode_line(body, not_utf8)
    try:
        return body.decode(encoding), 0
    except UnicodeDecodeError as error:
        if not_utf8 != REPLACE:
            raise ValueError(_sentence(error)) from None
        text = body.decode(encoding, errors="replace")
        return text, max(text.count("\ufffd"), 1)


def decode_line(raw: bytes, not_utf8: str) -> tuple[str, int]:
    """Decode a line or cell as `decode_file` does a file, without looking for a mark."""
    if not_utf8 == REPLACE:
        return decode_utf8(raw)
    try:
        return raw.decode("utf-8"), 0
    except UnicodeDecodeError as error:
        return _other(raw, not_utf8, _sentence(error))


def _other(raw: bytes, encoding: str, fault: str) -> tuple[str, int]:
    if encoding == REFUSE:
        raise ValueError(fault)
    try:
        return raw.decode(encoding), 0
    except UnicodeDecodeError as error:
        raise ValueError(_sentence(error)) from None


LFS = b"version https://git-lfs"
LFS_POINTER = "is a pointer of Git LFS and not the file itself: fetch that by git lfs pull"
NUL = "holds NUL bytes: UTF-16 without a byte order mark, or no text"


def fault_of(path: Path, not_utf8: str) -> str | None:
    """Find what keeps a file from being decoded ("is not UTF-8 ..."); None if nothing does.

    Each file is read once in a process, in blocks. Raises OSError if the file cannot be read.
    """
    if not_utf8 == REPLACE:
        return None
    state = path.stat()
    return _fault_of(path, not_utf8, state.st_size, state.st_mtime_ns)


@cache
def _fault_of(path: Path, not_utf8: str, size: int, mtime_ns: int) -> str | None:
    with path.open("rb") as file:
        head = file.read(len(LFS))
    if head == LFS:
        return LFS_POINTER
    encoding, start = marked(head)
    fault = _fault(path, encoding, start, nul=not start)
    if fault is None or not_utf8 == REFUSE or encoding != "utf-8":
        return fault
    return _fault(path, not_utf8, 0, nul=False)


def _fault(path: Path, encoding: str, start: int, *, nul: bool) -> str | None:
    decoder = codecs.getincrementaldecoder(encoding)()
    with path.open("rb") as file:
        file.seek(start)
        try:
            while chunk := file.read(CHUNK_BYTES):
                if nul and b"\0" in chunk:
                    return NUL
                decoder.decode(chunk)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            return _sentence(error)
    return None


def _sentence(error: UnicodeDecodeError) -> str:
    bad = error.object[error.start : error.start + 1].hex()
    name = error.encoding.upper().replace("UTF8", "UTF-8")
    return f"is not {name} (byte 0x{bad}: {error.reason})"


def refusal(faults: Iterable[tuple[object, str | None]]) -> str:
    """Write a sentence that names the files with a fault, and what to do; "" for none."""
    found = [f"{name} {fault}" for name, fault in faults if fault]
    if not found:
        return ""
    named = "; ".join(found[:NAMED]) + (
        f"; and {plural(len(found) - NAMED, 'file')} more" if len(found) > NAMED else ""
    )
    return f"{named}: {REMEDY}, or leave files out (--option leave_out=NAME,*.ENDING)"
