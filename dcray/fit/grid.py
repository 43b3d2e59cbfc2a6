"""Rows of losses, checked, and the grid of cells that they make: what every fit starts from."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dcray.errors import ConfigError, did_you_mean
from dcray.laws._law import Points
from dcray.sections import count_label, parse_count

ABSURD = 100.0  # nats per token: a uniform model over any vocabulary scores far less
SMALLEST = 1000  # parameters and tokens below which a count is in the wrong unit
LARGEST = {"num_params": 10**14, "unique_tokens": 10**16}
FLAT = 1e-3  # range of log losses below which there is nothing to fit
LOSS_COLUMNS = ("val_loss", "loss")
SHOWN = 5  # how many problems of one kind are written out


@dataclass(frozen=True)
class Row:
    """One loss: a result of a cell and a seed. `where` says where it stands, for messages.

    bound: "upper bound" where the loss is one, else empty.
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
        """(num_params, unique_tokens)."""
        return self.num_params, self.unique_tokens


def with_bound(recipe: str, bound: str) -> str:
    """ "mdlm (upper bound)" where its losses are bounds, else the recipe's name."""
    return f"{recipe} ({bound})" if bound else recipe


@dataclass(frozen=True)
class Grid:
    """The cells of one recipe; losses holds each cell's seeds, in the order of the points.

    bound: "upper bound" where losses are such, else empty.
    """

    recipe: str
    points: Points
    losses: tuple[tuple[float, ...], ...]
    bound: str = ""

    @property
    def label(self) -> str:
        """ "mdlm (upper bound)" where its losses are bounds, else the recipe's name."""
        return with_bound(self.recipe, self.bound)

    @property
    def seed_noise(self) -> float | None:
        """Pooled standard deviation of a loss over seeds, in nats; None where no cell has two."""
        repeated = [np.var(cell, ddof=1) * (len(cell) - 1) for cell in self.losses if len(cell) > 1]
        left = sum(len(cell) - 1 for cell in self.losses)
        return float(np.sqrt(sum(repeated) / left)) if left else None


