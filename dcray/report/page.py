"""The page of a study: one HTML file that needs no network, with the answer first."""

from __future__ import annotations

import io
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from dcray import __version__
from dcray.config.settings import recorded_settings, short_names, value_text
from dcray.fit.compare import Comparison
from dcray.fit.fit import ranked
from dcray.fit.output.headline import headline, null_note, reach, sensitivity
from dcray.report.analysis import Analysis
from dcray.report.basis import FRESH
from dcray.report.cells import Cell, loss_of
from dcray.report.figures.draw import why_absent
from dcray.report.figures.style import Picture, drawing, settle
from dcray.report.tables.contents import TABLES
from dcray.report.tables.table import Table
from dcray.track.provenance import provenance

LEADING = ("worth", "loss-by-size")  # the two figures that carry the answer
WORDS = (
    "Worth at U unique tokens: how many times U the baseline would need for the recipe's loss. "
    "Null: the same of two draws of the baseline's own curve, so a worth inside it is none. "
    "Like for like: both recipes by one method."
)
LONG = 30  # characters: a longer value is a sentence, not a number


def page(found: Analysis, pictures: Sequence[Picture], absent: Mapping[str, str]) -> str:
    """Format the page as HTML: no script, nothing loaded from elsewhere."""
    from jinja2 import Environment

    template = (files("dcray.report") / "page.html").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(template).render(
        study=found.study,
        answer=[one.on_source + said for one in found.by_source for said in answers(one)],
        beside=qualifications(found),
        words=WORDS if found.answer is not None and found.answer.comparisons else "",
        sections=_sections(found),
        leading=[_shown(one) for one in pictures if one.name in LEADING],
        pictures=[_shown(one) for one in pictures if one.name not in LEADING],
        absent=why_absent(absent),
        trials=[
            {
                "name": cell.name,
                "table": _filled(trials(cell, found.varied), f"Trials of {cell.name}"),
            }
            for cell in found.cells
        ],
        cost=cost(found),
        commands=commands(found),
        versions=", ".join(f"{k.removeprefix('version.')} {v}" for k, v in provenance().items()),
        version=__version__,
    )


def answers(found: Analysis) -> list[str]:
    """Answer in a sentence for each recipe, or say what is missing for an answer."""
    if found.answer is not None and found.answer.comparisons:
        return [headline(one) for one in found.answer.comparisons]
    if found.answer is not None:
        fits = found.answer.fits[found.answer.baseline]
        law = ranked(fits)[0]
        best = f"{law} describes {found.baseline} best"
        if not fits[law].describes:
            best = f"No law describes {found.baseline}: even {law} (lowest AICc) fails"
        others = len(found.choice.recipes) > 1
        no_second = "no other recipe has a grid" if others else "there is no second recipe"
        return [f"{best}; {no_second} to compare."]
    return [*pairs_said(found), found.no_law]


def qualifications(found: Analysis) -> list[str]:
    """List what qualifies the answer: the null, pairs on equal seeds, the source of the losses."""
    said = []
    if found.answer is not None:
        for source in found.by_source:
            told = source.answer.comparisons if source.answer else []
            notes = [note(each) for each in told for note in (sensitivity, null_note, _paper_way)]
            notes += source.answer.untold if source.answer else []
            said += [source.on_source + note for note in notes if note]
        said += pairs_said(found)
    said += [f"Losses: {found.choice.why}.", _edges(found.cells)]
    return [sentence for sentence in said if sentence]


def pairs_said(found: Analysis) -> list[str]:
    """Say what each recipe does against the baseline in the same cells, in a sentence each."""
    said = []
    fresh = {one.recipe for one in found.pairs if one.seeds == FRESH}
    for one in found.pairs:
        if one.seeds != FRESH and one.recipe in fresh:
            continue
        whole = one.found[0]
        ends = "" if whole.low is None else f", 95 % interval [{whole.low:+.4f}, {whole.high:+.4f}]"
        spoken = f" for {whole.population}" if whole.population else ""
        names = [found.choice.label(name) for name in (one.recipe, found.baseline or "")]
        text = (
            f"{' minus '.join(names)} on {one.seeds}, pair by pair: {whole.mean:+.4f} nats over "
            f"{whole.sample}, {whole.wins} lower{ends}{spoken}. {one.bias}"
        )
        said.append(text.rstrip())
    return said


def _edges(cells: Sequence[Cell]) -> str:
    """Count the winners at an edge of their space, by recipe; "" if there are none."""
    every = Counter(cell.recipe for cell in cells)
    found = Counter(cell.recipe for cell in cells if cell.edges)
    each = ", ".join(f"{number} of {every[name]} of {name}" for name, number in found.items())
    return f"Winners at an edge of their space: {each}; a wider space may hold better." * bool(each)


