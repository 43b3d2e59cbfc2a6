"""Printed figures that only training can reproduce, beside those of the studies that train."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dcray.errors import ConfigError, did_you_mean
from dcray.fit.grid import Row
from dcray.fit.paper import published

NEAR = 0.03  # how far the tokens and parameters of a cell may be from the paper's: rows are whole
TOKENS = 10**8


@dataclass(frozen=True)
class OnlyRuns:
    """Printed figures beside ours, in the order of `sizes`, and the study that trains for them.

    ours: None for a cell that the study's analysis does not have; empty if none was given.
    """

    what: str
    study: str
    sizes: tuple[str, ...]
    printed: tuple[float, ...]
    ours: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class _Study:
    """The cells of one study's analysis; a figure is None if the analysis has no such cell."""

    rows: Sequence[Row]

    def losses(self, recipe: str, size: str) -> list[Row]:
        """Select the recipe's rows of this size at 100M tokens, a row for each seed."""
        num_params = published.figures()["ladder"]["rows"][size][-1]
        return [
            row
            for row in self.rows
            if row.recipe == recipe
            and abs(row.unique_tokens / TOKENS - 1) < NEAR
            and abs(row.num_params / num_params - 1) < NEAR
        ]

    def mean(self, recipe: str, size: str) -> float | None:
        """Compute the mean loss (nats) over seeds."""
        rows = self.losses(recipe, size)
        return float(np.mean([row.val_loss for row in rows])) if rows else None

    def gain(self, size: str) -> float | None:
        """Compute MIR's mean gain (nats) over the seeds that both recipes have."""
        ar, mir = ({r.seed: r.val_loss for r in self.losses(name, size)} for name in ("ar", "mir"))
        gains = [ar[seed] - mir[seed] for seed in ar.keys() & mir.keys()]
        return float(np.mean(gains)) if gains else None

    def epochs(self, recipe: str, size: str) -> float | None:
        """Look up the winner's number of epochs."""
        rows = self.losses(recipe, size)
        return rows[0].num_epochs if rows else None


def only_runs(cells: Mapping[str, Sequence[Row]] | None = None) -> list[OnlyRuns]:
    """Collect all figures of this kind; cells: {study: the rows of its analysis' cells.csv}.

    Raises ConfigError for a study that has none of the figures.
    """
    figures, cells = published.figures(), cells or {}
    stack, means = figures["stack_v2_100m"], figures["five_seed_means_1.4b_100m"]
    gains = {size: gain for size, gain in figures["mir_gain_100m"].items() if size != "source"}
    best, of_ar = figures["dllm_protocol"]["best_epoch"], figures["multi_epoch_ar_best_epochs"]
    of = {study: _Study(cells.get(study, ())) for study in ("stack_v2_100m", "seeds", "recipes")}
    if unknown := sorted(set(cells) - set(of)):
        raise ConfigError(
            f'--cells: no figure comes from the study "{unknown[0]}"{did_you_mean(unknown[0], of)}'
        )
    stacked, seeds, recipes = of.values()
    by_size = {r: dict(zip(stack["sizes"], stack[r], strict=True)) for r in ("ar", "mir")}
    found = [
        _figures(
            f"losses of {recipe} on Stack-V2", "stack_v2_100m", printed,
            [stacked.mean(recipe, size) for size in printed],
        )
        for recipe, printed in by_size.items()
    ]  # fmt: skip
    found += [
        _figures(
            f"mean loss of {recipe} over five seeds", "seeds", {"1.4b": means[recipe]},
            [seeds.mean(recipe, "1.4b")],
        )
        for recipe in ("ar", "mir")
    ]  # fmt: skip
    epochs = {size: of_ar[size] for size in best}
    found += [
        _figures("mean gain of mir over five seeds", "seeds", gains, map(seeds.gain, gains)),
        _figures("best epochs of the dLLM", "recipes", best, [None for _ in best]),
        _figures(
            "best epochs of multi-epoch AR", "recipes", epochs,
            [recipes.epochs("multi_epoch", size) for size in epochs],
        ),
    ]  # fmt: skip
    return [one if one.study in cells else replace(one, ours=()) for one in found]


def _figures(
    what: str, study: str, printed: Mapping[str, float], ours: Iterable[float | None]
) -> OnlyRuns:
    """Put the printed figures by size beside ours."""
    return OnlyRuns(what, study, (*printed,), (*printed.values(),), (*ours,))
