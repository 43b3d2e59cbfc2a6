"""Tables of the fits: what recipes are worth, laws side by side, residuals cell by cell."""

from __future__ import annotations

from dcray.config.counts import count_label
from dcray.fit.output import text
from dcray.report.analysis import Analysis
from dcray.report.tables.table import Table


def worth(found: Analysis) -> list[Table]:
    """Tabulate what each recipe is worth in unique data, the sentence first."""
    if found.answer is None:
        return []
    return [
        Table(
            *text.worth_columns(one),
            above=text.answer_sentences(found.answer, one),
            below=text.worth_notes(one),
        )
        for one in found.answer.comparisons
    ]


def fits(found: Analysis) -> list[Table]:
    """Tabulate laws side by side for each recipe, with their flags."""
    if found.answer is None:
        return []
    return [
        Table(
            *text.fit_columns(its),
            above=f"Fits of {recipe}.",
            below=text.fit_notes(its),
        )
        for recipe, its in found.answer.fits.items()
    ]


def residuals(found: Analysis) -> list[Table]:
    """Tabulate predicted minus observed loss of every cell, a column for each law of a recipe."""
    if found.answer is None:
        return []
    sizes = {cell.num_params: cell.size for cell in found.cells}
    tables = []
    for recipe, its in found.answer.fits.items():
        by_cell: dict[tuple[float, float, float], dict[str, float]] = {}
        for law, fit in its.items():
            points = fit.points
            for N, U, L, off in zip(points.N, points.U, points.L, fit.residuals, strict=True):
                by_cell.setdefault((U, N, L), {})[law] = off
        rows = [
            [f"{sizes[round(N * 1e9)]} {count_label(round(U * 1e9))}", float(L),
             *(f"{offs[law]:+.4f}" if law in offs else None for law in its)]
            for (U, N, L), offs in sorted(by_cell.items())
        ]  # fmt: skip
        above = f"Predicted minus observed loss of {recipe}, in nats per token."
        tables.append(Table([recipe, "loss", *its], rows, above))
    return tables
