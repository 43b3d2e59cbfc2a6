"""Checked rows of losses and the grid of cells that they make, from which every fit starts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dcray.config.counts import count_label
from dcray.errors import ConfigError, did_you_mean
from dcray.laws._law import Law, Points

ABSURD = 100.0  # nats per token: a uniform model over any vocabulary scores far less
FLAT = 1e-3  # range of log losses below which there is nothing to fit
SHOWN = 5  # how many problems of one kind are written out


@dataclass(frozen=True)
class Row:
    """One loss: a result of a cell and a seed. `where` names its source, for messages.

    bound: "upper bound" if the loss is one, else empty.
    """

    num_params: int
    unique_tokens: int
    val_loss: float
    num_epochs: float = math.nan
    recipe: str = "all"
    seed: int | None = None
    where: str = ""
    bound: str = ""

    @property
    def cell(self) -> tuple[int, int]:
        """Return the cell as (num_params, unique_tokens)."""
        return self.num_params, self.unique_tokens

    @property
    def epochs_key(self) -> float | None:
        """Return num_epochs, or None if unknown, so that two unknown numbers are equal."""
        return None if math.isnan(self.num_epochs) else self.num_epochs


def with_bound(recipe: str, bound: str) -> str:
    """Name a recipe, as "mdlm (upper bound)" if its losses are bounds."""
    return f"{recipe} ({bound})" if bound else recipe


@dataclass(frozen=True)
class Grid:
    """The cells of one recipe; `losses` holds a loss for each seed of a cell, in the points' order.

    bound: "upper bound" if the losses are such, else empty. every_epochs: the grid of all numbers
    of epochs, if some cells have several; the cells here are then the best of them.
    """

    recipe: str
    points: Points
    losses: tuple[tuple[float, ...], ...]
    bound: str = ""
    every_epochs: Grid | None = None

    @property
    def num_past_best(self) -> int:
        """Count the losses that were trained for more epochs than the best of their cell."""
        if self.every_epochs is None or "num_epochs" not in self.points.more:
            return 0
        every = self.every_epochs.points
        best = {
            (N, U): epochs
            for N, U, epochs in zip(
                self.points.N, self.points.U, self.points.more["num_epochs"], strict=True
            )
        }
        each = zip(every.N, every.U, every.more["num_epochs"], strict=True)
        return sum(epochs > best[N, U] for N, U, epochs in each)

    def read_by(self, law: Law) -> Grid:
        """Select the grid for a law: with every number of epochs, if the law reads them."""
        return self.every_epochs or self if "num_epochs" in law.needs else self

    @property
    def label(self) -> str:
        """Name the recipe, as "mdlm (upper bound)" if its losses are bounds."""
        return with_bound(self.recipe, self.bound)

    @property
    def seed_noise(self) -> float | None:
        """Estimate the pooled standard deviation over seeds in nats; None if no cell has two."""
        repeated = [np.var(cell, ddof=1) * (len(cell) - 1) for cell in self.losses if len(cell) > 1]
        left = sum(len(cell) - 1 for cell in self.losses)
        return float(np.sqrt(sum(repeated) / left)) if left else None


def check_rows(rows: Iterable[Row]) -> None:
    """Raise ConfigError for losses and repetitions that no fit can use, and for duplicates."""
    rows = list(rows)
    problems = []
    for row in rows:
        label = f"{row.where or _cell_label(row)}"
        if not math.isfinite(row.val_loss) or row.val_loss <= 0:
            problems.append(
                f"{label}: a loss must be a positive finite number, got {row.val_loss:g}"
            )
        elif row.val_loss > ABSURD:
            problems.append(
                f"{label}: a loss of {row.val_loss:.4g} nats is absurd (above {ABSURD:g}); "
                "a run that diverged has to be left out"
            )
        if not math.isnan(row.num_epochs) and not 0 < row.num_epochs < math.inf:
            problems.append(f"{label}: num_epochs must be positive, got {row.num_epochs:g}")
    counts = Counter((row.recipe, row.cell, row.epochs_key, row.seed) for row in rows)
    for (recipe, cell, epochs, seed), times in counts.items():
        if times > 1:
            named = (
                f"{count_label(cell[0])} parameters, {count_label(cell[1])} tokens, recipe {recipe}"
            )
            named += f", {epochs:g} epochs" if epochs is not None else ""
            of_seed = f"seed {seed}" if seed is not None else "no seed"
            problems.append(
                f"{times} rows for one cell ({named}) and {of_seed}: keep one; of a search, "
                "dcray fit --keep lowest takes the lowest"
            )
    if problems:
        raise ConfigError(shortened(problems))


def _cell_label(row: Row) -> str:
    return f"{count_label(row.num_params)} at {count_label(row.unique_tokens)}, recipe {row.recipe}"


def shortened(problems: Sequence[str]) -> list[str]:
    """Keep the first few problems (SHOWN), and say how many more there are."""
    more = len(problems) - SHOWN
    return [*problems[:SHOWN], *([f"... and {more} more of this kind"] if more > 0 else [])]


def grid_of(rows: Sequence[Row], recipe: str) -> Grid:
    """Build the grid of the recipe's cells: means over seeds, weighted by the number of seeds.

    The variance of a mean of n seeds is the pooled variance over n, so weights are n over the mean
    n. If a cell has several numbers of epochs, the best stands here; all are in `every_epochs`.
    Raises ConfigError for an unknown recipe, a single size or budget, or a flat grid.
    """
    chosen = [row for row in rows if row.recipe == recipe]
    if not chosen:
        known = {row.recipe for row in rows}
        raise ConfigError(f'no row has the recipe "{recipe}"{did_you_mean(recipe, known)}')
    groups = _by_epochs(chosen)
    best = {cell: min(each, key=_mean_loss) for cell, each in groups.items()}
    _check_cells(recipe, list(best.values()))
    bound = next((row.bound for row in chosen if row.bound), "")
    if all(len(each) == 1 for each in groups.values()):
        return _grid(recipe, list(best.values()), bound)
    # The best first, so that a look-up of a cell finds the epochs that its recipe would take.
    every = [seeds for each in groups.values() for seeds in sorted(each, key=_mean_loss)]
    return _grid(recipe, list(best.values()), bound, _grid(recipe, every, bound))


def best_epochs(rows: Sequence[Row]) -> list[Row]:
    """Select in each recipe's cells the rows of the num_epochs with the lowest mean loss."""
    recipes: dict[str, list[Row]] = {}
    for row in rows:
        recipes.setdefault(row.recipe, []).append(row)
    best = [
        min(each, key=_mean_loss) for own in recipes.values() for each in _by_epochs(own).values()
    ]
    return [row for seeds in best for row in seeds]


