"""What stands on every run of the record, as MLflow keeps it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from dcray.track.owner import Owner
from dcray.track.points import FORMAT, Cell, Key


def identity_marks(cell: Cell, owner: Owner, attempt: str) -> dict[str, str]:
    """Whose a run is: the study, and the driver that has it open."""
    return {
        "study": cell.study,
        "dcray.format": str(FORMAT),
        "dcray.owner": owner.to_json(),
        "dcray.attempt": attempt,
        "dcray.heartbeat": str(time.time()),
    }


def columns_of(key: Key) -> dict[str, Any]:
    """What a key says of its cell, as columns."""
    return {
        "size": key.cell.size,
        "unique_tokens": key.cell.unique_tokens,
        "recipe": key.cell.recipe,
        "seed": key.seed,
    }


def texts_of(values: Mapping[str, Any]) -> dict[str, str]:
    """Values as MLflow keeps them, exact: 0.1 is "0.1", True is "true", None is left out."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in values.items()
        if value is not None
    }
