"""What the benchmarks of training share: a corpus, small configurations, how to print a figure."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dcray.cluster.environment import set_environment
from dcray.cluster.start import ray_cluster
from dcray.config.run import RunConfig, override
from dcray.config.toml import parse_assignments
from dcray.corpus.manifest import Corpus
from dcray.corpus.prepare import prepare
from dcray.corpus.stream import StreamRefs
from dcray.driver.stop import StopRequest
from dcray.driver.tune import TuneLoop
from dcray.sources import parse
from dcray.types import Cell, Event, RunKey, RunSpec

CPU = {  # the quickstart's model and rows
    "size": "226k",
    "data.unique_tokens": 64_000,
    "data.seq_len": 128,
    "batch_size": 8,
    "runtime.device": "cpu",
}
CUDA = {  # the paper's smallest model at its row length
    "size": "72m",
    "data.unique_tokens": 400_000,  # prepared on one CPU, before the clock of a benchmark runs
    "data.seq_len": 2048,
    "batch_size": 32,
    "runtime.device": "cuda",
    "runtime.microbatch_size": 16,
}
NEVER = 1e9  # seconds


@contextmanager
def cluster_and_corpus(
    device: str, *, num_cpus: int | None = None
) -> Iterator[tuple[Path, Corpus]]:
    """A temporary folder, a corpus of the standard library in it, and a private Ray."""
    set_environment()
    unique_tokens = (CUDA if device == "cuda" else CPU)["data.unique_tokens"]
    with TemporaryDirectory(prefix="bench-") as place, ray_cluster(num_cpus=num_cpus):
        path = Path(place) / "corpus"
        prepare(
            parse("stdlib"), path, tokenizer="bpe:512", budgets=[unique_tokens], val_tokens=5_000
        )
        yield Path(place), Corpus.open(path)


def configuration(
    device: str, num_steps: int, corpus: Corpus, assignments: Sequence[str], **more: Any
) -> RunConfig:
    """A resolved and placed configuration of at least `num_steps` steps, scored at its end."""
    base = dict(CUDA if device == "cuda" else CPU)
    fixed = {
        "validation.epochs": "end",
        "runtime.checkpoint_seconds": NEVER,  # the one at the end is outside of what is timed
        "runtime.microbatch_size": base.get("runtime.microbatch_size", base["batch_size"]),
    }
    changes = base | fixed | parse_assignments(list(assignments)) | more
    config = override(RunConfig(), changes)
    epochs = -(-num_steps * config.batch_size // config.usable_rows)
    config = override(config, {"num_epochs": epochs})
    vocab_size = 50_258 if device == "cuda" else corpus.vocab_size  # a head of the paper's width
    return config.resolved(vocab_size=vocab_size)


def machine(device: str) -> str:
    """The line that a figure is read with."""
    import torch

    cores = f"{os.cpu_count()} CPU cores, load {os.getloadavg()[0]:.1f}"
    card = f", {torch.cuda.get_device_name()}" if device == "cuda" else ""
    return f"{cores}{card}, torch {torch.__version__}"


def spread(values: Sequence[float]) -> str:
    """Median and range."""
    return f"{statistics.median(values):.4g} ({min(values):.4g} to {max(values):.4g})"


def lone_run(name: str, run: RunConfig) -> RunSpec:
    """A run in its place that stands alone; name: letters and digits."""
    cell = Cell("bench", run.size_name, run.data.unique_tokens, run.objective.name)
    return RunSpec(RunKey(cell, name, run.seed), run, "", place=run.runtime)


def in_turn(specs: Sequence[RunSpec], refs: StreamRefs, checkpoints: Path) -> Iterator[Event]:
    """Run one trial after the other on the connected Ray; what they say, as it comes in."""
    logs = checkpoints.parent / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    loop = TuneLoop({"data": refs}, checkpoints=checkpoints, logs=logs, stop=StopRequest())
    for spec in specs:
        loop.submit((spec,), "data")
        while loop.running:
            yield from loop.step()
    loop.close()
