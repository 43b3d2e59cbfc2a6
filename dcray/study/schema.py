"""A study file: which cells there are, and how each of them is searched. Checked data, no logic.

STUDY on a command line is the path of a TOML file, or the name of a study that ships with the
package; the name stands for every shipped file that carries it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from dcray.config.counts import count_label, parse_count
from dcray.config.run import field_names
from dcray.config.sections import Frozen
from dcray.config.toml import read_toml
from dcray.errors import ConfigError, did_you_mean, rule_of
from dcray.study.space import AXES

SHIPPED = Path(__file__).parent.parent / "search_spaces"
DEFAULT_KEEP = (1.0, 0.56, 0.34)
DEFAULT_TRUNKS = 16  # for a model-based sampler; chosen by replay, as are `generation` and `share`


class SearchConfig(Frozen):
    """The search for the best configuration of a cell."""

    sampler: Literal["grid", "gp", "tpe", "random"] = "grid"
    keep: tuple[Annotated[float, Field(gt=0)], ...] = DEFAULT_KEEP  # of a grid; see ladder.cohort
    trunks: int | None = Field(None, ge=1)  # how many are proposed; None: 16, or a grid's all
    warm_trunks: int | None = Field(None, ge=1)  # the same if the cell starts warm
    generation: int = Field(3, ge=1)  # trunks proposed at once by a model-based sampler
    share: float = Field(0.67, gt=0, le=1)  # of the trunks at a rung that goes on
    warm_start: Literal["budget", "size"] | tuple[dict[str, float], ...] | None = None
    branching: bool = True  # False: every (epochs, weight decay, lr) is a run of its own
    own_warmup: bool = False  # True: each run warms up over its own steps, so none can branch
    stopping: Literal["ladder", "none", "asha"] = "ladder"


class PublishedWinner(Frozen):
    """A winner from elsewhere, such as a paper; a plan uses it until the study has its own."""

    num_epochs: int = Field(ge=1)
    weight_decay: float = Field(ge=0)
    lr: float = Field(gt=0)


class RecipeConfig(Frozen):
    """A recipe as written: an objective, overrides of the base, a space, what it inherits."""

    objective: str = "ar"
    optimizer: str | None = None  # None: that of `base`, else "adamw"
    base: dict[str, Any] = Field(default_factory=dict)
    inherit: str | None = None  # "RECIPE", or "STUDY:RECIPE" of another study on record
    space: list[dict[str, Any]] = Field(default_factory=list)
    spaces: dict[str, list[dict[str, Any]]] = Field(default_factory=dict)  # by size
    sizes: tuple[str, ...] | None = None  # None: all of the study
    budgets: tuple[str, ...] | None = None
    search: SearchConfig = SearchConfig()
    ensemble: int | None = Field(None, ge=2, le=64)  # the inherited winner at so many seeds
    confirm_seeds: tuple[int, ...] = ()
    confirm_cells: tuple[str, ...] | None = None  # by SIZE/BUDGET; None: every cell
    published: dict[str, PublishedWinner] = Field(default_factory=dict)  # by "SIZE/BUDGET"

    @field_validator("budgets")
    @classmethod
    def _counts(cls, budgets: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return None if budgets is None else tuple(_label(budget) for budget in budgets)


class ResourceConfig(Frozen):
    """The resources that one trial of a size takes."""

    # 0: on CPUs. A number between 0 and 1: so much of a GPU, beside other trials. "auto": as many
    # trials on one GPU as its memory holds and as keep it busy
    gpus: Literal["auto"] | float | None = None
    workers: int | None = Field(None, ge=1)  # CPU processes of one trial
    threads: int | None = Field(None, ge=1)  # of one CPU worker

    @field_validator("gpus", mode="before")
    @classmethod
    def _part_or_whole(cls, gpus: Any) -> Any:
        is_number = isinstance(gpus, (int, float)) and not isinstance(gpus, bool)
        if gpus in (None, "auto") or (is_number and (0 <= gpus <= 1 or gpus == int(gpus) > 1)):
            return gpus
        raise ValueError(
            f'must be "auto", a whole number, or a part of one GPU between 0 and 1, got {gpus!r}'
        )

    @property
    def runtime(self) -> dict[str, Any]:
        """Return the fields of a configuration's runtime that the resources stand for."""
        changes: dict[str, Any] = {}
        if self.gpus is not None:
            changes["runtime.device"] = "cuda" if self.gpus else "cpu"
        if isinstance(self.gpus, float) and self.gpus >= 1:
            changes["runtime.workers"] = int(self.gpus)
        elif self.gpus:
            changes |= {"runtime.workers": 1, "runtime.gpu_share": self.gpus}
        elif self.workers:
            changes["runtime.workers"] = self.workers
        if self.threads:
            changes["runtime.threads"] = self.threads
        return changes


