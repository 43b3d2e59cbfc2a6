"""The floors of an analysis: recipes like the baseline whose weight decay is not tuned.

By default an analysis tells first what the baseline is worth against each floor, then what each
other recipe is worth against the baseline.
"""

from __future__ import annotations

from statistics import median

from dcray.fit.compare import Floor
from dcray.report.basis import Choice
from dcray.report.cells import Cell


def floors_of(choice: Choice, baseline: str) -> tuple[Floor, ...]:
    """Find the floors of the baseline: recipes with one weight decay throughout.

    Objective and optimizer are the baseline's, and that weight decay lies below the median of its
    winners.
    """
    own = choice.of(baseline)
    decays = [cell.winner.weight_decay for cell in own if cell.winner.weight_decay is not None]
    if not decays:
        return ()
    found = []
    for recipe in (name for name in choice.recipes if name != baseline):
        cells = choice.of(recipe)
        fixed = {row.weight_decay for cell in cells for row in cell.candidates}
        (decay, *others) = fixed
        same = _objectives(cells) == _objectives(own) and not cells[0].ensemble
        if same and decay is not None and not others and decay < median(decays):
            found.append(_floor(recipe, cells, decay))
    return tuple(found)


def _objectives(cells: tuple[Cell, ...]) -> set[tuple[str, str]]:
    """Collect the objectives and optimizers of winners; one that is not named is AdamW."""
    known = [{**cell.winner.params, **cell.winner.tags} for cell in cells]
    return {(str(one.get("objective")), str(one.get("optimizer", "adamw"))) for one in known}


def _floor(recipe: str, cells: tuple[Cell, ...], decay: float) -> Floor:
    """Describe the floor in words; only one with tuned epochs isolates the weight decay."""
    epochs = {row.num_epochs for cell in cells for row in cell.candidates}
    fixed = f"weight decay fixed at {decay:g}"
    if any(len({row.num_epochs for row in cell.candidates}) > 1 for cell in cells):
        return Floor(recipe, "Tuned weight decay", f"{fixed}, its epochs tuned as well")
    if epochs == {1}:
        return Floor(recipe, "", f"{fixed}, one epoch")
    return Floor(recipe, "", f"{fixed}, its epochs not tuned")
