"""The loss over exactly the validation rows, whatever the number of ranks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from dcray.corpus.order import Slice
from dcray.corpus.validation_rows import ValidationRows
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
