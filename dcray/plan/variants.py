"""The study file searched in other modes, so that a plan can compare them."""

from __future__ import annotations

from collections.abc import Iterable

from dcray.study.schema import SearchConfig, StudyFile

MODES = ("grid", "ladder", "warm")
WARM_TRUNKS = 4  # if the file does not say how many a warm start needs


def in_mode(file: StudyFile, mode: str) -> StudyFile:
    """Return the file with each recipe that has a space searched by `mode`; "" keeps it as written.

    grid: every (epochs, weight decay, lr) is a run of its own. ladder: trunks, thinned at each
    rung. warm: as ladder, but from the winner of the budget below, with fewer trunks. A sampler
    that asks a model proposes as many points; here they are drawn, which costs the same.
    """
    how = {"": _drawn, "grid": _grid, "ladder": _ladder, "warm": _warm}[mode]
    changed = {
        name: recipe.model_copy(update={"search": how(recipe.search)})
        if recipe.space or recipe.spaces
        else recipe
        for name, recipe in file.recipes.items()
    }
    return file.model_copy(update={"recipes": changed})


def written_mode(files: Iterable[StudyFile]) -> str:
    """Find the mode that the files ask for themselves; "" if it is none of MODES."""
    all_files = list(files)
    for mode in ("ladder", "warm", "grid"):
        if all(in_mode(file, mode) == in_mode(file, "") for file in all_files):
            return mode
    return ""


def _grid(search: SearchConfig) -> SearchConfig:
    found = _drawn(search).model_copy(
        update={"branching": False, "stopping": "none", "warm_start": None, "warm_trunks": None}
    )
    return found.model_copy(update={"trunks": None}) if found.sampler == "grid" else found


def _ladder(search: SearchConfig) -> SearchConfig:
    return _drawn(search).model_copy(
        update={"branching": True, "stopping": "ladder", "warm_start": None, "warm_trunks": None}
    )


def _warm(search: SearchConfig) -> SearchConfig:
    shares = tuple(number / search.keep[0] for number in search.keep)
    return _drawn(search).model_copy(
        update={
            "branching": True,
            "stopping": "ladder",
            "keep": shares if search.keep[0] > 1 else search.keep,
            "warm_start": search.warm_start or "budget",
            "warm_trunks": search.warm_trunks or WARM_TRUNKS,
        }
    )


def _drawn(search: SearchConfig) -> SearchConfig:
    return search if search.sampler == "grid" else search.model_copy(update={"sampler": "random"})
