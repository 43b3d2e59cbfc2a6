"""Is the fast path the same computation? python -m tests.bench.bench_exact TOKENS.bin

curve     200 steps of 16 rows from the same weights: the fast path (bfloat16, compiled, fused)
          against the plain one (float32, eager, dense masks); the largest gap of two losses
gradient  one step's gradient by the fast path, and by plain eager bfloat16, against float64

TOKENS.bin: GPT-2 ids as uint16, a shard of a prepared corpus.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch

from dcray.config import RunConfig, override
from dcray.corpus.order import cut_rows
from dcray.model import attention
from dcray.objectives import Batch
from dcray.train import keyed
from dcray.train.evaluate import ValidationRows
from dcray.train.loop import Data, train
from dcray.train.shard import Place, build_model
from dcray.train.step import accumulate
from tests.bench.bench_gpu import MASK_ID, VOCAB_SIZE

PLACE = Place(torch.device("cuda", 0))
STEPS, T = 200, 1024


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


PLAIN = {"runtime.precision": "float32", "runtime.compile": False}


def plain_attention() -> None:
    """Dense masks in place of what only compiled code can use."""
    attention.has_cudnn = lambda *_args: False
    attention.block_mask = attention.window_mask
    from dcray.model import transformer

    transformer.has_cudnn = attention.has_cudnn


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


def main(path: str) -> None:
    tokens = np.fromfile(path, dtype=np.uint16)
    torch.backends.cuda.matmul.allow_tf32 = False
    fast = {o: curve(configuration(tokens, objective=o), tokens, 16) for o in ("ar",)}
    rows = np.asarray(cut_rows(tokens, T, T)[:2])
    by_fast = gradient(configuration(tokens, objective="mir"), rows)
    plain_attention()
    by_64 = gradient(
        configuration(tokens, objective="mir", **PLAIN | {"runtime.precision": "float64"}), rows
    )
    by_16 = gradient(
        configuration(tokens, objective="mir", **PLAIN | {"runtime.precision": "bfloat16"}), rows
    )
    ours, plain = errors(by_fast, by_64), errors(by_16, by_64)
    ratio = max(o / p for o, p in zip(ours, plain, strict=True))
    print(
        "gradient against float64, relative, by parameter: "
        f"fast median {np.median(ours):.2e}, largest {max(ours):.2e}; "
        f"plain bfloat16 median {np.median(plain):.2e}, largest {max(plain):.2e}; "
        f"largest ratio {ratio:.2f}",
        flush=True,
    )
    for name, losses in fast.items():
        slow = curve(configuration(tokens, objective=name, **PLAIN), tokens, 8)
        gap = np.abs(losses - slow)
        print(
            f"{name}: {STEPS} steps, loss {slow[0]:.3f} to {slow[-1]:.3f}; gap "
            f"largest {gap.max():.4f}, mean {gap.mean():.4f} nats",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1])
