"""The table of recipes by worth, every one of the study beside the baseline."""

from __future__ import annotations

from dcray.fit.output import ranking
from dcray.report.analysis import Analysis
from dcray.report.tables.table import Table


def by_worth(found: Analysis, *, every: bool = True) -> list[Table]:
    """Tabulate recipes by worth at equal parameters, training FLOPs and inference FLOPs.

    every: say below why single budgets have no number.
    """
    if not found.standings or found.baseline is None:
        return []
    header, rows = ranking.columns(found.standings)
    above = ranking.above(found.choice.label(found.baseline))
    return [Table(header, rows, above, ranking.notes(found.standings, every=every))]
