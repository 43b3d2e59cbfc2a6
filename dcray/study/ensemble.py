"""Ensembles in a study file: a recipe that is another recipe's winner at K seeds, averaged.

    [recipes.ensemble]
    inherit = "ar"
    ensemble = 4
    confirm_seeds = [1, 2, 3, 4]  # left out: the seeds of ar's confirmations, then further ones

The members are confirmations of the winner of ar: runs of its cell, which serve both. The run that
won is none of them: it was chosen for its loss.
"""

from __future__ import annotations

from itertools import count, islice

from dcray.config.plugged import ObjectiveConfig
from dcray.errors import ConfigError
from dcray.objectives import no_ensemble
from dcray.study.schema import RecipeConfig, SearchConfig, StudyFile

OWN = ("inherit", "ensemble", "confirm_seeds", "sizes", "budgets")  # what an ensemble may write


def recipe_of(file: StudyFile, name: str) -> RecipeConfig:
    """Return a recipe with what holds for it: an ensemble has its members' objective and base."""
    recipe = file.recipes[name]
    parent = file.recipes.get(recipe.inherit or "")
    if recipe.ensemble is None or parent is None:
        return recipe
    return parent.model_copy(
        update={
            **{field: getattr(recipe, field) for field in OWN},
            "space": [],
            "spaces": {},
            "search": SearchConfig(),
            "confirm_cells": None,
            "published": {},
        }
    )


def member_seeds(file: StudyFile, recipe: RecipeConfig) -> tuple[int, ...]:
    """Choose the seeds of an ensemble's members; () if the recipe is no ensemble.

    They are the first K of the seeds that the recipe names, else of those of its parent, filled up
    with the smallest fresh ones.
    """
    if recipe.ensemble is None:
        return ()
    parent = file.recipes.get(recipe.inherit or "")
    known = recipe.confirm_seeds or (parent.confirm_seeds if parent else ())
    fresh = (seed for seed in count(1) if seed not in (*known, file.seed))
    return (*known, *islice(fresh, max(0, recipe.ensemble - len(known))))[: recipe.ensemble]


def seeds_for_ensembles(file: StudyFile, name: str, size: str, budget: str) -> tuple[int, ...]:
    """List the seeds at which ensembles need the winner of this recipe's cell, each once."""
    found = [
        seed
        for recipe in file.recipes.values()
        if recipe.ensemble is not None and recipe.inherit == name
        if recipe.sizes is None or size in recipe.sizes
        if recipe.budgets is None or budget in recipe.budgets
        for seed in member_seeds(file, recipe)
    ]
    return tuple(dict.fromkeys(found))


def ensemble_problems(file: StudyFile) -> list[str]:
    """List what is wrong with the ensembles of a file, and with recipes that inherit from one."""
    problems = []
    for name, recipe in file.recipes.items():
        parent = file.recipes.get(recipe.inherit or "")
        if recipe.ensemble is not None:
            problems += [f"recipes.{name}{problem}" for problem in _problems(file, name)]
        elif parent is not None and parent.ensemble is not None:
            problems.append(
                f"recipes.{name}.inherit must name a recipe that is trained, and {recipe.inherit} "
                f'is an ensemble: write inherit = "{parent.inherit}", whose winner it has'
            )
    return problems


def _problems(file: StudyFile, name: str) -> list[str]:
    recipe = file.recipes[name]
    parent = file.recipes.get(recipe.inherit or "")
    if recipe.inherit is None or ":" in recipe.inherit:
        got = "no inherit" if recipe.inherit is None else repr(recipe.inherit)
        said = (
            ".ensemble needs inherit = RECIPE, a recipe of this file whose winner its members are "
            f"(another study may have another tokenizer or validation set), got {got}"
        )
        return [said]
    if parent is None:
        return []  # said of every recipe that inherits
    if parent.ensemble is not None:
        said = (
            f".inherit must name a recipe that is trained, and {recipe.inherit} is an ensemble: "
            f'write inherit = "{parent.inherit}" and the number of all members'
        )
        return [said]
    return [*_own_problems(recipe, parent), *_cell_problems(file, recipe, parent)]


def _own_problems(recipe: RecipeConfig, parent: RecipeConfig) -> list[str]:
    """List fields that an ensemble does not have, too few seeds, and a loss without a mean."""
    found = [
        f".{field} is not for an ensemble, whose members are {recipe.inherit}'s winner: leave it "
        f"out, or write it in recipes.{recipe.inherit}"
        for field in sorted(recipe.model_fields_set - set(OWN))
        if getattr(recipe, field) != getattr(parent, field)
    ]
    wanted, named = recipe.ensemble or 0, len(recipe.confirm_seeds)
    if recipe.confirm_seeds and named < wanted:
        found.append(
            f".ensemble must be at most the number of its confirm_seeds, {named}, got {wanted}: "
            "name more seeds, or none, and further ones are added"
        )
    try:
        objective = ObjectiveConfig(name=parent.objective).build()
    except (ConfigError, ValueError):
        return found  # said of the parent itself
    why = no_ensemble(objective)
    if why:
        found.append(
            f".ensemble cannot average {recipe.inherit}, whose objective is {parent.objective}: "
            f"{why}. Inherit from a recipe whose loss is exact, such as ar or mir"
        )
    return found


def _cell_problems(file: StudyFile, recipe: RecipeConfig, parent: RecipeConfig) -> list[str]:
    """List cells that an ensemble has and its members' recipe has not."""
    found = []
    for what, ours, theirs, every in (
        ("sizes", recipe.sizes, parent.sizes, list(file.sizes)),
        ("budgets", recipe.budgets, parent.budgets, file.budgets),
    ):
        asked = every if ours is None else ours
        missing = [one for one in asked if theirs is not None and one not in theirs]
        if missing:
            found.append(
                f".{what} must be among those of {recipe.inherit}, whose runs the members are, "
                f"{list(theirs or ())}, got {', '.join(missing)} too"
            )
    return found
