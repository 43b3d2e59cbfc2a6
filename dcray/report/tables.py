"""Tables in Markdown, each where the study holds its data, the published values beside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dcray.fit import published, text
from dcray.report.analysis import Analysis, Pairs
from dcray.sections import count_label
from dcray.track.rows import Row

WEAK_DECAY = 0.1  # the usual weight decay: up to it a recipe is not strongly regularized
PAPER_BUDGET = 100_000_000
ALL = "all"  # cells together
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


@dataclass(frozen=True)
class Table:
    """Columns with a sentence above and notes below; the first column is text."""

    header: Sequence[str]
    rows: Sequence[Sequence[Any]]
    above: str = ""
    below: Sequence[str] = ()

    @staticmethod
    def texts(row: Sequence[Any]) -> list[str]:
        """A row's values as they are written: losses with four decimals, nothing as "-"."""
        return [_cell(value) for value in row]

    def only(self, keep: Callable[[Sequence[Any]], bool]) -> Table:
        """The rows that are to be kept."""
        return replace(self, rows=[row for row in self.rows if keep(row)])

    def markdown(self) -> str:
        """As Markdown."""
        lines = [_line(self.header), _line(["---", *["---:"] * (len(self.header) - 1)])]
        lines += [_line(self.texts(row)) for row in self.rows]
        parts = [self.above, "\n".join(lines), "\n".join(f"- {note}" for note in self.below)]
        return "\n\n".join(part for part in parts if part)

    def plain(self) -> str:
        """As columns of equal width, for a terminal."""
        rows = [self.texts(row) for row in self.rows]
        parts = [self.above, text.table(self.header, rows), *self.below]
        return "\n".join(part for part in parts if part)


def _line(values: Sequence[str]) -> str:
    return "| " + " | ".join(value.replace("|", "/") for value in values) + " |"


def _cell(value: Any) -> str:
    if value is None or value == "":
        return "-"
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def recipes(found: Analysis) -> list[Table]:
    """Recipe x size, one table a budget; beside it the published 100M losses of the same sizes."""
    tables = []
    for budget in sorted({cell.unique_tokens for cell in found.cells}):
        cells = [cell for cell in found.cells if cell.unique_tokens == budget]
        sizes = dict(sorted({c.num_params: c.size for c in cells}.items()))
        rows = []
        for recipe in found.choice.recipes:
            its = {cell.num_params: cell for cell in cells if cell.recipe == recipe}
            if not its:
                continue
            which = family([row for cell in found.choice.of(recipe) for row in cell.candidates])
            name = FAMILIES[which][0] if which else ""
            losses = [its[n].loss(found.source) if n in its else None for n in sizes]
            rows.append([found.choice.label(recipe), name, *losses])
            printed = published_losses(which, budget, list(sizes))
            if any(value is not None for value in printed):
                rows.append([f"{recipe} (published)", name, *printed])
        header = [f"U = {count_label(budget)}", "recipe", *sizes.values()]
        tables.append(Table(header, rows))
    note = f"Validation loss in nats per token; {found.choice.why}."
    if any(cell.bound for cell in found.cells):
        note += " An upper bound is one over other tokens than the others' losses."
    return [replace(tables[0], above=note), *tables[1:]]


def published_losses(which: str | None, budget: int, sizes: Sequence[int]) -> list[float | None]:
    """The paper's losses of a family at these parameter counts and this budget, None elsewhere."""
    if which is None or budget != PAPER_BUDGET:
        return [None] * len(sizes)
    table, column = FAMILIES[which][1]
    ladder = {label: row[-1] for label, row in published.figures()["ladder"]["rows"].items()}
    printed = published.figures()[table]
    by_params = {
        ladder[size]: value for size, value in zip(printed["sizes"], printed[column], strict=True)
    }
    return [by_params.get(n) for n in sizes]


def cells(found: Analysis) -> list[Table]:
    """Every cell: its winner, its loss by both sources and their difference, trials and flags."""
    noise, rows = found.choice.noise(), []
    for cell in found.cells:
        best, own = cell.winner, cell.confirmed
        rows.append(
            [
                cell.name, best.num_epochs, _short(best.weight_decay), _short(best.lr),
                _short(best.tau), cell.selected, own, None if own is None else own - cell.selected,
                len(cell.fresh), len(cell.candidates),
                "; ".join(filter(None, [cell.bound, *cell.flags(noise)])),
            ]
        )  # fmt: skip
    header = ["cell", "epochs", "weight decay", "lr", "tau", "selected minimum", "fresh seeds",
              "difference", "seeds", "trials", "note"]  # fmt: skip
    return [Table(header, rows)]


