"""The rows of each step: a function of (seed, step) alone, equal on all ranks and after resumes.

Under data.order = "documents" the rows themselves are new each epoch: `pack` orders the documents,
and row i of the epoch is cut from them as from a stream. Ids of rows then count on from epoch to
epoch, so that an id still names one row and its content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcray.config.run import RunConfig
from dcray.config.sections import DataConfig

DOCUMENTS = 1  # salt of the documents' order: without one it would be that of as many rows
Ids = NDArray[np.int64]


def epoch_order(num_rows: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """Draw the order in which epoch `epoch` (from 0) visits all rows, shape (num_rows,)."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, epoch)))).permutation(
        num_rows
    )


def paper_order(num_rows: int, *, unit: int, epoch: int) -> NDArray[np.int64]:
    """Return the released trainer's order: fixed units of `unit` rows, permuted cumulatively.

    Epoch 0 is unshuffled; each later epoch applies the permutation that torch draws for its number
    (from 1) to the order of the epoch before. Rows beyond the last whole unit never train.
    The seed of the run does not enter.
    """
    import torch

    units = np.arange(num_rows // unit)
    for number in range(2, epoch + 2):
        generator = torch.Generator().manual_seed(number)
        units = units[torch.randperm(len(units), generator=generator).numpy()]
    return (units[:, None] * unit + np.arange(unit)).reshape(-1)


@dataclass(frozen=True)
class Packing:
    """The documents of one epoch, one behind the other in their order."""

    sources: Ids  # (documents,) where each starts in the stream
    places: Ids  # (documents + 1,) where each starts in the epoch, and where the epoch ends

    def spans(self, first: Ids, stop: Ids) -> tuple[Ids, Ids]:
        """Find the pieces of the stream that fill the places [first, stop) of the epoch, (n,) each.

        Returns the start and stop of every piece, in order; a piece ends where its document does.
        """
        document, begin, end = split_spans(first, stop, self.places)
        shift = self.sources[document] - self.places[document]
        return begin + shift, end + shift


def pack(starts: Ids, num_tokens: int, *, seed: int, epoch: int) -> Packing:
    """Draw the order of the documents of epoch `epoch` (from 0), a function of seed and epoch.

    starts: of the documents in the stream of `num_tokens`, rising from 0. The last document ends
    with the stream, where the budget cuts it.
    """
    key = np.random.SeedSequence((seed, epoch, DOCUMENTS))
    order = np.random.Generator(np.random.Philox(key)).permutation(len(starts))
    lengths = np.diff(starts, append=num_tokens)[order]
    return Packing(starts[order], np.concatenate([[0], np.cumsum(lengths)]))


def split_spans(first: Ids, stop: Ids, borders: Ids) -> tuple[Ids, Ids, Ids]:
    """Split spans [first, stop), (n,) each, at `borders`, which rise and enclose every span.

    Returns (pieces,) each: the number of the last border at or before the piece, start and stop.
    """
    low = np.searchsorted(borders, first, side="right") - 1
    counts = np.searchsorted(borders, stop, side="left") - low
    span = np.repeat(np.arange(len(first)), counts)
    border = np.arange(len(span)) + (low - np.cumsum(counts) + counts)[span]
    begin = np.maximum(first[span], borders[border])
    return border, begin, np.minimum(stop[span], borders[border + 1])


class DocumentRows:
    """Tell where rows lie in the stream if documents are packed anew every epoch.

    Row i of epoch e has the id e * rows + i.
    """

    def __init__(self, data: DataConfig, packing: Callable[[int], Packing]) -> None:
        self.data, self.packing = data, packing

    def spans(self, ids: Ids) -> tuple[Ids, Ids]:
        """Find the pieces of the stream that make these rows of T + 1 tokens, in order."""
        epochs, rows = np.divmod(ids, self.data.num_rows)
        first = rows * self.data.stride
        pieces = [
            self.packing(int(epochs[start])).spans(
                first[start:stop], first[start:stop] + self.data.seq_len + 1
            )
            for start, stop in pairwise([0, *(np.flatnonzero(np.diff(epochs)) + 1), len(ids)])
        ]
        starts, stops = zip(*pieces, strict=True)
        return np.concatenate(starts), np.concatenate(stops)


@dataclass(frozen=True)
class Slice:
    """The rows of one step, or one rank's share of them, padded to the same length on all ranks."""

    row_ids: NDArray[np.int64]
    epochs: NDArray[np.int64]
    real: NDArray[np.bool_]  # False marks padding

    def __len__(self) -> int:
        return len(self.row_ids)

    def part(self, rank: int, world_size: int, multiple: int = 1) -> Slice:
        """Take rows rank, rank + world_size, ...: as many on all ranks, padded to a `multiple`."""
        per_rank = -(-len(self) // world_size)
        wanted = -(-per_rank // multiple) * multiple * world_size
        index = np.minimum(np.arange(wanted), len(self) - 1)
        real = (np.arange(wanted) < len(self)) & self.real[index]
        mine = slice(rank, None, world_size)
        return Slice(self.row_ids[index][mine], self.epochs[index][mine], real[mine])


class Order:
    """The rows of every step of a run; a batch may span two epochs, and the last one is short."""

    def __init__(self, config: RunConfig) -> None:
        self.seed, self.batch_size = config.seed, config.batch_size
        self.num_rows, self.usable = config.data.num_rows, config.usable_rows
        self.num_epochs, self.num_steps = config.num_epochs, config.num_steps
        self.unit = (
            (config.data.paper_unit or config.batch_size) if config.data.order == "paper" else None
        )
        self.new_rows = config.data.order == "documents"
        self._epoch = lru_cache(maxsize=2)(self._epoch_order)

    def batch(self, step: int) -> Slice:
        """Return all rows of step `step` (from 0)."""
        start = step * self.batch_size
        stop = min(start + self.batch_size, self.num_epochs * self.usable)
        positions = np.arange(start, stop)
        epochs = positions // self.usable
        row_ids = np.empty_like(positions)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            row_ids[here] = self._epoch(int(epoch))[positions[here] - epoch * self.usable]
        return Slice(row_ids, epochs, np.ones(len(positions), dtype=bool))

    def rows_after(self, steps: int) -> int:
        """Count the rows that the first `steps` steps see."""
        return min(steps * self.batch_size, self.num_epochs * self.usable)

    def epoch_after(self, steps: int) -> float:
        """Compute how many passes over the usable rows the first `steps` steps make."""
        return self.rows_after(steps) / self.usable

    def epochs_ended(self, step: int) -> range:
        """Return the epochs (from 1) that end with step `step` (from 1)."""
        rows = self.usable
        return range(self.rows_after(step - 1) // rows + 1, self.rows_after(step) // rows + 1)

    def batches(self, start_step: int = 0, stop_step: int | None = None) -> Iterator[Slice]:
        """Yield the batches of the steps from `start_step` up to `stop_step` (None: the last)."""
        for step in range(start_step, self.num_steps if stop_step is None else stop_step):
            yield self.batch(step)

    def _epoch_order(self, epoch: int) -> NDArray[np.int64]:
        if self.unit is not None:
            return paper_order(self.num_rows, unit=self.unit, epoch=epoch)
        rows = epoch_order(self.num_rows, seed=self.seed, epoch=epoch)
        return rows + epoch * self.num_rows if self.new_rows else rows


def tee_ids(parts: Iterator[Slice]) -> tuple[Iterator[Slice], Iterator[NDArray[np.int64]]]:
    """Split `parts` into its slices and their row ids; the ids are read first, slices follow."""
    seen: list[Slice] = []

    def ids() -> Iterator[NDArray[np.int64]]:
        for part in parts:
            seen.append(part)
            yield part.row_ids

    def slices() -> Iterator[Slice]:
        while True:
            yield seen.pop(0)

    return slices(), ids()


def cut_rows(tokens: NDArray[np.generic], seq_len: int, stride: int) -> NDArray[np.generic]:
    """View a flat stream as rows (rows, T + 1): row i holds tokens i*stride .. i*stride + T."""
    view = np.lib.stride_tricks.sliding_window_view(tokens, seq_len + 1)
    return view[::stride]


def document_starts(arrays: Iterable[NDArray[Any]], eot_id: int, num_tokens: int) -> Ids:
    """Find where documents start in the first `num_tokens` of a stream, given as its arrays.

    One starts at each <|endoftext|>, and one where the stream does.
    """
    found, first = [np.zeros(1, np.int64)], 0
    for array in arrays:
        found.append(first + np.flatnonzero(array[: max(0, num_tokens - first)] == eot_id))
        first += len(array)
    return np.unique(np.concatenate(found))