class StudyFile(Frozen):
    """One file of a study."""

    study: str
    about: str = ""  # what it asks, and what in it is assumed
    corpus: str | None = None
    sizes: list[str] | dict[str, dict[str, int]]
    budgets: list[str]
    seed: int = Field(42, ge=0, lt=2**31)
    base: dict[str, Any] = Field(default_factory=dict)
    recipes: dict[str, RecipeConfig]
    resources: dict[str, ResourceConfig] = Field(default_factory=dict)

    def renamed(self, name: str) -> StudyFile:
        """Return the same cells under another study's name, also where `inherit` names the old."""

        def followed(recipe: RecipeConfig) -> RecipeConfig:
            study, colon, parent = (recipe.inherit or "").partition(":")
            ours = colon and study == self.study
            return recipe.model_copy(update={"inherit": f"{name}:{parent}"}) if ours else recipe

        recipes = {key: followed(recipe) for key, recipe in self.recipes.items()}
        return self.model_copy(update={"study": name, "recipes": recipes})

    @field_validator("budgets")
    @classmethod
    def _counts(cls, budgets: list[str]) -> list[str]:
        return [_label(budget) for budget in budgets]

    @field_validator("resources", mode="before")
    @classmethod
    def _by_size(cls, resources: Any) -> Any:
        if isinstance(resources, Mapping):
            for name in ResourceConfig.model_fields:
                if name in resources and not isinstance(resources[name], Mapping):
                    raise ValueError(
                        f"resources.{name} must be written for a size, as "
                        f'[resources."SIZE"] with {name} = {resources[name]!r}'
                    )
        return resources

    @model_validator(mode="after")
    def _names_a_cell(self) -> StudyFile:
        problems = []
        for name in ("sizes", "budgets", "recipes"):
            if not getattr(self, name):
                problems.append(f"{name} must name at least one: without it there is no cell")
            problems += _repeated(name, list(getattr(self, name)))
        problems += [
            f'resources."{size}" is of no size of this study{did_you_mean(size, list(self.sizes))}'
            for size in self.resources
            if size not in self.sizes
        ]
        for name, recipe in self.recipes.items():
            problems += _repeated(f"recipes.{name}.sizes", recipe.sizes or ())
            problems += _repeated(f"recipes.{name}.budgets", recipe.budgets or ())
        if problems:
            raise ValueError("; ".join(problems))
        return self


def _label(budget: str) -> str:
    """Format a budget in the canonical way: "100m" for "100_000_000"."""
    try:
        count = int(parse_count(budget))
    except ValueError as error:
        raise ValueError(f"{error}, got {budget!r}") from None
    if count < 1:
        raise ValueError(f"must be at least 1 token, got {budget!r}")
    return count_label(count)


def read_study(study: str) -> list[tuple[Path, StudyFile]]:
    """Read the files of STUDY: one at a path, or those that ship under a study's or a file's name.

    Raises ConfigError with every problem of every file.
    """
    path = Path(study)
    if path.suffix == ".toml" or path.is_file():
        return [(path, parse_study(path))]
    files = [(one, parse_study(one)) for one in sorted(SHIPPED.glob("*.toml"))]
    by_file = [pair for pair in files if pair[0].stem == study]
    found = by_file or [pair for pair in files if pair[1].study == study]
    if not found:
        known = sorted({one.stem for one, _ in files} | {file.study for _, file in files})
        raise ConfigError(
            f'STUDY must be a TOML file or a study that ships with dcray, got "{study}"'
            f"{did_you_mean(study, known)}"
        )
    return found


