"""The size ladders as tables, and the parameters and FLOPs of a shape."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

VOCAB_MULTIPLE = 64
GPT2_VOCAB_SIZE = 50_258  # GPT-2's 50,257 and [MASK]
MINI_VOCAB_SIZE = 512  # bpe:512, special tokens included
GPU_MINI_VOCAB_SIZE = 4_096  # bpe:4096


class Shape(NamedTuple):
    """A transformer's shape; one row of a ladder."""

    dim: int
    num_layers: int
    num_heads: int
    mlp_dim: int

    @property
    def head_dim(self) -> int:
        return self.dim // self.num_heads


PAPER_SIZES = {  #    dim  layers  heads  mlp_dim    num_params (vocabulary 50,304 included)
    "72m": Shape(512, 6, 8, 1536),  #                71_965_952
    "140m": Shape(768, 9, 12, 2048),  #             140_983_680
    "257m": Shape(1024, 12, 16, 2816),  #           257_190_400
    "664m": Shape(1536, 18, 24, 4096),  #           664_200_960
    "1.4b": Shape(2048, 24, 32, 5632),  #         1_439_273_984
}

MINI_SIZES = {  #     dim  layers  heads  mlp_dim    num_params at a vocabulary of 512
    "60k": Shape(32, 2, 2, 96),  #                       59_616
    "119k": Shape(48, 3, 3, 96),  #                     118_704
    "226k": Shape(64, 3, 4, 192),  #                    225_824
    "431k": Shape(96, 3, 6, 256),  #                    430_848
    "984k": Shape(128, 4, 8, 384),  #                   984_320
    #                                                at a vocabulary of 4,096 (one GPU)
    "5.5m": Shape(256, 4, 8, 768),  #                 5_507_584
    "31.5m": Shape(512, 8, 8, 1536),  #              31_467_008
}

SIZES = PAPER_SIZES | MINI_SIZES


@dataclass(frozen=True)
class Pass:
    """The attention of a forward pass: `window_pattern` over the layers, causal or not."""

    seq_len: int
    causal: bool = True
    window_pattern: str = "SSSL"


def usual_vocab_size(size: str) -> int:
    """Return the vocabulary size that a size is meant for, if no corpus says another."""
    if size in MINI_SIZES:
        return GPU_MINI_VOCAB_SIZE if size in ("5.5m", "31.5m") else MINI_VOCAB_SIZE
    return GPT2_VOCAB_SIZE


def pad_vocab(vocab_size: int) -> int:
    """Round the vocabulary up to a multiple of 64; padding counts as parameters, not as targets."""
    return -(-vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE


def size_order(size: str) -> float:
    """Return the sort key of a size: its parameters; inf for a name that is not a known size."""
    return num_params(SIZES[size], usual_vocab_size(size)) if size in SIZES else math.inf


def num_params(shape: Shape, vocab_size: int) -> int:
    """Count all parameters, embeddings and padded vocabulary included: the paper's N.

    2*V_padded*dim + layers*(4*dim^2 + 3*dim*mlp_dim + 2*dim + 2*head_dim) + dim.
    """
    return 2 * pad_vocab(vocab_size) * shape.dim + num_non_embedding_params(shape)


def num_non_embedding_params(shape: Shape) -> int:
    """Count the parameters without the embedding and the head."""
    dim = shape.dim
    layer = 4 * dim**2 + 3 * dim * shape.mlp_dim + 2 * dim + 2 * shape.head_dim
    return shape.num_layers * layer + dim


def layer_windows(num_layers: int, seq_len: int, window_pattern: str) -> list[int | None]:
    """List each layer's window: T // 2 for S, None (all) for L; the last layer is always L."""
    letters = [window_pattern[i % len(window_pattern)] for i in range(num_layers)]
    letters[-1] = "L"
    return [seq_len // 2 if letter == "S" else None for letter in letters]


def attended_keys(seq_len: int, window: int | None, *, causal: bool) -> int:
    """Count the query-key pairs of one row: the keys that each of the T queries sees, summed."""
    if not causal:
        return seq_len * seq_len
    reach = seq_len if window is None else min(window + 1, seq_len)
    return reach * (reach + 1) // 2 + (seq_len - reach) * reach


def forward_flops(shape: Shape, vocab_size: int, a_pass: Pass) -> float:
    """Compute the exact FLOPs of a forward pass per token: matmuls and attended pairs only."""
    dim = shape.dim
    matmuls = shape.num_layers * (4 * dim**2 + 3 * dim * shape.mlp_dim)
    head = pad_vocab(vocab_size) * dim
    windows = layer_windows(shape.num_layers, a_pass.seq_len, a_pass.window_pattern)
    pairs = sum(
        attended_keys(a_pass.seq_len, window if a_pass.causal else None, causal=a_pass.causal)
        for window in windows
    )
    attention = (
        2 * dim * pairs / a_pass.seq_len
    )  # q.k and p.v, a multiply-add each per pair and channel
    return 2.0 * (matmuls + head + attention)
