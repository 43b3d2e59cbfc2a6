"""Tables of what was trained: recipes by size, cells, pairs, another study, what is left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dcray.config.counts import count_label
from dcray.config.settings import recorded_settings, short_names, value_text
from dcray.fit.paper import published
from dcray.report.analysis import Analysis, Pairs
from dcray.report.basis import FRESH, SEARCHED, SOURCES, WORDS
from dcray.report.cells import Cell
from dcray.report.tables.table import Table
from dcray.track.rows import Row

WEAK_DECAY = 0.1  # the usual weight decay; more is strong regularization
ALL = "all"  # cells together
FAMILIES = {  # what a recipe is, in words
    "single-epoch": "single-epoch AR",
    "multi-epoch": "multi-epoch AR",
    "strong": "strongly regularized AR",
    "mir": "MIR",
    "multi-epoch dllm": "multi-epoch dLLM",
    "strong dllm": "strongly regularized dLLM",
}


def family(rows: Sequence[Row]) -> str | None:
    """Classify a recipe as one of FAMILIES by its results alone; None if it is none of them.

    Multi-epoch AR has tuned epochs: several counts were tried in every cell. All are of AdamW.
    """
    if rows[0].kind == "ensemble" or rows[0].tags.get("optimizer", "adamw") != "adamw":
        return None
    objective = rows[0].tags.get("objective") or rows[0].params.get("objective")
    weak = all((row.weight_decay or 0.0) <= WEAK_DECAY for row in rows)
    if objective == "ar":
        if all(row.num_epochs == 1 for row in rows):
            return "single-epoch"
        if not weak:
            return "strong"
        tried = {(row.cell, row.num_epochs) for row in rows}
        counts = Counter(cell for cell, _ in tried)
        return "multi-epoch" if min(counts.values()) > 1 else None
    if objective == "mdlm":
        return "multi-epoch dllm" if weak else "strong dllm"
    return "mir" if objective == "mir" else None


def recipes(found: Analysis) -> list[Table]:
    """Tabulate recipe x size, one table per budget, beside what the paper printed of the same."""
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
            name = FAMILIES[which] if which else ""
            label = found.choice.label(recipe)
            for source in _sources(found, recipe, cells):
                there = {n: cell for n, cell in its.items() if cell.counted(source)}
                losses = [there[n].loss(source) if n in there else None for n in sizes]
                rows.append([label, name, WORDS[source], *losses])
            printed = published.losses(which, budget, list(sizes), found.corpus)
            if any(value is not None for value in printed):
                rows.append([f"{recipe} (published)", name, "", *printed])
        header = [f"U = {count_label(budget)}", "recipe", "losses", *sizes.values()]
        tables.append(Table(header, rows))
    note = f"Validation loss in nats per token; a size counts embeddings; {found.choice.why}."
    if any(cell.bound for cell in found.cells):
        note += " An upper bound is one over other tokens than the others' losses."
    return [replace(tables[0], above=note), *tables[1:]]


def _sources(found: Analysis, recipe: str, cells: Sequence[Cell]) -> list[str]:
    """Choose the sources of a recipe's losses that are shown among these cells of one budget.

    The search seed is shown too if a cell has no fresh seeds; of the baseline, if any recipe's cell
    has none, so that each line stands beside a baseline of its own source.
    """
    if found.asked.source:
        return [found.asked.source]
    beside = cells if recipe == found.baseline else [c for c in cells if c.recipe == recipe]
    needed = {cell.source for cell in beside}
    own = {"search", *(cell.source for cell in cells if cell.recipe == recipe)}
    return [source for source in SOURCES if source in needed & own]


def cells(found: Analysis) -> list[Table]:
    """Tabulate every cell: its winner, its loss by both sources, the difference, trials and flags.

    Of several trials the loss at the search seed is a minimum, and somewhat low.
    """
    noise, rows, further = found.choice.noise(), [], short_names(found.varied)
    for cell in found.cells:
        best, own, averaged = cell.winner, cell.confirmed, cell.ensemble is not None
        settings = recorded_settings(best.params)
        rows.append(
            [
                cell.name, best.num_epochs, _short(best.weight_decay), _short(best.lr),
                _short(best.tau), *(value_text(settings.get(name)) for name in further),
                None if averaged else cell.searched, own,
                None if own is None or averaged else own - cell.searched,
                best.num_members if averaged else len(cell.fresh), len(cell.candidates),
                "; ".join(filter(None, [cell.bound, *cell.flags(noise)])),
            ]
        )  # fmt: skip
    header = ["cell", "epochs", "weight decay", "lr", "tau", *further.values(), SEARCHED, FRESH,
              "difference", "seeds", "trials", "note"]  # fmt: skip
    return [Table(header, rows)]


def pairs(found: Analysis) -> list[Table]:
    """Tabulate recipes on equal seeds, pair by pair; [] if no two share a cell and a seed."""
    rows = [line for one in found.pairs for line in _pair_lines(found, one)]
    header = ["recipe", "seeds", "cell", "pairs", "lower", "mean difference", "95 % interval"]
    baseline = found.choice.label(found.baseline or "")
    above = f"Recipe minus {baseline} in nats on equal cells and seeds; lower is better."
    spoken = {one.seeds: one.found[0].population for one in found.pairs if one.found[0].population}
    below = [
        *(
            f"On {seeds} an interval over {ALL} cells speaks of {it}."
            for seeds, it in spoken.items()
        ),
        "An interval of one cell speaks of further seeds in this cell.",
        *(one.bias for one in found.pairs if one.bias),
    ]
    return [Table(header, rows, above, below)] if rows else []


def _pair_lines(found: Analysis, one: Pairs) -> list[list[Any]]:
    sizes = {cell.num_params: cell.size for cell in found.cells}
    name, lines = found.choice.label(one.recipe), []
    for pair in one.found:
        where = ALL
        if pair.num_params is not None and pair.unique_tokens is not None:
            where = f"{sizes[pair.num_params]} {count_label(pair.unique_tokens)}"
        ends = None if pair.low is None else f"[{pair.low:+.4f}, {pair.high:+.4f}]"
        mean = f"{pair.mean:+.4f}"
        count = pair.sample if where == ALL else pair.num_pairs
        lines.append([name, one.seeds, where, count, pair.wins, mean, ends])
    return lines


def beside(found: Analysis) -> list[Table]:
    """Tabulate two studies, cell by cell, and say what recipes are worth in the other."""
    if found.other is None:
        return []
    rows = [
        [
            f"{one.size} {count_label(one.unique_tokens)} {one.recipe}",
            WORDS[one.source], one.loss, one.other, f"{one.loss - one.other:+.4f}",
        ]
        for one in found.beside()
    ]  # fmt: skip
    above = f"Losses of {found.study} and {found.other.study}: fresh seeds where both have them."
    if found.read_other_data:
        above += " They read other data: a difference is one of corpora too, not of recipes alone."
    if not rows:
        above = f"{found.study} and {found.other.study} have no cell in common."
    said = [*found.other.headlines, *filter(None, [found.other.no_law])]
    below = [f"{found.other.study}: {sentence}" for sentence in said]
    header = ["cell", "losses", found.study, found.other.study, "difference"]
    return [Table(header, rows, above, below)]


def left_out(found: Analysis) -> list[Table]:
    """Tabulate every run and everything else that counts nowhere, with its reason."""
    rows = [[one.name, one.reason, one.run_id] for one in found.left]
    for sentence in found.answer.excluded if found.answer else ():
        what, _, reason = sentence.partition(": ")
        rows.append([what, reason, ""])
    return [Table(["what", "why it is left out", "run"], rows)] if rows else []


def _short(value: float | None) -> str | None:
    return None if value is None else f"{value:.4g}"
