"""Which rows each step sees: a pure function of (seed, step), on every rank, after every resume."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dcray.config import RunConfig


def epoch_order(num_rows: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """The order in which epoch `epoch` (from 0) visits all rows."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, epoch)))).permutation(
        num_rows
    )


def paper_order(num_rows: int, *, unit: int, epoch: int) -> NDArray[np.int64]:
    """The released trainer's order: rows in fixed units of `unit`, the units permuted cumulatively.

    Epoch 0 is unshuffled; each later one applies the permutation that torch draws for its number
    (from 1) to the order of the one before. Rows beyond the last whole unit never train.
    No seed enters.
    """
    import torch

    units = np.arange(num_rows // unit)
    for number in range(2, epoch + 2):
        generator = torch.Generator().manual_seed(number)
        units = units[torch.randperm(len(units), generator=generator).numpy()]
    return (units[:, None] * unit + np.arange(unit)).reshape(-1)


@dataclass(frozen=True)
class Slice:
    """Rows of one step: all of it, or one rank's share, padded to the same length on every rank."""

    row_ids: NDArray[np.int64]
    epochs: NDArray[np.int64]
    real: NDArray[np.bool_]  # False marks padding

    def __len__(self) -> int:
        return len(self.row_ids)

    def part(self, rank: int, world_size: int, multiple: int = 1) -> Slice:
        """Rows rank, rank + world_size, ...: padded to equally many on all ranks, a multiple."""
        per_rank = -(-len(self) // world_size)
        wanted = -(-per_rank // multiple) * multiple * world_size
        index = np.minimum(np.arange(wanted), len(self) - 1)
        real = (np.arange(wanted) < len(self)) & self.real[index]
        mine = slice(rank, None, world_size)
        return Slice(self.row_ids[index][mine], self.epochs[index][mine], real[mine])


class Order:
    """The rows of every step of a run; batches run across epoch borders, the last one is short."""

    def __init__(self, config: RunConfig) -> None:
        self.seed, self.batch_size = config.seed, config.batch_size
        self.num_rows, self.usable = config.data.num_rows, config.usable_rows
        self.num_epochs, self.num_steps = config.num_epochs, config.num_steps
        self.unit = (
            (config.data.paper_unit or config.batch_size) if config.data.order == "paper" else None
        )
        self._epoch = lru_cache(maxsize=2)(self._epoch_order)

    def batch(self, step: int) -> Slice:
        """All rows of step `step` (from 0)."""
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
        """Rows that the first `steps` steps see."""
        return min(steps * self.batch_size, self.num_epochs * self.usable)

    def epoch_after(self, steps: int) -> float:
        """Passes over the usable rows that the first `steps` steps make."""
        return self.rows_after(steps) / self.usable

    def epochs_ended(self, step: int) -> range:
        """The epochs (from 1) whose last row step `step` (from 1) brings."""
        rows = self.usable
        return range(self.rows_after(step - 1) // rows + 1, self.rows_after(step) // rows + 1)

    def batches(self, start_step: int = 0, stop_step: int | None = None) -> Iterator[Slice]:
        """The batches of the steps from `start_step` on."""
        for step in range(start_step, self.num_steps if stop_step is None else stop_step):
            yield self.batch(step)

    def _epoch_order(self, epoch: int) -> NDArray[np.int64]:
        if self.unit is not None:
            return paper_order(self.num_rows, unit=self.unit, epoch=epoch)
        return epoch_order(self.num_rows, seed=self.seed, epoch=epoch)


def tee_ids(parts: Iterator[Slice]) -> tuple[Iterator[Slice], Iterator[NDArray[np.int64]]]:
    """The slices, and their row ids one after the other; a slice follows its ids."""
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
    """A view (rows, T + 1) of a flat stream: row i holds tokens i*stride .. i*stride + T."""
    view = np.lib.stride_tricks.sliding_window_view(tokens, seq_len + 1)
    return view[::stride]
