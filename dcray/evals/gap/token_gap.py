"""A comparison of two causal runs token by token on the validation set (paper, "Where MIR helps").

gap_t = nats of A - nats of B of the true token at t; a positive gap favors B.

10M tokens are two arrays of 40 MB; all derived arrays stay below ten times that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dcray.corpus.order import cut_rows
from dcray.objectives import Model
from dcray.progress import counted
from dcray.train.batching import make_batch

TAIL_NATS = 1.0  # the paper leaves out smaller gaps
TOP_FRAC = 1e-3
QUANTILES = (0.001, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999)
POSITION_BINS = 32
EDGES = np.arange(-12.0, 12.01, 0.25)  # of the histogram; gaps beyond them go into the end bins

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Gap:
    """Nats of both runs for targets 1 ... n of the validation stream, and where documents start."""

    first: NDArray[np.float32]  # (n,) of run A
    second: NDArray[np.float32]  # (n,) of run B
    documents: NDArray[np.int64]  # starts in the stream, rising from 0
    seq_len: int | None  # of both; None if they differ

    def __len__(self) -> int:
        return len(self.first)

    def difference(self) -> NDArray[np.float64]:
        """Compute the gap A - B in nats of every target, (n,)."""
        return self.first.astype(np.float64) - self.second


@torch.inference_mode()
def token_nats(
    model: Model, tokens: NDArray[Any], *, seq_len: int, batch_size: int, device: torch.device
) -> NDArray[np.float32]:
    """Compute the nats (n,) of targets 1 ... n of a stream, in validation's rows (whole ones)."""
    rows = cut_rows(tokens, seq_len, seq_len)
    found = np.empty((len(rows), seq_len), np.float32)
    real = np.ones(batch_size, bool)
    for start in counted("batches of rows", range(0, len(rows), batch_size)):
        here = rows[start : start + batch_size]
        batch = make_batch(here, real[: len(here)], mask_id=0, device=device)
        nats = model(batch.inputs, causal=True, targets=batch.targets)
        found[start : start + batch_size] = nats.float().cpu().numpy()
    return found.reshape(-1)


def summary(gap: Gap) -> dict[str, Any]:
    """Compute the figures of a gap as plain JSON types; fractions are of all tokens."""
    d = gap.difference()
    counts = np.histogram(np.clip(d, EDGES[0], EDGES[-1]), EDGES)[0]
    return {
        "num_tokens": len(d),
        "sum_nats": float(d.sum()),
        "mean_nats": float(d.mean()),
        "loss_a": float(gap.first.mean(dtype=np.float64)),
        "loss_b": float(gap.second.mean(dtype=np.float64)),
        "b_better_frac": float((d > 0).mean()),
        "a_better_frac": float((d < 0).mean()),
        "b_better_by_1_nat_frac": float((d >= TAIL_NATS).mean()),
        "a_better_by_1_nat_frac": float((d <= -TAIL_NATS).mean()),
        "quantiles": dict(zip(map(str, QUANTILES), np.quantile(d, QUANTILES).tolist(),
                              strict=True)),
        "histogram": {"edges": EDGES.tolist(), "counts": counts.tolist()},
        "by_position": by_position(gap),
        "by_document": by_document(gap, d),
    }  # fmt: skip


def by_position(gap: Gap) -> list[dict[str, float]]:
    """Compute mean losses over stretches of the row; `first` is a stretch's first position, from 0.

    Empty if the two runs were trained on rows of different length.
    """
    if gap.seq_len is None:
        return []
    count = min(POSITION_BINS, gap.seq_len)
    edges = [gap.seq_len * i // count for i in range(count + 1)]
    means = [
        nats.reshape(-1, gap.seq_len).mean(0, dtype=np.float64) for nats in (gap.first, gap.second)
    ]
    return [
        {"first": float(low), "loss_a": float(means[0][low:high].mean()),
         "loss_b": float(means[1][low:high].mean())}
        for low, high in pairwise(edges)
    ]  # fmt: skip


def document_sums(gap: Gap, d: Floats) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Compute (summed gap, number of targets) of every document that has a target."""
    starts = np.maximum(gap.documents - 1, 0)  # target t stands at t - 1
    starts = starts[starts < len(d)]
    counts = np.diff(np.append(starts, len(d)))
    kept = counts > 0
    return np.add.reduceat(d, starts[kept]), counts[kept]


def by_document(gap: Gap, d: Floats) -> dict[str, Any]:
    """Compute the spread of the documents' mean gaps; the mean's error takes each as one draw."""
    sums, counts = document_sums(gap, d)
    means = sums / counts
    number = len(sums)
    mean = float(sums.sum() / counts.sum())
    error = None
    if number > 1:  # standard error of a ratio of sums, over documents
        residuals = sums - mean * counts
        error = float(math.sqrt(number / (number - 1) * (residuals**2).sum()) / counts.sum())
    shares = (0.05, 0.25, 0.5, 0.75, 0.95)
    return {
        "num_documents": number,
        "mean_nats_stderr": error,
        "b_better_frac": float((means > 0).mean()),
        "quantiles": dict(zip(map(str, shares), np.quantile(means, shares).tolist(), strict=True)),
    }


def top(d: Floats, *, favors_b: bool, frac: float = TOP_FRAC) -> NDArray[np.int64]:
    """Find the share `frac` of targets with the largest gap on one side, largest first.

    Returns indices. Gaps on the other side or of 0 never count. Ties go by position.
    """
    signed = d if favors_b else -d
    count = max(1, math.ceil(frac * len(signed)))
    order = np.argpartition(-signed, min(count, len(signed) - 1))[:count]
    order = order[signed[order] > 0]
    return np.array(sorted(order, key=lambda i: (-signed[i], i)), np.int64)


def as_metrics(found: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures that go to the record of run B."""
    names = ("mean_nats", "b_better_by_1_nat_frac", "a_better_by_1_nat_frac")
    metrics = {name: found[name] for name in names}
    error = found["by_document"]["mean_nats_stderr"]
    return metrics if error is None else metrics | {"mean_nats_stderr": error}