def _paper_way(one: Comparison) -> str:
    """Set the paper's own ratio beside what the baseline gets by the same method.

    Returns "" if the law describes a grid too badly, or no limit of infinite models is identified.
    """
    law = one.lead
    if law not in one.describing or one.method != "joint":
        return ""
    each = one.answers(law, "asymptote")
    pairs = [(a.data_efficiency, a.null) for a in each if a.data_efficiency and a.null]
    if not pairs:
        return ""
    ratios, nulls = zip(*pairs, strict=True)
    recipe, baseline = one.recipe.recipe, one.baseline.recipe
    return (
        f"By a curve per budget against the joint limit, {recipe} is worth {reach(ratios)} of "
        f"{baseline}'s data, but {baseline} itself {reach(nulls)}: so that is not the answer."
    )


def trials(cell: Cell, varied: Sequence[str] = ()) -> Table:
    """Tabulate the cell's results at the search seed, the lowest loss first, with what varies."""
    further = short_names(varied)
    rows = []
    for r in sorted(cell.candidates, key=loss_of):
        settings = recorded_settings(r.params)
        others = [value_text(settings.get(name)) for name in further]
        numbers = [_number(r.tau), _number(r.lr), _number(r.weight_decay)]
        rows.append([r.num_epochs, *numbers, *others, loss_of(r), r.run_id])
    header = ["epochs", "tau", "lr", "weight decay", *further.values(), "validation loss", "run"]
    return Table(header, rows)


def cost(found: Analysis) -> str:
    """Sum the device time of all results on record, by recipe, in a sentence.

    The members of an ensemble are results of the recipe that it inherits from, and count there.
    """
    rows = [*found.rows, *(one.row for one in found.left if one.row is not None)]
    seconds: dict[str, float] = {}
    for row in {row.run_id: row for row in rows if row.kind != "ensemble"}.values():
        seconds[row.recipe] = seconds.get(row.recipe, 0.0) + (row.all_device_seconds or 0.0)
    each = ", ".join(f"{recipe} {_hours(spent)}" for recipe, spent in sorted(seconds.items()))
    return f"Device time of all results: {_hours(sum(seconds.values()))} ({each})."


def commands(found: Analysis) -> str:
    """Format the commands that give these figures again."""
    asked, draws = found.asked, ["--bootstrap", str(found.asked.bootstrap)]
    compared = ["--baseline", asked.baseline] if asked.baseline else []
    compared += [word for recipe in asked.recipes for word in ("--recipe", recipe)]
    read = ["--from", asked.source] if asked.source else []
    read += ["--against", found.other.study] if found.other else []
    lines = [["dcray", "analyze", found.study, *compared, *read, *draws]]
    for one in found.by_source:
        if one.answer is not None:
            name = "cells.csv" if one is found else f"cells_{one.source}.csv"
            floors = [told.floor.recipe for told in one.answer.comparisons if told.floor]
            against = [word for floor in floors for word in ("--floor", floor)]
            lines.append(["dcray", "fit", name, *compared, *against, *draws])
    return "\n".join(map(shlex.join, lines))


def _hours(seconds: float) -> str:
    if seconds < 600:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 36_000 else f"{seconds / 3600:.1f} h"


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:.4g}"


def _sections(found: Analysis) -> list[dict[str, Any]]:
    made = ((name, title, make(found)) for name, (title, make) in TABLES.items())
    return [
        {"id": name, "title": title, "tables": [_filled(one, title) for one in tables]}
        for name, title, tables in made
        if tables
    ]


def _filled(table: Table, title: str) -> dict[str, Any]:
    """Convert a table for the template; `long` columns hold sentences: left-aligned, wrapped."""
    rows = [table.texts(row) for row in table.rows]
    columns = enumerate(zip(*rows, strict=True))
    return {
        "label": table.above or f"{title}: {table.header[0]}",
        "header": table.header,
        "rows": rows,
        "long": {i for i, texts in columns if any(len(text) > LONG for text in texts)},
        "above": table.above,
        "below": table.below,
    }


def _shown(picture: Picture) -> dict[str, Any]:
    return {"svg": _inline(picture), "alt": picture.alt}


def _inline(picture: Picture) -> Any:
    """Format the figure as an SVG element with ids of its own, and its text alternative."""
    from markupsafe import Markup, escape

    text = io.StringIO()
    with drawing():
        settle(picture.figure)
        picture.figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="', f'id="{picture.name}-', svg)
    svg = re.sub(r'(url\(|href=")#', rf"\1#{picture.name}-", svg)
    label = f'role="img" aria-label="{escape(f"{picture.title}. {picture.alt}")}"'
    return Markup(svg.replace("<svg", f"<svg {label}", 1))
