"""The rules for `keep`: how many trunks go on from rung to rung."""

from __future__ import annotations

from collections.abc import Sequence


def counts_problem(rungs: Sequence[tuple[int, ...]], keep: Sequence[float]) -> str | None:
    """Explain why counts in `keep` do not fit these trunks' rungs; None if they do."""
    if not any(number > 1 for number in keep):
        return None
    if len({len(own) for own in rungs}) > 1 or len(set(rungs)) > 1:
        return (
            f"keep = {list(keep)} counts trunks, which needs the same rungs for all of them; "
            "write shares such as [1, 0.56, 0.34]"
        )
    if keep[0] != len(rungs):
        return (
            f"keep[0] must be the number of trunks, {len(rungs)}, got {keep[0]:g}: "
            "all of them run at the first rung; or write shares such as [1, 0.56, 0.34]"
        )
    return None


def length_problem(rungs: Sequence[tuple[int, ...]], keep: Sequence[float]) -> str | None:
    """Explain why a `keep` that a person wrote has not one number a rung; None if it has."""
    longest = max(rungs, key=len, default=())
    if len(keep) == len(longest):
        return None
    return (
        f"keep must have a number for each rung, {len(longest)} for num_epochs = {list(longest)}, "
        f"got {list(keep)}"
    )
