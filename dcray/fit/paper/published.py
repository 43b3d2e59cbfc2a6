"""The paper's grids and figures as data, with which `reproduce` and the tests compare.

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
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from dcray.fit.grid import Row

GRIDS = ("dclm_ar", "dclm_mir", "kim_ar")
BUDGET = 100_000_000  # unique tokens of every cell whose loss is printed
TOKENIZER = "gpt2"
DATA_SETS = {  # {beginning of a data set's name on the hub: the paper's name of the corpus}
    "dclm": "dclm",
    "konwoo/dclm-164k-docs-train": "dclm",
    "mlfoundations/dclm-baseline": "dclm",
    "stack_v2": "stack_v2",
    "bigcode/the-stack-v2": "stack_v2",
}
LOSSES = {  # {corpus: {family of recipes: (table, column)}}
    "dclm": {
        "single-epoch": ("objective_comparison_100m_seed42", "single_epoch"),
        "multi-epoch": ("dllm_comparison_100m", "multi_epoch_ar"),
        "strong": ("objective_comparison_100m_seed42", "ar"),
        "mir": ("objective_comparison_100m_seed42", "mir"),
        "multi-epoch dllm": ("dllm_comparison_100m", "multi_epoch_dllm"),
        "strong dllm": ("dllm_comparison_100m", "regularized_dllm"),
    },
    "stack_v2": {"strong": ("stack_v2_100m", "ar"), "mir": ("stack_v2_100m", "mir")},
}


@cache
def figures() -> dict[str, Any]:
    """Load the printed figures by name; losses in nats, N and U in billions."""
    found: dict[str, Any] = json.loads(_text("published.json"))
    return found


@cache
def rows(name: str) -> tuple[Row, ...]:
    """Load one of GRIDS as rows; `where` is the row's provenance."""
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


def sizes() -> dict[str, int]:
    """Look up {size: num_params} of the paper's five models."""
    return {label: row[-1] for label, row in figures()["ladder"]["rows"].items()}


def corpus_of(manifest: Mapping[str, Any]) -> str | None:
    """Find the paper's name of a corpus from the source and the tokenizer in its manifest.

    None for any other corpus, and for a source that cannot tell: files of unknown origin.
    """
    source, tokenizer = manifest.get("source") or {}, manifest.get("tokenizer") or {}
    if source.get("source") != "huggingface" or tokenizer.get("name") != TOKENIZER:
        return None
    data_set = str(source.get("dataset"))
    known = (name for begin, name in DATA_SETS.items() if data_set.startswith(begin))
    return next(known, None)


def losses(
    family: str | None, budget: int, num_params: Sequence[int], corpus: str | None
) -> list[float | None]:
    """Look up the printed losses (nats) of a family of recipes; None for sizes not printed."""
    where = LOSSES.get(corpus or "", {}).get(family or "")
    if where is None or budget != BUDGET:
        return [None] * len(num_params)
    printed, ladder = figures()[where[0]], sizes()
    each = zip(printed["sizes"], printed[where[1]], strict=True)
    by_params = {ladder[size]: value for size, value in each}
    return [by_params.get(n) for n in num_params]


def _text(name: str) -> str:
    return (files("dcray.fit.paper") / "data" / name).read_text(encoding="utf-8")
