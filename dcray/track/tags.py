"""Tags and columns of every run of the record, as MLflow keeps them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from dcray.track.locks.owner import Owner
from dcray.track.points import FORMAT
from dcray.types import Cell, RunKey

SOURCE = {"mlflow.source.name": "dcray", "mlflow.source.type": "LOCAL"}  # MLflow's Source column


def identity_marks(cell: Cell, owner: Owner, attempt: str) -> dict[str, str]:
    """Return the tags of a run's study and source, and of the driver that has it open."""
    return {
        **SOURCE,
        "study": cell.study,
        "dcray.format": str(FORMAT),
        "dcray.owner": owner.to_json(),
        "dcray.attempt": attempt,
        "dcray.heartbeat": str(time.time()),
    }


def columns_of(key: RunKey) -> dict[str, Any]:
    """Return the cell and seed of a key, as columns."""
    return {
        "size": key.cell.size,
        "unique_tokens": key.cell.unique_tokens,
        "recipe": key.cell.recipe,
        "seed": key.seed,
    }


def texts_of(values: Mapping[str, Any]) -> dict[str, str]:
    """Format values as MLflow keeps them, exact: 0.1 is "0.1", True is "true", None is left out."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in values.items()
        if value is not None
    }
