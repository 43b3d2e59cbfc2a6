"""The ids of one flat file: an .npy, raw ids, or raw ids after a header of llm.c.

llm.c and modded-nanogpt write 256 int32 first: a magic number that gives the dtype, a version,
and how many ids follow. Other raw files do not state their dtype; ids of another width than
assumed are recognized by their zeros.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dcray.errors import ConfigError
from dcray.sources._encoding import LFS, LFS_POINTER

Array = np.ndarray[Any, np.dtype[Any]]
NPY = b"\x93NUMPY"
HEADER_BYTES = 1024


class Header(NamedTuple):
    """One kind of header: the program that writes it, the ids' dtype, its known versions."""

    writer: str
    dtype: str
    versions: tuple[int, ...]


HEADERS = {  # by magic; karpathy/llm.c, dev/data/data_common.py
    20240520: Header("llm.c for GPT-2, or modded-nanogpt", "uint16", (1,)),
    20240801: Header("llm.c for Llama 3", "uint32", (1, 7)),
}
EVALUATION = 20240522  # llm.c's multiple-choice questions
SAMPLE = 1 << 16  # ids of a raw file that are looked at: at its start, middle and end
TOP_HALF = 16  # the high half of a 32-bit id is less: a vocabulary has at most 2^20 ids
LARGE = 256  # some low half reaches it
LEAST = 32  # ids that must be there to be judged


def flat_ids(path: Path, dtype: str, *, sure: bool) -> Array:
    """Read the ids of a file, 1-D, mapped if they can be.

    dtype: of raw ids; `sure` if the user gave it. Raises ConfigError that names the file if it was
    cut off, is of another width than `dtype`, or holds no ids; also OSError, ValueError.
    """
    size = path.stat().st_size
    if not size:
        raise ConfigError(f"{path} is empty")
    with path.open("rb") as file:
        head = file.read(HEADER_BYTES)
    if head.startswith(LFS):
        raise ConfigError(f"{path} {LFS_POINTER}")
    if head.startswith(NPY):
        return _not_negative(path, np.load(path, mmap_mode="r", allow_pickle=False).reshape(-1))
    magic, version, count = np.frombuffer(head[:12].ljust(12, b"\0"), "<i4").tolist()
    if magic == EVALUATION:
        raise ConfigError(
            f"{path} holds llm.c's multiple-choice questions, and no text to train on"
        )
    if magic in HEADERS and size >= HEADER_BYTES:
        dtype = _dtype_behind(path, HEADERS[magic], version, count, dtype if sure else None)
        return _not_negative(path, np.memmap(path, _stored(dtype), "r", HEADER_BYTES, (count,)))
    stored = _stored(dtype)
    if size % stored.itemsize:
        raise ConfigError(f"{path} is no whole number of {dtype} ids: cut off, or another dtype")
    ids = np.memmap(path, stored, "r")
    if (wider := _wider(ids)) and not (sure and dtype == "uint16"):
        raise ConfigError(
            f"{path} holds ids of {wider}: read as {dtype}, every second one would be 0 or nearly "
            f"so; give --option dtype={wider}"
            + ("" if sure else f" (or dtype={dtype}, if that is what it is)")
        )
    return _not_negative(path, ids)


def is_raw(path: Path) -> bool:
    """Tell whether nothing in the file states the dtype of its ids."""
    with path.open("rb") as file:
        head = file.read(6)
    return not head.startswith(NPY) and int.from_bytes(head[:4], "little") not in HEADERS


def _dtype_behind(path: Path, header: Header, version: int, count: int, asked: str | None) -> str:
    """Find the dtype of the ids after a header, of which there must be as many as it states."""
    if version not in header.versions:
        raise ConfigError(
            f"{path} has a header of {header.writer}, of version {version}; known is "
            f"{' and '.join(map(str, header.versions))}"
        )
    size = path.stat().st_size - HEADER_BYTES
    fitting = [
        dtype
        for dtype in (header.dtype, asked, "uint16", "uint32")
        if dtype and count > 0 and size == count * _stored(dtype).itemsize
    ]
    if fitting and fitting[0] in (header.dtype, asked):
        return fitting[0]
    remedy = f"give --option dtype={fitting[0]}" if fitting else "it was cut off, or added to"
    raise ConfigError(
        f"{path} says in its header that {count:,} ids of {header.dtype} follow, and {size:,} "
        f"bytes do: {remedy}"
    )


def _wider(ids: Array) -> str | None:
    """Find the dtype of raw ids wider than they were read, by their zeros; None: they fit."""
    places = (0, len(ids) // 8 * 4, max(len(ids) - SAMPLE, 0) // 4 * 4)
    pieces = [ids[place : place + SAMPLE] for place in places]
    sample = np.concatenate([piece[: len(piece) // 4 * 4] for piece in pieces])
    if len(sample) < LEAST or ids.itemsize > 4:
        return None
    if ids.itemsize == 4:
        low, high = sample[0::2], sample[1::2]
        return "int64" if low.any() and not high.any() else None
    low, high, rest = sample[0::4], sample[1::4], sample.reshape(-1, 4)[:, 2:]
    if low.any() and high.max() < TOP_HALF and not rest.any():
        return "int64"
    low, high = sample[0::2], sample[1::2]
    zeros = low.any() and not high.any()
    return "uint32" if zeros or (low.max() >= LARGE and high.max() < TOP_HALF) else None


def _not_negative(path: Path, ids: Array) -> Array:
    if ids.dtype.kind not in "ui":
        raise ConfigError(f"{path} must hold whole numbers, has dtype {ids.dtype}")
    if ids.dtype.kind == "i" and ids.size and (least := int(ids.min())) < 0:
        raise ConfigError(f"{path} holds the id {least}; ids are not negative")
    return ids


def _stored(dtype: str) -> np.dtype[Any]:
    return np.dtype(dtype).newbyteorder("<")
