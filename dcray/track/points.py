"""The recorded values of a run: points of its curve, and names for people."""

from __future__ import annotations

import functools
import math
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from dcray.config.settings import in_words
from dcray.types import RunKey

FORMAT = 1  # of the record; a reader refuses what a newer dcray wrote
REMARKS = "eval/"  # metrics measured after the run had ended: no part of its curve


class PointLike(Protocol):
    """The interface of what Result.log takes: a Point, or the training loop's own."""

    @property
    def step(self) -> int: ...
    @property
    def tokens_seen(self) -> int: ...
    @property
    def epoch(self) -> float: ...
    @property
    def values(self) -> Mapping[str, float]: ...


@dataclass(frozen=True)
class Point:
    """One point of a curve: the progress of training, and what was measured there.

    `epoch` counts from 0 and may be a fraction; `at` is the instant in Unix seconds. A point that a
    checkpoint keeps (to_dict) is the same point when it is logged again.
    """

    step: int
    tokens_seen: int
    epoch: float
    values: Mapping[str, float]
    at: float = field(default_factory=time.time)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types; from_dict of them gives the same value."""
        return {
            "step": self.step,
            "tokens_seen": self.tokens_seen,
            "epoch": self.epoch,
            "values": {key: float(value) for key, value in self.values.items()},
            "at": self.at,
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Point:
        """Build the point that to_dict wrote."""
        return cls(**fields)


Metric = tuple[str, float, int, int]  # key, value, Unix milliseconds, step: a row of the history


def metrics_of(point: PointLike) -> dict[str, float]:
    """Return the values with tokens seen and epoch: the axes to draw a curve over."""
    return {
        **{key: float(value) for key, value in point.values.items()},
        "progress/tokens_seen": float(point.tokens_seen),
        "progress/epoch": float(point.epoch),
    }


@functools.cache
def is_key(text: str) -> bool:
    """Tell whether MLflow takes `text` as the name of a metric."""
    return re.fullmatch(r"[\w/.-]+", text) is not None


def new_metrics(
    points: Iterable[PointLike], recorded: set[tuple[str, int]]
) -> tuple[list[Metric], list[str]]:
    """Return the rows not recorded yet, and "key@step" of every value that is not finite.

    Adds the rows to `recorded`: a (key, step) gives one row, however often it is logged.
    """
    rows: list[Metric] = []
    nonfinite: list[str] = []
    for point in points:
        milliseconds = round(getattr(point, "at", time.time()) * 1000)
        for key, value in metrics_of(point).items():
            assert is_key(key), f"a metric key has letters, digits and _/.-, got {key!r}"
            if (key, point.step) in recorded:
                continue
            if math.isfinite(value):
                recorded.add((key, point.step))
                rows.append((key, value, milliseconds, point.step))
            else:
                nonfinite.append(f"{key}@{point.step}")
    return rows, nonfinite


def run_name(key: RunKey, params: Mapping[str, Any], axes: Mapping[str, Any] | None = None) -> str:
    """Format a name for people, "226k 64k mir ep16 wd0.8 lr3e-3 seed42"; it is never parsed.

    The cell is in it although the run lies under its cell: runs are compared across cells. axes:
    further settings that its cell searches, "weight=0.4".
    """
    parts = [key.cell.label, short_name(params, axes)]
    parts += [] if key.kind == "ensemble" else [f"seed{key.seed}"]
    parts += [key.kind] if key.kind in ("confirmation", "ensemble") else []
    return " ".join(filter(None, parts))


def short_name(params: Mapping[str, Any], axes: Mapping[str, Any] | None = None) -> str:
    """Format what is searched of a configuration, for people: "ep16 wd0.8 lr3e-3 weight=0.4"."""
    named = [
        f"{short}{_number(params[field])}"
        for short, field in (("ep", "num_epochs"), ("wd", "weight_decay"), ("lr", "lr"))
        if params.get(field) is not None
    ]
    return " ".join([*named, *in_words(axes or {}, gap="=")])


def _number(value: Any) -> str:
    if isinstance(value, float) and 0 < abs(value) < 0.01:
        mantissa, exponent = f"{value:.3e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return f"{value:g}" if isinstance(value, float) else str(value)
