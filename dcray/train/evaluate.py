"""The loss over exactly the validation rows, whatever the number of ranks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dcray.corpus.order import Slice
from dcray.corpus.validation_rows import ValidationRows, write_nats
from dcray.objectives import LossTerm, Objective
from dcray.progress import counted
from dcray.rng import keyed
from dcray.train.batching import HostBatch, make_batch
from dcray.train.shard import RankContext, to_device

VALIDATION_SEED = (
    2**31
)  # no run's seed: the same draws in every run, so that runs are compared on them
FINAL_DRAW = 2**32 - 1  # the draw of the last scoring; the others are numbered by their step


@dataclass(frozen=True)
class Evaluation:
    """A validation loss in nats per token, and in bits per byte if the source has text."""

    loss: float
    bpb: float | None
    num_tokens: int
    stderr: float | None = None  # of loss, by the objective's random draws; None: it draws none


Score = Callable[[HostBatch], Tensor]  # the five sums of `sums_of`


def score_plainly(
    model: nn.Module, objective: Objective, device: torch.device, mask_id: int
) -> Score:
    """Return a function that scores one batch, launched one operation at a time."""

    @torch.no_grad()
    def score(host: HostBatch) -> Tensor:
        batch = make_batch(
            host.tokens,
            host.real,
            mask_id=mask_id,
            device=device,
            text_bytes=host.text_bytes,
        )
        return sums_of(objective.validation(model, batch, to_device(host.keys, device)))

    return score


def evaluate(
    model: nn.Module,
    objective: Objective,
    rows: ValidationRows,
    place: RankContext,
    *,
    mask_id: int,
    microbatch_size: int,
    draw: int,
    score: Score | None = None,
) -> Evaluation:
    """Score every validation row once; every rank returns the same sums over all of them.

    draw: numbers the random draws of an objective whose validation has any.
    score: the function that scores a batch; None: `score_plainly`.
    """
    score = score or score_plainly(model, objective, place.device, mask_id)
    whole = Slice(np.arange(len(rows)), np.full(len(rows), draw), np.ones(len(rows), dtype=bool))
    mine = whole.part(place.rank, place.world_size, microbatch_size)
    totals = torch.zeros(5, dtype=torch.float64, device=place.device)
    for start in counted("batches of rows", range(0, len(mine), microbatch_size)):
        here = slice(start, start + microbatch_size)
        ids = mine.row_ids[here]
        totals += score(
            HostBatch(
                rows.tokens[ids],
                mine.real[here],
                keyed.row_keys(VALIDATION_SEED, draw, ids),
                None if rows.text_bytes is None else rows.text_bytes[ids],
            )
        )
    nats, num_tokens, text_nats, text_bytes, variance = place.total(totals).tolist()
    bpb = text_nats / math.log(2) / text_bytes if text_bytes else None
    stderr = math.sqrt(variance) / num_tokens if variance else None
    return Evaluation(nats / num_tokens, bpb, round(num_tokens), stderr)


def sums_of(term: LossTerm) -> Tensor:
    """Stack nats, tokens, text's nats, text's bytes, variance of nats: (5,) float64; 0: none."""
    zero = torch.zeros((), dtype=torch.float64, device=term.nats.device)
    parts = (term.nats, term.num_tokens, term.text_nats, term.text_bytes, term.variance)
    return torch.stack([zero if part is None else part.double() for part in parts])


@torch.no_grad()
def target_nats(
    model: nn.Module, rows: ValidationRows, place: RankContext, *, microbatch_size: int
) -> NDArray[np.float32]:
    """Compute the nats (rows, T) of every validation target, in the rows' order, on every rank."""
    every = np.arange(len(rows))
    whole = Slice(every, np.zeros_like(every), np.ones(len(rows), dtype=bool))
    mine = whole.part(place.rank, place.world_size, microbatch_size)
    found = torch.zeros((len(rows), rows.tokens.shape[1] - 1), device=place.device)
    for start in counted("batches of rows", range(0, len(mine), microbatch_size)):
        here = slice(start, start + microbatch_size)
        ids, real = mine.row_ids[here], mine.real[here]
        batch = make_batch(rows.tokens[ids], real, mask_id=0, device=place.device)
        nats = model(batch.inputs, causal=True, targets=batch.targets).float()
        found.index_add_(0, place.put(ids), nats * batch.real.float()[:, None])
    total: NDArray[np.float32] = place.total(found).cpu().numpy()
    return total


def keep_target_nats(
    path: Path,
    model: nn.Module,
    *,
    rows: ValidationRows,
    place: RankContext,
    microbatch_size: int,
) -> None:
    """Write the nats of every validation target to a file; called by all ranks together."""
    nats = target_nats(model, rows, place, microbatch_size=microbatch_size)
    if place.rank == 0:
        write_nats(path, nats)
    place.barrier()
