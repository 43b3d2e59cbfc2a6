"""Files, compressed or not, as streams of bytes; a file that was cut off is an error."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import zstandard

from dcray.sources._encoding import marked

COMPRESSED = (".gz", ".zst", ".bz2", ".xz")
CHUNK_BYTES = 1 << 17
MAX_WINDOW = 1 << 31  # of zstd: `--long=31`, by which large dumps are packed
CUT_OFF = (EOFError, zlib.error, zstandard.ZstdError, lzma.LZMAError)


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Hold the decompressed bytes of a file open, to be read and peeked at.

    Reading raises OSError or one of CUT_OFF if the file is damaged or has no end.
    """
    with path.open("rb") as file:
        ending = path.suffix.lower()
        if ending in COMPRESSED and not path.stat().st_size:
            raise EOFError("it is empty, and so cut off: a compressed file has a head")
        with _unpacked(file, ending) as stream:
            yield stream


def _unpacked(file: BinaryIO, ending: str) -> Any:
    match ending:
        case ".gz":
            return gzip.open(file)
        case ".bz2":
            return bz2.open(file)
        case ".xz":
            return lzma.open(file)
        case ".zst":
            return io.BufferedReader(_ZstdFrames(file), 1 << 20)
    return file


class _ZstdFrames(io.RawIOBase):
    """The bytes of a zstd file's frames, to the end of the last one.

    The library's own reader takes a file that was cut off within a frame for a short one.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._packed = b""
        self._frame: Any = None  # the frame that is being read
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            packed = self._packed or self._file.read(CHUNK_BYTES)
            if not packed:
                if self._frame is not None:
                    raise EOFError("it is cut off: its last frame has no end")
                return 0
            if self._frame is None:
                unpacker = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW)
                self._frame = unpacker.decompressobj()
            self._ready = memoryview(self._frame.decompress(packed))
            self._packed = self._frame.unused_data
            if self._frame.eof:
                self._frame = None
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count


def lines(stream: Any) -> Iterator[bytes]:
    """Yield the lines in UTF-8 of a stream in the encoding that its byte order mark states."""
    encoding, start = marked(stream.peek(4)[:4])
    stream.read(start)
    if encoding == "utf-8":
        yield from stream
        return
    text = io.TextIOWrapper(stream, encoding=encoding, newline="\n")
    try:
        for line in text:
            yield line.encode("utf-8", errors="surrogatepass")
    finally:
        text.detach()
