"""Tables in Markdown, each where the study holds its data, the published values beside."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dcray.fit import published, text
from dcray.report.analysis import Analysis, Pairs
from dcray.report.cells import Cell
from dcray.sections import count_label
from dcray.track.rows import Row

WEAK_DECAY = 0.1  # the usual weight decay: up to it a recipe is not strongly regularized
PAPER_BUDGET = 100_000_000
FAMILIES = {  # what a recipe is: (in words, where its published losses stand)
    "single-epoch": ("single-epoch AR", ("objective_comparison_100m_seed42", "single_epoch")),
    "multi-epoch": ("multi-epoch AR", ("dllm_comparison_100m", "multi_epoch_ar")),
    "strong": ("strongly regularized AR", ("objective_comparison_100m_seed42", "ar")),
    "mir": ("MIR", ("objective_comparison_100m_seed42", "mir")),
    "multi-epoch dllm": ("multi-epoch dLLM", ("dllm_comparison_100m", "multi_epoch_dllm")),
    "strong dllm": ("strongly regularized dLLM", ("dllm_comparison_100m", "regularized_dllm")),
}


def family(rows: Sequence[Row]) -> str | None:
    """Which of FAMILIES a recipe is, told by its results alone; None for what is none of them."""
    objective = rows[0].tags.get("objective") or rows[0].params.get("objective")
    weak = all((row.weight_decay or 0.0) <= WEAK_DECAY for row in rows)
    if objective == "ar":
        if all(row.num_epochs == 1 for row in rows):
            return "single-epoch"
        return "multi-epoch" if weak else "strong"
    if objective == "mdlm":
        return "multi-epoch dllm" if weak else "strong dllm"
    return "mir" if objective == "mir" else None


def markdown(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table; the first column is text, None is "-"."""
    lines = [
        "| " + " | ".join(header) + " |",
        "|" + "|".join(["---", *["---:"] * (len(header) - 1)]) + "|",
    ]
    lines += ["| " + " | ".join(_cell(value) for value in row) + " |" for row in rows]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None or value == "":
        return "-"
    return f"{value:.4f}" if isinstance(value, float) else str(value).replace("|", "/")


def recipes(found: Analysis) -> str | None:
    """Recipe x size, one table a budget; the published 100M losses where the sizes are the paper's."""
    parts = []
    for budget in sorted({cell.unique_tokens for cell in found.cells}):
        cells = [cell for cell in found.cells if cell.unique_tokens == budget]
        sizes = dict(sorted({c.num_params: c.size for c in cells}.items()))
        rows = []
        for recipe in found.choice.recipes:
            its = {cell.num_params: cell for cell in cells if cell.recipe == recipe}
            if not its:
                continue
            its_family = family(
                [row for cell in found.choice.of(recipe) for row in cell.candidates]
            )
            bound = next((f" ({cell.bound})" for cell in its.values() if cell.bound), "")
            name = FAMILIES[its_family][0] if its_family else ""
            losses = [its[n].loss(found.source) if n in its else None for n in sizes]
            rows.append([f"{recipe}{bound}", name, *losses])
            print_ = _published(its_family, budget, sizes)
            if any(value is not None for value in print_):
                rows.append(["(published)", name, *print_])
        header = [f"U = {count_label(budget)}", "recipe", *sizes.values()]
        parts.append(markdown(header, rows))
    note = f"Validation loss in nats per token; {found.choice.why}."
    if any(cell.bound for cell in found.cells):
        note += " An upper bound is one over other tokens than the others' losses."
    return "\n\n".join([note, *parts])


def _published(which: str | None, budget: int, sizes: Mapping[int, str]) -> list[float | None]:
    """The paper's losses at these sizes (by parameter count) and this budget."""
    if which is None or budget != PAPER_BUDGET:
        return [None] * len(sizes)
    table, column = FAMILIES[which][1]
    ladder = {label: row[-1] for label, row in published.figures()["ladder"]["rows"].items()}
    printed = published.figures()[table]
    by_params = {
        ladder[size]: value for size, value in zip(printed["sizes"], printed[column], strict=True)
    }
    return [by_params.get(n) for n in sizes]


def cells(found: Analysis) -> str:
    """Every cell: its winner, its loss by both sources and their difference, trials and flags."""
    noise, rows = found.choice.noise(), []
    for cell in found.cells:
        best, own = cell.winner, cell.confirmed
        rows.append(
            [
                cell.name, best.num_epochs, _short(best.weight_decay), _short(best.lr),
                _short(best.tau), cell.selected, own, None if own is None else own - cell.selected,
                len(cell.fresh), len(cell.candidates), "; ".join(cell.flags(noise)),
            ]
        )  # fmt: skip
    header = ["cell", "epochs", "weight decay", "lr", "tau", "selected minimum", "fresh seeds",
              "difference", "seeds", "trials", "note"]  # fmt: skip
    return markdown(header, rows)


def pairs(found: Analysis) -> str | None:
    """Recipes on equal seeds, pair by pair; None where no two recipes share a cell and a seed."""
    rows = [line for one in found.pairs for line in _pair_lines(found, one)]
    if not rows:
        return None
    header = ["recipe", "seeds", "cell", "pairs", "lower", "mean difference", "95 % interval"]
    note = f"Recipe minus {found.baseline} in nats, lower is better, on equal cells and seeds."
    return f"{note}\n\n{markdown(header, rows)}"


def _pair_lines(found: Analysis, one: Pairs) -> list[list[Any]]:
    sizes = {cell.num_params: cell.size for cell in found.cells}
    lines = []
    for pair in one.found:
        where = "all"
        if pair.num_params is not None and pair.unique_tokens is not None:
            where = f"{sizes[pair.num_params]} {count_label(pair.unique_tokens)}"
        ends = None if pair.low is None else f"[{pair.low:+.4f}, {pair.high:+.4f}]"
        mean = f"{pair.mean:+.4f}"
        lines.append([one.recipe, one.seeds, where, pair.num_pairs, pair.wins, mean, ends])
    return lines


def fits(found: Analysis) -> str | None:
    """Laws side by side and what recipes are worth, as `dcray fit` says it."""
    return f"```text\n{text.answer_text(found.answer)}\n```" if found.answer else None


def left_out(found: Analysis) -> str | None:
    """Every run and every law that counts nowhere, with its reason."""
    rows = [[one.name, one.reason, one.run_id] for one in found.left]
    rows += [[reason, "", ""] for reason in (found.answer.excluded if found.answer else ())]
    return markdown(["what", "why it is left out", "run"], rows) if rows else None


def beside(found: Analysis) -> str | None:
    """Two studies, cell by cell."""
    if found.other is None:
        return None
    rows = [
        [
            f"{one.size} {count_label(one.unique_tokens)} {one.recipe}",
            one.loss,
            one.other,
            f"{one.loss - one.other:+.4f}",
        ]
        for one in found.beside()
    ]
    if not rows:
        return f"{found.study} and {found.other.study} have no cell in common."
    sources = f"Losses by {found.source} and by {found.other.source}."
    return f"{sources}\n\n" + markdown(["cell", found.study, found.other.study, "difference"], rows)


TABLES: dict[str, tuple[str, Callable[[Analysis], str | None]]] = {
    "recipes": ("Recipes by size", recipes),
    "cells": ("Cells and their winners", cells),
    "pairs": ("Recipes on equal seeds", pairs),
    "fits": ("Laws, and what a recipe is worth", fits),
    "against": ("Two studies side by side", beside),
    "left-out": ("What is left out, and why", left_out),
}


def _short(value: float | None) -> str | None:
    return None if value is None else f"{value:.4g}"
