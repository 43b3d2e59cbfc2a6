"""The averages that a space asks for, each against each of its epoch counts."""

from __future__ import annotations

import itertools

from dcray.config.run import RunConfig, override
from dcray.errors import ConfigError
from dcray.study.axes import Range
from dcray.study.space import Space


def average_problems(space: Space, base: RunConfig) -> list[str]:
    """List why runs of a space cannot have their averages: of another kind, or too long."""
    problems: list[str] = []
    for box in space.boxes:
        axes = [(name, axis) for name, axis in box.axes if name.startswith("average.")]
        names = [name for name, _ in axes]
        ends = [(a.low, a.high) if isinstance(a, Range) else a for _, a in axes]
        for point in itertools.product(*ends):
            try:
                average = override(base, dict(zip(names, point, strict=True))).average
            except ConfigError as error:
                problems += error.problems
                continue
            for epochs in box.rungs:
                try:
                    average.refuse_longer(epochs)
                except ConfigError as error:
                    problems += error.problems
    return list(dict.fromkeys(problems))
