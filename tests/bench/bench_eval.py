"""Requests per second: lm-eval's `hf` model on an exported checkpoint against ours, in one call.

The documents are random words in the shapes of four of the paper's tasks. Both sides score the same
requests in float32, on the same machine, by turns; their scores are compared too.
"""

from __future__ import annotations

import argparse
import random
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dcray.cli.train import run_all
from dcray.config.run import RunConfig, override
from dcray.config.toml import parse_assignments
from dcray.evals.export.checkpoint import export
from dcray.evals.run import find_run
from dcray.evals.tasks.catalog import quiet
from dcray.evals.tasks.harness import RunLM
from dcray.evals.tasks.score import log_likelihoods
from tests.bench.common import cluster_and_corpus, machine, spread

SHAPES = {  # words of the context, choices, words of each
    "hellaswag": (60, 4, 20),
    "race": (300, 4, 8),
    "sciq": (80, 4, 2),
    "boolq": (110, 2, 1),
}
WORDS = (
    "the",
    "of",
    "and",
    "to",
    "in",
    "is",
    "was",
    "for",
    "that",
    "with",
    "class",
    "return",
    "value",
)


def requests(shape: tuple[int, int, int], documents: int) -> list[Any]:
    """lm-eval's requests of that many documents."""
    from lm_eval.api.instance import Instance

    rng = random.Random(0)
    num_context, num_choices, num_words = shape
    found = []
    for document in range(documents):
        length = max(1, round(num_context * rng.uniform(0.5, 1.5)))
        context = " ".join(rng.choices(WORDS, k=length))
        for choice in range(num_choices):
            words = rng.choices(WORDS, k=max(1, round(num_words * rng.uniform(0.5, 1.5))))
            pair = (context, " " + " ".join(words))
            found.append(
                Instance("loglikelihood", {}, pair, choice, metadata=("bench", document, 1))
            )
    return found


def timed(lm: Any, asked: list[Any]) -> tuple[float, list[Any]]:
    """(seconds, scores)."""
    began = time.perf_counter()
    with quiet():
        found = lm.loglikelihood(asked)
    return time.perf_counter() - began, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--documents", type=int, default=40, help="of each shape")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32, help="of both sides")
    parser.add_argument("overrides", nargs="*", help="field=value of the model, as for dcray train")
    asked = parser.parse_args()
    base = {
        "size": "72m", "model.vocab_size": 50_258, "data.seq_len": 1024, "num_epochs": 1,
        "data.unique_tokens": 2049, "batch_size": 2, "data.val_tokens": 1025,
        "runtime.device": asked.device,
    }  # fmt: skip
    config = override(RunConfig(), base | parse_assignments(asked.overrides))
    with cluster_and_corpus(asked.device) as (place, corpus):
        run_all([("ar", config)], corpus.path, study="bench", directory=place / "runs",
                tracking_uri=None, quiet=True)  # fmt: skip
        budget = config.data.unique_tokens
        found = find_run(place / "runs", f"bench/{config.size_name}/{budget}/ar")
        export(found.load(torch.device("cpu"), precision="float32"), place / "hf")
        compare(asked, found, place / "hf")


def compare(asked: argparse.Namespace, found: Any, folder: Path) -> None:
    """Print both sides of every shape."""
    from lm_eval.models.huggingface import HFLM

    run = found.load(torch.device(asked.device), precision="float32")
    score = partial(log_likelihoods, run.model, seq_len=run.seq_len, batch_size=asked.batch_size)
    ours = RunLM(run.model, run.tokenizer, score, seq_len=run.seq_len)
    with quiet():
        theirs = HFLM(pretrained=str(folder), trust_remote_code=True, dtype="float32",
                      device=asked.device, batch_size=asked.batch_size)  # fmt: skip
    print(machine(asked.device))
    totals = [0.0, 0.0]
    for name, shape in SHAPES.items():
        these = requests(shape, asked.documents)
        timed(ours, these[:8]), timed(theirs, these[:8])
        rates: list[list[float]] = [[], []]
        for _ in range(asked.repeats):
            (a, first), (b, second) = timed(ours, these), timed(theirs, these)
            rates[0].append(len(these) / a)
            rates[1].append(len(these) / b)
            totals[0] += a
            totals[1] += b
        apart = max(abs(x[0] - y[0]) for x, y in zip(first, second, strict=True))
        ratio = [a / b for a, b in zip(*rates, strict=True)]
        print(f"{name:<10} ours {spread(rates[0])} requests/s, hf {spread(rates[1])}, "
              f"ratio {spread(ratio)}; scores at most {apart:.1e} apart")  # fmt: skip
    print(f"all        ratio {totals[1] / totals[0]:.2f}")


if __name__ == "__main__":
    main()
