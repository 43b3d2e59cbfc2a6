"""Rows of documents packed anew every epoch against fixed rows: python -m tests.bench.bench_order

Both orders read the same corpus through the row stream, by turns, in one process: the rows alone,
and the batches that a training step makes of them (on the CPU). Documents have exponential lengths.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from dcray.cluster.environment import set_environment
from dcray.cluster.start import ray_cluster
from dcray.config.run import RunConfig, override
from dcray.corpus.manifest import Corpus
from dcray.corpus.order import Order, tee_ids
from dcray.corpus.prepare import prepare
from dcray.corpus.stream import StreamRefs, fetch_rows, publish
from dcray.sources import parse
from dcray.train.batching import microbatches
from dcray.train.shard import RankContext
from tests.bench.common import machine, spread


def rows(refs: StreamRefs, config: RunConfig) -> Iterator[Any]:
    yield from fetch_rows(refs, config, (part.row_ids for part in Order(config).batches()))


def batches(refs: StreamRefs, config: RunConfig) -> Iterator[Any]:
    slices, ids = tee_ids(Order(config).batches())
    place = RankContext(torch.device("cpu"))
    for found in fetch_rows(refs, config, ids):
        yield microbatches(
            next(slices), found, place, size=config.batch_size, seed=config.seed, mask_id=1
        )


def rate(read: Callable[[RunConfig], Iterator[Any]], config: RunConfig) -> float:
    """Million tokens a second over all epochs, from the call to the last step's rows."""
    began = time.perf_counter()
    count = sum(1 for _ in read(config))
    assert count == config.num_steps
    return config.train_tokens / (time.perf_counter() - began) / 1e6


def corpus_of(place: Path, num_tokens: int, length: int) -> Corpus:
    """Random ids of GPT-2's vocabulary, in documents of `length` tokens in the mean."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 50_000, num_tokens + 200_000, np.uint16)
    ids[rng.random(len(ids)) < 1 / length] = 50_256
    ids.tofile(place / "ids.bin")
    prepare(
        parse(f"tokens:{place}/ids.bin"),
        place / "corpus",
        tokenizer="gpt2",
        budgets=[num_tokens],
        val_tokens=50_000,
    )
    return Corpus.open(place / "corpus")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=20_000_000)
    parser.add_argument("--length", type=int, default=500, help="tokens of a document, in the mean")
    parser.add_argument("--seq-len", type=int, default=2048)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    set_environment()
    torch.set_num_threads(1)
    with TemporaryDirectory(prefix="bench-") as place, ray_cluster():
        corpus = corpus_of(Path(place), args.tokens, args.length)
        changes: dict[str, Any] = {
            "data.unique_tokens": args.tokens,
            "data.seq_len": args.seq_len,
            "batch_size": args.batch_size,
            "num_epochs": args.epochs,
        }
        fixed = override(RunConfig(), changes)
        sides = {"rows": fixed, "documents": override(fixed, {"data.order": "documents"})}
        refs = {mode: publish(corpus, args.tokens, None, mode) for mode in ("resident", "pipeline")}
        print(
            f"{machine('cpu')}; {args.tokens:,} tokens, documents of {args.length}, "
            f"T {args.seq_len}, batch {args.batch_size}"
        )
        reads: dict[str, Callable[[RunConfig], Iterator[Any]]] = {
            "rows, resident": partial(rows, refs["resident"]),
            "rows, pipeline": partial(rows, refs["pipeline"]),
            "batches, resident": partial(batches, refs["resident"]),
            "batches, pipeline": partial(batches, refs["pipeline"]),
        }
        for name, read in reads.items():
            found: dict[str, list[float]] = {side: [] for side in sides}
            for _ in range(args.rounds):
                for side, config in sides.items():
                    found[side].append(rate(read, config))
            ratio = statistics.median(found["rows"]) / statistics.median(found["documents"])
            print(
                f"{name:<18} rows {spread(found['rows'])}, documents {spread(found['documents'])}"
                f" M tokens/s: documents take {ratio:.2f} of the time"
            )


if __name__ == "__main__":
    main()
