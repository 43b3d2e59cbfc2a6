"""The step on a CPU against a plain eager loop of the same model: python -m tests.bench.bench_eager

The plain side is what one would write from the paper in an hour: torch's own modules, dropout,
cross-entropy and AdamW. Both start from the same weights, must say the same loss without dropout,
and are timed with it by turns in this process, on one thread, as the quickstart's trials run.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dcray.config.run import RunConfig, override
from dcray.config.sections import ModelConfig
from dcray.config.sizes import SIZES, Shape, layer_windows
from dcray.objectives import Batch
from dcray.objectives.ar import AR
from dcray.rng.keyed import row_keys
from dcray.train.optim import build_optimizer
from dcray.train.shard import init_weights
from dcray.train.step import train_step
from tests.bench.common import machine, spread

ROWS, SEQ_LEN, VOCAB, DROPOUT = 8, 128, 512, 0.1


class PlainBlock(nn.Module):
    """Pre-norm attention and SwiGLU."""

    def __init__(self, shape: Shape, window: int | None) -> None:
        super().__init__()
        dim = shape.dim
        self.heads, self.window, self.rate = shape.num_heads, window, DROPOUT
        self.norms = nn.ModuleList(nn.RMSNorm(dim, eps=1e-5) for _ in range(2))
        self.qk = nn.ModuleList(nn.RMSNorm(dim // self.heads, eps=1e-5) for _ in range(2))
        self.qkvo = nn.ModuleList(nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(dim, shape.mlp_dim, bias=False) for _ in range(2))
        self.down = nn.Linear(shape.mlp_dim, dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        batch, length, dim = x.shape
        y = self.norms[0](x)
        q, k, v = (f(y).view(batch, length, self.heads, -1).transpose(1, 2) for f in self.qkvo[:3])
        q, k = self.qk[0](turn(q, cos, sin)), self.qk[1](turn(k, cos, sin))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        y = self.qkvo[3](y.transpose(1, 2).reshape(batch, length, dim))
        x = x + F.dropout(y, self.rate, self.training)
        y = self.norms[1](x)
        out: Tensor = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return out


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of (B, H, T, head_dim)."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class Plain(nn.Module):
    """The paper's transformer, from torch's own modules."""

    def __init__(self, shape: Shape, base: float, pattern: str) -> None:
        super().__init__()
        windows = layer_windows(shape.num_layers, SEQ_LEN, pattern)
        self.embed = nn.Embedding(VOCAB, shape.dim)
        self.blocks = nn.ModuleList(PlainBlock(shape, window) for window in windows)
        self.norm = nn.RMSNorm(shape.dim, eps=1e-5)
        self.head = nn.Linear(shape.dim, VOCAB, bias=False)
        half = shape.dim // shape.num_heads // 2
        angles = torch.outer(torch.arange(SEQ_LEN), base ** (-torch.arange(half) / half))
        self.cos, self.sin = angles.cos(), angles.sin()
        gap = torch.arange(SEQ_LEN)[:, None] - torch.arange(SEQ_LEN)
        self.masks = [
            None if w is None or w >= SEQ_LEN - 1 else (gap >= 0) & (gap <= w) for w in windows
        ]

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block, mask in zip(self.blocks, self.masks, strict=True):
            x = block(x, self.cos, self.sin, mask)
        logits: Tensor = self.head(self.norm(x))
        return logits


def copied(ours: nn.Module, plain: Plain) -> Plain:
    """The plain model with our weights, which come in another order."""
    names = {
        "attn_norm": "norms.0", "mlp_norm": "norms.1", "attn.query_norm": "qk.0",
        "attn.key_norm": "qk.1", "attn.query.": "qkvo.0.", "attn.key.": "qkvo.1.",
        "attn.value.": "qkvo.2.", "attn.out.": "qkvo.3.", "mlp.": "",
    }  # fmt: skip
    state = {}
    for name, value in ours.state_dict().items():
        for from_, to in names.items():
            name = name.replace(from_, to)
        state[name] = value
    plain.load_state_dict(state)
    return plain


def measure(size: str, steps: int, turns: int) -> tuple[list[float], float]:
    """Plain seconds over ours, turn by turn, and our milliseconds a step."""
    from dcray.model.transformer import Transformer

    torch.manual_seed(0)
    config = ModelConfig(vocab_size=VOCAB, dropout=DROPOUT)
    ours = Transformer(SIZES[size], config, seq_len=SEQ_LEN)
    init_weights(ours, seed=1)
    plain = copied(ours, Plain(SIZES[size], config.rope_base, config.window_pattern))
    tokens = torch.randint(0, VOCAB - 2, (ROWS, SEQ_LEN + 1))
    batch = Batch(tokens, torch.ones(ROWS), VOCAB - 1)
    _check_same(ours, plain, batch)
    run = override(RunConfig(), {"optim.lr": 5e-3, "optim.weight_decay": 3.2})
    optim = run.optim
    optimizers = (
        build_optimizer(ours, run),
        torch.optim.AdamW(
            plain.parameters(), lr=optim.lr, betas=optim.betas, eps=optim.eps, weight_decay=3.2
        ),
    )
    keys = iter(range(10**9))

    def our_step() -> None:
        key = torch.from_numpy(row_keys(1, next(keys), range(ROWS)))
        train_step(
            ours, optimizers[0], AR(), [(batch, key)],
            step_tokens=ROWS * SEQ_LEN, world_size=1, max_grad_norm=1.0,
        )  # fmt: skip

    def plain_step() -> None:
        loss = F.cross_entropy(plain(batch.inputs).flatten(0, 1), batch.targets.reshape(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        optimizers[1].step()
        optimizers[1].zero_grad()

    def seconds(step: object) -> float:
        started = time.process_time()
        for _ in range(steps):
            step()  # type: ignore[operator]
        return time.process_time() - started

    seconds(our_step), seconds(plain_step)
    pairs = [(seconds(plain_step), seconds(our_step)) for _ in range(turns)]
    return [a / b for a, b in pairs], median(b for _, b in pairs) / steps * 1e3


def _check_same(ours: nn.Module, plain: Plain, batch: Batch) -> None:
    plain.eval()
    with torch.no_grad():
        nats = ours(batch.inputs, causal=True, targets=batch.targets).mean()
        other = F.cross_entropy(plain(batch.inputs).flatten(0, 1), batch.targets.reshape(-1))
    assert abs(float(nats) - float(other)) < 1e-5, (nats, other)
    plain.train()


def main() -> None:
    """Print one line a size."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("sizes", nargs="*", default=["60k", "119k", "226k", "431k", "984k"])
    words.add_argument("--steps", type=int, default=60)
    words.add_argument("--turns", type=int, default=7)
    given = words.parse_args()
    torch.set_num_threads(1)
    print(f"one thread of {machine('cpu')}; processor seconds")
    for size in given.sizes:
        ratios, ours = measure(size, given.steps, given.turns)
        print(f"{size}: plain eager loop over ours {spread(ratios)}; ours {ours:.1f} ms a step")


if __name__ == "__main__":
    main()
