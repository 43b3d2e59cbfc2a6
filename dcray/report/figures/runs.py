"""Figures of a study's results: curves of training, epochs, MIR's options, losses by size.

Each function gives (title, text alternative, figure), or raises AbsentError.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from dcray.config.counts import count_label
from dcray.fit.grid import with_bound
from dcray.report.analysis import Analysis
from dcray.report.basis import WORDS
from dcray.report.cells import Cell, loss_of
from dcray.report.figures.fits import LOSS, Drawn
from dcray.report.figures.style import AbsentError, below, count_axis, kind, sheet, short, within
from dcray.track.rows import Row

MIR = ("objective.mask_ratio_min", "objective.mask_ratio_max", "objective.weight")
MOST_PANELS = 4


def over_epochs(found: Analysis) -> Drawn:
    """Draw each winner's validation loss over epochs, in the cell that most recipes share."""
    curves = {c.place: list(found.curves.get(c.winner.run_id, ())) for c in found.cells}
    cells = _shared([cell for cell in found.cells if len(curves[cell.place]) > 1])
    if not cells:
        raise AbsentError(
            "no winner was validated more than once; validation.epochs = 1 gives a point an epoch"
        )
    figure, axes = sheet()
    for cell in cells:
        epochs, losses = zip(*curves[cell.place], strict=True)
        look = _look(found, cell.recipe)
        axes.plot(epochs, losses, label=_name(cell), markevery=[-1], **look)
    axes.set_xlabel("epochs over the same tokens")
    axes.set_ylabel(LOSS)
    below(figure)
    where = f"{cells[0].size}, {count_label(cells[0].unique_tokens)} unique tokens"
    title = f"Validation while training: {where}"
    ends = ", ".join(f"{cell.recipe} {curves[cell.place][-1][1]:.3f}" for cell in cells)
    return title, f"Validation loss over epochs at {where}. Last values: {ends} nats.", figure


def by_epochs(found: Analysis) -> Drawn:
    """Draw final loss against the number of epochs: every complete result, the best at each."""
    several = [c for c in found.cells if len({row.num_epochs for row in c.candidates}) > 1]
    cells = _shared(several)
    if not cells:
        raise AbsentError("no cell has results of two numbers of epochs")
    figure, axes = sheet()
    said = []
    for cell in cells:
        look = _look(found, cell.recipe)
        best: dict[int, float] = {}
        for row in cell.candidates:
            epochs = row.num_epochs or 0
            best[epochs] = min(best.get(epochs, loss_of(row)), loss_of(row))
            axes.plot(
                [epochs],
                [loss_of(row)],
                look["marker"],
                color=look["color"],
                alpha=0.3,
                markersize=3,
            )
        axes.plot(sorted(best), [best[e] for e in sorted(best)], label=_name(cell), **look)
        least = min(best, key=lambda epochs: best[epochs])
        said.append(f"{cell.recipe} is best at {least} epochs ({best[least]:.3f})")
    axes.set_xscale("log", base=2)
    ticks = sorted({row.num_epochs or 0 for cell in cells for row in cell.candidates})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_xlabel("epochs (each a whole schedule)")
    axes.set_ylabel(LOSS)
    below(figure)
    where = f"{cells[0].size}, {count_label(cells[0].unique_tokens)} unique tokens"
    title = f"Loss against epochs: {where}"
    return title, f"Final loss against epochs at {where}: {'; '.join(said)}.", figure


def mir_tuning(found: Analysis) -> Drawn:
    """Draw MIR's loss against its weight, one line per range of mask ratios, all else equal."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in (row for cell in found.cells for row in cell.candidates):
        if all(name in row.params for name in MIR):
            same = (row.num_params, row.unique_tokens, row.num_epochs, row.weight_decay, row.lr)
            groups.setdefault((*same, *_others(row)), []).append(row)
    rows = max(groups.values(), key=lambda rows: len({_mir(r) for r in rows}), default=[])
    if len({_mir(row) for row in rows}) < 2:
        raise AbsentError("no cell has results of two settings of MIR's mask ratios or weight")
    figure, axes = sheet()
    ranges = sorted({_mir(row)[:2] for row in rows})
    for i, (low, high) in enumerate(ranges):
        line = sorted((_mir(row)[2], loss_of(row)) for row in rows if _mir(row)[:2] == (low, high))
        axes.plot(*zip(*line, strict=True), label=f"r from {low:g} to {high:g}", **kind(i))
    axes.set_xlabel("weight of the masked pass")
    axes.set_ylabel(LOSS)
    below(figure)
    where = f"{rows[0].size}, {count_label(rows[0].unique_tokens)} unique tokens"
    title = f"Options of {rows[0].recipe}: {where}"
    best = min(rows, key=loss_of)
    low, high, weight = _mir(best)
    alt = (
        f"MIR's loss at {where} for {len(rows)} settings; the lowest, {loss_of(best):.4f} nats, at "
        f"mask ratios from {low:g} to {high:g} and weight {weight:g}."
    )
    return title, alt, figure


def _others(row: Row) -> list[tuple[str, str]]:
    """Return MIR's options that are not shown: another mixture of losses is another recipe."""
    options = (item for item in row.params.items() if item[0].startswith("objective."))
    return sorted(item for item in options if item[0] not in MIR)


