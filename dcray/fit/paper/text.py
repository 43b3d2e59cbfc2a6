"""The text of `dcray reproduce`: each table beside print, how independent each is, and a count."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np

from dcray.fit.output.text import table
from dcray.fit.paper.only_runs import OnlyRuns
from dcray.fit.paper.reproduce import KINDS, OWN_NULL, Check, counts

SPREAD = "spread of mir_efficiency"
REMARKS = {
    SPREAD: "The text says that this spread shrinks as the data grow; print does not bear it out.",
}


def reproduce_text(
    checks: Sequence[Check], lines: Sequence[dict[str, Any]], only_runs: Sequence[OnlyRuns]
) -> str:
    """Format every table, the like-for-like worth, what only runs can tell, and the counts."""
    parts = [_table(name, list(group)) for name, group in groupby(checks, key=lambda c: c.table)]
    parts += [_worth(lines), _only_runs(only_runs), count_text(checks)]
    return "\n\n".join(parts)


def _table(name: str, checks: Sequence[Check]) -> str:
    kinds = list(dict.fromkeys(check.kind for check in checks))
    rows = [
        [c.what, ("at most " if c.at_most else "") + _figure(c.expected), _figure(c.ours),
         f"{c.tolerance:.2g}", "ok" if c.ok else "OUTSIDE", *([c.kind] if len(kinds) > 1 else [])]
        for c in checks
    ]  # fmt: skip
    header = ["", "print", "ours", "tolerance", "", *([""] if len(kinds) > 1 else [])]
    said = [f"{kind}: {KINDS[kind]}" for kind in kinds]
    return "\n".join([name, table(header, rows), *said, *filter(None, [REMARKS.get(name)])])


def _worth(lines: Sequence[dict[str, Any]]) -> str:
    worth = [
        [line["law"], f"{line['unique_tokens'] / 1e6:.0f}m"]
        + [f"{line[key]:.2f}" for key in ("paper", "null", "like_for_like", "joint", "finite")]
        for line in lines
    ]
    header = ["MIR under", "U", "paper", "its null", "ratio of the two", "joint law", "at 1.4B"]
    softq = [line for line in lines if line["law"] == "softq"]
    figures = np.array(
        [line[key] for line in softq for key in ("like_for_like", "joint", "finite")]
    )
    said = (
        f"Like for like MIR is worth {figures.min():.2f} to {figures.max():.2f} times the data "
        "under SoftQ; the paper's own ratios contain the null beside them."
    )
    return f"{table(header, worth)}\n\n{said}"


def _only_runs(only_runs: Sequence[OnlyRuns]) -> str:
    """Format a row for each figure; with ours only if the cells of its study were given."""
    rows = []
    for one in only_runs:
        ours = one.ours or [None for _ in one.printed]
        for size, printed, value in zip(one.sizes, one.printed, ours, strict=True):
            told = "-" if value is None else f"{value:.4g}"
            rows.append([f"{one.what} at {size}", f"{printed:.4g}", told, one.study])
    header = ["only runs can tell", "print", "ours", "study"]
    how = "dcray reproduce --cells STUDY=CSV sets a study's analysis/cells.csv beside them."
    return f"{table(header, rows)}\n{how}"


def count_text(checks: Sequence[Check]) -> str:
    """Format the count: "191 figures, 0 outside their tolerance: 20 independent, ..."."""
    outside = sum(not check.ok for check in checks)
    by_kind = ", ".join(
        f"{number} {kind}{'s' * (kind == OWN_NULL and number > 1)}"
        for kind, number in counts(checks).items()
    )
    return f"{len(checks)} figures, {outside} outside their tolerance: {by_kind}"


def _figure(value: float) -> str:
    if value != 0 and (abs(value) >= 1e6 or abs(value) < 1e-5):
        return f"{value:.4g}"
    return f"{value:.6f}" if abs(value) < 10 else f"{value:.2f}"
