"""The table of recipes by worth, as columns with notes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dcray.fit.output.headline import outside_at, span
from dcray.fit.ranking import PARAMETERS, Standing

HEADER = ("recipe", "at equal", "worth", "95 %", "95 % of the null", "outside its null at",
          "difference", "95 % of it")  # fmt: skip


def above(baseline: str) -> str:
    """Say what the table shows."""
    return (
        f"Worth in {baseline}'s unique data, from the lowest to the highest budget; the difference "
        f"is recipe minus {baseline} in nats, lower is better."
    )


def columns(standings: Sequence[Standing]) -> tuple[list[str], list[list[Any]]]:
    """Build (header, rows): a row for each recipe and what is equal, in the given order."""
    rows = []
    for one in standings:
        told = one.told
        drawn = [a for a in told if a.answered_frac is not None and a.data_efficiency is not None]
        rows.append(
            [
                one.label, one.at_equal, span(told) if told else None,
                _ends([(a.low, a.high) for a in drawn]),
                _ends([(a.null_low, a.null_high) for a in drawn]),
                outside_at(drawn) if drawn else None,
                None if one.difference is None else f"{one.difference:+.4f}",
                None if one.low is None else f"[{one.low:+.4f}, {one.high:+.4f}]",
            ]
        )  # fmt: skip
    return list(HEADER), rows


def notes(standings: Sequence[Standing], *, every: bool = True) -> list[str]:
    """Say why numbers are missing, and on what the differences are, each sentence once.

    every: name the budgets without a number too; else recipes without any number alone.
    """
    why: dict[str, list[str]] = {}
    samples: dict[tuple[str, str], list[str]] = {}
    for one in standings:
        if one.why and (every or not one.worths):
            why.setdefault("; ".join(one.why), []).append(f"{one.label} at equal {one.at_equal}")
        if one.sample:
            equal = PARAMETERS if one.at_equal == PARAMETERS else "FLOPs"
            samples.setdefault((equal, one.sample), []).append(one.label)
    return [
        *(f"{', '.join(whose)}: {reason}." for reason, whose in why.items()),
        *(
            f"At equal {equal} the losses of {', '.join(dict.fromkeys(whose))} are on {sample}."
            for (equal, sample), whose in samples.items()
        ),
        *dict.fromkeys(one.bias for one in standings if one.bias),
    ]


def _ends(each: Sequence[tuple[float | None, float | None]]) -> str | None:
    """Format the lowest lower to the highest upper end; None if nothing was drawn."""
    if not each:
        return None
    lows, highs = zip(*each, strict=True)
    low = "no lower end" if None in lows else f"{min(lows):.2f}"
    high = "no upper end" if None in highs else f"{max(highs):.2f}"
    return f"{low} to {high}"
