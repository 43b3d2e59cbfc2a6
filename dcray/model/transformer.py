"""The paper's transformer: RoPE then QK-norm, SSSL windows, SwiGLU, an untied padded head.

Master weights are float32; compute runs in `dtype`. Dropout is applied to the attention output
alone and is keyed. The head is padded to a multiple of 64; the padding is never a target, and no
part of the softmax.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dcray.config.sections import ModelConfig
from dcray.config.sizes import Shape, layer_windows, pad_vocab
from dcray.model.attention import attend, has_cudnn, mask_of
from dcray.model.head import head_nats
from dcray.model.norm import RMSNorm
from dcray.model.rotary import has_kernel, rotary_tables, rotated_norm
from dcray.rng.dropout import element_hashes, keyed_dropout, layer_keys


class Context(NamedTuple):
    """The values that all layers of one forward pass share."""

    cos: Tensor  # (T, head_dim / 2), or (B, T, head_dim / 2) if rows differ
    sin: Tensor
    hashes: Tensor | None  # (T, D) int32 for dropout, None if it is off
    causal: bool
    rotary_kernel: bool = False  # from `has_kernel`, if rows do not differ


class Linear(nn.Linear):
    """A linear map without bias whose float32 weight is cast to its input's dtype.

    half_weight: a cast copy, which receives the gradient (`dcray.train.launch.low_precision`).
    """

    half_weight: Tensor | None = None

    def __init__(self, num_in: int, num_out: int, device: torch.device | None) -> None:
        super().__init__(num_in, num_out, bias=False, device=device)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight_in(x.dtype))

    def weight_in(self, dtype: torch.dtype) -> Tensor:
        """Return the weight in the compute dtype."""
        return self.weight.to(dtype) if self.half_weight is None else self.half_weight


class Attention(nn.Module):
    """Multi-head attention with RoPE, then QK-norm."""

    def __init__(self, shape: Shape, config: ModelConfig, device: torch.device | None) -> None:
        super().__init__()
        self.num_heads, self.dropout = shape.num_heads, config.dropout
        self.query, self.key, self.value, self.out = (
            Linear(shape.dim, shape.dim, device) for _ in range(4)
        )
        self.query_norm = RMSNorm(shape.head_dim, config.norm_eps, device)
        self.key_norm = RMSNorm(shape.head_dim, config.norm_eps, device)

    def forward(self, x: Tensor, context: Context, mask: Any, key: Tensor | None) -> Tensor:
        batch, seq_len, dim = x.shape
        heads = (batch, seq_len, self.num_heads, dim // self.num_heads)
        q, k, v = (f(x).view(heads) for f in (self.query, self.key, self.value))
        tables, kernel = (context.cos, context.sin), context.rotary_kernel
        q = rotated_norm(q, *tables, self.query_norm, kernel=kernel)
        k = rotated_norm(k, *tables, self.key_norm, kernel=kernel)
        # Transposed after all else: q, k and v stay (B, T, H, head_dim) in memory, and so do the
        # kernel's output and gradients, which are then neither copied before nor after it.
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        heads_out = attend(q, k, v, mask, causal=context.causal).transpose(1, 2)
        y: Tensor = self.out(heads_out.reshape(batch, seq_len, dim))
        if key is None or context.hashes is None:
            return y
        return keyed_dropout(y, context.hashes, key, self.dropout)


class MLP(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, shape: Shape, device: torch.device | None) -> None:
        super().__init__()
        self.gate = Linear(shape.dim, shape.mlp_dim, device)
        self.up = Linear(shape.dim, shape.mlp_dim, device)
        self.down = Linear(shape.mlp_dim, shape.dim, device)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return y


class Block(nn.Module):
    """x + attn(norm(x)), then x + mlp(norm(x)).

    It takes and returns the residual stream in two parts, x and the last branch y not added yet: so
    a compiler adds them in the kernel of the norm that follows, in the next block.
    """

    def __init__(self, shape: Shape, config: ModelConfig, device: torch.device | None) -> None:
        super().__init__()
        self.attn_norm = RMSNorm(shape.dim, config.norm_eps, device)
        self.attn = Attention(shape, config, device)
        self.mlp_norm = RMSNorm(shape.dim, config.norm_eps, device)
        self.mlp = MLP(shape, device)

    def forward(
        self, x: Tensor, y: Tensor | None, context: Context, mask: Any, key: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        x = x if y is None else x + y
        x = x + self.attn(self.attn_norm(x), context, mask, key)
        return x, self.mlp(self.mlp_norm(x))


class Transformer(nn.Module):
    """Embedding, blocks, norm, head; causal or bidirectional by argument.

    seq_len: the length of the rows it is trained on. The windows are computed from it, whatever the
    length of a pass: so a causal model gives the same output for a token in a shorter row.
    """

    def __init__(
        self,
        shape: Shape,
        config: ModelConfig,
        *,
        seq_len: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        assert config.vocab_size is not None, "resolve the configuration first"
        self.shape, self.config, self.dtype = shape, config, dtype
        self.vocab_size = config.vocab_size
        self.windows = layer_windows(shape.num_layers, seq_len, config.window_pattern)
        padded = pad_vocab(config.vocab_size)
        self.embed = nn.Embedding(padded, shape.dim, device=device)
        self.blocks = nn.ModuleList(Block(shape, config, device) for _ in range(shape.num_layers))
        self.norm = RMSNorm(shape.dim, config.norm_eps, device)
        self.head = Linear(shape.dim, padded, device)

    def forward(
        self,
        tokens: Tensor,  # (B, T) int64
        *,
        causal: bool,
        key: Tensor | None = None,  # (B,) int64: dropout on, keyed by it
        targets: Tensor | None = None,  # (B, T) int64
    ) -> Tensor:
        """Compute logits (B, T, V_padded), or the nats of `targets` (B, T), at least float32."""
        seq_len, device = tokens.shape[1], tokens.device
        # The backward pass on a GPU sorts the ids: of 32 bits in half the passes of 64.
        ids = tokens.int() if tokens.is_cuda else tokens
        x = F.embedding(ids, self.embed.weight).to(self.dtype)
        drops = key is not None and self.config.dropout > 0
        context = Context(
            *rotary_tables(seq_len, self.shape.head_dim, self.config.rope_base, device, self.dtype),
            element_hashes(seq_len, self.shape.dim, device) if drops else None,
            causal,
            has_kernel(self.shape.head_dim, self.dtype, device),
        )
        keys = layer_keys(key, len(self.blocks)) if drops and key is not None else None
        cudnn = has_cudnn(self.shape.head_dim, self.dtype, device)
        masks = [
            mask_of(seq_len, window, device, causal=causal, cudnn=cudnn) for window in self.windows
        ]
        states = self.states(x, context, masks, keys)
        if targets is None:
            logits: Tensor = self.head(states)
            return logits
        return head_nats(states, self.head.weight_in(states.dtype), targets, self.vocab_size)

    def states(
        self, x: Tensor, context: Context, masks: Sequence[Any], keys: Tensor | None = None
    ) -> Tensor:
        """Compute the head's input (B, T, D) from embedded tokens x; `masks` has one per layer."""
        y: Tensor | None = None
        for layer, (block, mask) in enumerate(zip(self.blocks, masks, strict=True)):
            x, y = block(x, y, context, mask, None if keys is None else keys[layer])
        assert y is not None, "a model has a layer"
        out: Tensor = self.norm(x, y)
        return out
