"""A dcray transformer for Hugging Face transformers, in one file that does not need dcray.

    AutoModelForCausalLM.from_pretrained(FOLDER, trust_remote_code=True)

RoPE then RMS QK-norm, sliding windows, SwiGLU, an untied head. It has no key-value cache.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import MaskedLMOutput


class DcrayConfig(PretrainedConfig):  # type: ignore[misc]
    """The shape of a model; `windows`: how far back each layer looks, None for all."""

    model_type = "dcray"

    def __init__(
        self,
        vocab_size: int = 512,
        hidden_size: int = 32,
        num_hidden_layers: int = 2,
        num_attention_heads: int = 2,
        intermediate_size: int = 96,
        max_position_embeddings: int = 128,
        windows: list[int | None] | None = None,
        rope_theta: float = 10_000.0,
        rms_norm_eps: float = 1e-5,
        causal: bool = True,
        **kwargs: Any,
    ) -> None:
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.intermediate_size = intermediate_size
        self.max_position_embeddings = max_position_embeddings
        self.windows = windows or [None] * num_hidden_layers
        self.rope_theta = rope_theta
        self.rms_norm_eps = rms_norm_eps
        self.causal = causal
        super().__init__(**{"tie_word_embeddings": False, "use_cache": False, **kwargs})


class Norm(nn.Module):
    """x / rms(x) * gain over the last axis."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


class Attention(nn.Module):
    """Multi-head attention with RoPE, then QK-norm."""

    def __init__(self, config: DcrayConfig) -> None:
        super().__init__()
        dim, self.num_heads = config.hidden_size, config.num_attention_heads
        self.query, self.key, self.value, self.out = (
            nn.Linear(dim, dim, bias=False) for _ in range(4)
        )
        self.query_norm = Norm(dim // self.num_heads, config.rms_norm_eps)
        self.key_norm = Norm(dim // self.num_heads, config.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        batch, length, dim = x.shape
        heads = (batch, length, self.num_heads, dim // self.num_heads)
        q, k, v = (f(x).view(heads).transpose(1, 2) for f in (self.query, self.key, self.value))
        q, k = self.query_norm(rotate(q, cos, sin)), self.key_norm(rotate(k, cos, sin))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        out: Tensor = self.out(y.transpose(1, 2).reshape(batch, length, dim))
        return out


class MLP(nn.Module):
    """The feed-forward layer: down(silu(gate(x)) * up(x)), SwiGLU."""

    def __init__(self, config: DcrayConfig) -> None:
        super().__init__()
        dim, inner = config.hidden_size, config.intermediate_size
        self.gate = nn.Linear(dim, inner, bias=False)
        self.up = nn.Linear(dim, inner, bias=False)
        self.down = nn.Linear(inner, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return y


class Block(nn.Module):
    """One layer: x + attn(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: DcrayConfig) -> None:
        super().__init__()
        self.attn_norm = Norm(config.hidden_size, config.rms_norm_eps)
        self.attn = Attention(config)
        self.mlp_norm = Norm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        x = x + self.attn(self.attn_norm(x), cos, sin, mask)
        y: Tensor = x + self.mlp(self.mlp_norm(x))
        return y


class DcrayForMaskedLM(PreTrainedModel):  # type: ignore[misc]
    """The model: logits (B, T, V) of ids (B, T), causal or bidirectional by `config.causal`."""

    config_class = DcrayConfig
    base_model_prefix = ""
    _supports_sdpa = True

    def __init__(self, config: DcrayConfig) -> None:
        super().__init__(config)
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.norm = Norm(config.hidden_size, config.rms_norm_eps)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embed

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        **_: Any,
    ) -> MaskedLMOutput:
        """Compute logits (B, T, V), and the loss if `labels` are given, as in transformers.

        attention_mask: (B, T), 0 at padding on either side.
        """
        real = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        real = real.bool()
        positions = (real.long().cumsum(1) - 1).clamp(min=0)
        x = self.embed(input_ids)
        cos, sin = self._rotary(positions, x.dtype)
        distance = positions[:, :, None] - positions[:, None, :]
        seen = real[:, None, :] | torch.eye(real.shape[1], dtype=torch.bool, device=real.device)
        if self.config.causal:
            seen = seen & torch.ones_like(seen[0]).tril()
        for block, window in zip(self.blocks, self.config.windows, strict=True):
            near = self.config.causal and window is not None
            x = block(x, cos, sin, (seen & (distance <= window) if near else seen)[:, None])
        logits = self.head(self.norm(x))
        return MaskedLMOutput(loss=self._loss(logits, labels), logits=logits)

    def _loss(self, logits: Tensor, labels: Tensor | None) -> Tensor | None:
        if labels is None:
            return None
        if self.config.causal:
            logits, labels = logits[:, :-1], labels[:, 1:]
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())

    def _rotary(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        head_dim = self.config.hidden_size // self.config.num_attention_heads
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float64, device=positions.device)
        frequencies = self.config.rope_theta ** -(exponents / head_dim)
        angles = (positions[..., None] * frequencies)[:, None]
        return angles.cos().to(dtype), angles.sin().to(dtype)


class DcrayForCausalLM(DcrayForMaskedLM, GenerationMixin):  # type: ignore[misc]
    """The same model if it is causal; `generate` reads the whole text again for every token."""

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any
    ) -> dict[str, Any]:
        """Return the whole text as inputs, whatever `use_cache` says: there is no cache."""
        return {"input_ids": input_ids, "attention_mask": attention_mask}


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x (B, H, T, head_dim) by its position; channel i is paired with i + head_dim / 2."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)
