"""The paper's grids and figures, as data: what `reproduce` and the tests compare with.

dclm_ar.csv   the 20 baseline cells. The 100M row is printed; the 400M row comes from printed
              residuals; 200M and 300M are solved from printed statistics, so agreement there is
              partly circular.
kim_ar.csv    the 16 external cells, solved from printed statistics; the 200M row agrees with the
              authors' own constants.
dclm_mir.csv  MIR: the 100M row is printed, the others are the printed curves, no data.
published.json  figures by table label; nothing in it is reconstructed.

Each row of a grid carries its provenance.
"""

from __future__ import annotations

import csv
import json
from functools import cache
from importlib.resources import files
from typing import Any

from dcray.fit.grid import Row

GRIDS = ("dclm_ar", "dclm_mir", "kim_ar")


@cache
def figures() -> dict[str, Any]:
    """The printed figures by name; losses in nats, N and U in billions."""
    found: dict[str, Any] = json.loads(_text("published.json"))
    return found


@cache
def rows(name: str) -> tuple[Row, ...]:
    """One of GRIDS as rows; `where` is the row's provenance."""
    return tuple(
        Row(
            num_params=int(line["num_params"]),
            unique_tokens=int(line["unique_tokens"]),
            val_loss=float(line["val_loss"]),
            num_epochs=float(line["num_epochs"]),
            recipe=line["recipe"],
            where=line["provenance"],
        )
        for line in csv.DictReader(_text(f"{name}.csv").splitlines())
    )


def _text(name: str) -> str:
    return (files("dcray.fit") / "data" / name).read_text(encoding="utf-8")
