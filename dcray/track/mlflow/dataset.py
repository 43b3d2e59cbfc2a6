"""A budget of a corpus as a dataset of MLflow: its Dataset column shows what a run has read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dcray.config.counts import count_label
from dcray.track.mlflow.connection import Connection
from dcray.types import Cell

DIGEST_CHARACTERS = 8


def log_dataset(
    connection: Connection,
    run_ids: Iterable[str],
    cell: Cell,
    tags: Mapping[str, str],
    manifest: Mapping[str, Any],
) -> None:
    """Log a cell's unique tokens as the dataset of these runs; `corpus` of the tags is its folder.

    The digest is of the budget's tokens, so two corpora of one name are told apart.
    """
    from mlflow.entities import Dataset, DatasetInput, InputTag

    budgets = {one["tokens"]: one["sha256"] for one in manifest["budgets"]}
    digest = budgets.get(cell.unique_tokens, next(iter(budgets.values())))
    profile = {
        "unique_tokens": cell.unique_tokens,
        "vocab_size": manifest["tokenizer"]["vocab_size"],
    }
    dataset = Dataset(
        name=f"{Path(tags['corpus']).name} {count_label(cell.unique_tokens)}",
        digest=digest[:DIGEST_CHARACTERS],
        source_type="local",
        source=json.dumps({"uri": tags["corpus"]}),
        profile=json.dumps(profile),
    )
    made = [DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])]
    for run_id in run_ids:  # logged again, it stands there once
        connection.client.log_inputs(run_id, datasets=made)
