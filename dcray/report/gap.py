"""The report of a token gap: text, figures as SVG, and a section for the page of a study."""

from __future__ import annotations

import csv
import html
import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

from dcray.errors import plural
from dcray.evals.gap.between_runs import Found
from dcray.evals.gap.token_gap import TAIL_NATS
from dcray.evals.gap.token_kinds import Token
from dcray.fit.output.text import table

SHOWN = 30  # tokens on the page; tokens.csv has all
STYLE = {"svg.hashsalt": "dcray", "font.size": 9, "axes.spines.top": False,
         "axes.spines.right": False}  # fmt: skip
COLOR_A, COLOR_B = "#7a7a7a", "#1f6f8b"


def gap_text(found: Found) -> str:
    """Format what `dcray gap` prints."""
    s, docs = found.summary, found.summary["by_document"]
    parts = [
        f"A {found.first.label}\nB {found.second.label}",
        _headline(found),
        table(["", "these runs", "paper, 1.4B"], _tails(found)),
        f"documents: B is better in {docs['b_better_frac']:.1%} of {docs['num_documents']:,}",
    ]
    if s["by_position"]:
        ends = (s["by_position"][0], s["by_position"][-1])
        gaps = [f"{end['loss_a'] - end['loss_b']:+.4f}" for end in ends]
        parts.append(f"along the row: {gaps[0]} at its beginning, {gaps[1]} at its end")
    counts = f"{len(found.favors_b):,} favor B, {len(found.favors_a):,} favor A"
    parts.append(f"\nkinds of the top 0.1 % ({counts}), and of all tokens:")
    parts.append(table(["kind", "favor B", "favor A", "all", "paper, favor MIR"], _kinds(found)))
    if found.favors_b:
        parts.append("\nthe largest that favor B (probability under A, under B):")
    return "\n".join([*parts, *map(_line, found.favors_b[:8])])


def _headline(found: Found) -> str:
    s, docs = found.summary, found.summary["by_document"]
    error, number = docs["mean_nats_stderr"], docs["num_documents"]
    spread = "" if error is None else f" +- {error:.5f} (over {plural(number, 'document')})"
    a, b = found.first.row.val_loss, found.second.row.val_loss
    noted = "" if a is None or b is None else f"; on record {a - b:+.6f}"
    losses = f"(A {s['loss_a']:.6f}, B {s['loss_b']:.6f}{noted})"
    whole = f"A - B: {s['mean_nats']:+.6f}{spread} nats per token over {s['num_tokens']:,} tokens"
    return f"{whole}, positive favors B {losses}"


def write(found: Found, folder: Path) -> list[Path]:
    """Write gap.json, tokens.csv, up to three figures and section.html to a folder that exists.

    Returns the paths of the files.
    """
    figures = {"tails": _tails_figure(found), "position": _position_figure(found),
               "kinds": _kinds_figure(found)}  # fmt: skip
    texts = {f"{name}.svg": svg for name, svg in figures.items() if svg}
    texts["gap.json"] = json.dumps(as_dict(found), indent=1)
    texts["tokens.csv"] = _csv(found)
    texts["section.html"] = section(found, [svg for svg in figures.values() if svg])
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]


def as_dict(found: Found) -> dict[str, Any]:
    """Convert the gap to plain JSON types, without single tokens."""
    runs = {"a": found.first.row.run_id, "b": found.second.row.run_id}
    return {"runs": runs, **found.summary, "kinds_top_frac": found.kinds, "paper": found.paper}


def section(found: Found, figures: Sequence[str]) -> str:
    """Format an HTML section in ASCII, to stand alone or in a page."""
    s = found.summary
    head = (
        f"<p>A {_h(found.first.label)}, B {_h(found.second.label)}: A - B is "
        f"{s['mean_nats']:+.5f} nats per token over {s['num_tokens']:,} tokens; positive favors "
        "B.</p>"
    )
    parts = [
        '<section class="token-gap">',
        "<h2>Where B helps, token by token</h2>",
        head,
        _html_table(["", "these runs", "paper, 1.4B"], _tails(found)),
        *figures,
        "<h3>Kinds of the top 0.1 %</h3>",
        _html_table(["kind", "favor B", "favor A", "all", "paper"], _kinds(found)),
    ]
    for name, tokens in (("B", found.favors_b), ("A", found.favors_a)):
        parts += [f"<h3>Largest gaps that favor {name}</h3>", _tokens_table(tokens[:SHOWN])]
    return "\n".join([*parts, "</section>\n"]).encode("ascii", "xmlcharrefreplace").decode()


def _tails(found: Found) -> list[list[str]]:
    s, paper = found.summary, found.paper
    nat = f"by {TAIL_NATS:g} nat or more"
    return [
        [f"B better {nat}", f"{s['b_better_by_1_nat_frac']:.2%}",
         f"{paper['mir_better_frac_at_1_nat']:.2%}"],
        [f"A better {nat}", f"{s['a_better_by_1_nat_frac']:.2%}",
         f"{paper['baseline_better_frac_at_1_nat']:.2%}"],
        ["B better at all", f"{s['b_better_frac']:.2%}", "-"],
    ]  # fmt: skip


