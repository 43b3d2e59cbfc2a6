"""The result of an ensemble, computed from what its members kept: no device, and exact."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcray.corpus.manifest import Corpus
from dcray.corpus.order import cut_rows
from dcray.corpus.validation_rows import nats_file, read_nats
from dcray.errors import ConfigError
from dcray.fit.ensemble import ensemble_loss, mean_nats
from dcray.track.rows import Row
from dcray.types import RunKey, RunResult, RunSpec

TOLERANCE = 1e-3  # nats, between a member's loss on record and the mean of what it kept
ANEW = "delete its run in MLflow and search again, or name other seeds in confirm_seeds"


def ensemble_result(
    spec: RunSpec, corpus: Corpus, home: Path, find: Callable[[RunKey], Row | None]
) -> RunResult:
    """Compute the result of an ensemble; it has failed if its members do not fit together.

    home: the folder of the study. find: reads a member's row of the record. device_seconds, among
    the metrics, is the sum over members and their devices.
    """
    try:
        rows = {key: row for key in spec.members if (row := find(key)) is not None}
        nats = [_nats_of(key, rows, home) for key in spec.members]
        _check_alike(nats, rows)
    except ConfigError as error:
        return spec.ended("failed", reason=str(error))
    flat = [one.reshape(-1) for one in nats]
    found = ensemble_loss(flat)
    bpb = _bits_per_byte(mean_nats(flat), corpus, spec)
    metrics = {
        "val_loss": found.loss,
        "device_seconds": sum(row.all_device_seconds or 0.0 for row in rows.values()),
        **({} if bpb is None else {"val_bpb": bpb}),
        **found.as_metrics(),
    }
    return spec.ended("complete", found.loss, val_bpb=bpb, metrics=metrics)


def refuse_lost_nats(keys: Iterable[RunKey], home: Path) -> None:
    """Raise ConfigError for members on record whose nats of validation targets are not there."""
    lost = [key for key in keys if not nats_file(home, key.name).is_file()]
    if lost:
        raise ConfigError([f"{_lost(key)}: {ANEW}" for key in lost])


def _lost(key: RunKey) -> str:
    return (
        f"an ensemble needs the nats of validation targets of {key.label}, which is on record "
        "without them (an older dcray trained it, dcray train did, or the folder is another)"
    )


def _nats_of(key: RunKey, rows: Mapping[RunKey, Row], home: Path) -> NDArray[np.float32]:
    """Read what a member kept, and check that it belongs to the loss on record."""
    path = nats_file(home, key.name)
    if key not in rows or not path.is_file():
        raise ConfigError(f"{_lost(key)}: {ANEW}")
    nats, loss = read_nats(path), rows[key].val_loss
    mean = float(nats.mean(dtype=np.float64))
    if loss is None or not abs(mean - loss) <= TOLERANCE:
        raise ConfigError(
            f"{path} is not of {key.label}: its mean is {mean:.4f} nats per token, and the loss on "
            f"record is {'missing' if loss is None else format(loss, '.4f')}; {ANEW}"
        )
    return nats


def _check_alike(nats: Sequence[NDArray[Any]], rows: Mapping[RunKey, Row]) -> None:
    """Raise ConfigError if members were scored on two validation sets."""
    reads = {row.tags.get("corpus_hash") for row in rows.values()}
    shapes = sorted({one.shape for one in nats})
    if len(shapes) > 1 or len(reads) > 1:
        raise ConfigError(
            "the members of an ensemble must have one tokenizer and one validation set, and these "
            f"have {' and '.join(f'{a} rows of {b} targets' for a, b in shapes)}, of "
            f"{len(reads)} corpora: {ANEW}"
        )


def _bits_per_byte(nats: NDArray[np.float64], corpus: Corpus, spec: RunSpec) -> float | None:
    """Compute bits per byte of text, as in training; None if the corpus has no text."""
    data = spec.config.data
    _, text_bytes = corpus.validation(data.val_tokens)
    if text_bytes is None:
        return None
    of_targets: NDArray[Any] = cut_rows(text_bytes, data.seq_len, data.seq_len)[:, 1:].reshape(-1)
    is_text = of_targets >= 0
    total = int(of_targets[is_text].sum())
    return float(nats[is_text].sum()) / math.log(2) / total if total else None