def pairs(found: Analysis) -> list[Table]:
    """Recipes on equal seeds, pair by pair; nothing where no two share a cell and a seed."""
    rows = [line for one in found.pairs for line in _pair_lines(found, one)]
    header = ["recipe", "seeds", "cell", "pairs", "lower", "mean difference", "95 % interval"]
    baseline = found.choice.label(found.baseline or "")
    above = f"Recipe minus {baseline} in nats on equal cells and seeds; lower is better."
    return [Table(header, rows, above)] if rows else []


def _pair_lines(found: Analysis, one: Pairs) -> list[list[Any]]:
    sizes = {cell.num_params: cell.size for cell in found.cells}
    name, lines = found.choice.label(one.recipe), []
    for pair in one.found:
        where = ALL
        if pair.num_params is not None and pair.unique_tokens is not None:
            where = f"{sizes[pair.num_params]} {count_label(pair.unique_tokens)}"
        ends = None if pair.low is None else f"[{pair.low:+.4f}, {pair.high:+.4f}]"
        mean = f"{pair.mean:+.4f}"
        lines.append([name, one.seeds, where, pair.num_pairs, pair.wins, mean, ends])
    return lines


def worth(found: Analysis) -> list[Table]:
    """What each recipe is worth in unique data, the sentence first."""
    if found.answer is None:
        return []
    return [
        Table(
            *text.worth_columns(found.answer, recipe),
            above=text.headline(found.answer, recipe),
            below=text.worth_notes(found.answer, recipe),
        )
        for recipe in found.answer.equivalences
    ]


def fits(found: Analysis) -> list[Table]:
    """Laws side by side for each recipe, with their flags."""
    if found.answer is None:
        return []
    return [
        Table(
            *text.fit_columns(found.answer, recipe),
            above=f"Fits of {recipe}.",
            below=text.fit_notes(found.answer, recipe),
        )
        for recipe in found.answer.fits
    ]


def beside(found: Analysis) -> list[Table]:
    """Two studies, cell by cell, and what recipes are worth in the other."""
    if found.other is None:
        return []
    rows = [
        [
            f"{one.size} {count_label(one.unique_tokens)} {one.recipe}",
            one.loss, one.other, f"{one.loss - one.other:+.4f}",
        ]
        for one in found.beside()
    ]  # fmt: skip
    above = (
        f"Losses of {found.study} ({found.source}) and {found.other.study} ({found.other.source})."
    )
    if found.read_other_data:
        above += " They read other data: a difference is one of corpora too, not of recipes alone."
    if not rows:
        above = f"{found.study} and {found.other.study} have no cell in common."
    other = found.other.answer
    said = [text.headline(other, recipe) for recipe in other.equivalences] if other else []
    said += filter(None, [found.other.no_law])
    below = [f"{found.other.study}: {sentence}" for sentence in said]
    return [Table(["cell", found.study, found.other.study, "difference"], rows, above, below)]


def left_out(found: Analysis) -> list[Table]:
    """Every run and everything else that counts nowhere, with its reason."""
    rows = [[one.name, one.reason, one.run_id] for one in found.left]
    for sentence in found.answer.excluded if found.answer else ():
        what, _, reason = sentence.partition(": ")
        rows.append([what, reason, ""])
    return [Table(["what", "why it is left out", "run"], rows)] if rows else []


TABLES: dict[str, tuple[str, Callable[[Analysis], list[Table]]]] = {
    "worth": ("What a recipe is worth", worth),
    "recipes": ("Recipes by size", recipes),
    "pairs": ("Recipes on equal seeds", pairs),
    "cells": ("Cells and their winners", cells),
    "fits": ("Laws", fits),
    "against": ("Two studies side by side", beside),
    "left-out": ("What is left out, and why", left_out),
}


def brief(found: Analysis) -> list[Table]:
    """What fits on a screen: of the worth the leading law alone, of pairs the sums."""
    lead = text.leading_law(found.answer) if found.answer else None
    return [
        *(one.only(lambda row: row[0] == lead) for one in worth(found)),
        *recipes(found),
        *(one.only(lambda row: row[2] == ALL) for one in pairs(found)),
        *cells(found),
        *fits(found),
        *beside(found),
    ]


def _short(value: float | None) -> str | None:
    return None if value is None else f"{value:.4g}"
