"""A search space: a union of boxes; its points are the trunks of a cell.

    [{ num_epochs = [16, 32, 64], tau = [0.5, 1, 2], lr = { low = 1e-3, high = 1e-2, log = true } }]

The epoch counts of a box are its rungs; every other axis names a field of RunConfig (lr,
weight_decay and num_epochs for short, or tau), and one value of each makes a trunk.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dcray.config.run import RunConfig
from dcray.study.axes import Axis, Range, Value, Winners

SHORT = {
    "num_epochs": "num_epochs",
    "lr": "optim.lr",
    "weight_decay": "optim.weight_decay",
}
AXES = (*SHORT, "tau")  # the axes that have a name of their own; others are fields of RunConfig
DIGITS = 3  # significant digits of a value that was computed, before it is hashed
MIN_RUNG_FRAC = 0.25  # of the longest run: an earlier rung says little about the end
MAX_WARMUP_FRAC = 0.1  # of a branch's steps; the paper's runs warm up over 0.01 of their own

Values = tuple[tuple[str, Value], ...]  # the coordinates of a trunk, by name


@dataclass(frozen=True)
class Trunk:
    """One point of a space and the epoch counts at which it forks."""

    values: Values
    rungs: tuple[int, ...]

    @property
    def label(self) -> str:
        """Format the point for people: "lr 0.003, tau 1"."""
        return ", ".join(f"{name} {_text(value)}" for name, value in self.values)


@dataclass(frozen=True)
class Box:
    """A product of axes; `rungs` are its epoch counts in ascending order."""

    rungs: tuple[int, ...]
    axes: tuple[tuple[str, tuple[Value, ...] | Range], ...]


@dataclass(frozen=True)
class Space:
    """A union of boxes over the same axes."""

    boxes: tuple[Box, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.boxes[0].axes) if self.boxes else ()

    @property
    def discrete(self) -> bool:
        """Tell whether every axis is a list, so that trunks() can list all points."""
        return not any(isinstance(axis, Range) for box in self.boxes for _, axis in box.axes)

    @property
    def rungs(self) -> tuple[int, ...]:
        """Return every epoch count of the boxes in ascending order."""
        return tuple(sorted({rung for box in self.boxes for rung in box.rungs}))

    @property
    def longest(self) -> int:
        """Return the largest epoch count."""
        return self.rungs[-1]

    def trunks(self) -> list[Trunk]:
        """List every trunk of a discrete space once; one in several boxes has the rungs of all."""
        assert self.discrete
        rungs: dict[Values, set[int]] = {}
        for box in self.boxes:
            names = [name for name, _ in box.axes]
            for point in itertools.product(*(_listed(axis) for _, axis in box.axes)):
                rungs.setdefault(tuple(zip(names, point, strict=True)), set()).update(box.rungs)
        return [Trunk(values, tuple(sorted(found))) for values, found in rungs.items()]

    def rungs_of(self, values: Values) -> tuple[int, ...]:
        """Return the epoch counts of the boxes that hold this point, ascending."""
        held = {rung for box in self.boxes if _holds(box, values) for rung in box.rungs}
        return tuple(sorted(held))

    def holds(self, values: Mapping[str, Value]) -> bool:
        """Tell whether a point lies in one of the boxes."""
        return bool(self.rungs_of(tuple(values.items())))

    def envelope(self) -> dict[str, Range | tuple[Value, ...]]:
        """Compute each varying axis over all boxes: a Range of numbers, else the values."""
        found: dict[str, Range | tuple[Value, ...]] = {}
        for name in self.names:
            axes = [axis for box in self.boxes for own, axis in box.axes if own == name]
            values = [v for axis in axes for v in (_ends(axis))]
            unique = tuple(dict.fromkeys(values))
            if len(unique) < 2:
                continue
            numbers = [float(v) for v in unique if _is_number(v)]
            if len(numbers) < len(unique):
                found[name] = unique
                continue
            log = min(numbers) > 0 and all(axis.log for axis in axes if isinstance(axis, Range))
            found[name] = Range(low=min(numbers), high=max(numbers), log=log)
        return found

    def snap(self, target: Mapping[str, Value], taken: Iterable[Values] = ()) -> Values | None:
        """Find the point of the space nearest to `target` that is not taken; None if none is left.

        Distances are in the axes' own measure, each scaled to its extent. On a Range the coordinate
        is that of `target`, clipped and rounded to 3 digits.
        """
        scales, used = self.envelope(), set(taken)
        options = [point for box in self.boxes for point in _snapped(box, target)]
        free = [point for point in options if point not in used]
        return min(free, key=lambda point: _distance(point, target, scales), default=None)

    def edges(self, values: Values, num_epochs: int) -> list[str]:
        """List the axes at whose end this point lies, among those with more than one value."""
        found = []
        rungs = self.rungs
        if len(rungs) > 1 and num_epochs in (rungs[0], rungs[-1]):
            found.append("num_epochs")
        scales, here = self.envelope(), dict(values)
        for name, axis in scales.items():
            if isinstance(axis, Range) and _at_end(float(here[name]), axis):
                found.append(name)
        return found


def build_space(boxes: Sequence[Mapping[str, Axis]], num_epochs: int) -> Space:
    """Build the space of boxes without Winners; a box without num_epochs has that one rung."""
    built = []
    for box in boxes:
        axes: list[tuple[str, tuple[Value, ...] | Range]] = []
        for name in sorted(set(box) - {"num_epochs"}):
            axis = box[name]
            assert not isinstance(axis, Winners), "resolve the winners first"
            axes.append((name, axis))
        epochs = box.get("num_epochs", (num_epochs,))
        assert isinstance(epochs, tuple)
        built.append(Box(tuple(int(e) for e in epochs), tuple(axes)))
    return Space(tuple(built))


def early_rungs(space: Space) -> str | None:
    """Format a warning if a rung is below a quarter of the longest run of its box, else None.

    A single trunk has no competitors and gets none.
    """
    if space.discrete and len(space.trunks()) == 1:
        return None
    early = sorted(
        {rung for box in space.boxes for rung in box.rungs if rung < MIN_RUNG_FRAC * box.rungs[-1]}
    )
    if not early:
        return None
    return (
        f"rung {', '.join(map(str, early))} lies below a quarter of the longest run "
        f"({space.longest} epochs): what leads there, with few repetitions and little decay, is "
        "often not what leads at the end, and the ladder may drop the best trunk"
    )


def warms_up_alone(config: RunConfig, num_epochs: int, longest: int) -> bool:
    """Tell whether a run is too short for the warm-up that it would share with the longest one.

    A trunk has one warm-up, that of the space's longest run. A branch of which it would be more
    than a tenth is a run of its own, with its own warm-up: beside 128 epochs a run of one epoch
    would never reach its learning rate. A schedule.warmup_steps that a person wrote stays.
    """
    schedule = config.schedule
    if schedule.kind != "wsd" or schedule.warmup_steps is not None:
        return False
    shared = config.warmup_steps(longest)
    steps = config.model_copy(update={"num_epochs": num_epochs}).num_steps
    return shared > MAX_WARMUP_FRAC * steps and config.warmup_steps(num_epochs) < shared


def changes_of(values: Values, config: RunConfig) -> dict[str, Any]:
    """Compute the overrides of `config` that a trunk stands for; weight decay follows from tau.

    weight_decay = batch_tokens / (lr * tau * unique_tokens), rounded to 3 digits.
    """
    given = dict(values)
    changes: dict[str, Any] = {
        SHORT.get(name, name): value for name, value in given.items() if name != "tau"
    }
    if "tau" in given:
        lr = float(changes.get("optim.lr", config.optim.lr))
        changes["optim.weight_decay"] = weight_decay_of(float(given["tau"]), lr, config)
    return changes


def weight_decay_of(tau: float, lr: float, config: RunConfig) -> float:
    """Compute the weight decay of timescale `tau` epochs, as in `changes_of`, to 3 digits."""
    batch_tokens = config.batch_size * config.data.seq_len
    return rounded(batch_tokens / (lr * tau * config.unique_tokens))


def rounded(value: float) -> float:
    """Round a number to 3 significant digits."""
    return float(f"{value:.{DIGITS}g}")


def _listed(axis: tuple[Value, ...] | Range) -> tuple[Value, ...]:
    assert not isinstance(axis, Range)
    return axis


def _ends(axis: tuple[Value, ...] | Range) -> tuple[Value, ...]:
    return (axis.low, axis.high) if isinstance(axis, Range) else axis


def _is_number(value: Value) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _holds(box: Box, values: Values) -> bool:
    given = dict(values)
    return set(given) == {name for name, _ in box.axes} and all(
        axis.low <= float(given[name]) <= axis.high
        if isinstance(axis, Range)
        else given[name] in axis
        for name, axis in box.axes
    )


def _snapped(box: Box, target: Mapping[str, Value]) -> Iterable[Values]:
    """List the points of a box that may be nearest: the target on ranges, every value of a list."""
    choices = [
        (min(max(rounded(float(target[name])), axis.low), axis.high),)
        if isinstance(axis, Range)
        else axis
        for name, axis in box.axes
    ]
    names = [name for name, _ in box.axes]
    return (tuple(zip(names, point, strict=True)) for point in itertools.product(*choices))


def _distance(
    point: Values, target: Mapping[str, Value], scales: Mapping[str, Range | tuple[Value, ...]]
) -> float:
    total = 0.0
    for name, value in point:
        axis = scales.get(name)
        if axis is None or name not in target:
            continue
        if isinstance(axis, Range):
            total += (position(float(value), axis) - position(float(target[name]), axis)) ** 2
        else:
            total += float(value != target[name])
    return total


def position(value: float, axis: Range) -> float:
    """Compute where a value lies on an axis: 0 at low, 1 at high, outside [0, 1] beyond them."""
    if not axis.log:
        return (value - axis.low) / (axis.high - axis.low)
    low = math.log(axis.low)
    return (math.log(max(value, 1e-300)) - low) / (math.log(axis.high) - low)


def value_at(axis: Range | tuple[Value, ...], share: float) -> Value:
    """Compute the value at a share (0 to 1) of an axis: the inverse of `position`."""
    if isinstance(axis, tuple):
        return axis[min(int(share * len(axis)), len(axis) - 1)]
    if not axis.log:
        return axis.low + share * (axis.high - axis.low)
    return float(axis.low * (axis.high / axis.low) ** share)


def _at_end(value: float, axis: Range) -> bool:
    return not 0.01 < position(value, axis) < 0.99


def _text(value: Value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
