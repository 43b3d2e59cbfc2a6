"""A cell as its study file asks for it: base configuration, space, and the cells that it needs.

A cell depends on another if it starts from the other's winner: by `inherit`, `{ winners = [...] }`
or a warm start.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from dcray.config.counts import parse_count
from dcray.config.run import RunConfig, later_wins, override
from dcray.config.sections import batch_warning
from dcray.errors import ConfigError, plural
from dcray.study.axes import Axis, Range, Winners, parse_space
from dcray.study.ensemble import member_seeds, recipe_of, seeds_for_ensembles
from dcray.study.fields import field_problems
from dcray.study.keep import counts_problem, length_problem
from dcray.study.schema import (
    DEFAULT_KEEP,
    PublishedWinner,
    RecipeConfig,
    ResourceConfig,
    SearchConfig,
    StudyFile,
)
from dcray.study.space import (
    AXES,
    SHORT,
    Space,
    build_space,
    early_rungs,
    warms_up_alone,
)
from dcray.types import Cell


class CellSpec:
    """One cell as a study file asks for it, before anything is known of other cells."""

    def __init__(self, file: StudyFile, size: str, budget: str, recipe: str) -> None:
        self.file, self.size, self.budget = file, size, budget
        self.recipe: RecipeConfig = recipe_of(file, recipe)
        self.cell = Cell(file.study, size, int(parse_count(budget)), recipe)
        self.where = f"recipes.{recipe}"
        written = self.recipe.spaces.get(size, self.recipe.space)
        named = f"spaces.{size}" if size in self.recipe.spaces else "space"
        self.boxes: list[dict[str, Axis]] = parse_space(written, f"{self.where}.{named}") or [{}]
        self.warm_from: Cell | None = None  # set by `Study`, which knows the neighbors
        self._check()

    @property
    def search(self) -> SearchConfig:
        return self.recipe.search

    @property
    def published(self) -> PublishedWinner | None:
        """Return the winner that the study file publishes for this cell, if any."""
        return self.recipe.published.get(f"{self.size}/{self.budget}")

    @property
    def confirm_seeds(self) -> tuple[int, ...]:
        """Return the fresh seeds with which this cell's winner runs again, for ensembles too."""
        if self.member_seeds:
            return ()  # an ensemble's members are runs of another cell
        chosen = self.recipe.confirm_cells
        here = chosen is None or f"{self.size}/{self.budget}" in chosen
        own = self.recipe.confirm_seeds if here else ()
        return tuple(dict.fromkeys((*own, *self.kept_seeds)))

    @cached_property
    def member_seeds(self) -> tuple[int, ...]:
        """Return the seeds of an ensemble's members, () if the cell is no ensemble."""
        return member_seeds(self.file, self.recipe)

    @cached_property
    def kept_seeds(self) -> tuple[int, ...]:
        """Return the seeds at which the winner is a member of ensembles."""
        return seeds_for_ensembles(self.file, self.cell.recipe, self.size, self.budget)

    @property
    def inherits(self) -> Cell | None:
        """Return the cell from whose winner this one starts, named by the recipe's `inherit`."""
        if self.recipe.inherit is None:
            return None
        study, colon, recipe = self.recipe.inherit.partition(":")
        study, recipe = (study, recipe) if colon else (self.cell.study, study)
        return Cell(study, self.cell.size, self.cell.unique_tokens, recipe)

    @property
    def borrows(self) -> bool:
        """Tell whether the space takes winners of other budgets: it may wait for larger ones."""
        return any(_budgets(axis) for box in self.boxes for axis in box.values())

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """List the fields searched beside epochs, weight decay and lr, by their full names."""
        values: dict[str, set[str]] = {}
        for box in self.boxes:
            for name in box.keys() - set(AXES):
                axis = box[name]
                several = ("", axis) if isinstance(axis, (Range, Winners)) else axis
                values.setdefault(name, set()).update(map(str, several))
        return tuple(sorted(name for name, found in values.items() if len(found) > 1))

    @property
    def needs(self) -> list[Cell]:
        """List the cells whose winners must be known before this one can start."""
        budgets = [b for box in self.boxes for a in box.values() for b in _budgets(a)]
        found = [self.inherits, *map(self.at_budget, budgets), self.warm_from]
        return [cell for cell in dict.fromkeys(found) if cell is not None]

    def at_budget(self, budget: str) -> Cell:
        """Return the cell of the same size and recipe at another budget."""
        cell = self.cell
        return Cell(cell.study, cell.size, int(parse_count(budget)), cell.recipe)

    def base(self, inherited: Mapping[str, Any] | None = None) -> RunConfig:
        """Build the configuration without the space; the recipe overrides what is inherited."""
        file = self.file
        shape = file.sizes[self.size] if isinstance(file.sizes, dict) else None
        parts: list[Mapping[str, Any]] = [
            file.base,
            {"size": shape or self.size, "data.unique_tokens": self.budget, "seed": file.seed},
            {"objective": self.recipe.objective},
            {} if self.recipe.optimizer is None else {"optimizer": self.recipe.optimizer},
            file.resources.get(self.size, ResourceConfig()).runtime,
            inherited or {},
            self.recipe.base,
        ]
        return override(RunConfig(), later_wins(parts))

    def space(self, num_epochs: int, winners: Mapping[Cell, RunConfig]) -> Space:
        """Build the space, with the winners of other budgets in place of their names."""
        boxes = [
            {name: self._resolved(name, axis, winners) for name, axis in box.items()}
            for box in self.boxes
        ]
        return build_space(boxes, num_epochs)

    def branches(self, base: RunConfig) -> bool:
        """Tell whether runs branch off trunks: under WSD, if the loss is the one at the end."""
        keeps_best = base.objective.build().keeps_best
        shares = self.search.branching and not self.search.own_warmup
        return shares and base.schedule.kind == "wsd" and not keeps_best

    @cached_property
    def bound(self) -> str:
        """Return "upper bound" if the objective's losses are upper bounds, else ""."""
        return self.base().objective.build().bound or ""

    @property
    def longest(self) -> int:
        """Return the largest epoch count that is known before any winner is."""
        rungs = [e for box in self.boxes if isinstance(e := box.get("num_epochs"), tuple)]
        return max((int(epochs[-1]) for epochs in rungs), default=self.base().num_epochs)

    def warnings(self) -> list[str]:
        """List what a person should know although it is allowed."""
        if self.member_seeds:
            return []  # its members' cell lists it
        base = self.base()
        found = [batch_warning(base.batch_size, base.usable_rows)]
        if not self.borrows:
            space = self.space(base.num_epochs, {})
            found += [early_rungs(space) or "", self._alone(space, base)]
        return [f"{self.where}: {warning}" for warning in found if warning]

    def _alone(self, space: Space, base: RunConfig) -> str:
        """Format a warning that names the epoch counts that share no trunk; "" if all do."""
        alone = [e for e in space.rungs if warms_up_alone(base, e, space.longest)]
        if not alone or not self.branches(base):
            return ""
        return (
            f"{plural(alone[0], 'epoch') if len(alone) == 1 else f'{alone} epochs'} of "
            f"{self.cell.size} {self.budget} would be more than a tenth warm-up on the trunk of "
            f"{space.longest} epochs ({base.warmup_steps(space.longest):,} steps): trained apart, "
            "with a warm-up of its own"
        )

    def _resolved(self, name: str, axis: Axis, winners: Mapping[Cell, RunConfig]) -> Axis:
        if not isinstance(axis, Winners):
            return axis
        found = [value_of(name, winners[self.at_budget(budget)]) for budget in axis.winners]
        return tuple(sorted(set(found)))

    def _check(self) -> None:
        """Raise ConfigError with every contradiction of the cell, before anything is trained."""
        base = self.base()
        problems = field_problems(self.boxes, base, self.where)
        search, seeds = self.search, self.recipe.confirm_seeds
        if self.file.seed in seeds or len(set(seeds)) < len(seeds):
            problems.append(
                f"{self.where}.confirm_seeds must be fresh: each once, and not the search's seed "
                f"({self.file.seed}), got {list(seeds)}"
            )
        if not problems and not self.borrows:
            space = self.space(base.num_epochs, {})
            problems += self._space_problems(space, search)
            problems += [f"{self.where}: {one}" for one in _warmup_problems(space, base)]
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
            if search.keep != DEFAULT_KEEP:  # the default suits every space
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


def _warmup_problems(space: Space, base: RunConfig) -> list[str]:
    """List why the shortest run cannot have the given schedule.warmup_steps."""
    axis = dict(space.boxes[0].axes).get("schedule.warmup_steps", (base.schedule.warmup_steps,))
    values = (axis.low, axis.high) if isinstance(axis, Range) else axis
    for steps in values:
        run = override(base, {"num_epochs": space.rungs[0], "schedule.warmup_steps": steps})
        try:
            run.schedule.refuse_long_warmup(run.num_steps, run.num_epochs)
        except ConfigError as error:
            return list(error.problems)
    return []


def value_of(name: str, config: RunConfig) -> Any:
    """Return the value of a configuration on an axis (tau to 3 significant digits)."""
    if name == "tau":
        return float(f"{config.tau:.3g}")
    node: Any = config.model_dump(mode="json")
    for part in SHORT.get(name, name).split("."):
        node = node[part]
    return node


def _budgets(axis: Axis) -> tuple[str, ...]:
    return axis.winners if isinstance(axis, Winners) else ()
