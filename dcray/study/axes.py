"""The boxes of a study file: what may be written for a space, checked.

A box is a table; each axis is a value, a list, { low, high, log } or { winners = [budgets] }.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from dcray.config.counts import parse_count
from dcray.errors import ConfigError, rule_of

Value = float | int | str | bool


class Range(BaseModel):
    """All values between low and high; log: spaced evenly in their logarithm."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    low: Annotated[float, Field(allow_inf_nan=False)]
    high: Annotated[float, Field(allow_inf_nan=False)]
    log: bool = True

    @model_validator(mode="after")
    def _rises(self) -> Range:
        if not self.low < self.high:
            raise ValueError(f"low must be less than high, got {self.low:g} and {self.high:g}")
        if self.log and self.low <= 0:
            raise ValueError(f"low must be above 0 where log is true, got {self.low:g}")
        return self


class Winners(BaseModel):
    """The values that the winners of other budgets have: { winners = ["200m", "400m"] }."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    winners: Annotated[tuple[str, ...], Field(min_length=1)]

    @field_validator("winners")
    @classmethod
    def _budgets(cls, winners: tuple[str, ...]) -> tuple[str, ...]:
        for budget in winners:
            try:
                parse_count(budget)
            except ValueError as error:
                raise ValueError(f"{error}, got {budget!r}") from None
        return winners


Axis = tuple[Value, ...] | Range | Winners


def parse_space(written: Sequence[Mapping[str, Any]], where: str) -> list[dict[str, Axis]]:
    """Parse and check the boxes of a study file: axes by name, each a list, a Range or Winners.

    Raises ConfigError that names `where` and the axis.
    """
    boxes: list[dict[str, Axis]] = []
    problems: list[str] = []
    for number, table in enumerate(written):
        place = f"{where}[{number}]"
        box: dict[str, Axis] = {}
        for name, value in table.items():
            try:
                box[name] = _axis(value)
            except ValueError as error:
                problems.append(f"{place}.{name}: {_sentence(error)}")
        if "tau" in box and "weight_decay" in box:
            problems.append(f"{place} must have one of tau and weight_decay, not both")
        problems += _epoch_problems(place, box.get("num_epochs"))
        boxes.append(box)
    names = [frozenset(box) for box in boxes]
    if len(set(names)) > 1:
        listed = " and ".join(sorted({", ".join(sorted(one)) for one in names}))
        problems.append(f"{where}: every box must have the same axes, got {listed}")
    if problems:
        raise ConfigError(problems)
    return boxes


def _axis(value: Any) -> Axis:
    if isinstance(value, Mapping):
        return Winners(**value) if "winners" in value else Range(**value)
    listed = tuple(value) if isinstance(value, list) else (value,)
    if not listed:
        raise ValueError("a list must hold a value; leave the axis out to keep the default")
    for one in listed:
        if not isinstance(one, (int, float, str)):
            raise ValueError(f"must hold numbers or names, got {one!r}")
    if len(set(listed)) < len(listed):
        raise ValueError(f"a list must hold each value once, got {list(listed)}")
    return listed


def _epoch_problems(place: str, epochs: Axis | None) -> list[str]:
    if epochs is None or isinstance(epochs, Winners):
        return []
    if isinstance(epochs, Range):
        return [f"{place}.num_epochs must be a list: its values are the rungs"]
    if any(not isinstance(e, int) or isinstance(e, bool) or e < 1 for e in epochs):
        return [f"{place}.num_epochs must hold whole numbers from 1 on, got {list(epochs)}"]
    if list(epochs) != sorted(epochs, key=float):
        return [f"{place}.num_epochs must rise, got {list(epochs)}"]
    return []


def _sentence(error: ValueError) -> str:
    details = getattr(error, "errors", None)
    if details is None:
        return str(error)
    return "; ".join(f"{'.'.join(map(str, d['loc']))} {_said(d)}".strip() for d in details())


def _said(detail: Mapping[str, Any]) -> str:
    if detail["type"] == "extra_forbidden":
        return "is no part of a range; it is written { low = ..., high = ..., log = true }"
    got = detail["input"]
    shown = detail["type"] != "value_error" and not isinstance(got, Mapping)
    return rule_of(detail) + (f", got {got!r}" if shown else "")
