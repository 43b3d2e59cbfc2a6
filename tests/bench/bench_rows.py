"""The row stream against a plain memory-mapped loader: python -m tests.bench.bench_rows

The same rows of the same batches in the same random order, one after the other, in one process:
resident (rows in Ray's object store), pipeline (an index pipeline of Ray Data over the shards), a
memory map that is indexed batch by batch, and the loop of slices that small trainers have.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from dcray.cluster.environment import set_environment
from dcray.cluster.start import ray_cluster
from dcray.config.run import RunConfig, override
from dcray.corpus.manifest import Corpus
from dcray.corpus.order import Order, cut_rows
from dcray.corpus.prepare import prepare
from dcray.corpus.stream import fetch_rows, publish
from dcray.sources import parse
from tests.bench.common import machine, spread

Loader = Callable[[Iterable[np.ndarray]], Iterator[np.ndarray]]


def memmap_gather(path: Path, config: RunConfig) -> Loader:
    def load(all_ids: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        tokens = np.memmap(path, np.uint16, "r", shape=(config.data.unique_tokens,))
        rows = cut_rows(tokens, config.data.seq_len, config.data.stride)
        return (rows[ids] for ids in all_ids)

    return load


def memmap_slices(path: Path, config: RunConfig) -> Loader:
    def load(all_ids: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        tokens, stride = np.memmap(path, np.uint16, "r"), config.data.stride
        for ids in all_ids:
            starts = (int(i) * stride for i in ids)
            yield np.stack([tokens[at : at + config.data.seq_len + 1] for at in starts])

    return load


def rate(load: Loader, config: RunConfig, ids: list[np.ndarray]) -> tuple[float, int]:
    """(tokens/s, a checksum) of one run over all batches, from the call to the last row."""
    began, checksum, count = time.perf_counter(), 0, 0
    for rows in load(iter(ids)):
        checksum += int(rows[0, 0]) + int(rows[-1, -1])
        count += len(rows)
    return count * config.data.seq_len / (time.perf_counter() - began), checksum


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=20_000_000)
    parser.add_argument("--seq-len", type=int, default=2048)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    set_environment()
    with TemporaryDirectory(prefix="bench-") as place, ray_cluster():
        ids = np.random.default_rng(0).integers(0, 50_000, args.tokens + 200_000, np.uint16)
        ids.tofile(Path(place) / "ids.bin")
        prepare(
            parse(f"tokens:{place}/ids.bin"),
            Path(place) / "corpus",
            tokenizer="gpt2",
            budgets=[args.tokens],
            val_tokens=50_000,
        )
        corpus = Corpus.open(Path(place) / "corpus")
        changes: dict[str, Any] = {
            "data.unique_tokens": args.tokens,
            "data.seq_len": args.seq_len,
            "batch_size": args.batch_size,
            "num_epochs": args.epochs,
        }
        config = override(RunConfig(), changes)
        shards = corpus.shards(args.tokens)
        assert len(shards) == 1, "the plain loaders read one file: ask for fewer --tokens"
        refs = {mode: publish(corpus, args.tokens, None, mode) for mode in ("resident", "pipeline")}
        loaders: dict[str, Loader] = {
            "resident": lambda all_ids: fetch_rows(refs["resident"], config, all_ids),
            "pipeline": lambda all_ids: fetch_rows(refs["pipeline"], config, all_ids),
            "memmap, indexed": memmap_gather(shards[0][0], config),
            "memmap, slices": memmap_slices(shards[0][0], config),
        }
        batches = [part.row_ids for part in Order(config).batches()]
        print(f"{machine('cpu')}; {args.tokens:,} tokens, T {args.seq_len}, {len(batches)} batches")
        found: dict[str, list[float]] = {name: [] for name in loaders}
        sums = set()
        for _ in range(args.rounds):
            for name, load in loaders.items():
                speed, checksum = rate(load, config, batches)
                found[name].append(speed / 1e6)
                sums.add(checksum)
        assert len(sums) == 1, "the loaders gave other rows"
        plain = statistics.median(found["memmap, indexed"])
        for name, speeds in found.items():
            ratio = statistics.median(speeds) / plain
            print(f"{name:<16} {spread(speeds)} M tokens/s, {ratio:.3f} of the indexed memory map")


if __name__ == "__main__":
    main()
