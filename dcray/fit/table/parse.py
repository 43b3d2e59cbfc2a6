"""The rows of a table of losses, each checked, and notes on what was read and left out."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dcray.config.counts import parse_count
from dcray.errors import ConfigError, plural
from dcray.fit.grid import Row, shortened
from dcray.fit.table.columns import Column, assign

SMALLEST = 1000  # parameters and tokens below which a count is in the wrong unit
LARGEST = {"num_params": 1e14, "unique_tokens": 1e16, "train_tokens": 1e19, "flops": 1e40}
HIGHEST = 13.0  # nats of a uniform model over 440,000 tokens: higher ones may be perplexities
LOWEST = "lowest"


@dataclass(frozen=True)
class Table:
    """The rows of a file, and sentences about how they were read and which were left out."""

    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()


def parse_table(
    path: Path,
    header: Sequence[str],
    lines: Iterable[tuple[int, Sequence[str]]],
    *,
    columns: Mapping[str, str] | None = None,
    units: Mapping[str, str] | None = None,
    keep: str | None = None,
) -> Table:
    """Parse the (number, fields) of each line of a table; `path` names it in sentences.

    columns: {field: column} if the names are no known aliases; units: {field: unit}.
    keep: "lowest" keeps the lowest loss of each cell, seed and number of epochs.

    Raises ConfigError with one sentence for each problem, all at once.
    """
    if keep not in (None, LOWEST):
        raise ConfigError(f'--keep must be "{LOWEST}", got "{keep}"')
    asked = columns or {}
    found = assign(str(path), header, asked, units or {})
    notes = [_read_note(found)] if any(c.name != f or c.unit for f, c in found.items()) else []
    rows, problems = [], []
    for number, values in lines:
        where = f"{path.name}, line {number}"
        try:
            if len(values) > len(header):
                raise ValueError(f"{len(values)} fields, but the header has {len(header)}")
            row = _row(_Line(found, values, keep), asked, where)
            if keep is None and not math.isfinite(row.val_loss):
                raise ValueError(
                    f"a loss must be a positive finite number, got {row.val_loss:g}; leave the row "
                    f"out, or let --keep {LOWEST} do so"
                )
            rows.append(row)
        except ValueError as error:
            problems.append(f"{where}: {error}")
    if problems:
        raise ConfigError(shortened(problems))
    if not rows:
        raise ConfigError(f"{path} has no rows below its header")
    _check_tokens(path, found, asked, rows)
    notes += _token_notes(found, asked)
    _check_nats(path, found, rows)
    if keep == LOWEST:
        rows, left = lowest(rows)
        notes += left
    return Table(tuple(rows), tuple(notes))


def lowest(rows: Sequence[Row]) -> tuple[list[Row], list[str]]:
    """Keep the lowest loss of each cell, seed and number of epochs, and note what was left out."""
    finite = [row for row in rows if math.isfinite(row.val_loss)]
    best: dict[tuple[object, ...], Row] = {}
    for row in sorted(finite, key=lambda row: row.val_loss):
        best.setdefault((row.recipe, row.cell, row.epochs_key, row.seed), row)
    kept = [row for row in finite if best[row.recipe, row.cell, row.epochs_key, row.seed] is row]
    notes = []
    if lost := len(rows) - len(finite):
        notes.append(f"left out: {plural(lost, 'row')} without a finite loss")
    if more := len(finite) - len(kept):
        notes.append(
            f"kept the lowest of each cell, {len(kept)} of {plural(len(finite), 'row')}: "
            f"{more} higher ones are left out"
        )
    return kept, notes


@dataclass(frozen=True)
class _Line:
    """The values of one line, read by field."""

    columns: Mapping[str, Column]
    values: Sequence[str]
    keep: str | None

    def text(self, field: str) -> str:
        """Return the text of the field; "" for a missing column or value."""
        column = self.columns.get(field)
        if column is None or column.position >= len(self.values):
            return ""
        return self.values[column.position]

    def count(self, field: str) -> float:
        """Parse a count in single parameters, tokens or operations; ValueError says what fails."""
        return _count(field, self.text(field), self.columns[field])

    def number(self, field: str) -> float:
        """Parse a number; ValueError names the column and the text."""
        return _number(self.columns[field].name, self.text(field))

    def loss(self) -> float:
        """Compute the loss in nats; NaN if none is there and only the lowest are kept."""
        column = self.columns["val_loss"]
        if self.keep == LOWEST and not self.text("val_loss"):
            return math.nan
        value = self.number("val_loss")
        if column.loss_unit == "bits":
            return value * math.log(2)
        if column.loss_unit == "perplexity":
            if value <= 1:
                raise ValueError(f"{column.name} must be a perplexity above 1, got {value:g}")
            return math.log(value)
        return value


def _row(line: _Line, asked: Mapping[str, str], where: str) -> Row:
    """Parse one line as a Row; ValueError names the field, the rule and the text."""
    epochs, seed = line.text("num_epochs"), line.text("seed")
    num_epochs = line.number("num_epochs") if epochs else math.nan
    num_params, tokens, num_epochs = _size_and_tokens(line, asked, num_epochs)
    return Row(
        num_params=round(num_params),
        unique_tokens=round(tokens),
        val_loss=line.loss(),
        num_epochs=num_epochs,
        recipe=line.text("recipe") or "all",
        seed=_whole(line.columns["seed"].name, seed) if seed else None,
        where=where,
        bound=line.text("bound"),
    )


def _size_and_tokens(
    line: _Line, asked: Mapping[str, str], num_epochs: float
) -> tuple[float, float, float]:
    """Compute parameters, unique tokens and epochs; a missing one follows from the told columns.

    Tokens trained on are unique tokens times epochs, FLOPs are 6 N D (arXiv 2001.08361).
    """
    there = line.columns
    N = line.count("num_params") if "num_params" in there else math.nan
    if "train_tokens" in asked and "unique_tokens" in there and math.isnan(num_epochs):
        U = line.count("unique_tokens")
        return N, U, line.count("train_tokens") / U
    if "unique_tokens" in there:
        U = line.count("unique_tokens")
    elif "train_tokens" in there:
        U = line.count("train_tokens")
        if "train_tokens" in asked and num_epochs > 0:
            U /= num_epochs
    else:
        U = math.nan
    if "flops" in asked:
        computed = line.count("flops") / 6 / (U if math.isnan(N) else N)
        name, size = ("num_params", N) if math.isnan(N) else ("unique_tokens", U)
        if math.isnan(size) and not SMALLEST <= computed <= LARGEST[name]:
            raise ValueError(
                f"{name} = FLOPs / 6 / the other comes to {computed:.3g}: is {there['flops'].name} "
                "in another unit? --unit flops=1e9 names it"
            )
        N, U = (computed, U) if math.isnan(N) else (N, computed)
    return N, U, num_epochs


def _count(field: str, text: str, column: Column) -> float:
    name = column.name
    plain = text.replace(",", "") if re.fullmatch(r"\d{1,3}(,\d{3})+", text) else text
    try:
        value = float(plain) * column.factor
    except ValueError:
        try:
            value = float(parse_count(plain))
        except ValueError:
            raise ValueError(
                f"{name} must be a count such as 72000000 or 72m, got {text!r}"
            ) from None
    if not math.isfinite(value) or value <= 0:
        raise ValueError(f"{name} must be a positive count, got {text!r}")
    if not SMALLEST <= value <= LARGEST[field]:
        unit = "b" if value < 1 else "m"
        hint = f"is {text}{unit} meant? --unit {field}={unit} reads it so"
        if value > SMALLEST:
            hint = f"is it in another unit? --unit {field}=FACTOR names it"
        single = {"num_params": "parameters", "flops": "operations"}.get(field, "tokens")
        raise ValueError(f"{name} counts single {single}, got {text}: {hint}")
    return value


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{name} must be a number, got {text!r}") from None


def _whole(name: str, text: str) -> int:
    if not _number(name, text).is_integer():  # nor are nan and inf
        raise ValueError(f"{name} must be a whole number, got {text!r}")
    return int(text) if text.isdecimal() else int(float(text))


def _check_tokens(
    path: Path, found: Mapping[str, Column], asked: Mapping[str, str], rows: Sequence[Row]
) -> None:
    """Raise ConfigError if data repeat and it is unclear which tokens a column counts.

    Tokens that are trained on, without epochs or unique tokens, are refused too.
    """
    if "unique_tokens" in found or "train_tokens" not in found:
        return
    name = found["train_tokens"].name
    repeated = any(row.num_epochs != 1 for row in rows if not math.isnan(row.num_epochs))
    if "train_tokens" in asked and "num_epochs" not in found:
        raise ConfigError(
            f"--column train_tokens={name} needs num_epochs or unique_tokens too, and {path} has "
            f"neither: --column unique_tokens={name} takes it for one pass"
        )
    if "train_tokens" not in asked and repeated:
        raise ConfigError(
            f"{path}: the column {name} may hold unique tokens or tokens trained on, and data "
            f"repeat here: --column unique_tokens={name} or --column train_tokens={name} says which"
        )


def _check_nats(path: Path, found: Mapping[str, Column], rows: Sequence[Row]) -> None:
    """Raise ConfigError for losses too high for nats: perplexities, or runs that diverged."""
    high = [row for row in rows if row.val_loss > HIGHEST and math.isfinite(row.val_loss)]
    if not high or found["val_loss"].loss_unit != "nats":
        return
    which = f"{len(high)} of {len(rows)} losses are" if len(high) > 1 else "one loss is"
    raise ConfigError(
        f"{path}: {which} absurd, above {HIGHEST:g} nats (line "
        f"{high[0].where.rpartition(' ')[2]}: {high[0].val_loss:.4g}); --unit val_loss=perplexity "
        "reads the column as perplexities, and a run that diverged has to be left out"
    )


def _read_note(found: Mapping[str, Column]) -> str:
    """Say which columns were read as what, if a name or a unit was not the plain one."""
    used = [
        f"{field} from {column.name}{column.unit}"
        for field, column in found.items()
        if column.name != field or column.unit
        if field != "flops"
        if not (field == "train_tokens" and "unique_tokens" in found)
    ]
    return f"read: {', '.join(used)}"


def _token_notes(found: Mapping[str, Column], asked: Mapping[str, str]) -> list[str]:
    """Say how unique tokens or sizes were computed, or which column was taken for them."""
    if "flops" in asked:
        missing = "num_params" if "num_params" not in found else "unique_tokens"
        other = "unique_tokens" if missing == "num_params" else "num_params"
        name = found["flops"].name
        return [f"{missing} is FLOPs / (6 {other}), the FLOPs from {name}: one pass over the data"]
    if "unique_tokens" in found or "train_tokens" not in found:
        return []
    name = found["train_tokens"].name
    if "train_tokens" in asked:
        return [f"unique_tokens is {name} / num_epochs"]
    return [f"{name} is taken for unique tokens: one pass over the data"]
