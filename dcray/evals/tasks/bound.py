"""Lower bounds on the log-likelihoods of a masked-diffusion model: the ELBO of continuations.

-log p(y | x) <= E_l E_S (L / l) sum_{i in S} -log p(y_i | x, y without S)

with l uniform in 1 ... L and S any l of the L tokens of y. This is the integral of the bound over
the mask ratio r in (0, 1], taken over the number of masked tokens instead. (Binomial masks of rate
r and weight 1 / r give each l >= 1 the weight 1 / l, so the two agree. The token of a continuation
of one token is always masked, so that its score is exact.)
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from dcray.evals.tasks.packing import Request
from dcray.evals.tasks.score import Score
from dcray.model.head import target_nats
from dcray.model.rotary import rotary_tables
from dcray.model.transformer import Context, Transformer
from dcray.progress import counted

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Masked:
    """One draw: a request with some tokens of its continuation masked, and the draw's weight."""

    number: int
    tokens: Ids  # (T,)
    hidden: NDArray[np.bool_]  # (T,)
    weight: float


@torch.inference_mode()
def bound_log_likelihoods(
    model: Transformer,
    requests: Sequence[Request],
    *,
    mask_id: int,
    seq_len: int,
    batch_size: int,
    draws: int,
) -> list[Score]:
    """Estimate a lower bound on the log-likelihood (nats) of each request, in their order.

    The estimate is a bound up to the error of its `draws` masks, which depend on the request's ids
    alone. `Score.greedy`: decoding by confidence, the surest masked token first, yields the
    continuation.
    """
    cut = [request.cut(seq_len - 1) for request in requests]  # a request's targets are inputs too
    wanted = [request for request, _ in cut]
    rows = [row for n, one in enumerate(wanted) for row in _draws(n, one, draws)]
    rows.sort(key=lambda row: (-len(row.tokens), row.number))
    nats = np.zeros(len(requests))
    for start in counted("batches of draws", range(0, len(rows), batch_size)):
        here = rows[start : start + batch_size]
        for row, values in zip(here, _nats(model, here, mask_id), strict=True):
            nats[row.number] += row.weight * float(values[: len(row.tokens)][row.hidden].sum())
    return [
        Score(-float(total), _says(model, request, mask_id), truncated)
        for total, (request, truncated) in zip(nats, cut, strict=True)
    ]


def _draws(number: int, request: Request, draws: int) -> list[Masked]:
    """Draw the masks of one request, the numbers of masked tokens stratified over 1 ... L."""
    tokens = np.array(request.context + request.continuation, np.int64)
    length, first = len(request.continuation), len(request.context)
    if length == 0:
        return []
    count = 1 if length == 1 else draws
    seed = hashlib.sha256(tokens.tobytes() + first.to_bytes(8, "little")).digest()
    rng = np.random.Generator(np.random.Philox(np.frombuffer(seed, np.uint64)[:2]))
    strata = (np.arange(count) + rng.random()) / count
    found = []
    for num_hidden in (strata * length).astype(int) + 1:
        hidden = np.zeros(len(tokens), bool)
        hidden[first + rng.choice(length, num_hidden, replace=False)] = True
        found.append(Masked(number, tokens, hidden, length / num_hidden / count))
    return found


def _nats(model: Transformer, rows: Sequence[Masked], mask_id: int) -> NDArray[np.float64]:
    """Compute the nats (B, T) of every token of the rows, the hidden ones replaced by [MASK]."""
    length = max(len(row.tokens) for row in rows)
    tokens = torch.zeros((len(rows), length), dtype=torch.int64)
    inputs = torch.full((len(rows), length), mask_id)
    real = torch.zeros((len(rows), length), dtype=torch.bool)
    for index, row in enumerate(rows):
        count = len(row.tokens)
        tokens[index, :count] = torch.from_numpy(row.tokens)
        inputs[index, :count] = torch.from_numpy(np.where(row.hidden, mask_id, row.tokens))
        real[index, :count] = True
    device = model.embed.weight.device
    logits = _logits(model, inputs.to(device), real.to(device))
    nats: NDArray[np.float64] = (
        target_nats(logits, tokens.to(device), model.vocab_size).double().cpu().numpy()
    )
    return nats


def _logits(model: Transformer, inputs: Tensor, real: Tensor) -> Tensor:
    """Compute the logits (B, T, V_padded); every token attends to every real one."""
    length, device = inputs.shape[1], inputs.device
    tables = rotary_tables(
        length, model.shape.head_dim, model.config.rope_base, device, model.dtype
    )
    x = F.embedding(inputs, model.embed.weight).to(model.dtype)
    mask = real[:, None, None, :].expand(-1, 1, length, -1)
    logits: Tensor = model.head(
        model.states(x, Context(*tables, None, False), [mask] * len(model.windows))
    )
    return logits


def _says(model: Transformer, request: Request, mask_id: int) -> bool:
    """Tell whether decoding by confidence yields the continuation; a first other token ends it."""
    tokens = torch.tensor([request.context + request.continuation])
    tokens = tokens.to(model.embed.weight.device)
    hidden = torch.zeros_like(tokens, dtype=torch.bool)
    hidden[:, len(request.context) :] = True
    while hidden.any():
        inputs = tokens.masked_fill(hidden, mask_id)
        logits = _logits(model, inputs, torch.ones_like(hidden))[..., : model.vocab_size].float()
        surest, said = logits.softmax(-1).max(-1)
        at = int(surest.masked_fill(~hidden, -1.0).argmax())
        if said[0, at] != tokens[0, at]:
            return False
        hidden[0, at] = False
    return True
