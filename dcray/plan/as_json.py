"""A plan as plain values: the content of --json."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dcray.config.settings import settings_of

if TYPE_CHECKING:
    from dcray.plan.forecast import Bill
    from dcray.plan.report import Comparison


def as_dict(found: Comparison, price: float | None) -> dict[str, Any]:
    """Convert the plan to plain JSON types."""
    forks, winners, running = found.disk_bytes
    cells = []
    for number, cell in enumerate(found.written.cells):
        bills = {name: one.cells[number].search for name, one in found.by_mode.items()}
        cells.append(
            {
                "size": cell.cell.size,
                "unique_tokens": cell.cell.unique_tokens,
                "recipe": cell.cell.recipe,
                **{name: _bill(bill, price) for name, bill in bills.items()},
                "confirmations": _bill(cell.confirmations, price),
                "winner_counted_with": {
                    "num_epochs": cell.winner.num_epochs,
                    "weight_decay": cell.winner.optim.weight_decay,
                    "lr": cell.winner.optim.lr,
                    "settings": settings_of(cell.winner),
                    "from": cell.winner_from,
                },
            }
        )
    return {
        "study": found.study,
        "search_does": found.mode,
        "cells": cells,
        "all": {
            **{name: _bill(one.search, price) for name, one in found.by_mode.items()},
            "confirmations": _bill(found.written.confirmations, price),
        },
        "disk_bytes": {"trunks": forks, "winners": winners, "each_running": running},
        "hours_on_all_nodes": found.hours_on_all_nodes,
        "warnings": list(found.warnings),
        "assumed": found.assumptions,
    }


def _bill(bill: Bill, price: float | None) -> dict[str, Any]:
    hours = bill.device_seconds / 3600
    cost = None if price is None else price * hours
    return {"runs": bill.runs, "flops": bill.flops, "device_hours": hours, "cost": cost}
