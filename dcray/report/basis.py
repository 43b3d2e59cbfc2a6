"""The losses on which recipes are compared: means over fresh seeds, or the search seed's own.

A minimum over candidates lies below what its configuration gives on average; a single run does not.
So two recipes that are compared take the same of the two sources, and the source is chosen for each
comparison by itself: fresh seeds if every cell of both recipes has them, or if the cells that have
them suffice for a law; else the search seed. A recipe without fresh seeds does not keep the other
recipes from using theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dcray.errors import ConfigError, plural
from dcray.fit.answer import MIN_CELLS
from dcray.fit.grid import Row as Loss
from dcray.fit.grid import with_bound
from dcray.report.cells import Cell, Left, Place, as_loss, cells_of, left_out, loss_of
from dcray.track.rows import Row

SOURCES = ("confirmed", "search")
FRESH, SEARCHED = "fresh seeds", "search seed"
WORDS = {"confirmed": FRESH, "search": SEARCHED}


@dataclass(frozen=True)
class Choice:
    """The cells of a study and what was left out; asked: the source of --from, if one was given."""

    cells: tuple[Cell, ...]
    left: tuple[Left, ...] = ()
    asked: str | None = None

    @property
    def recipes(self) -> tuple[str, ...]:
        """Return the names of the recipes that have cells, sorted."""
        return tuple(sorted({cell.recipe for cell in self.cells}))

    def label(self, recipe: str) -> str:
        """Return the recipe's name, as in "mdlm (upper bound)" if its losses are bounds."""
        bound = next((cell.bound for cell in self.of(recipe) if cell.bound), "")
        return with_bound(recipe, bound)

    def of(self, *recipes: str) -> tuple[Cell, ...]:
        """Return the cells of these recipes, sorted by recipe, budget and size."""
        return tuple(cell for cell in self.cells if cell.recipe in recipes)

    def noise(self) -> float | None:
        """Compute the pooled standard deviation (nats) of a loss over fresh seeds.

        Returns None if no cell has two fresh seeds.
        """
        groups = [[loss_of(row) for row in cell.fresh] for cell in self.cells]
        left = sum(len(losses) - 1 for losses in groups if len(losses) > 1)
        squares = sum(float(np.var(losses)) * len(losses) for losses in groups if len(losses) > 1)
        return float(np.sqrt(squares / left)) if left else None

    def source_of(self, *recipes: str) -> str:
        """Choose the source on which laws compare these recipes (the module states the rule)."""
        if self.asked:
            return self.asked
        each = [self.of(recipe) for recipe in recipes]
        whole = all(cell.fresh for cells in each for cell in cells)
        carried = all(_carry_a_law([cell for cell in cells if cell.fresh]) for cells in each)
        return "confirmed" if whole or carried else "search"

    def shown(self, recipe: str) -> str:
        """Choose the source of the recipe's losses in figures, one for all of its cells."""
        if self.asked:
            return self.asked
        return "confirmed" if all(cell.fresh for cell in self.of(recipe)) else "search"

    def comparisons(self, baseline: str, others: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Group `others` by the source on which they are compared with the baseline.

        Returns {source: recipes}, confirmed first; without others, the baseline's source and no
        recipe.
        """
        by_recipe = {recipe: self.source_of(baseline, recipe) for recipe in others}
        found = {
            source: tuple(recipe for recipe in others if by_recipe[recipe] == source)
            for source in SOURCES
            if source in by_recipe.values()
        }
        return found or {self.source_of(baseline): ()}

    def losses(self, recipes: Sequence[str], source: str) -> list[Loss]:
        """Return one grid row per cell of these recipes and counted seed of the source."""
        return [as_loss(row) for cell in self.of(*recipes) for row in cell.counted(source)]

    def without(self, recipes: Sequence[str], source: str) -> list[Cell]:
        """Return the cells of these recipes that have no loss of this source."""
        return [cell for cell in self.of(*recipes) if not cell.counted(source)]

    @property
    def why(self) -> str:
        """Say in one sentence where each recipe's losses come from."""
        if self.asked == "confirmed":
            return "asked for: means over fresh seeds of each winner"
        if all(self.shown(recipe) == "confirmed" for recipe in self.recipes):
            return "every cell has fresh seeds of its winner: losses are means over those"
        said: dict[str, list[str]] = {}
        for recipe in self.recipes:
            said.setdefault(self._said(recipe), []).append(recipe)
        asked = "asked for: " if self.asked else ""
        return asked + "; ".join(f"{', '.join(its)}: {text}" for text, its in said.items())

    def _said(self, recipe: str) -> str:
        if self.shown(recipe) == "confirmed":
            return "means over fresh seeds of each winner"
        cells = self.of(recipe)
        fresh = sum(bool(cell.fresh) for cell in cells)
        some = f" ({fresh} of {len(cells)} cells have fresh seeds of their winner)" if fresh else ""
        return f"losses at the search seed{some}, {minima(cells)}"

    def uneven(self, baseline: str, recipe: str) -> str:
        """Say in a sentence if one recipe selects from more candidates than the other, else ""."""
        there = {cell.place[:2] for cell in self.of(baseline)}
        shared = there & {cell.place[:2] for cell in self.of(recipe)}
        counts = {
            name: [cell.num_candidates for cell in self.of(name) if cell.place[:2] in shared]
            for name in (baseline, recipe)
        }
        if not shared or sorted(counts[baseline]) == sorted(counts[recipe]):
            return ""
        fewer = min((recipe, baseline), key=lambda name: float(np.mean(counts[name])))
        said = " and ".join(f"{name} is {_chosen(max(its))}" for name, its in counts.items())
        return f"At the search seed {said}: the difference is biased against {fewer}."


def minima(cells: Sequence[Cell]) -> str:
    """Describe the winners' own losses: in a cell with one candidate, no minimum was selected."""
    counts = [cell.num_candidates for cell in cells]
    several = sum(count > 1 for count in counts)
    if not several:
        return "each its cell's only candidate"
    where = f" in {several} of {len(counts)} cells" if several < len(counts) else ""
    return f"{_chosen(max(counts))}{where}: selected minima, which are somewhat low"


def _chosen(most: int) -> str:
    return "a single candidate" if most == 1 else f"the lowest of up to {most} candidates"


def _carry_a_law(cells: Sequence[Cell]) -> bool:
    """Tell whether these cells suffice for a law: MIN_CELLS of them, two sizes and two budgets."""
    axes = {cell.num_params for cell in cells}, {cell.unique_tokens for cell in cells}
    return len(cells) >= MIN_CELLS and min(map(len, axes)) > 1


def choose(
    rows: Sequence[Row],
    *,
    source: str | None = None,
    tags: Mapping[Place, Mapping[str, str]] | None = None,
) -> Choice:
    """Build the cells of complete, believable results; `tags` are those of the cells' parent runs.

    Raises ConfigError for an unknown source, and for "confirmed" if no cell has a fresh seed.
    """
    if source not in (None, *SOURCES):
        raise ConfigError(f'--from must be one of {", ".join(SOURCES)}, got "{source}"')
    cells, left = cells_of(rows, tags or {})
    if source != "confirmed":
        return Choice(tuple(cells), tuple(left), source)
    kept = tuple(cell for cell in cells if cell.fresh)
    if cells and not kept:
        raise ConfigError(
            "--from confirmed needs fresh seeds of winners, and no cell has one; "
            "set confirm_seeds and search again, or leave --from away"
        )
    left += [
        left_out(row, "its cell has no fresh seed of its winner (--from confirmed)")
        for cell in cells
        for row in cell.candidates
        if not cell.fresh
    ]
    return Choice(kept, tuple(left), source)


def no_fresh_seeds(cells: Sequence[Cell]) -> str:
    """Say in a sentence which cells no law reads because they have no fresh seeds."""
    names = ", ".join(cell.name for cell in cells[:3]) + (", ..." if len(cells) > 3 else "")
    return f"{plural(len(cells), 'cell')} ({names}): no fresh seeds of the winner, so in no law"
