"""Checks that a plug-in is a law, made before anything is fitted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dcray.laws._law import Law, Points

N, U = (axis.ravel() for axis in np.meshgrid([0.1, 1.0], [0.1, 1.0]))
LOSSES = np.array([3.5, 3.2, 3.3, 3.0])


def faults(build: Callable[[], Law]) -> list[str]:
    """Check the law that `build` makes: sentences that continue its name, one for each fault.

    The list is empty if names, example, bounds, starts, stages and the shapes of losses agree.
    """
    try:
        law = build()
        names, example = tuple(law.names), tuple(law.example)
        grid = Points(N, U, LOSSES, {need: np.full(4, 2.0) for need in law.needs})
        lengths = {"example": len(example)}
        for what, ends in (("bounds", law.bounds(grid)), ("box", law.box(grid))):
            low, high = ends
            lengths |= {f"the lower {what}": len(low), f"the upper {what}": len(high)}
        lengths |= {f"start {i}": len(start) for i, start in enumerate(law.starts(grid), start=1)}
        staged = [name for stage in law.stages() for name in stage]
    except Exception as error:
        return [_cannot(error)]
    wrong = [f"{what} {length}" for what, length in lengths.items() if length != len(names)]
    if wrong:
        told = f"names {len(names)} ({', '.join(map(str, names))}), but {', '.join(wrong)}"
        return [f"must have as many values as names everywhere, got {told}"]
    if sorted(staged) != sorted(names):
        return [f"must have each name in one of its stages, got {', '.join(staged) or 'none'}"]
    return _call(law, example, grid)


def _call(law: Law, example: tuple[float, ...], grid: Points) -> list[str]:
    try:
        with np.errstate(all="ignore"):
            loss: Any = law(example, grid.N, grid.U, **grid.more)
            limit: Any = law.limit(example, grid.U)
    except Exception as error:
        return [_cannot(error)]
    if np.shape(loss) != grid.N.shape:
        return [f"must give one loss a cell, got shape {np.shape(loss)} for {len(grid.N)} cells"]
    if np.shape(limit) != grid.U.shape:
        got = f"got shape {np.shape(limit)} for {len(grid.U)} budgets"
        return [f"must give one limit a budget (add 0 * U to a constant), {got}"]
    return []


def _cannot(error: Exception) -> str:
    said = f": {error}" if str(error) else ""
    where = error.__traceback__
    while where is not None and where.tb_next is not None:
        where = where.tb_next
    name = where.tb_frame.f_code.co_name if where is not None else "it"
    return f"fails in {name} ({type(error).__name__}{said})"
