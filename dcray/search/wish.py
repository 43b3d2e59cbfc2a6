"""A cell that a study wishes for: its base configuration, its space, the cells that it needs.

Two cells are tied where one starts from the other's winner: `inherit`, `{ winners = [...] }`, or a
warm start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from dcray.config import RunConfig, field_names, later_wins, override
from dcray.errors import ConfigError, did_you_mean
from dcray.search.boxes import Axis, Range, Winners, parse_space
from dcray.search.ladder import counts_problem, length_problem
from dcray.search.space import AXES, SHORT, Space, build_space, changes_of, early_rungs
from dcray.search.study import (
    DEFAULT_KEEP,
    PublishedWinner,
    RecipeConfig,
    ResourceConfig,
    SearchConfig,
    StudyFile,
)
from dcray.sections import batch_warning, parse_count
from dcray.track.points import Cell


class CellWish:
    """One cell as a study file wishes it, before anything is known of other cells."""

    def __init__(self, file: StudyFile, size: str, budget: str, recipe: str) -> None:
        self.file, self.size, self.budget = file, size, budget
        self.recipe: RecipeConfig = file.recipes[recipe]
        self.cell = Cell(file.study, size, int(parse_count(budget)), recipe)
        self.where = f"recipes.{recipe}"
        written = self.recipe.spaces.get(size, self.recipe.space)
        named = f"spaces.{size}" if size in self.recipe.spaces else "space"
        self.boxes: list[dict[str, Axis]] = parse_space(written, f"{self.where}.{named}") or [{}]
        self.warm_from: Cell | None = None  # set by the study, which knows the neighbors
        self._check()

    @property
    def search(self) -> SearchConfig:
        return self.recipe.search

    @property
    def published(self) -> PublishedWinner | None:
        """The winner that the study file ships for this cell."""
        return self.recipe.published.get(f"{self.size}/{self.budget}")

    @property
    def confirm_seeds(self) -> tuple[int, ...]:
        """The fresh seeds with which this cell's winner runs again."""
        chosen = self.recipe.confirm_cells
        here = chosen is None or f"{self.size}/{self.budget}" in chosen
        return self.recipe.confirm_seeds if here else ()

    @property
    def inherits(self) -> Cell | None:
        """The cell from whose winner this one starts."""
        if self.recipe.inherit is None:
            return None
        study, colon, recipe = self.recipe.inherit.partition(":")
        study, recipe = (study, recipe) if colon else (self.cell.study, study)
        return Cell(study, self.cell.size, self.cell.unique_tokens, recipe)

    @property
    def borrows(self) -> bool:
        """Whether its space holds the winners of other budgets: it may wait for larger ones."""
        return any(_budgets(axis) for box in self.boxes for axis in box.values())

    @property
    def needs(self) -> list[Cell]:
        """The cells whose winners must be known before this one can start."""
        budgets = [b for box in self.boxes for a in box.values() for b in _budgets(a)]
        found = [self.inherits, *map(self.at_budget, budgets), self.warm_from]
        return [cell for cell in dict.fromkeys(found) if cell is not None]

    def at_budget(self, budget: str) -> Cell:
        """The cell of the same size and recipe at another budget."""
        cell = self.cell
        return Cell(cell.study, cell.size, int(parse_count(budget)), cell.recipe)

    def base(self, inherited: Mapping[str, Any] | None = None) -> RunConfig:
        """The configuration without its space: what is inherited yields to the recipe's own."""
        file = self.file
        shape = file.sizes[self.size] if isinstance(file.sizes, dict) else None
        parts: list[Mapping[str, Any]] = [
            file.base,
            {"size": shape or self.size, "data.unique_tokens": self.budget, "seed": file.seed},
            {"objective": self.recipe.objective},
            _runtime(file.resources.get(self.size)),
            inherited or {},
            self.recipe.base,
        ]
        return override(RunConfig(), later_wins(parts))

    def space(self, num_epochs: int, winners: Mapping[Cell, RunConfig]) -> Space:
        """The space with the winners of other budgets in place of their names."""
        boxes = [
            {name: self._resolved(name, axis, winners) for name, axis in box.items()}
            for box in self.boxes
        ]
        return build_space(boxes, num_epochs)

    def branches(self, base: RunConfig) -> bool:
        """Whether runs fork from trunks: WSD alone has a stable part, and one loss is its end's."""
        keeps_best = base.objective.build().keeps_best
        return self.search.branching and base.schedule.kind == "wsd" and not keeps_best

    @cached_property
    def bound(self) -> str:
        """ "upper bound" where the losses of its objective are such, else empty."""
        return self.base().objective.build().bound or ""

    @property
    def longest(self) -> int:
        """The largest epoch count that is known before any winner is."""
        rungs = [e for box in self.boxes if isinstance(e := box.get("num_epochs"), tuple)]
        return max((int(epochs[-1]) for epochs in rungs), default=self.base().num_epochs)

    def warnings(self) -> list[str]:
        """What a person should know, though it is allowed."""
        base = self.base()
        found = [batch_warning(base.batch_size, base.usable_rows)]
        if not self.borrows:
            found.append(early_rungs(self.space(base.num_epochs, {})) or "")
        return [f"{self.where}: {warning}" for warning in found if warning]

    def _resolved(self, name: str, axis: Axis, winners: Mapping[Cell, RunConfig]) -> Axis:
        if not isinstance(axis, Winners):
            return axis
        found = [value_of(name, winners[self.at_budget(budget)]) for budget in axis.winners]
        return tuple(sorted(set(found)))

    def _check(self) -> None:
        """Raise ConfigError with everything that cannot be, before anything is trained."""
        base = self.base()
        problems = _field_problems(self.boxes, base, self.where)
        search, seeds = self.search, self.recipe.confirm_seeds
        if self.file.seed in seeds or len(set(seeds)) < len(seeds):
            problems.append(
                f"{self.where}.confirm_seeds must be fresh: each once, and not the search's seed "
                f"({self.file.seed}), got {list(seeds)}"
            )
        if not problems and not self.borrows:
            problems += self._space_problems(self.space(base.num_epochs, {}), search)
        if problems:
            raise ConfigError(problems)

    def _space_problems(self, space: Space, search: SearchConfig) -> list[str]:
        problems = []
        if search.sampler == "grid" and not space.discrete:
            problems.append(
                f'{self.where}.search.sampler = "grid" needs lists: write the values of each axis, '
                'or sampler = "gp"'
            )
        elif search.sampler == "grid" and search.trunks is None:
            rungs = [trunk.rungs for trunk in space.trunks()]
            found = counts_problem(rungs, search.keep)
            if search.keep != DEFAULT_KEEP:  # which serves every space
                found = found or length_problem([box.rungs for box in space.boxes], search.keep)
            problems += [f"{self.where}.search: {found}"] if found else []
        if isinstance(search.warm_start, tuple):
            for point in search.warm_start:
                if set(point) != set(space.names) or not space.holds(point):
                    problems.append(
                        f"{self.where}.search.warm_start must hold points of the space "
                        f"(axes {', '.join(space.names)}), got {dict(point)}"
                    )
        return problems