def _kinds(found: Found) -> list[list[str]]:
    paper = {k.replace("non_english", "non-English"): v
             for k, v in found.paper["top_0.1pct"].items()}  # fmt: skip
    names = list(dict.fromkeys(k for each in ("all", "b", "a") for k in found.kinds[each]))

    def share(value: float | None) -> str:
        return "-" if value is None else f"{value:.1%}"

    return [
        [name, *(share(found.kinds[each].get(name, 0.0 if found.kinds[each] else None))
                 for each in ("b", "a", "all")), share(paper.get(name))]
        for name in names
    ]  # fmt: skip


def _line(token: Token) -> str:
    before, text, after = (json.dumps(t, ensure_ascii=False)[1:-1] for t in
                           (token.before[-40:], token.text, token.after[:16]))  # fmt: skip
    chances = f"{token.probability_a:.4f} {token.probability_b:.4f}"
    return f"  {token.gap:+7.3f}  {chances}  {token.kind:<12}  {before}[{text}]{after}"


def _csv(found: Found) -> str:
    out = StringIO()
    writer = csv.DictWriter(out, ["favors", *(field.name for field in fields(Token))])
    writer.writeheader()
    for name, tokens in (("B", found.favors_b), ("A", found.favors_a)):
        writer.writerows({"favors": name} | asdict(token) for token in tokens)
    return out.getvalue()


def _h(text: str) -> str:
    return html.escape(text)


def _html_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["".join(f"<th>{_h(cell)}</th>" for cell in header)]
    lines += ["".join(f"<td>{_h(cell)}</td>" for cell in row) for row in rows]
    return "<table>" + "\n".join(f"<tr>{line}</tr>" for line in lines) + "</table>"


def _tokens_table(tokens: Sequence[Token]) -> str:
    rows = [
        f"<tr><td>{t.gap:+.3f}</td><td>{t.probability_a:.4f}</td><td>{t.probability_b:.4f}</td>"
        f"<td>{_h(t.kind)}</td><td><code>{_h(t.before)}<mark>{_h(t.text)}</mark>{_h(t.after)}"
        "</code></td></tr>"
        for t in tokens
    ]
    head = "<tr><th>gap</th><th>p under A</th><th>p under B</th><th>kind</th><th>text</th></tr>"
    return "<table>" + "\n".join([head, *rows]) + "</table>"


def _tails_figure(found: Found) -> str:
    """Draw the share of tokens by which either run is better by so much, from 1 nat on."""
    s = found.summary["histogram"]
    edges, counts, total = s["edges"], s["counts"], found.summary["num_tokens"]
    middle = [(a + b) / 2 for a, b in pairwise(edges)]
    figure, axes = _axes("|gap| in nats", "share of tokens")
    for name, sign, color in (("B better", 1, COLOR_B), ("A better", -1, COLOR_A)):
        points = sorted((abs(x), n / total) for x, n in zip(middle, counts, strict=True)
                        if sign * x >= TAIL_NATS and n)  # fmt: skip
        axes.plot([x for x, _ in points], [y for _, y in points], color=color, label=name)
    axes.set_yscale("log", nonpositive="clip")
    axes.legend(frameon=False)
    return _svg(figure)


def _position_figure(found: Found) -> str:
    """Draw both losses (nats per token) along the row; "" if there are no positions."""
    rows = found.summary["by_position"]
    if not rows:
        return ""
    figure, axes = _axes("position in the row", "nats per token")
    where = [row["first"] for row in rows]
    axes.plot(where, [row["loss_a"] for row in rows], color=COLOR_A, label="A")
    axes.plot(where, [row["loss_b"] for row in rows], color=COLOR_B, label="B")
    axes.legend(frameon=False)
    return _svg(figure)


def _kinds_figure(found: Found) -> str:
    """Draw the shares of kinds: in the top that favors B, and in all tokens."""
    names = list(found.kinds["all"])
    figure, axes = _axes("share", "")
    for shift, each, color in ((-0.2, "b", COLOR_B), (0.2, "all", COLOR_A)):
        shares = [found.kinds[each].get(name, 0.0) for name in names]
        label = "top 0.1 % that favors B" if each == "b" else "all tokens"
        axes.barh([i + shift for i in range(len(names))], shares, 0.38, color=color, label=label)
    axes.set_yticks(range(len(names)), names)
    axes.legend(frameon=False)
    return _svg(figure)


def _axes(x: str, y: str) -> tuple[Any, Any]:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(5.2, 3.0), layout="constrained")
        axes = figure.add_subplot()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return figure, axes


def _svg(figure: Any) -> str:
    """Format the figure as SVG, without date or random ids: equal figures give equal text."""
    import matplotlib as mpl

    out = StringIO()
    with mpl.rc_context(STYLE):
        figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    return text[text.index("<svg") :]
