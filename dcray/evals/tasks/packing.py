"""Requests of one context packed into one row: the context, then each continuation as a branch.

    context         branch 1    branch 2
    q u e s t i o n  a n s w e   o t h e      the last token of a continuation is no input
    0 1 2 3 4 5 6 7  8 9 ...     8 9 ...      positions go on from the context in each branch

A branch attends to the context and itself. So one pass scores all continuations, and those of one
token cost nothing beyond the context.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

PADDING = -1  # the branch of padding; the context is branch 0


@dataclass(frozen=True)
class Request:
    """A continuation to be scored after a context, both as ids; the context is not empty."""

    context: tuple[int, ...]
    continuation: tuple[int, ...]

    def cut(self, seq_len: int) -> tuple[Request, bool]:
        """Cut the request to at most seq_len inputs, the oldest dropped; tell whether any was.

        If the continuation alone is too long, its beginning is dropped; one input remains before.
        """
        whole = self.context + self.continuation
        if len(whole) <= seq_len + 1:
            return self, False
        kept = min(len(self.continuation), seq_len)
        last = whole[-(seq_len + 1) :]
        return Request(last[: len(last) - kept], last[len(last) - kept :]), True


@dataclass
class Row:
    """One context and its continuations, each a branch."""

    tokens: list[int]
    positions: list[int]
    branches: list[int]
    predictors: list[list[int]] = field(default_factory=list)  # inputs that predict a continuation
    requests: list[int] = field(default_factory=list)  # the number of each continuation's request

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, number: int, continuation: Sequence[int], num_context: int) -> None:
        """Add a branch for the request `number`: all of its continuation but the last token."""
        start, extra = len(self.tokens), len(continuation) - 1
        self.tokens += continuation[:-1]
        self.positions += range(num_context, num_context + extra)
        self.branches += [len(self.requests) + 1] * extra
        self.predictors.append([num_context - 1, *range(start, start + extra)])
        self.requests.append(number)


def pack(requests: Sequence[Request], seq_len: int) -> list[Row]:
    """Pack requests into rows, the longest first; a row that would exceed 2 * seq_len is closed."""
    rows: dict[tuple[int, ...], Row] = {}
    done: list[Row] = []
    for number, request in enumerate(requests):
        context, count = request.context, len(request.context)
        row = rows.get(context)
        if row is None or len(row) + len(request.continuation) - 1 > 2 * seq_len:
            row = Row(list(context), list(range(count)), [0] * count)
            rows[context] = row
            done.append(row)
        row.add(number, request.continuation, count)
    return sorted(done, key=len, reverse=True)


@dataclass(frozen=True)
class Batch:
    """Rows side by side, padded at the right."""

    tokens: NDArray[np.int64]  # (B, T)
    positions: NDArray[np.int64]  # (B, T)
    branches: NDArray[np.int64]  # (B, T)
    where: NDArray[np.int64]  # (P,): index into the flattened (B, T) of what predicts each target
    targets: NDArray[np.int64]  # (P,)
    requests: NDArray[np.int64]  # (P,): the request that each target belongs to


def batch(rows: Sequence[Row], requests: Sequence[Request]) -> Batch:
    """Build the arrays of some rows, padded at the right."""
    length = max(map(len, rows))
    shape = (len(rows), length)
    tokens, positions = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    branches = np.full(shape, PADDING, np.int64)
    where, targets, owners = list[int](), list[int](), list[int]()
    for index, row in enumerate(rows):
        count = len(row)
        tokens[index, :count] = row.tokens
        positions[index, :count] = row.positions
        branches[index, :count] = row.branches
        for number, predictors in zip(row.requests, row.predictors, strict=True):
            where += [index * length + at for at in predictors]
            targets += requests[number].continuation
            owners += [number] * len(predictors)
    flat = [np.array(values, np.int64) for values in (where, targets, owners)]
    return Batch(tokens, positions, branches, *flat)
