"""The table of ensembles: the loss of 1, 2, ... K members, and of members without end."""

from __future__ import annotations

from typing import Any

from dcray.report.analysis import Analysis
from dcray.report.tables.table import Table


def ensembles(found: Analysis) -> list[Table]:
    """Tabulate each ensemble by its number of members; [] if the study has none."""
    rows: list[list[Any]] = []
    for cell in found.cells:
        if (its := cell.ensemble) is None:
            continue
        sizes = [(str(k), loss) for k, loss in enumerate(its.losses, 1)]
        for members, loss in [*sizes, ("without end", its.limit)]:
            ends = None
            if members == "without end" and its.low is not None:
                ends = f"[{its.low:.4f}, {its.high:.4f}]"
            rows.append([cell.name, members, loss, ends, f"{loss - its.losses[0]:+.4f}"])
    header = ["cell", "members", "loss", "95 % interval", "minus one member"]
    above = (
        "Loss in nats per token of seeds of one recipe whose probabilities are averaged: the mean "
        "over sets of so many members. Each member costs a training run, and a pass at inference."
    )
    below = (
        "Without end: the limit of limit + a / members, fitted from two members on; its interval "
        "is for other seeds, by the jackknife over members. Three members are the fewest for one."
    )
    return [Table(header, rows, above, [below])] if rows else []
