"""The page of a study: one file that needs no network, the answer first."""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from dcray import __version__
from dcray.fit.answer import Answer
from dcray.fit.text import headline, leading_law, reach
from dcray.report.analysis import FRESH, Analysis
from dcray.report.cells import Cell, loss_of
from dcray.report.figures import why_absent
from dcray.report.style import Picture, drawing, settle
from dcray.report.tables import TABLES, Table
from dcray.track.provenance import provenance

LONG = 30  # characters: more is a sentence, no number


def page(found: Analysis, pictures: Sequence[Picture], absent: Mapping[str, str]) -> str:
    """The page as HTML: no script, nothing loaded from elsewhere."""
    from jinja2 import Environment

    template = (files("dcray.report") / "page.html").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(template).render(
        study=found.study,
        answer=answers(found),
        beside=qualifications(found),
        sections=_sections(found),
        pictures=[{"svg": _inline(one), "alt": one.alt} for one in pictures],
        absent=why_absent(absent),
        trials=[
            {"name": cell.name, "table": _filled(trials(cell), f"Trials of {cell.name}")}
            for cell in found.cells
        ],
        cost=cost(found),
        commands=commands(found),
        versions=", ".join(f"{k.removeprefix('version.')} {v}" for k, v in provenance().items()),
        version=__version__,
    )


def answers(found: Analysis) -> list[str]:
    """The answer in a sentence for each recipe, or what is missing for one."""
    if found.answer is not None and found.answer.equivalences:
        return [headline(found.answer, recipe) for recipe in found.answer.equivalences]
    if found.answer is not None:
        law, fits = leading_law(found.answer), found.answer.fits[found.answer.baseline]
        best = f"{law} describes {found.baseline} best"
        if not fits[law].describes:
            best = f"No law describes {found.baseline}: even {law} (lowest AIC) fails"
        others = len(found.choice.recipes) > 1
        no_second = "no other recipe has a grid" if others else "there is no second recipe"
        return [f"{best}; {no_second} to compare."]
    return [found.no_law]


def qualifications(found: Analysis) -> list[str]:
    """What stands beside the answer: the null, pairs on equal seeds, where the losses come from."""
    said = []
    if found.answer is not None:
        said += [_null(found.answer, recipe) for recipe in found.answer.equivalences]
    fresh = {one.recipe for one in found.pairs if one.seeds == FRESH}
    for one in found.pairs:
        if one.seeds != FRESH and one.recipe in fresh:
            continue
        whole, many = one.found[0], one.found[0].num_pairs > 1
        ends = "" if whole.low is None else f", 95 % interval [{whole.low:+.4f}, {whole.high:+.4f}]"
        names = [found.choice.label(name) for name in (one.recipe, found.baseline or "")]
        said.append(
            f"{' minus '.join(names)} on {one.seeds}, pair by pair: {whole.mean:+.4f} "
            f"nats over {whole.num_pairs} pair{'s' * many}, {whole.wins} lower{ends}."
        )
    said.append(f"Losses: {found.choice.why}.")
    return [sentence for sentence in said if sentence]


def _null(found: Answer, recipe: str) -> str:
    """The paper's own ratio beside what the baseline gets by the same method.

    Nothing where the law describes a grid too badly, or no limit of infinite models is identified.
    """
    law = leading_law(found)
    fits = [found.fits[name][law] for name in (found.baseline, recipe)]
    if not all(one.describes and one.has_limit for one in fits):
        return ""
    each = [a for a in found.equivalences[recipe] if (a.law, a.method) == (law, "asymptote")]
    pairs = [(a.data_efficiency, a.null) for a in each if a.data_efficiency and a.null]
    if not pairs:
        return ""
    ratios, nulls = zip(*pairs, strict=True)
    return (
        f"The null of {recipe}: by joint fits {found.baseline} is worth 1 of itself. By a curve "
        f"per budget against the joint limit, {recipe} is worth {reach(ratios)}, but "
        f"{found.baseline} itself {reach(nulls)}: so that is not the answer."
    )


def trials(cell: Cell) -> Table:
    """The cell's results at the search seed, the lowest loss first."""
    rows = [
        [r.num_epochs, _number(r.tau), _number(r.lr), _number(r.weight_decay), loss_of(r), r.run_id]
        for r in sorted(cell.candidates, key=loss_of)
    ]
    return Table(["epochs", "tau", "lr", "weight decay", "validation loss", "run"], rows)


def cost(found: Analysis) -> str:
    """Device time of everything that is on record, by recipe."""
    rows = [*found.rows, *(one.row for one in found.left if one.row is not None)]
    seconds: dict[str, float] = {}
    for row in {row.run_id: row for row in rows}.values():
        seconds[row.recipe] = seconds.get(row.recipe, 0.0) + (row.all_device_seconds or 0.0)
    each = ", ".join(f"{recipe} {_hours(spent)}" for recipe, spent in sorted(seconds.items()))
    return f"Device time of all results: {_hours(sum(seconds.values()))} ({each})."


def commands(found: Analysis) -> str:
    """The commands that give these figures again."""
    asked, draws = found.asked, ["--bootstrap", str(found.asked.bootstrap)]
    compared = ["--baseline", asked.baseline] if asked.baseline else []
    compared += [word for recipe in asked.recipes for word in ("--recipe", recipe)]
    read = ["--from", asked.source] if asked.source else []
    read += ["--against", found.other.study] if found.other else []
    lines = [["dcray", "analyze", found.study, *compared, *read, *draws]]
    lines += [["dcray", "fit", "cells.csv", *compared, *draws]] if found.answer else []
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
    """A table with its values as text; columns that hold sentences are long: left, and wrapped."""
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


def _inline(picture: Picture) -> Any:
    """The figure as an SVG element with ids of its own, and its text alternative."""
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
