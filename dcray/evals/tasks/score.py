"""Exact log-likelihoods of a causal model for texts of every length, independent of lm-eval."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from dcray.evals.tasks.packing import PADDING, Batch, Request, Row, batch, pack
from dcray.model.ensemble import Ensemble, averaged, members_of
from dcray.model.rotary import rotary_tables
from dcray.model.transformer import Context, Transformer
from dcray.progress import counted

HEAD_ELEMENTS = 1 << 26  # logits at a time: 256 MB in float32


@dataclass(frozen=True)
class Score:
    """The log-likelihood of a continuation in nats, and whether greedy decoding yields it."""

    log_likelihood: float
    greedy: bool
    truncated: bool


@torch.inference_mode()
def log_likelihoods(
    model: Transformer | Ensemble, requests: Sequence[Request], *, seq_len: int, batch_size: int
) -> list[Score]:
    """Compute the score of every request, in their order.

    seq_len: the longest input that the model was trained on; a longer one loses its oldest
    tokens. batch_size: contexts in one pass. An empty continuation is certain: 0 nats.
    """
    cut = [request.cut(seq_len) for request in requests]
    asked = [number for number, (request, _) in enumerate(cut) if request.continuation]
    wanted = [cut[number][0] for number in asked]
    sums, misses = np.zeros(len(requests)), np.zeros(len(requests), np.int64)
    for rows in counted("batches of requests", list(batches(pack(wanted, seq_len), batch_size))):
        held = batch(rows, wanted)
        nats, hit = _targets(model, held)
        owners = np.array(asked, np.int64)[held.requests]
        np.add.at(sums, owners, -nats)
        np.add.at(misses, owners, ~hit)
    return [
        Score(float(sums[number]), not misses[number], truncated)
        for number, (_, truncated) in enumerate(cut)
    ]


def batches(rows: Sequence[Row], batch_size: int) -> Iterator[Sequence[Row]]:
    """Yield up to batch_size rows at a time; rows sorted by length keep like lengths together."""
    for start in range(0, len(rows), batch_size):
        yield rows[start : start + batch_size]


def _targets(
    model: Transformer | Ensemble, held: Batch
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Compute (nats, is it the likeliest) of each target; logits of a shared input only once."""
    members, device = members_of(model), model.embed.weight.device
    where, index = np.unique(held.where, return_inverse=True)
    places = torch.from_numpy(where).to(device)
    kept = [tree_states(one, held).flatten(0, 1)[places] for one in members]
    rows = torch.from_numpy(index).to(device)
    targets = torch.from_numpy(held.targets).to(device)
    order = np.argsort(index, kind="stable")
    nats, hit = np.zeros(len(index)), np.zeros(len(index), bool)
    step = max(1, HEAD_ELEMENTS // (len(members) * members[0].head.out_features))
    for start in range(0, len(where), step):
        part = slice(start, start + step)
        each = [one.head(states[part]) for one, states in zip(members, kept, strict=True)]
        logits = averaged([one[:, : model.vocab_size].float() for one in each])
        mine = order[(index[order] >= start) & (index[order] < start + step)]
        here = torch.from_numpy(mine).to(device)
        local = rows[here] - start
        total, best = logits.logsumexp(-1), logits.argmax(-1)
        value = total[local] - logits[local, targets[here]]
        nats[mine] = value.double().cpu().numpy()
        hit[mine] = (best[local] == targets[here]).cpu().numpy()
    return nats, hit


def tree_states(model: Transformer, held: Batch) -> Tensor:
    """Compute the head's inputs (B, T, D); a token attends to its context and own branch alone."""
    device = model.embed.weight.device
    tokens, positions, branches = (
        torch.from_numpy(array).to(device) for array in (held.tokens, held.positions, held.branches)
    )
    length = int(positions.max()) + 1
    cos, sin = rotary_tables(
        length, model.shape.head_dim, model.config.rope_base, device, model.dtype
    )
    context = Context(cos[positions], sin[positions], None, False)
    distance = positions[:, :, None] - positions[:, None, :]
    allowed = (branches[:, None, :] == 0) | (branches[:, :, None] == branches[:, None, :])
    allowed &= distance >= 0
    allowed |= (branches == PADDING)[:, :, None]  # padding sees all: no NaN, and it is not read
    masks = {w: (allowed if w is None else allowed & (distance <= w))[:, None] for w in
             set(model.windows)}  # fmt: skip
    x = F.embedding(tokens, model.embed.weight).to(model.dtype)
    return model.states(x, context, [masks[window] for window in model.windows])
