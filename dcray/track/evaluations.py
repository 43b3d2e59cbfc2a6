"""Metrics and artifacts that are measured on a result after it ended, and nothing else.

Status, tags and the curve stay as they are, so a complete result stays complete, and what counts as
its loss does not change.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dcray.errors import ConfigError
from dcray.track.mlflow.connection import connect
from dcray.track.mlflow.write_queue import Write, apply
from dcray.track.points import REMARKS, is_key
from dcray.track.rows import Row

PATIENCE_SECONDS = 60.0


def remark(
    directory: Path,
    row: Row,
    metrics: Mapping[str, float],
    *,
    artifacts: Mapping[str, Any] | None = None,
    tracking_uri: str | None = None,
) -> None:
    """Write eval/NAME metrics and eval/NAME.json artifacts to the run of a result.

    Writing the same names again overwrites. A value that is not finite is left out. Raises
    RecordAwayError if the record does not answer for a minute.
    """
    bad = [name for name in metrics if not is_key(name)]
    if bad:
        raise ConfigError(f"a metric's name has letters, digits and _/.-, got {', '.join(bad)}")
    now = round(time.time() * 1000)
    values = [
        (f"{REMARKS}{name}", float(value), now, 0)
        for name, value in metrics.items()
        if math.isfinite(value)
    ]
    texts = {f"{REMARKS}{name}.json": json.dumps(held) for name, held in (artifacts or {}).items()}
    attempt = row.tags.get("dcray.attempt", "")
    write = Write(row.run_id, attempt, metrics=values, texts=texts)
    connection = connect(directory, tracking_uri, create=False)
    connection.patiently(lambda: apply(connection.client, write), seconds=PATIENCE_SECONDS)
