"""A study: every cell of its files, checked together, and how they depend on each other."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dcray.errors import ConfigError, did_you_mean
from dcray.search.study import StudyFile, read_study
from dcray.search.wish import CellWish
from dcray.sections import count_label, parse_count
from dcray.track.points import Cell


@dataclass(frozen=True)
class Study:
    """Every cell of the files of one study, in the order to show them: size, budget, recipe."""

    name: str
    corpus: str | None
    seed: int
    wishes: tuple[CellWish, ...]
    paths: tuple[Path, ...] = ()

    @classmethod
    def read(cls, study: str, *, name: str | None = None) -> Study:
        """STUDY of a command line, under another name if one is given.

        Raises ConfigError with every problem.
        """
        files = [(path, file.renamed(name or file.study)) for path, file in read_study(study)]
        return cls.of([file for _, file in files], [path for path, _ in files])

    @classmethod
    def of(cls, files: Sequence[StudyFile], paths: Sequence[Path] = ()) -> Study:
        """The cells of files that carry one study together."""
        first, wishes, problems = files[0], dict[Cell, CellWish](), list[str]()
        names = [f"{path.name}: " for path in paths] or [""] * len(files)
        for file, name in zip(files, names, strict=True):
            found = _name_problems(file)
            if (file.study, file.seed, file.corpus) != (first.study, first.seed, first.corpus):
                found.append(
                    "files of one study must agree in study, seed and corpus, got "
                    f"{(file.study, file.seed, file.corpus)} and "
                    f"{(first.study, first.seed, first.corpus)}"
                )
            for size, budget, recipe in _cells(file):
                try:
                    wish = CellWish(file, size, budget, recipe)
                except ConfigError as error:
                    found += error.problems
                    continue
                if wish.cell in wishes:
                    found.append(f"another file wishes for the cell {wish.cell.label} too")
                wishes[wish.cell] = wish
            problems += [f"{name}{problem}" for problem in found]
        if problems:
            raise ConfigError(list(dict.fromkeys(problems)))
        _set_neighbors(wishes)
        _refuse_circles(wishes, ", ".join(path.name for path in paths))
        return cls(first.study, first.corpus, first.seed, tuple(wishes.values()), tuple(paths))

    def select(
        self,
        *,
        sizes: Collection[str] = (),
        budgets: Collection[str] = (),
        recipes: Collection[str] = (),
    ) -> list[CellWish]:
        """The wishes of these sizes, budgets and recipes; an empty collection takes all.

        Raises ConfigError for a name that no cell has.
        """
        labels = [count_label(int(parse_count(budget))) for budget in budgets]
        asked = {"sizes": list(sizes), "budgets": labels, "recipes": list(recipes)}
        problems = []
        for what, names in asked.items():
            known = list(dict.fromkeys(_names(wish)[what] for wish in self.wishes))
            problems += [
                f'--{what}: the study "{self.name}" has no "{name}"{did_you_mean(name, known)}; '
                f"it has {', '.join(known)}"
                for name in names
                if name not in known
            ]
        if problems:
            raise ConfigError(problems)
        return [
            wish
            for wish in self.wishes
            if all(not names or _names(wish)[what] in names for what, names in asked.items())
        ]


def _names(wish: CellWish) -> dict[str, str]:
    cell = wish.cell
    return {
        "sizes": cell.size,
        "budgets": count_label(cell.unique_tokens),
        "recipes": cell.recipe,
    }


def cells_of(file: StudyFile) -> list[Cell]:
    """Every cell that a file wishes for."""
    return [
        Cell(file.study, size, int(parse_count(budget)), recipe)
        for size, budget, recipe in _cells(file)
    ]


def _cells(file: StudyFile) -> list[tuple[str, str, str]]:
    return [
        (size, budget, name)
        for size in file.sizes
        for budget in file.budgets
        for name, recipe in file.recipes.items()
        if (recipe.sizes is None or size in recipe.sizes)
        and (recipe.budgets is None or budget in recipe.budgets)
    ]


def _name_problems(file: StudyFile) -> list[str]:
    """Recipes that inherit from what is not there, or in a circle; spaces of unknown sizes."""
    problems = []
    for name, recipe in file.recipes.items():
        for what, names in (("spaces", recipe.spaces), ("sizes", recipe.sizes or ())):
            problems += [
                f'recipes.{name}.{what} names no cell: "{size}" is not among the sizes'
                f"{did_you_mean(size, list(file.sizes))}"
                for size in names
                if size not in file.sizes
            ]
        cells = [f"{size}/{budget}" for size in file.sizes for budget in file.budgets]
        by_cell = {"published": recipe.published, "confirm_cells": recipe.confirm_cells or ()}
        problems += [
            f'recipes.{name}.{what} names no cell: "{cell}" must be SIZE/BUDGET of this file'
            f"{did_you_mean(cell, cells)}"
            for what, named in by_cell.items()
            for cell in named
            if cell not in cells
        ]
        seen, parent = [name], recipe.inherit
        while parent and ":" not in parent:
            if parent not in file.recipes:
                problems.append(
                    f"recipes.{seen[-1]}.inherit must name a recipe of this file, or "
                    f'"STUDY:RECIPE", got "{parent}"{did_you_mean(parent, list(file.recipes))}'
                )
                break
            if parent in seen:
                problems.append(f"recipes.{name}.inherit runs in a circle: {' -> '.join(seen)}")
                break
            seen.append(parent)
            parent = file.recipes[parent].inherit
    return problems


def _set_neighbors(wishes: Mapping[Cell, CellWish]) -> None:
    """The cell next below in budget, or in size as the file lists them, where one starts warm.

    A cell that borrows its space from other budgets' winners is nobody's neighbor.
    """
    for cell, wish in wishes.items():
        if wish.search.warm_start == "budget":
            below = [
                other
                for other, wished in wishes.items()
                if (other.size, other.recipe) == (cell.size, cell.recipe)
                and other.unique_tokens < cell.unique_tokens
                and not wished.borrows
            ]
            wish.warm_from = max(below, key=lambda other: other.unique_tokens, default=None)
        elif wish.search.warm_start == "size":
            sizes = list(wish.file.sizes)
            before = sizes[: sizes.index(cell.size)]
            rows = [Cell(cell.study, size, cell.unique_tokens, cell.recipe) for size in before]
            wish.warm_from = next((one for one in reversed(rows) if one in wishes), None)


def _refuse_circles(wishes: Mapping[Cell, CellWish], files: str) -> None:
    """Raise ConfigError where cells wait for each other's winners for ever."""
    done: set[Cell] = set()

    def visit(cell: Cell, above: tuple[Cell, ...]) -> None:
        if cell in above:
            names = " -> ".join(one.label for one in (*above[above.index(cell) :], cell))
            circle = f"cells wait for each other's winners in a circle: {names}"
            raise ConfigError(f"{files}: {circle}" if files else circle)
        if cell in done or cell not in wishes:
            return
        for needed in wishes[cell].needs:
            visit(needed, (*above, cell))
        done.add(cell)

    for cell in wishes:
        visit(cell, ())
