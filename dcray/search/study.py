"""A study file: which cells there are, and how each of them is searched. Data, checked; no logic.

STUDY on a command line is the path of a TOML file, or the name of a study that ships with the
package: then of every shipped file that carries this name.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from dcray.config import read_toml
from dcray.errors import ConfigError, did_you_mean
from dcray.sections import Frozen, count_label, parse_count

SHIPPED = Path(__file__).parent.parent / "search_spaces"
DEFAULT_KEEP = (1.0, 0.56, 0.34)
DEFAULT_TRUNKS = 16  # of a model-based sampler; chosen, as `generation` and `share`, by replay


class SearchConfig(Frozen):
    """How the best configuration of a cell is found."""

    sampler: Literal["grid", "gp", "tpe", "random"] = "grid"
    keep: tuple[Annotated[float, Field(gt=0)], ...] = DEFAULT_KEEP  # of a grid; see ladder.cohort
    trunks: int | None = Field(None, ge=1)  # how many are proposed; None: 16, or a grid's all
    warm_trunks: int | None = Field(None, ge=1)  # the same where the cell starts warm
    generation: int = Field(3, ge=1)  # trunks proposed at once by a model-based sampler
    share: float = Field(0.67, gt=0, le=1)  # of the trunks at a rung that goes on
    warm_start: Literal["budget", "size"] | tuple[dict[str, float], ...] | None = None
    branching: bool = True  # False: every (epochs, weight decay, lr) is a run of its own
    stopping: Literal["ladder", "none", "asha"] = "ladder"


class PublishedWinner(Frozen):
    """A winner that somebody else has found: what a plan counts with until ours is known."""

    num_epochs: int = Field(ge=1)
    weight_decay: float = Field(ge=0)
    lr: float = Field(gt=0)


class RecipeConfig(Frozen):
    """A recipe as written: an objective, overrides of the base, a space, what it inherits."""

    objective: str = "ar"
    base: dict[str, Any] = Field(default_factory=dict)
    inherit: str | None = None  # "RECIPE", or "STUDY:RECIPE" of another study on record
    space: list[dict[str, Any]] = Field(default_factory=list)
    spaces: dict[str, list[dict[str, Any]]] = Field(default_factory=dict)  # by size
    sizes: tuple[str, ...] | None = None  # None: all of the study
    budgets: tuple[str, ...] | None = None
    search: SearchConfig = SearchConfig()
    confirm_seeds: tuple[int, ...] = ()
    confirm_cells: tuple[str, ...] | None = None  # by SIZE/BUDGET; None: every cell
    published: dict[str, PublishedWinner] = Field(default_factory=dict)  # by "SIZE/BUDGET"

    @field_validator("budgets")
    @classmethod
    def _counts(cls, budgets: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return None if budgets is None else tuple(_label(budget) for budget in budgets)


class ResourceConfig(Frozen):
    """What one trial of a size takes."""

    gpus: int | None = Field(None, ge=0)  # 0: on CPUs
    workers: int | None = Field(None, ge=1)  # CPU processes of one trial
    threads: int | None = Field(None, ge=1)  # of one CPU worker


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
        """The same cells under another study's name."""
        return self if name == self.study else self.model_copy(update={"study": name})

    @field_validator("budgets")
    @classmethod
    def _counts(cls, budgets: list[str]) -> list[str]:
        return [_label(budget) for budget in budgets]

    @model_validator(mode="after")
    def _names_a_cell(self) -> StudyFile:
        for name in ("sizes", "budgets", "recipes"):
            if not getattr(self, name):
                raise ValueError(f"{name} must name at least one: without it there is no cell")
        return self


def _label(budget: str) -> str:
    """A budget as it is always written: "100m" of "100_000_000"."""
    return count_label(int(parse_count(budget)))


def read_study(study: str) -> list[tuple[Path, StudyFile]]:
    """The files of STUDY: one at a path, or those that ship under a study's or a file's name.

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


def files_named(study: str, folders: Iterable[Path]) -> list[StudyFile]:
    """The files of a study in these folders and among those that ship; one that is broken is not.

    The first folder that has any decides.
    """
    for folder in (*folders, SHIPPED):
        found = []
        for path in sorted(folder.glob("*.toml")):
            try:
                file = parse_study(path)
            except ConfigError:  # somebody else's TOML, or a study that is not asked for
                continue
            found += [file] if file.study == study else []
        if found:
            return found
    return []


def parse_study(path: Path) -> StudyFile:
    """One study file; ConfigError names the file, the field, the rule and the value."""
    table = read_toml(path)
    try:
        return StudyFile.model_validate(table)
    except ValidationError as error:
        raise ConfigError([f"{path.name}: {_sentence(d)}" for d in error.errors()]) from None


def _sentence(detail: Any) -> str:
    where = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        known = sorted({*StudyFile.model_fields, *RecipeConfig.model_fields,
                        *SearchConfig.model_fields, *ResourceConfig.model_fields,
                        *PublishedWinner.model_fields})  # fmt: skip
        return f'"{where}" is not a field{did_you_mean(str(detail["loc"][-1]), known)}'
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] == "missing":
        return f"{where} must be given"
    got = detail["input"]
    return f"{where}: {message[:1].lower()}{message[1:]}" + (
        f", got {got!r}" if where and not isinstance(got, (dict, list)) else ""
    )