def value_of(name: str, config: RunConfig) -> Any:
    """The value that a configuration has on an axis."""
    if name == "tau":
        return float(f"{config.tau:.3g}")
    node: Any = config.to_dict()
    for part in SHORT.get(name, name).split("."):
        node = node[part]
    return node


def _field_problems(boxes: Sequence[Mapping[str, Axis]], base: RunConfig, where: str) -> list[str]:
    """Axes that are no field, and values that their field does not take."""
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


NO_AXES = {
    "seed": "a study is searched at one seed: write seed = N at the head of the file, and in the "
    "recipe confirm_seeds = [1, 2] to run the winner again at others",
    "size": "write the sizes at the head of the file: each is a cell of its own",
    "data.unique_tokens": "write budgets at the head of the file: each is a cell of its own",
    "data.val_tokens": "losses on two validation sets cannot be compared: write it in [base]",
    "objective": "write a recipe for each objective",
    "runtime": "it changes no result: write it in [base], or in [resources]",
}


def _no_axis(name: str) -> str:
    """Why a field is no axis of a space, and what to write; "" where it may be one."""
    if name in AXES:
        return ""
    for field, remedy in NO_AXES.items():
        whole = field in ("size", "runtime") and name.startswith(f"{field}.")
        if name in (field, f"{field}.name") or whole:
            return f"{name} is no axis of a space: {remedy}"
    if name in field_names() or name.startswith("objective."):
        return ""
    return f'"{name}" is not a field{did_you_mean(name, [*AXES, *field_names()])}'


def _budgets(axis: Axis) -> tuple[str, ...]:
    return axis.winners if isinstance(axis, Winners) else ()


def _runtime(wanted: ResourceConfig | None) -> dict[str, Any]:
    """The runtime fields that a size's resources mean."""
    if wanted is None:
        return {}
    changes: dict[str, Any] = {}
    if wanted.gpus is not None:
        changes["runtime.device"] = "cuda" if wanted.gpus else "cpu"
    if wanted.gpus or wanted.workers:
        changes["runtime.workers"] = wanted.gpus or wanted.workers
    if wanted.threads:
        changes["runtime.threads"] = wanted.threads
    return changes
