"""The arrays of each step, sent from host to device into fixed buffers, by one copy and no wait."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

DEPTH = 4  # steps that the host may be ahead
ALIGNED = 64  # bytes: each field begins at a multiple

Fields = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]


class StagingBuffer:
    """Named tensors on a device that are filled anew each step, in the order of the device's work.

    They lie in one buffer; the host fills one of a few pinned copies of it, and waits only if the
    device has not read the copy that is to be used again.
    """

    def __init__(self, fields: Fields, device: torch.device, depth: int = DEPTH) -> None:
        offsets, size = {}, 0
        for name, (dtype, shape) in fields.items():
            offsets[name] = size
            size += -(-math.prod(shape) * dtype.itemsize // ALIGNED) * ALIGNED
        on_gpu = device.type == "cuda"
        self._inbox = torch.zeros(size, dtype=torch.uint8, device=device)
        self._letters = [
            torch.zeros(size, dtype=torch.uint8, pin_memory=on_gpu) for _ in range(depth)
        ]
        event: Any = torch.cuda.Event
        self._read = [event() if on_gpu else None for _ in range(depth)]
        self._turn = 0

        def views(buffer: Tensor) -> dict[str, Tensor]:
            found = {}
            for name, (dtype, shape) in fields.items():
                stop = offsets[name] + math.prod(shape) * dtype.itemsize
                found[name] = buffer[offsets[name] : stop].view(dtype).view(shape)
            return found

        self.fields = views(self._inbox)
        self._pages = [
            {name: view.numpy() for name, view in views(letter).items()} for letter in self._letters
        ]

    def send(self, **arrays: ArrayLike) -> None:
        """Fill the first rows of the named fields; fields not named hold any earlier value."""
        turn, self._turn = self._turn, (self._turn + 1) % len(self._letters)
        read, pages = self._read[turn], self._pages[turn]
        if read is not None:
            read.synchronize()
        for name, array in arrays.items():
            page: Any = pages[name]
            if page.ndim:
                page[: len(array)] = array  # type: ignore[arg-type]
            else:
                page[()] = array
        self._inbox.copy_(self._letters[turn], non_blocking=True)
        if read is not None:
            read.record()
