"""Fields as axes of a space: which may be, and which values they take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dcray.config.plugged import PLUGGED
from dcray.config.run import RunConfig, field_names, override
from dcray.errors import ConfigError, did_you_mean
from dcray.study.axes import Axis, Range, Winners
from dcray.study.space import AXES, changes_of

NO_AXES = {
    "seed": "a study is searched at one seed: write seed = N at the head of the file, and in the "
    "recipe confirm_seeds = [1, 2] to run the winner again at others",
    "size": "write the sizes at the head of the file: each is a cell of its own",
    "data.unique_tokens": "write budgets at the head of the file: each is a cell of its own",
    "data.val_tokens": "losses on two validation sets cannot be compared: write it in [base]",
    "objective": "write a recipe for each objective",
    "optimizer": "write a recipe for each optimizer",
    "runtime": "it changes no result: write it in [base], or in [resources]",
}


def field_problems(boxes: Sequence[Mapping[str, Axis]], base: RunConfig, where: str) -> list[str]:
    """List axes that are not fields, and values that their field does not take."""
    problems: list[str] = []
    for box in boxes:
        for name, axis in box.items():
            refused = _no_axis(name)
            if refused:
                problems.append(f"{where}: {refused}")
            if refused or isinstance(axis, Winners):
                continue
            ends = (axis.low, axis.high) if isinstance(axis, Range) else axis
            for value in ends:
                if name == "tau" and not (isinstance(value, (int, float)) and value > 0):
                    problems.append(f"{where}: tau must be above 0, got {value!r}")
                    continue
                try:
                    override(base, changes_of(((name, value),), base))
                except ConfigError as error:
                    problems += [f"{where}: {problem}" for problem in error.problems]
    return list(dict.fromkeys(problems))


def _no_axis(name: str) -> str:
    """Explain why a field cannot be an axis of a space, and what to write; "" if it can."""
    if name in AXES:
        return ""
    for field, remedy in NO_AXES.items():
        whole = field in ("size", "runtime") and name.startswith(f"{field}.")
        if name in (field, f"{field}.name") or whole:
            return f"{name} is no axis of a space: {remedy}"
    if name in field_names() or name.startswith(tuple(f"{field}." for field in PLUGGED)):
        return ""
    return f'"{name}" is not a field{did_you_mean(name, [*AXES, *field_names()])}'