def _mir(row: Row) -> tuple[float, float, float]:
    low, high, weight = (float(row.params[name]) for name in MIR)
    return low, high, weight


def by_size(found: Analysis) -> Drawn:
    """Draw losses by size, one panel per budget, with bars from the lowest to the highest seed."""
    sizes = {cell.num_params for cell in found.cells}
    if len(sizes) < 2:
        raise AbsentError("losses by size need two sizes")
    there = sorted({cell.unique_tokens for cell in found.cells})
    budgets = there[:: -(-len(there) // MOST_PANELS)]
    columns = min(2, len(budgets))
    rows = -(-len(budgets) // columns)
    figure, panels = sheet(rows, columns, height=1.0 + 1.6 * rows, sharex=True, squeeze=False)
    for axes, budget in zip(panels.flat, budgets, strict=False):
        _at_budget(axes, found, budget)
        count_axis(axes.xaxis, sorted(sizes), most=3 if columns > 1 else 6)
    for axes in panels.flat[len(budgets) :]:
        axes.set_visible(False)
    for axes in panels[-1]:
        axes.set_xlabel("total parameters")
    figure.supylabel(LOSS, fontsize=8)
    handles = {
        h.get_label(): h
        for axes in panels.flat
        for h in axes.get_lines()
        if h.get_label()[0] != "_"
    }
    below(figure, list(handles.values()))
    seeds = max(len(cell.fresh) for cell in found.cells)
    bars = "; bars: all seeds of the winner" if seeds else ""
    title = f"Loss by size{bars}"
    best = min(found.cells, key=found.shown_loss)
    where = f"{len(there)} budgets" if len(there) > 1 else "1 budget"
    some = f"{len(budgets)} of " if len(budgets) < len(there) else ""
    alt = (
        f"Losses by size for {', '.join(found.choice.recipes)} at {some}{where}. The "
        f"lowest of all is {found.shown_loss(best):.3f} nats, {best.name}."
    )
    return title, alt, figure


def _at_budget(axes: Any, found: Analysis, budget: int) -> None:
    """Draw every recipe at one budget; the range is the baseline's, losses far above are named."""
    here = [cell for cell in found.cells if cell.unique_tokens == budget]
    for recipe in found.choice.recipes:
        its = sorted((c for c in here if c.recipe == recipe), key=lambda cell: cell.num_params)
        if its:
            _bars(axes, found, its)
    others = [(_name(c), found.shown_loss(c)) for c in here if c.recipe != found.baseline]
    core = [found.shown_loss(c) for c in here if c.recipe == found.baseline]
    within(axes, core or [loss for _, loss in others], others)
    axes.set_title(f"U = {short(budget)}")


def _bars(axes: Any, found: Analysis, cells: Sequence[Cell]) -> None:
    """Draw one recipe's line, with a bar at each cell that has several seeds."""
    look, sizes = _look(found, cells[0].recipe), [cell.num_params for cell in cells]
    losses = [found.shown_loss(cell) for cell in cells]
    sources = {found.choice.shown(recipe) for recipe in found.choice.recipes}
    source = found.choice.shown(cells[0].recipe)
    said = f" ({WORDS[source]})" if len(sources) > 1 else ""
    axes.plot(sizes, losses, label=_name(cells[0]) + said, **look)
    for cell in cells:
        if cell.fresh:
            low, high = cell.spread()
            axes.plot([cell.num_params] * 2, [low, high], "_-", color=look["color"], linewidth=0.9)


def _look(found: Analysis, recipe: str) -> dict[str, Any]:
    """Return the style of a recipe, the same in every figure; the baseline has the first one."""
    names = sorted(found.choice.recipes, key=lambda name: (name != found.baseline, name))
    return kind(names.index(recipe))


def _name(cell: Cell) -> str:
    name = with_bound(cell.recipe, cell.bound)
    return f" {name}" if name.startswith("_") else name  # a legend leaves out "_..."


def _shared(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells of the size and budget at which most recipes meet; ties to the largest."""
    counts = Counter((cell.num_params, cell.unique_tokens) for cell in cells)
    if not counts:
        return []
    place = max(counts, key=lambda where: (counts[where], where))
    return [cell for cell in cells if (cell.num_params, cell.unique_tokens) == place]