def epochs_note(grid: Grid, laws: Mapping[str, Law]) -> str:
    """Say which losses of cells with several numbers of epochs each law reads; "" without such."""
    if grid.every_epochs is None:
        return ""
    readers = [name for name, law in laws.items() if "num_epochs" in law.needs]
    others = [name for name in laws if name not in readers]
    runs, cells = len(grid.every_epochs.losses), len(grid.losses)
    said = f"recipe {grid.recipe} has {runs} losses in {cells} cells, of several num_epochs"
    if others:
        said += f"; {', '.join(others)} read the lowest of each cell"
    if readers:
        said += f"; {', '.join(readers)} read all {runs}"
    if readers and others:
        said += ", so their RMSE and AIC do not compare with the others'"
    if past := grid.num_past_best:
        said += f"; {past} losses are past their cell's best epochs, and no law here rises again"
    return said


def _by_epochs(rows: Iterable[Row]) -> dict[tuple[int, int], list[list[Row]]]:
    """Group the rows as {cell: [the seeds of each number of epochs]}, by budget and then size."""
    groups: dict[tuple[int, int], dict[float | None, list[Row]]] = {}
    for row in sorted(rows, key=lambda row: (row.unique_tokens, row.num_params)):
        groups.setdefault(row.cell, {}).setdefault(row.epochs_key, []).append(row)
    return {cell: list(each.values()) for cell, each in groups.items()}


def _mean_loss(seeds: Sequence[Row]) -> float:
    return float(np.mean([row.val_loss for row in seeds]))


def _grid(
    recipe: str, cells: Sequence[Sequence[Row]], bound: str, every_epochs: Grid | None = None
) -> Grid:
    """Build the grid of cells, each given by the rows of its seeds."""
    losses = tuple(tuple(row.val_loss for row in seeds) for seeds in cells)
    counts = np.array([len(seeds) for seeds in losses], float)
    epochs = np.array([seeds[0].num_epochs for seeds in cells])
    points = Points(
        N=np.array([seeds[0].num_params for seeds in cells]) / 1e9,
        U=np.array([seeds[0].unique_tokens for seeds in cells]) / 1e9,
        L=np.array([np.mean(seeds) for seeds in losses]),
        more={} if np.isnan(epochs).any() else {"num_epochs": epochs},
        weight=None if (counts == counts[0]).all() else counts / counts.mean(),
    )
    return Grid(recipe, points, losses, bound, every_epochs)


def _check_cells(recipe: str, cells: Sequence[Sequence[Row]]) -> None:
    """Raise ConfigError for a single size or budget, and for losses that are all alike."""
    problems, single = [], []
    for axis, name in (("model size", "num_params"), ("budget", "unique_tokens")):
        values = {getattr(seeds[0], name) for seeds in cells}
        if len(values) == 1:
            single.append(f"one {axis} only ({name} {count_label(values.pop())})")
    if single:
        problems.append(
            f"recipe {recipe} has {' and '.join(single)}: "
            "a law needs at least two, better four, to tell its terms apart"
        )
    logs = [math.log(_mean_loss(seeds)) for seeds in cells]
    if not problems and max(logs) - min(logs) < FLAT:
        problems.append(
            f"recipe {recipe} is flat: all {len(cells)} losses lie within "
            f"{max(logs) - min(logs):.1e} of each other (relative), there is nothing to fit"
        )
    if problems:
        raise ConfigError(problems)
