"""`dcray sizes`: the ladders."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from dcray.cli.screen.console import out


def sizes(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """The size ladders: the paper's five, and a mini ladder for one CPU or one GPU.

    [bold]Examples[/bold]

    dcray sizes

    dcray sizes --json
    """
    rows = size_rows()
    if as_json:
        out.print_json(json.dumps(rows))
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    columns = ("size", "dim", "layers", "heads", "mlp_dim", "vocabulary", "parameters", "without")
    for column in columns:
        table.add_column(column, justify="left" if column == "size" else "right")
    for row in rows:
        table.add_row(
            row["size"],
            *(str(row[name]) for name in ("dim", "num_layers", "num_heads", "mlp_dim")),
            *(
                f"{row[name]:,}"
                for name in ("vocab_size", "num_params", "num_non_embedding_params")
            ),
        )
    out.print(table)
    out.print(
        '"without": without the embedding and the head. A size is given as size=226k; a shape of'
    )
    out.print("your own as size.dim=48 size.num_layers=2 size.num_heads=3 size.mlp_dim=128.")


def size_rows() -> list[dict[str, Any]]:
    """List the sizes, one row each, with parameter counts at the vocabulary meant for them."""
    from dcray.config.sizes import (
        SIZES,
        num_non_embedding_params,
        num_params,
        usual_vocab_size,
    )

    return [
        {
            "size": name,
            "ladder": "paper" if usual_vocab_size(name) > 50_000 else "mini",
            **shape._asdict(),
            "head_dim": shape.head_dim,
            "vocab_size": usual_vocab_size(name),
            "num_params": num_params(shape, usual_vocab_size(name)),
            "num_non_embedding_params": num_non_embedding_params(shape),
        }
        for name, shape in SIZES.items()
    ]