def read_csv(path: str | Path) -> list[Row]:
    """The rows of a CSV with num_params, unique_tokens, val_loss (or loss) and, where there are
    any, num_epochs, recipe, seed and bound. Counts may be written as 72m.

    Raises ConfigError with one sentence for each problem, all at once.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from None
    try:
        reader = csv.DictReader(text.splitlines())
        columns, lines = [name.strip() for name in reader.fieldnames or []], list(reader)
    except csv.Error as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    loss = _check_columns(path, columns)
    rows, problems = [], []
    for number, values in enumerate(lines, start=2):
        where = f"{path.name}, line {number}"
        cleaned = {
            (k or "").strip(): (v or "").strip() for k, v in values.items() if isinstance(v, str)
        }
        try:
            rows.append(_row(cleaned, loss, where))
        except ValueError as error:
            problems.append(f"{where}: {error}")
    if problems:
        raise ConfigError(_shortened(problems))
    if not rows:
        raise ConfigError(f"{path} has no rows below its header")
    return rows


def _check_columns(path: Path, columns: Sequence[str]) -> str:
    """The name of the loss column; ConfigError for what is missing."""
    loss = next((name for name in LOSS_COLUMNS if name in columns), None)
    missing = [name for name in ("num_params", "unique_tokens") if name not in columns]
    missing += ["val_loss (or loss)"] if loss is None else []
    if missing:
        raise ConfigError(
            f"{path} lacks the column{'s' if len(missing) > 1 else ''} {', '.join(missing)}; "
            f"it has {', '.join(columns) or 'none'}"
        )
    return loss or ""


def _row(values: Mapping[str, str], loss: str, where: str) -> Row:
    """One line as a Row; ValueError names the field, the rule and what came."""
    counts = {name: _count(name, values.get(name, "")) for name in ("num_params", "unique_tokens")}
    epochs, seed = values.get("num_epochs", ""), values.get("seed", "")
    return Row(
        **counts,
        val_loss=_number(loss, values.get(loss, "")),
        num_epochs=_number("num_epochs", epochs) if epochs else math.nan,
        recipe=values.get("recipe", "") or "all",
        seed=_whole("seed", seed) if seed else None,
        where=where,
        bound=values.get("bound", ""),
    )


def _count(name: str, text: str) -> int:
    try:
        value = float(text)
    except ValueError:
        try:
            value = float(parse_count(text))
        except ValueError:
            raise ValueError(
                f"{name} must be a count such as 72000000 or 72m, got {text!r}"
            ) from None
    if not math.isfinite(value) or value <= 0:
        raise ValueError(f"{name} must be a positive count, got {text!r}")
    if not SMALLEST <= value <= LARGEST[name]:
        unit = "b" if value < 1 else "m"
        hint = f"is {text}{unit} meant?" if value < SMALLEST else "is it in another unit?"
        raise ValueError(f"{name} counts single {name.split('_')[1]}, got {text}: {hint}")
    return round(value)


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{name} must be a number, got {text!r}") from None


def _whole(name: str, text: str) -> int:
    if not _number(name, text).is_integer():  # nor are nan and inf
        raise ValueError(f"{name} must be a whole number, got {text!r}")
    return int(text) if text.isdecimal() else int(float(text))


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
    counts = Counter((row.recipe, row.cell, row.seed) for row in rows)
    for (recipe, cell, seed), times in counts.items():
        if times > 1:
            named = (
                f"{count_label(cell[0])} parameters, {count_label(cell[1])} tokens, recipe {recipe}"
            )
            of_seed = f"seed {seed}" if seed is not None else "no seed"
            problems.append(f"{times} rows for one cell ({named}) and {of_seed}: keep one")
    if problems:
        raise ConfigError(_shortened(problems))


def _cell_label(row: Row) -> str:
    return f"{count_label(row.num_params)} at {count_label(row.unique_tokens)}, recipe {row.recipe}"


def _shortened(problems: Sequence[str]) -> list[str]:
    more = len(problems) - SHOWN
    return [*problems[:SHOWN], *([f"... and {more} more of this kind"] if more > 0 else [])]


def grid_of(rows: Sequence[Row], recipe: str) -> Grid:
    """The recipe's cells, each the mean over its seeds, weighted by how many seeds it has.

    The variance of a mean of n seeds is the pooled variance over n, so weights are n over the mean
    n. Raises ConfigError for an unknown recipe, one size or budget only, a flat grid, mixed epochs.
    """
    chosen = [row for row in rows if row.recipe == recipe]
    if not chosen:
        known = {row.recipe for row in rows}
        raise ConfigError(f'no row has the recipe "{recipe}"{did_you_mean(recipe, known)}')
    cells: dict[tuple[int, int], list[Row]] = {}
    for row in sorted(chosen, key=lambda row: (row.unique_tokens, row.num_params)):
        cells.setdefault(row.cell, []).append(row)
    _check_cells(recipe, cells)
    losses = tuple(tuple(row.val_loss for row in seeds) for seeds in cells.values())
    counts = np.array([len(seeds) for seeds in losses], float)
    epochs = np.array([seeds[0].num_epochs for seeds in cells.values()])
    points = Points(
        N=np.array([cell[0] for cell in cells]) / 1e9,
        U=np.array([cell[1] for cell in cells]) / 1e9,
        L=np.array([np.mean(seeds) for seeds in losses]),
        more={} if np.isnan(epochs).any() else {"num_epochs": epochs},
        weight=None if (counts == counts[0]).all() else counts / counts.mean(),
    )
    return Grid(recipe, points, losses, next((row.bound for row in chosen if row.bound), ""))


def _check_cells(recipe: str, cells: Mapping[tuple[int, int], Sequence[Row]]) -> None:
    problems, single = [], []
    for position, (axis, other) in enumerate(
        (("model size", "num_params"), ("budget", "unique_tokens"))
    ):
        values = {cell[position] for cell in cells}
        if len(values) == 1:
            single.append(f"one {axis} only ({other} {count_label(values.pop())})")
    if single:
        problems.append(
            f"recipe {recipe} has {' and '.join(single)}: "
            "a law needs at least two, better four, to tell its terms apart"
        )
    for seeds in cells.values():
        epochs = {row.num_epochs for row in seeds if not math.isnan(row.num_epochs)}
        if len(epochs) > 1:
            problems.append(
                f"{_cell_label(seeds[0])} has rows of {len(epochs)} different num_epochs: "
                "a cell is its winning configuration, keep that one's rows"
            )
    logs = [math.log(float(np.mean([row.val_loss for row in seeds]))) for seeds in cells.values()]
    if not problems and max(logs) - min(logs) < FLAT:
        problems.append(
            f"recipe {recipe} is flat: all {len(cells)} losses lie within "
            f"{max(logs) - min(logs):.1e} of each other (relative), there is nothing to fit"
        )
    if problems:
        raise ConfigError(problems)
