"""A study: every cell of its files, checked together, and which cell depends on which."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dcray.config.counts import count_label, parse_count
from dcray.errors import ConfigError, did_you_mean
from dcray.study.average import refuse_long_averages
from dcray.study.ensemble import ensemble_problems
from dcray.study.schema import StudyFile, read_study
from dcray.study.spec import CellSpec
from dcray.types import Cell


@dataclass(frozen=True)
class Study:
    """Every cell of the files of one study, in the order to show them: size, budget, recipe."""

    name: str
    corpus: str | None
    seed: int
    cell_specs: tuple[CellSpec, ...]
    paths: tuple[Path, ...] = ()

    @classmethod
    def read(cls, study: str, *, name: str | None = None) -> Study:
        """Read STUDY of a command line, under another name if one is given.

        Raises ConfigError with every problem.
        """
        files = [(path, file.renamed(name or file.study)) for path, file in read_study(study)]
        return cls.of([file for _, file in files], [path for path, _ in files])

    @classmethod
    def of(cls, files: Sequence[StudyFile], paths: Sequence[Path] = ()) -> Study:
        """Build the study of its files; raise ConfigError with every problem of them."""
        first, cell_specs, problems = files[0], dict[Cell, CellSpec](), list[str]()
        names = [f"{path.name}: " for path in paths] or [""] * len(files)
        for file, name in zip(files, names, strict=True):
            found = [*_name_problems(file), *ensemble_problems(file)]
            if (file.study, file.seed, file.corpus) != (first.study, first.seed, first.corpus):
                found.append(
                    "files of one study must agree in study, seed and corpus, got "
                    f"{(file.study, file.seed, file.corpus)} and "
                    f"{(first.study, first.seed, first.corpus)}"
                )
            for size, budget, recipe in _cells(file):
                try:
                    cell_spec = CellSpec(file, size, budget, recipe)
                except ConfigError as error:
                    found += error.problems
                    continue
                if cell_spec.cell in cell_specs:
                    found.append(f"another file asks for the cell {cell_spec.cell.label} too")
                cell_specs[cell_spec.cell] = cell_spec
            problems += [f"{name}{problem}" for problem in found]
        if problems:
            raise ConfigError(list(dict.fromkeys(problems)))
        _set_neighbors(cell_specs)
        _refuse_circles(cell_specs, ", ".join(path.name for path in paths))
        refuse_long_averages(cell_specs)
        return cls(first.study, first.corpus, first.seed, tuple(cell_specs.values()), tuple(paths))

    def select(
        self,
        *,
        sizes: Collection[str] = (),
        budgets: Collection[str] = (),
        recipes: Collection[str] = (),
    ) -> list[CellSpec]:
        """Select the cells of these sizes, budgets and recipes; an empty collection selects all.

        With an ensemble comes the cell whose runs its members are.
        Raises ConfigError for a name that no cell has.
        """
        labels = [count_label(int(parse_count(budget))) for budget in budgets]
        asked = {"sizes": list(sizes), "budgets": labels, "recipes": list(recipes)}
        problems = []
        for what, names in asked.items():
            known = list(dict.fromkeys(_names(cell_spec)[what] for cell_spec in self.cell_specs))
            problems += [
                f'--{what}: the study "{self.name}" has no "{name}"{did_you_mean(name, known)}; '
                f"it has {', '.join(known)}"
                for name in names
                if name not in known
            ]
        if problems:
            raise ConfigError(problems)
        chosen = [
            cell_spec
            for cell_spec in self.cell_specs
            if all(not names or _names(cell_spec)[what] in names for what, names in asked.items())
        ]
        taken = {cell_spec.inherits for cell_spec in chosen if cell_spec.member_seeds}
        return [one for one in self.cell_specs if one in chosen or one.cell in taken]


def _names(cell_spec: CellSpec) -> dict[str, str]:
    cell = cell_spec.cell
    return {
        "sizes": cell.size,
        "budgets": count_label(cell.unique_tokens),
        "recipes": cell.recipe,
    }


def cells_of(file: StudyFile) -> list[Cell]:
    """List every cell of a study file."""
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
    """List names that a recipe uses and the file does not have, and circles of `inherit`."""
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
                others = [recipe for recipe in file.recipes if recipe not in seen]
                problems.append(
                    f"recipes.{seen[-1]}.inherit must name a recipe of this file, or "
                    f'"STUDY:RECIPE", got "{parent}"{did_you_mean(parent, others)}'
                )
                break
            if parent in seen:
                problems.append(f"recipes.{name}.inherit runs in a circle: {' -> '.join(seen)}")
                break
            seen.append(parent)
            parent = file.recipes[parent].inherit
    return problems


def _set_neighbors(cell_specs: Mapping[Cell, CellSpec]) -> None:
    """Set the cell from which each warm start begins: next below in budget, or in the file's sizes.

    A cell that borrows its space from other budgets' winners is not a neighbor of any cell.
    """
    for cell, cell_spec in cell_specs.items():
        if cell_spec.search.warm_start == "budget":
            below = [
                other
                for other, wished in cell_specs.items()
                if (other.size, other.recipe) == (cell.size, cell.recipe)
                and other.unique_tokens < cell.unique_tokens
                and not wished.borrows
            ]
            cell_spec.warm_from = max(below, key=lambda other: other.unique_tokens, default=None)
        elif cell_spec.search.warm_start == "size":
            sizes = list(cell_spec.file.sizes)
            before = sizes[: sizes.index(cell.size)]
            rows = [Cell(cell.study, size, cell.unique_tokens, cell.recipe) for size in before]
            cell_spec.warm_from = next((one for one in reversed(rows) if one in cell_specs), None)


def _refuse_circles(cell_specs: Mapping[Cell, CellSpec], files: str) -> None:
    """Raise ConfigError if cells wait for each other's winners in a circle."""
    done: set[Cell] = set()

    def visit(cell: Cell, above: tuple[Cell, ...]) -> None:
        if cell in above:
            names = " -> ".join(one.label for one in (*above[above.index(cell) :], cell))
            circle = f"cells wait for each other's winners in a circle: {names}"
            raise ConfigError(f"{files}: {circle}" if files else circle)
        if cell in done or cell not in cell_specs:
            return
        for needed in cell_specs[cell].needs:
            visit(needed, (*above, cell))
        done.add(cell)

    for cell in cell_specs:
        visit(cell, ())
