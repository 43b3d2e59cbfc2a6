"""The averages of a study, each against every number of epochs that its cell may train."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

from dcray.config.run import RunConfig, override
from dcray.errors import ConfigError
from dcray.study.axes import Axis, Range, Winners
from dcray.study.spec import CellSpec
from dcray.types import Cell


def refuse_long_averages(cell_specs: Mapping[Cell, CellSpec]) -> None:
    """Raise ConfigError if the average of a cell is longer than one of its runs, or cannot be.

    Epochs that a cell takes from the winner of another one may be any that this one searches. Those
    from a winner of another study are known later, and are then refused by `RunConfig.resolved`.
    """
    problems = [
        f"{spec.where}: {problem}"
        for spec in cell_specs.values()
        for box in spec.boxes
        for problem in _problems(box, spec.base(), _epochs(box, spec, cell_specs))
    ]
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))


def _problems(box: Mapping[str, Axis], base: RunConfig, epochs: Iterable[int]) -> list[str]:
    """List what is wrong with the averages of a box, at the ends of its axes."""
    axes = {
        name: (axis.low, axis.high) if isinstance(axis, Range) else axis
        for name, axis in box.items()
        if name.startswith("average.") and not isinstance(axis, Winners)
    }
    problems: list[str] = []
    for point in itertools.product(*axes.values()):
        try:
            average = override(base, dict(zip(axes, point, strict=True))).average
        except ConfigError as error:
            problems += error.problems
            continue
        for number in sorted(epochs):
            try:
                average.refuse_longer(number)
            except ConfigError as error:
                problems += error.problems
    return problems


def _epochs(
    box: Mapping[str, Axis], spec: CellSpec, cell_specs: Mapping[Cell, CellSpec]
) -> set[int]:
    """Collect the numbers of epochs that runs of a box may have, as far as this study says."""
    axis = box.get("num_epochs")
    if isinstance(axis, tuple):
        return {int(number) for number in axis}
    if isinstance(axis, Winners):
        needed = [spec.at_budget(budget) for budget in axis.winners]
    elif spec.inherits is None or "num_epochs" in spec.recipe.base:
        return {spec.base().num_epochs}
    else:
        needed = [spec.inherits]
    return {
        number
        for other in (cell_specs[cell] for cell in needed if cell in cell_specs)
        for theirs in other.boxes
        for number in _epochs(theirs, other, cell_specs)
    }
