"""Is the fast path the same computation? python -m tests.bench.bench_exact TOKENS.bin

curve     200 steps of 16 rows from the same weights: the fast path (bfloat16, compiled, fused)
          against the plain one (float32, eager, dense masks). Beside it what else parts two
          curves: plain eager bfloat16, and plain float32 added up in another order
gradient  one step's gradient by the fast path, and by plain eager bfloat16, against float64

TOKENS.bin: GPT-2 ids as uint16, a shard of a prepared corpus; of 3.3M tokens each row is new.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from dcray.config.run import RunConfig, override
from dcray.corpus.order import cut_rows
from dcray.model import attention, head, transformer
from dcray.objectives import Batch
from dcray.rng import keyed
from dcray.train.evaluate import ValidationRows
from dcray.train.loop import Data, train
from dcray.train.shard import RankContext, build_model
from dcray.train.step import accumulate
from tests.bench.bench_gpu import MASK_ID, VOCAB_SIZE

PLACE = RankContext(torch.device("cuda", 0))
STEPS, T, MEAN_OF = 200, 1024, 10


def configuration(tokens: np.ndarray, **changes: Any) -> RunConfig:
    base = {
        "size": "72m",
        "data.unique_tokens": len(tokens),
        "data.seq_len": T,
        "batch_size": 16,
        "num_epochs": 20,
        "runtime.device": "cuda",
        "runtime.num_points": 10**6,  # one a step
        "validation.epochs": "end",
    }
    return override(RunConfig(), base | changes).resolved(vocab_size=VOCAB_SIZE)


def plain(precision: str) -> dict[str, Any]:
    return {"runtime.precision": precision, "runtime.compile": False}


@contextmanager
def plain_attention() -> Iterator[None]:
    """Dense masks in place of what only compiled code can use, and no kernels of ours."""
    with ExitStack() as stack:
        for target, name, value in (
            (transformer, "has_cudnn", lambda *_args: False),
            (attention, "block_mask", attention.window_mask),
            (head, "has_triton", lambda: False),
        ):
            stack.enter_context(patch.object(target, name, value))
        yield


def curve(config: RunConfig, tokens: np.ndarray, microbatch_size: int) -> np.ndarray:
    rows = cut_rows(tokens, config.data.seq_len, config.data.stride)
    losses: list[float] = []
    train(
        config,
        Data(
            lambda all_ids: (rows[ids] for ids in all_ids), ValidationRows(rows[:4], None), MASK_ID
        ),
        PLACE,
        microbatch_size=microbatch_size,
        report=lambda said: losses.extend(p.values["train/loss"] for p in said.points),
        should_stop=lambda: len(losses) >= STEPS,
    )
    return np.array(losses[:STEPS])


def gradient(config: RunConfig, rows: np.ndarray) -> dict[str, torch.Tensor]:
    model = build_model(config, PLACE)
    batch = Batch(
        torch.from_numpy(rows.astype(np.int64)).cuda(),
        torch.ones(len(rows), device="cuda"),
        MASK_ID,
    )
    key = torch.from_numpy(keyed.row_keys(0, np.zeros(len(rows)), np.arange(len(rows)))).cuda()
    objective = config.objective.build()
    accumulate(model, objective, [(batch, key)], step_tokens=rows[:, 1:].size, world_size=1)
    return {name: p.grad.double().cpu() for name, p in model.named_parameters()}


def errors(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> list[float]:
    return [float((found[name] - w).norm() / w.norm()) for name, w in wanted.items()]


def gradients(tokens: np.ndarray) -> str:
    rows = np.asarray(cut_rows(tokens, T, T)[:2])
    by_fast = gradient(configuration(tokens, objective="mir"), rows)
    with plain_attention():
        by_64, by_16 = (
            gradient(configuration(tokens, objective="mir", **plain(precision)), rows)
            for precision in ("float64", "bfloat16")
        )
    ours, eager = errors(by_fast, by_64), errors(by_16, by_64)
    ratio = max(o / p for o, p in zip(ours, eager, strict=True))
    return (
        "gradient against float64, relative, by parameter: "
        f"fast median {np.median(ours):.2e}, largest {max(ours):.2e}; "
        f"plain bfloat16 median {np.median(eager):.2e}, largest {max(eager):.2e}; "
        f"largest ratio {ratio:.2f}"
    )


def gap(losses: np.ndarray, reference: np.ndarray) -> str:
    apart = losses - reference
    means = np.abs(apart.reshape(-1, MEAN_OF).mean(1))
    return (
        f"a step {np.abs(apart).max():.4f} at most, {np.abs(apart).mean():.4f} on average; "
        f"means of {MEAN_OF} steps {means.max():.4f} at most; all {apart.mean():+.5f}; "
        f"the last {MEAN_OF} {apart[-MEAN_OF:].mean():+.4f} nats"
    )


def curves(tokens: np.ndarray, lr: float) -> None:
    def by(precision: str, micro: int) -> np.ndarray:
        config = configuration(tokens, **{"optim.lr": lr} | plain(precision))
        return curve(config, tokens, micro)

    fast = curve(configuration(tokens, **{"optim.lr": lr}), tokens, 16)
    with plain_attention():
        reference = by("float32", 8)
        print(f"lr {lr:g}, {STEPS} steps, loss {reference[0]:.3f} to {reference[-1]:.3f}")
        print(f"  fast path          {gap(fast, reference)}", flush=True)
        for precision, micro in (("float32", 4), ("bfloat16", 8)):
            print(
                f"  plain {precision:8s}, {micro} at once  {gap(by(precision, micro), reference)}"
            )


def main(path: str) -> None:
    tokens = np.fromfile(path, dtype=np.uint16)
    torch.backends.cuda.matmul.allow_tf32 = False
    print(gradients(tokens), flush=True)
    for lr in (3e-4, 1e-3):
        curves(tokens, lr)


if __name__ == "__main__":
    main(sys.argv[1])
