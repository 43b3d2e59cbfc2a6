"""The paper's released trainer on this card: python -m tests.bench.bench_peer CHECKOUT TOKENS CASE

    python -m tests.bench.bench_peer ../dc_pretrain train-00000.bin 72m:ar 72m:mir

CHECKOUT is a clone of github.com/yixinw-lab/dc_pretrain; nothing of it is kept here. Its model, its
optimizer and its mask sampler are its own code; the step is its loop (train4_diffusionauxiliary):
micro-batches of 16 rows (8 at 1.4b), a forward and backward pass for each term, `.item()` after
each, whole-model compile, synchronized steps. Its FlashAttention-3 comes from a hub; without it the
windows of its short layers are dense masks.
"""

from __future__ import annotations

import argparse
import ast
import os
import statistics
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from dcray.config.sizes import SIZES
from dcray.corpus.order import cut_rows

STEP_TOKENS, T, VOCAB_SIZE, MICRO = 262_144, 2048, 50_258, 16  # the paper's
WEIGHT, MASK_RATIO_MAX = 0.4, 0.5  # scripts/all5models_diffaux_mc.sh


def released(name: str, source: Path, names: dict[str, Any]) -> Any:
    """A class of a file that cannot be imported without running it."""
    tree = ast.parse(source.read_text(encoding="utf-8"))
    (found,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name)
    exec(compile(ast.Module([found], []), str(source), "exec"), names)
    return names[name]


def optimizer_of(model: nn.Module, checkout: Any) -> Any:
    """Its groups: no decay on embedding and norms."""
    plain = {
        p
        for module in model.modules()
        if isinstance(module, (nn.Embedding, checkout.RMSNorm))
        for p in module.parameters(recurse=False)
    }
    each = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8}
    groups = [
        {"params": [p for p in model.parameters() if p not in plain], "weight_decay": 1.6} | each,
        {"params": list(plain), "weight_decay": 0.0} | each,
    ]
    return checkout.DistShardedAdamW(groups, max_grad_norm=1.0, return_grad_norm=True)


def trainer_of(checkout: Path, vocab_size: int) -> Any:
    source = checkout / "dcp" / "train4_diffusionauxiliary_impl.py"
    names = {"torch": torch, "os": os, "ADAPTIVE_LOSS_DOWNSCALE": WEIGHT}
    return released("AdaptiveDreamTrainer", source, names)(
        seq_len=T, mask_token_id=vocab_size - 1, stage1_group_size=4, stage1_num_groups=32,
        stage1_mask_sampling="uniform_ratio", stage1_mask_ratio_min=0.0,
        stage1_mask_ratio_max=MASK_RATIO_MAX, stage2_group_size=4, stage2_num_groups=32,
        stage2_group_gap=4, stage1_right_window_size=0, stage2_right_window_size=0,
        stage1_full_seq=True, stage2_full_seq=False, stage0_epochs=0, total_epochs=16, ltr_length=8,
    )  # fmt: skip


def measure(path: Path, rows: np.ndarray, case: str, seconds: float, device: str) -> str:
    size, objective = case.split(":")
    from dcp import model as peer
    from dcp.optim import DistShardedAdamW

    shape, vocab_size = SIZES[size], VOCAB_SIZE
    with torch.device("meta"):
        model = peer.GPT(
            peer.GPTConfig(
                T, vocab_size, shape.num_layers, shape.num_heads, shape.num_heads, shape.dim
            )
        )
    model.to_empty(device=device)
    model.init_weights()
    kit = SimpleNamespace(RMSNorm=peer.RMSNorm, DistShardedAdamW=DistShardedAdamW)
    optimizer, trainer = optimizer_of(model, kit), trainer_of(path, vocab_size)
    model = torch.compile(model, dynamic=False)
    context = (
        torch.amp.autocast("cuda", dtype=torch.bfloat16) if device == "cuda" else nullcontext()
    )
    micro = 8 if size == "1.4b" else MICRO
    count, place = STEP_TOKENS // (micro * T), 0

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        nonlocal place
        ids = np.arange(place, place + micro) % len(rows)
        place += micro
        host = torch.from_numpy(rows[ids].astype(np.int64))
        both = (host.pin_memory() if device == "cuda" else host).to(device, non_blocking=True)
        return both[:, :-1].contiguous(), both[:, 1:].contiguous()

    def step() -> None:
        for _ in range(count):
            x, y = batch()
            with context:
                loss = model(x, y)
            (loss / count).backward()
            loss.detach().item()
            if objective == "mir":
                with context:
                    loss = trainer.compute_loss(model, x, y, backward_scale=1.0 / count)
                loss.detach().item()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    started = time.perf_counter()
    for number in range(3):
        step()
        if number == 0:
            first = time.perf_counter() - started
    spans: list[float] = []
    while sum(spans) < seconds or len(spans) < 3:
        if device == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        step()
        if device == "cuda":
            torch.cuda.synchronize()
        spans.append(time.perf_counter() - began)
    rates = sorted(STEP_TOKENS / span for span in spans)
    return (
        f"{statistics.median(rates):11,.0f} tokens/s ({rates[0]:,.0f} to {rates[-1]:,.0f}), "
        f"peak {torch.cuda.max_memory_allocated() / 2**30:5.1f} GiB, first step {first:4.1f} s"
    )


def main() -> None:
    global STEP_TOKENS, T, VOCAB_SIZE, MICRO
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("tokens", type=Path)
    parser.add_argument("cases", nargs="+", metavar="SIZE:OBJECTIVE")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--small", type=int, help="rows of 512 tokens a step, 4,097 ids, at once")
    args = parser.parse_args()
    if args.small:
        STEP_TOKENS, T, VOCAB_SIZE, MICRO = 512 * args.small, 512, 4_097, args.small
    sys.path.insert(0, str(args.checkout))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        STEP_TOKENS = 16 * T  # a trial of this script, no figure
    rows = np.asarray(cut_rows(np.fromfile(args.tokens, dtype=np.uint16), T, T))
    for case in args.cases:
        print(
            f"released {case:9s} {measure(args.checkout, rows, case, args.seconds, device)}",
            flush=True,
        )
        torch._dynamo.reset()


if __name__ == "__main__":
    main()
