"""Cutting rows into the micro-batches of a step, and moving them to the device."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dcray.corpus.order import Slice
from dcray.objectives import Batch
from dcray.rng import keyed
from dcray.train.shard import RankContext, to_device


class HostBatch(NamedTuple):
    """Rows to be scored together, in host memory; the last ones may be padding."""

    tokens: NDArray[Any]  # (B, T + 1)
    real: NDArray[np.bool_]  # (B,)
    keys: NDArray[np.int64]  # (B,)
    text_bytes: NDArray[Any] | None  # (B, T + 1)


def make_batch(
    rows: NDArray[Any],
    real: NDArray[np.bool_],
    *,
    mask_id: int,
    device: torch.device,
    text_bytes: NDArray[Any] | None = None,
) -> Batch:
    """Move rows (B, T + 1) of any integer type to `device` as a batch."""
    signed = rows.astype(np.int32) if rows.dtype != np.int64 else rows
    return Batch(
        tokens=to_device(signed, device).long(),
        real=to_device(real, device).float(),
        mask_id=mask_id,
        text_bytes=None if text_bytes is None else to_device(text_bytes, device).int(),
    )


def microbatches(
    part: Slice, rows: NDArray[Any], place: RankContext, *, size: int, seed: int, mask_id: int
) -> list[tuple[Batch, Tensor]]:
    """Cut one rank's rows of a step into batches of `size`, with the keys of their rows."""
    keys = keyed.row_keys(seed, part.epochs, part.row_ids)
    found = []
    for start in range(0, len(part), size):
        here = slice(start, start + size)
        batch = make_batch(rows[here], part.real[here], mask_id=mask_id, device=place.device)
        found.append((batch, place.put(keys[here])))
    return found


def batch_of(fields: dict[str, Tensor], part: slice, mask_id: int) -> Batch:
    """View the current content of the fixed buffers as a batch."""
    text_bytes = fields.get("text_bytes")
    return Batch(
        tokens=fields["tokens"][part].long(),
        real=fields["real"][part],
        mask_id=mask_id,
        text_bytes=None if text_bytes is None else text_bytes[part],
    )
