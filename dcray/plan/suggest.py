"""Values to start a cell that is not searched yet, from the winners of the cells nearest to it.

lr, tau and the number of epochs are averaged in logarithms over the nearest cells, each weighted by
1 / distance^2, where distance is measured in doublings of parameters and of unique tokens. An
average never leaves the range of its values, so beyond the cells it repeats the nearest.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from dcray.config.counts import count_label
from dcray.config.run import RunConfig, override
from dcray.config.sizes import GPT2_VOCAB_SIZE, PAPER_SIZES, num_params
from dcray.fit.paper.published import figures
from dcray.study.space import rounded, weight_decay_of
from dcray.track.rows import Row, winner

NEAREST = 4  # cells that count: the corners of a grid's square
STEPS = (1.0, 3.0)  # learning rates are 1 or 3 times a power of ten, as in the paper's grid


@dataclass(frozen=True)
class Known:
    """The winner of a cell that was searched."""

    name: str
    num_params: int
    unique_tokens: int
    num_epochs: int
    lr: float
    tau: float  # epochs


@dataclass(frozen=True)
class Suggestion:
    """Values to start from, the cells that they follow from with their weights, and warnings."""

    num_epochs: int
    lr: float
    tau: float
    weight_decay: float
    used: tuple[tuple[Known, float], ...]
    beyond: tuple[str, ...]  # sentences: in what the cell lies outside of all cells

    @property
    def box(self) -> dict[str, list[int] | list[float]]:
        """Return a space around the values: epochs E/4, E/2, E, and three values of lr and tau."""
        return {
            "num_epochs": sorted({max(1, self.num_epochs // part) for part in (4, 2, 1)}),
            "lr": [_step(self.lr, -1), self.lr, _step(self.lr, 1)],
            "tau": [rounded(self.tau * factor) for factor in (0.5, 1, 2)],
        }


def published() -> list[Known]:
    """List the 20 winners that the paper prints, at its batch of 128 rows of 2,048 tokens."""
    found = []
    for budget, by_size in figures()["best_hyperparameters"].items():
        if not isinstance(by_size, Mapping):
            continue
        for size, (epochs, weight_decay, lr) in by_size.items():
            changes = {"size": size, "data.unique_tokens": budget, "num_epochs": epochs}
            optim = {"optim.weight_decay": weight_decay, "optim.lr": lr}
            config = override(RunConfig(), changes | optim)
            count = num_params(PAPER_SIZES[size], GPT2_VOCAB_SIZE)
            tokens = config.data.unique_tokens
            found.append(Known(f"{size} {budget}", count, tokens, epochs, lr, config.tau))
    return found


def recorded(rows: Iterable[Row], recipe: str) -> list[Known]:
    """Find the winners of a recipe's cells on record: of each cell the lowest loss."""
    cells: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        if row.recipe == recipe:
            cells.setdefault((row.size, row.unique_tokens), []).append(row)
    found = []
    for (size, tokens), own in cells.items():
        best = winner(own)
        if best is None or not (best.num_params and best.num_epochs and best.lr and best.tau):
            continue
        if not math.isfinite(best.tau):
            continue
        name = f"{size} {count_label(tokens)}"
        found.append(Known(name, best.num_params, tokens, best.num_epochs, best.lr, best.tau))
    return found


def suggest(config: RunConfig, num_params: int, known: Sequence[Known]) -> Suggestion:
    """Suggest where to start the cell of this configuration; `known` holds at least one cell.

    A cell that is among them answers alone. lr is snapped to 1 or 3 times a power of ten, epochs to
    a power of two, weight decay follows from lr and tau, to 3 digits.
    """
    distances = [(_distance(num_params, config.data.unique_tokens, one), one) for one in known]
    distances.sort(key=lambda pair: (pair[0], pair[1].name))
    near = distances[:1] if distances[0][0] == 0 else distances[:NEAREST]
    weights = [1.0 if distance == 0 else distance**-2 for distance, _ in near]
    used = tuple(
        (one, weight / sum(weights)) for (_, one), weight in zip(near, weights, strict=True)
    )

    def mean(value: Callable[[Known], float]) -> float:
        return math.exp(sum(weight * math.log(value(one)) for one, weight in used))

    lr, tau = snap_lr(mean(lambda one: one.lr)), rounded(mean(lambda one: one.tau))
    return Suggestion(
        num_epochs=2 ** round(math.log2(mean(lambda one: one.num_epochs))),
        lr=lr,
        tau=tau,
        weight_decay=weight_decay_of(tau, lr, config),
        used=used,
        beyond=tuple(_beyond(num_params, config.data.unique_tokens, known)),
    )


def snap_lr(lr: float) -> float:
    """Find the nearest of ..., 1e-3, 3e-3, 1e-2, ... in the logarithm."""
    decade = math.floor(math.log10(lr))
    steps = [float(f"{step}e{power}") for power in range(decade, decade + 2) for step in STEPS]
    return min(steps, key=lambda step: abs(math.log(step / lr)))


def _step(lr: float, by: int) -> float:
    """Move the learning rate by one step of the grid; one off the grid by a factor of three."""
    decade = math.floor(math.log10(lr) + 1e-9)
    steps = [float(f"{step}e{p}") for p in range(decade - 1, decade + 2) for step in STEPS]
    if lr in steps:
        return steps[steps.index(lr) + by]
    return rounded(lr * 3.0**by)


def _distance(num_params: int, unique_tokens: int, one: Known) -> float:
    sizes = math.log2(num_params / one.num_params)
    budgets = math.log2(unique_tokens / one.unique_tokens)
    return math.hypot(sizes, budgets)


def _beyond(num_params: int, unique_tokens: int, known: Sequence[Known]) -> list[str]:
    """Say in sentences where the cell lies outside of what is known, and by how much."""
    found = []
    axes = (
        ("parameters", num_params, [one.num_params for one in known]),
        ("unique tokens", unique_tokens, [one.unique_tokens for one in known]),
    )
    for (what, here, there), (word, end, way) in itertools.product(
        axes, (("more", max, 1), ("fewer", min, -1))
    ):
        ratio = (here / end(there)) ** way
        if ratio > 1:
            found.append(
                f"{ratio:.2g} times {word} {what} than any of these cells: this extrapolates, by "
                "repeating the nearest; search around it before you trust it"
            )
    return found
