"""What each search policy costs and misses, replayed over complete tables of two real cells.

    python -m tests.bench.bench_replay [--seeds 14] [--only gp]

The tables (data/mini_cell.csv): 60k parameters on 8k and 16k unique tokens of Python's standard
library, 35 trunks (lr x tau, from too small to too large), rungs 4, 8 and 16, three seeds. Made by

    dcray prepare stdlib --out stdlib --tokenizer bpe:512 --budgets 8k,16k --val-tokens 51201
    for seed in 42 1 2; do
      sed "s/seed = 42/seed = $seed/" tests/bench/data/mini_cell.toml > cell.toml
      dcray search cell.toml --corpus stdlib --dir runs
    done
    python -m tests.bench.bench_replay --write-from runs

What it showed, and search.study's defaults follow: a grid with 9/5/3 takes 0.34 of the separate
runs' tokens and misses nothing at the median; 9/3/1 and a share of 0.5 drop the best trunk, for
what leads at 4 epochs has two to four times the lr of what leads at 16. GP with 16 trunks and
share 0.67 takes 0.24. TPE is hardly better than chance here. Stock ASHA over a whole grid costs and
misses as little as 9/5/3, but what it keeps depends on who came first. A warm start needs a cross
around its neighbor's point, and a warm grid of up to five trunks no early stopping. Two seeds
differ by some 0.013 nats at the top, so less than that is no difference between policies.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain, product
from pathlib import Path

from dcray.search.candidates import CROSS
from dcray.study.space import Trunk
from tests.bench.replay import (
    DATA,
    Played,
    Table,
    last_loss,
    play_asha,
    play_cohort,
    play_generations,
    read_tables,
    sub_grids,
)

NINE_FIVE_THREE = (1, 0.56, 0.34)
NINE_THREE_ONE = (1, 0.34, 0.12)
MAIN = 16_000  # unique tokens of the cell that is searched; the other one is its neighbor
HEAD = """\
# Validation loss (nats per token) of every trunk at every rung: dcray search of mini_cell.toml.
# 60k parameters, T = 128, batch 8, 400 validation rows; corpus: source of {revision}'s standard
# library, bpe:512. tests/bench/bench_replay.py has the commands and reads it.
"""
COLUMNS = "unique_tokens,lr,tau,weight_decay,num_epochs,seed,val_loss"


def main() -> None:
    """Print one line a policy; or write the tables from a record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=14, help="of a sampler, for each table")
    parser.add_argument("--only", default="", metavar="WORD", help="policies named so")
    parser.add_argument("--write-from", type=Path, metavar="DIR", help="write the tables' file")
    arguments = parser.parse_args()
    if arguments.write_from:
        write_tables(arguments.write_from)
        return
    tables = read_tables()
    main_tables = [table for table in tables if table.unique_tokens == MAIN]
    print_noise(main_tables)
    print(f"\n{'':44}  tokens / separate   regret in nats, median (p90)")
    print(f"{'policy':44}  own     whole      in its own trunks   in the table    plays")
    cold, warm = policies(main_tables, arguments.seeds), warm_starts(tables, arguments.seeds)
    for name, plays in chain(cold, warm):
        if arguments.only in name:
            print_row(name, list(plays))


def policies(tables: list[Table], seeds: int) -> Iterator[tuple[str, Iterable[Played]]]:
    """Every policy that starts cold."""
    keeps = {"9/5/3": NINE_FIVE_THREE, "9/3/1": NINE_THREE_ONE, "all to the end": (1,)}
    for label, keep in keeps.items():
        yield f"grid of 35, {label}", (play_cohort(t, t.trunks, keep) for t in tables)
    for label, keep in keeps.items():
        yield (
            f"grids of 3 x 3, {label}",
            (play_cohort(t, grid, keep) for t in tables for grid in sub_grids(t, 3)),
        )
    every = list(product(tables, range(seeds)))
    for number in (9, 12, 16, 35):
        yield (
            f"stock ASHA, {number} at random",
            (play_asha(t, shuffled(t, seed)[:number], seed=seed) for t, seed in every),
        )
    asked = [
        *(("random", number, 3, share) for number in (9, 12, 16) for share in (1.0, 0.67)),
        *(("gp", number, size, 0.67) for number in (9, 12, 16) for size in (1, 2, 3)),
        *(("gp", 16, 3, share) for share in (0.5, 1.0)),
        *(("gp", 12, 2, share) for share in (0.5, 1.0)),
        *(("tpe", number, size, 0.67) for number in (9, 12, 16) for size in (1, 2, 3)),
    ]
    for sampler, number, size, share in asked:
        play = partial(play_generations, sampler=sampler, number=number, size=size, share=share)
        label = f"{sampler} {number}, generations of {size}, share {share:g}"
        yield label, (play(t, seed=seed) for t, seed in every)
        if (sampler, size) == ("gp", 3) and share == 0.67:
            yield (
                f"{label}, last loss",
                (play(t, seed=seed, value=last_loss) for t, seed in every),
            )


