"""The output of a plan and of a suggestion: on the screen, and as JSON."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from dcray.cli.screen.console import out, print_wide
from dcray.errors import plural

if TYPE_CHECKING:
    from dcray.plan.forecast import Bill
    from dcray.plan.report import Comparison
    from dcray.plan.suggest import Suggestion


def print_plan(found: Comparison, price: float | None, study: str) -> None:
    """Print the cells, the sums, the disk and what the figures rest on.

    study: what the command line named, a file or a study that ships.
    """
    print_wide(_cells_table(found))
    out.print()
    print_wide(_sums_table(found, price))
    if len(found.by_mode) > 1:
        command = shlex.join(["dcray", "search", study])
        out.print(f"* what {command} does, as the file stands", markup=False)
    forks, winners, running = found.disk_bytes
    out.print(
        f"\ndisk: {_bytes(forks + winners)} at most ({_bytes(forks)} of trunks that may go on, "
        f"{_bytes(winners)} of winners), and up to {_bytes(running)} for each run under way",
        markup=False,
    )
    if found.hours_on_all_nodes is not None:
        names = ", ".join(f"{node.max_nodes} x {node.name}" for node in found.nodes)
        out.print(f"{names}: {_hours(found.hours_on_all_nodes)} h at least", markup=False)
    for text in found.warnings:
        out.print(f"warning: {text}", markup=False)
    out.print("\nassumed:")
    for text in found.assumptions:
        out.print(f"- {text}", markup=False)


def print_suggestion(
    wanted: tuple[str, str], found: Suggestion, source: str, batch_tokens: int
) -> None:
    """Print the values, the box around them, and how they were found."""
    size, budget = wanted
    out.print(
        f"{size} at {budget} unique tokens, batches of {batch_tokens:,} tokens: start at",
        markup=False,
    )
    rows = {
        "lr": f"{found.lr:g}",
        "tau": f"{found.tau:g} epochs",
        "weight decay": f"{found.weight_decay:g} (= batch tokens / (lr * tau * unique tokens))",
        "epochs": str(found.num_epochs),
    }
    for name, text in rows.items():
        out.print(f"  {name:<13} {text}", markup=False)
    out.print(f"search around it: space = [{_box(found)}]", markup=False)
    out.print(
        f"\nfrom {source}: lr, tau and epochs of the nearest cells, averaged in logarithms, a cell "
        "weighing 1 / distance^2 (in doublings of parameters and of tokens), then snapped",
        markup=False,
    )
    for one, weight in found.used:
        out.print(
            f"  {weight:4.0%}  {one.name}: {plural(one.num_epochs, 'epoch')}, lr {one.lr:g}, "
            f"tau {one.tau:.3g}",
            markup=False,
        )
    for text in found.beyond:
        out.print(f"warning: {text}", markup=False)


def suggestion_dict(found: Suggestion, source: str) -> dict[str, Any]:
    """Convert the suggestion to plain JSON types."""
    return {
        "num_epochs": found.num_epochs,
        "lr": found.lr,
        "tau": found.tau,
        "weight_decay": found.weight_decay,
        "space": [found.box],
        "from": source,
        "cells": [{"cell": one.name, "weight": weight} for one, weight in found.used],
        "warnings": list(found.beyond),
    }


def _cells_table(found: Comparison) -> Any:
    table = _table("cell")
    for name in found.by_mode:
        for head in (f"{_starred(name, found)} runs", "FLOPs", "hours"):
            table.add_column(head, justify="right", no_wrap=True)
    confirms = found.written.confirmations.runs > 0
    for head in ("confirm runs", "hours") if confirms else ():
        table.add_column(head, justify="right", no_wrap=True)
    for number, cell in enumerate(found.written.cells):
        texts = [escape(cell.cell.label)]
        for one in found.by_mode.values():
            texts += _texts(one.cells[number].search)
        confirm = cell.confirmations
        if confirms:
            texts += [str(confirm.runs or ""), _hours(confirm.device_seconds / 3600)]
        table.add_row(*texts)
    return table


def _sums_table(found: Comparison, price: float | None) -> Any:
    table = _table("in all")
    heads = ["runs", "FLOPs", "device-hours"] + ([] if price is None else ["cost"])
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    bills = {_starred(name, found): one.search for name, one in found.by_mode.items()}
    if found.written.confirmations.runs:
        bills["confirmations, beside each"] = found.written.confirmations
    for name, bill in bills.items():
        cost = [] if price is None else [f"{price * bill.device_seconds / 3600:,.2f}"]
        table.add_row(name, *_texts(bill), *cost)
    return table


def _table(first: str) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 1))
    table.add_column(first, no_wrap=True)
    return table


def _texts(bill: Bill) -> list[str]:
    return [str(bill.runs), f"{bill.flops:.2e}", _hours(bill.device_seconds / 3600)]


def _starred(name: str, found: Comparison) -> str:
    return f"{name}*" if name == found.mode else name


def _box(found: Suggestion) -> str:
    axes = [f"{name} = [{', '.join(f'{v:g}' for v in axis)}]" for name, axis in found.box.items()]
    return f"{{ {', '.join(axes)} }}"


def _hours(hours: float) -> str:
    if not hours:
        return ""
    if hours >= 100:
        return f"{hours:,.0f}"
    return f"{hours:.3g}" if hours >= 1 else f"{hours:.2g}"


def _bytes(number: float) -> str:
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if number >= factor * 0.9995:  # 999.7 MB are 1 GB, not 1e+03 MB
            return f"{number / factor:.3g} {unit}"
    return f"{number / 1e3:.3g} kB" if number else "none"
