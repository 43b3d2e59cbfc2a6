"""What is recorded, as values: a cell, the key of a result, a point of its curve."""

from __future__ import annotations

import functools
import math
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from dcray.errors import ConfigError
from dcray.sections import count_label

KINDS = ("run", "branch", "confirmation")
FORMAT = 1  # of the record; a reader refuses what a newer dcray wrote
REMARKS = "eval/"  # metrics measured after the run had ended: no part of its curve

_NAME = re.compile(r"[^\x00-\x1f'\"`/\\]+")  # goes into a search filter and into paths


@dataclass(frozen=True)
class Cell:
    """One (size, unique_tokens, recipe) of a study; a parent run of the record."""

    study: str
    size: str
    unique_tokens: int
    recipe: str

    def __post_init__(self) -> None:
        problems = [
            f"a {what} must be a name without quotes, slashes and control characters, got {text!r}"
            for what, text in (("study", self.study), ("size", self.size), ("recipe", self.recipe))
            if not _NAME.fullmatch(text)
        ]
        if problems:
            raise ConfigError(problems)

    @property
    def name(self) -> str:
        """ "SIZE_BUDGET_RECIPE": unique within the study, fit for a path."""
        return f"{self.size}_{count_label(self.unique_tokens)}_{self.recipe}"

    @property
    def label(self) -> str:
        """ "226k 64k mir": for people."""
        return f"{self.size} {count_label(self.unique_tokens)} {self.recipe}"


@dataclass(frozen=True)
class Key:
    """What makes a result one result: (study, cell, configuration hash, seed, kind)."""

    cell: Cell
    config_hash: str
    seed: int
    kind: str = "run"

    def __post_init__(self) -> None:
        assert self.kind in KINDS, self.kind
        assert re.fullmatch(r"\w+", self.config_hash), self.config_hash

    @property
    def name(self) -> str:
        """ "SIZE_BUDGET_RECIPE_HASH_seedN_KIND": unique within the study, fit for a path."""
        return f"{self.cell.name}_{self.config_hash}_seed{self.seed}_{self.kind}"


class PointLike(Protocol):
    """What Result.log takes: a Point, or the training loop's own."""

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
    """One point of a curve: where the training stood, and what was measured there.

    `epoch` counts from 0 and may be a fraction; `at` is the instant in Unix seconds. A point that a
    checkpoint keeps (to_dict) is the same point when it is logged again.
    """

    step: int
    tokens_seen: int
    epoch: float
    values: Mapping[str, float]
    at: float = field(default_factory=time.time)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; from_dict of it gives the same value."""
        return {
            "step": self.step,
            "tokens_seen": self.tokens_seen,
            "epoch": self.epoch,
            "values": {key: float(value) for key, value in self.values.items()},
            "at": self.at,
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Point:
        """The point that to_dict wrote."""
        return cls(**fields)


Metric = tuple[str, float, int, int]  # key, value, Unix milliseconds, step: a row of the history


def metrics_of(point: PointLike) -> dict[str, float]:
    """The values, and where they stand in tokens and epochs: axes to draw a curve over."""
    return {
        **{key: float(value) for key, value in point.values.items()},
        "progress/tokens_seen": float(point.tokens_seen),
        "progress/epoch": float(point.epoch),
    }


@functools.cache
def is_key(text: str) -> bool:
    """Whether MLflow takes it as the name of a metric."""
    return re.fullmatch(r"[\w/.-]+", text) is not None


def new_metrics(
    points: Iterable[PointLike], recorded: set[tuple[str, int]]
) -> tuple[list[Metric], list[str]]:
    """The rows that are not recorded yet, and "key@step" of every value that is not finite.

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


def run_name(key: Key, params: Mapping[str, Any]) -> str:
    """A name for people, "226k 64k mir ep16 wd0.8 lr3e-3 seed42"; nothing is parsed out of it.

    The cell is in it although the run lies under its cell: runs are compared across cells.
    """
    parts = [key.cell.label, short_name(params), f"seed{key.seed}"]
    if key.kind == "confirmation":
        parts.append("confirmation")
    return " ".join(filter(None, parts))


def short_name(params: Mapping[str, Any]) -> str:
    """What is searched of a configuration, for people: "ep16 wd0.8 lr3e-3"."""
    return " ".join(
        f"{short}{_number(params[field])}"
        for short, field in (("ep", "num_epochs"), ("wd", "weight_decay"), ("lr", "lr"))
        if params.get(field) is not None
    )


def _number(value: Any) -> str:
    if isinstance(value, float) and 0 < abs(value) < 0.01:
        mantissa, exponent = f"{value:.3e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return f"{value:g}" if isinstance(value, float) else str(value)
