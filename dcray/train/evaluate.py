"""The loss over exactly the validation rows, whatever the number of ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dcray.corpus.order import Slice
from dcray.objectives import Batch, LossTerm, Objective
from dcray.progress import counted
from dcray.train import keyed
from dcray.train.shard import Place, to_device

VALIDATION_SEED = (
    2**31
)  # no run's seed: the same draws in every run, so that runs are compared on them
FINAL_DRAW = 2**32 - 1  # the draw of the last scoring; the others are numbered by their step


@dataclass(frozen=True)
class ValidationRows:
    """Every validation row, with the source bytes of its tokens where the corpus has text."""

    tokens: NDArray[Any]  # (rows, T + 1)
    text_bytes: NDArray[Any] | None  # (rows, T + 1); -1 marks <|endoftext|>

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True)
class Evaluation:
    """A validation loss in nats per token, and in bits per byte of the source where it has text."""

    loss: float
    bpb: float | None
    num_tokens: int
    stderr: float | None = None  # of loss, by the objective's random draws; None: it draws none


def make_batch(
    rows: NDArray[Any],
    real: NDArray[np.bool_],
    *,
    mask_id: int,
    device: torch.device,
    text_bytes: NDArray[Any] | None = None,
) -> Batch:
    """Rows (B, T + 1) of any integer type as a batch on `device`."""
    signed = rows.astype(np.int32) if rows.dtype != np.int64 else rows
    return Batch(
        tokens=to_device(signed, device).long(),
        real=to_device(real, device).float(),
        mask_id=mask_id,
        text_bytes=None if text_bytes is None else to_device(text_bytes, device).int(),
    )


def microbatches(
    part: Slice, rows: NDArray[Any], place: Place, *, size: int, seed: int, mask_id: int
) -> list[tuple[Batch, Tensor]]:
    """One rank's rows of a step in batches of `size`, with the keys of their rows."""
    keys = keyed.row_keys(seed, part.epochs, part.row_ids)
    found = []
    for start in range(0, len(part), size):
        here = slice(start, start + size)
        batch = make_batch(rows[here], part.real[here], mask_id=mask_id, device=place.device)
        found.append((batch, place.put(keys[here])))
    return found


@torch.no_grad()
def evaluate(
    model: nn.Module,
    objective: Objective,
    rows: ValidationRows,
    place: Place,
    *,
    mask_id: int,
    microbatch_size: int,
    draw: int,
) -> Evaluation:
    """Score every validation row once; every rank returns the same sums over all of them.

    draw: numbers the random draws of an objective whose validation has any.
    """
    whole = Slice(np.arange(len(rows)), np.full(len(rows), draw), np.ones(len(rows), dtype=bool))
    mine = whole.part(place.rank, place.world_size, microbatch_size)
    totals = torch.zeros(5, dtype=torch.float64, device=place.device)
    for start in counted("batches of rows", range(0, len(mine), microbatch_size)):
        here = slice(start, start + microbatch_size)
        ids = mine.row_ids[here]
        batch = make_batch(
            rows.tokens[ids],
            mine.real[here],
            mask_id=mask_id,
            device=place.device,
            text_bytes=None if rows.text_bytes is None else rows.text_bytes[ids],
        )
        key = place.put(keyed.row_keys(VALIDATION_SEED, draw, ids))
        totals += _sums(objective.validation(model, batch, key))
    nats, num_tokens, text_nats, text_bytes, variance = place.total(totals).tolist()
    bpb = text_nats / math.log(2) / text_bytes if text_bytes else None
    stderr = math.sqrt(variance) / num_tokens if variance else None
    return Evaluation(nats / num_tokens, bpb, round(num_tokens), stderr)


def _sums(term: LossTerm) -> Tensor:
    zero = torch.zeros((), dtype=torch.float64, device=term.nats.device)
    parts = (term.nats, term.num_tokens, term.text_nats, term.text_bytes, term.variance)
    return torch.stack([zero if part is None else part.double() for part in parts])