def warm_starts(tables: list[Table], seeds: int) -> Iterator[tuple[str, Iterable[Played]]]:
    """Searches that start from the winner of the other cell: its lr and tau."""
    for budget in (MAIN, MAIN // 2):
        pairs = [
            (a, b) for a, b in product(tables, tables)
            if a.unique_tokens != b.unique_tokens == budget
        ]  # fmt: skip
        for points, label in ((1, "point"), (5, "cross")):
            for number, keep in product((2, 3, 4, 5), (NINE_FIVE_THREE, (1,))):
                name = "9/5/3" if len(keep) > 1 else "all"
                yield (
                    f"to {budget:,}: warm grid {number}, {label}, {name}",
                    (play_cohort(b, nearest(b, a, number, points), keep) for a, b in pairs),
                )
            for number in (3, 6, 9):
                play = partial(play_generations, sampler="gp", number=number, size=3, share=0.67)
                yield (
                    f"to {budget:,}: warm gp {number}, {label}",
                    (
                        play(b, seed=seed, first=cell_specs(a)[:points])
                        for (a, b), seed in product(pairs, range(max(1, seeds // 4)))
                    ),
                )
        targets = [table for table in tables if table.unique_tokens == budget]
        cold = partial(play_generations, sampler="gp", number=16, size=3, share=0.67)
        yield (
            f"to {budget:,}: cold gp 16",
            (cold(b, seed=seed) for b in targets for seed in range(seeds)),
        )


def cell_specs(source: Table) -> list[dict[str, float]]:
    """The winner of a table and the cross around it."""
    point = {name: float(value) for name, value in source.winner().values}
    return [{"lr": point["lr"] * lr, "tau": point["tau"] * tau} for lr, tau in CROSS]


def nearest(table: Table, source: Table, number: int, points: int) -> list[Trunk]:
    """The trunks of a table nearest to the targets in turn, as search.candidates chooses them."""
    asked, chosen = cell_specs(source)[:points], []
    while len(chosen) < number:
        chosen.append(table.space.snap(asked[len(chosen) % len(asked)], chosen))
    return [trunk for trunk in table.trunks if trunk.values in chosen]


def shuffled(table: Table, seed: int) -> list[Trunk]:
    """The trunks of a table in a random order."""
    return random.Random(seed).sample(table.trunks, len(table.trunks))


def print_row(name: str, plays: list[Played]) -> None:
    """Mean costs, and regret by median and 90th percentile."""
    own = statistics.mean(play.share_of_own for play in plays)
    whole = statistics.mean(play.share_of_table for play in plays)
    regrets = [[p.regret_in_own for p in plays], [p.regret for p in plays]]
    in_own, in_table = (f"{statistics.median(r):.4f} ({quantile(r, 0.9):.4f})" for r in regrets)
    print(
        f"{name:44}  {own:.3f}   {whole:.3f}      {in_own}     {in_table}   {len(plays):4}",
        flush=True,
    )


def print_noise(tables: list[Table]) -> None:
    """Who wins at each seed, and how far two seeds lie apart near there."""
    for table in tables:
        values, epochs = min(table.losses, key=table.losses.__getitem__)
        point = ", ".join(f"{name} {value:g}" for name, value in values)
        print(f"seed {table.seed}: best {table.best:.4f} at {point}, {epochs} epochs")
    top = sorted(tables[0].losses, key=lambda point: sum(t.losses[point] for t in tables))[:10]
    spread = statistics.mean(statistics.pstdev(t.losses[point] for t in tables) for point in top)
    print(f"standard deviation over seeds at the ten best points: {spread:.4f} nats")


def quantile(values: list[float], share: float) -> float:
    """The value below which `share` of them lie."""
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def write_tables(directory: Path) -> None:
    """The complete tables of the record in `directory`, as data/mini_cell.csv."""
    import platform

    from dcray.track.runs import results

    rows = sorted(
        (
            row.unique_tokens, row.seed, row.lr, float(f"{row.tau:.2g}"), row.num_epochs,
            row.weight_decay, row.val_loss,
        )
        for row in results(directory, study="mini_cell").rows
    )  # fmt: skip
    lines = [
        f"{tokens},{lr:g},{tau:g},{decay:g},{epochs},{seed},{loss:.4f}\n"
        for tokens, seed, lr, tau, epochs, decay, loss in rows
    ]
    head = HEAD.format(revision=f"Python {platform.python_version()}")
    DATA.write_text(f"{head}{COLUMNS}\n{''.join(lines)}")
    print(f"{len(lines)} rows written to {DATA}")


if __name__ == "__main__":
    main()