def files_named(study: str, folders: Iterable[Path]) -> tuple[list[StudyFile], list[str]]:
    """Find a study's files in the first of these folders that has any, else among those that ship.

    Returns them, and why files of these folders that name the study cannot be read.
    """
    broken: list[str] = []
    for folder in (*folders, SHIPPED):
        found = []
        for path in sorted(folder.glob("*.toml")):
            try:
                file = parse_study(path)
            except ConfigError as error:  # a TOML file of another kind, or another study
                named = f'"{study}"' in path.read_text(encoding="utf-8", errors="replace")
                broken += [f"{path} cannot be read: {error.problems[0]}"] if named else []
                continue
            found += [file] if file.study == study else []
        if found:
            return found, broken
    return [], broken


def parse_study(path: Path) -> StudyFile:
    """Parse one study file; ConfigError names the file, the field, the rule and the value."""
    table = read_toml(path)
    try:
        return StudyFile.model_validate(table)
    except ValidationError as error:
        said = dict.fromkeys(filter(None, (_sentence(d, table) for d in error.errors())))
        raise ConfigError([f"{path.name}: {sentence}" for sentence in said]) from None


def _sentence(detail: Any, table: Mapping[str, Any]) -> str:
    """Format one problem of a file: field, rule, value; "" for another branch of a union."""
    steps = list(detail["loc"])
    if steps[:1] == ["sizes"] and any("[" in str(step) for step in steps[1:2]):
        branch = str(steps.pop(1))
        if branch.startswith("dict") != isinstance(table["sizes"], dict):
            return ""
    if len(steps) > 1 and str(steps[-1]).startswith(("tuple[", "literal[")):
        steps.pop()  # a branch of search.warm_start
    where = ".".join(str(part) for part in steps)
    if detail["type"] == "extra_forbidden":
        return f'"{where}" is not a field{_meant(steps)}'
    message, got = rule_of(detail), detail["input"]
    verb = " " if message.startswith("must ") else ": "
    text = f"{where}{verb}{message}" if where else message
    shown = where and detail["type"] not in ("missing", "value_error")
    return text + (f", got {got!r}" if shown else "")


def _meant(steps: Sequence[int | str]) -> str:
    """Suggest where a misplaced field belongs, or else the nearest name that is allowed there."""
    leaf, model = str(steps[-1]), _model_at(steps)
    for place, names in (
        ("space = [{{ {} = [...] }}]", AXES),
        ("search = {{ {} = ... }}", SearchConfig.model_fields),
        ("[base], as {} = ...", field_names()),
        ("the recipe's table, as {} = ...", RecipeConfig.model_fields),
        ("the head of the file, as {} = ...", StudyFile.model_fields),
    ):
        if leaf in names and leaf not in model.model_fields:
            return f" here: it belongs into {place.format(leaf)}"
    return did_you_mean(leaf, model.model_fields)


def _model_at(steps: Sequence[int | str]) -> type[Frozen]:
    """Find the model of the table in which a field of this path would stand."""
    inside: dict[str, type[Frozen]] = {"search": SearchConfig, "published": PublishedWinner}
    if len(steps) > 2 and steps[0] == "recipes":
        return inside.get(str(steps[2]), RecipeConfig) if len(steps) > 3 else RecipeConfig
    return ResourceConfig if len(steps) > 2 and steps[0] == "resources" else StudyFile


def _repeated(what: str, names: Sequence[str]) -> list[str]:
    """Format an error for each name that occurs more than once."""
    twice = [name for name, number in Counter(names).items() if number > 1]
    return [f'{what} must name each once, got "{name}" more than once' for name in twice]
