"""All tables of an analysis in their order, and those that fit on a screen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dcray.report.analysis import Analysis
from dcray.report.tables.ensembles import ensembles
from dcray.report.tables.laws import fits, residuals, worth
from dcray.report.tables.recipes import by_worth
from dcray.report.tables.study import ALL, beside, cells, left_out, pairs, recipes
from dcray.report.tables.table import Table


def _by_source(make: Callable[[Analysis], list[Table]]) -> Callable[[Analysis], list[Table]]:
    """Make a fit's tables for the comparisons on each source of losses, and name the source."""

    def tables(found: Analysis) -> list[Table]:
        return [
            replace(table, above=f"{one.on_source}{table.above}")
            for one in found.by_source
            for table in make(one)
        ]

    return tables


TABLES: dict[str, tuple[str, Callable[[Analysis], list[Table]]]] = {
    "by-worth": ("Recipes by worth", by_worth),
    "worth": ("What a recipe is worth", _by_source(worth)),
    "recipes": ("Recipes by size", recipes),
    "pairs": ("Recipes on equal seeds", pairs),
    "ensembles": ("Ensembles of seeds", ensembles),
    "cells": ("Cells and their winners", cells),
    "fits": ("Laws", _by_source(fits)),
    "residuals": ("Residuals", _by_source(residuals)),
    "against": ("Two studies side by side", beside),
    "left-out": ("What is left out, and why", left_out),
}


def brief(found: Analysis) -> list[Table]:
    """Make the tables that fit on a screen: of `worth` the leading law, of `pairs` the totals."""
    return [
        *_by_source(_leading_worth)(found),
        *side_by_side(found),
        *recipes(found),
        *(one.only(lambda row: row[2] == ALL) for one in pairs(found)),
        *ensembles(found),
        *cells(found),
        *_by_source(fits)(found),
        *beside(found),
    ]


def side_by_side(found: Analysis) -> list[Table]:
    """Tabulate recipes by worth, with short notes; [] for fewer than two beside the baseline."""
    several = len({one.recipe for one in found.standings}) > 1
    return by_worth(found, every=False) if several else []


def _leading_worth(found: Analysis) -> list[Table]:
    """Tabulate the leading law of each comparison; the sentences above report the other laws."""
    compared = found.answer.comparisons if found.answer else []
    return [
        table.only(lambda row, lead=one.lead: row[0] == lead)  # type: ignore[misc]
        for one, table in zip(compared, worth(found), strict=True)
    ]
