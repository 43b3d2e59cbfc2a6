"""Plain greedy decoding: each token takes one pass over the whole text so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dcray.model.ensemble import Ensemble
from dcray.model.transformer import Transformer


@torch.inference_mode()
def generate(
    model: Transformer | Ensemble,
    tokenizer: Any,
    context: Sequence[int],
    *,
    until: Sequence[str],
    num_tokens: int,
    seq_len: int,
) -> str:
    """Generate at most num_tokens after `context`, cut before the first of the texts in `until`.

    <|endoftext|> ends the text too; [MASK] is never generated. If the input exceeds seq_len, its
    oldest tokens are dropped.
    """
    ids, said = list(context), list[int]()
    device = model.embed.weight.device
    for _ in range(num_tokens):
        inputs = torch.tensor([ids[-seq_len:]], device=device)
        logits = model(inputs, causal=True)[0, -1, : model.vocab_size].float()
        logits[tokenizer.mask_id] = -torch.inf
        token = int(logits.argmax())
        if token == tokenizer.eot_id:
            break
        ids.append(token)
        said.append(token)
        text = tokenizer.decode(said)
        ends = [text.index(stop) for stop in until if stop in text]
        if ends:
            return str(text[: min(ends)])
    return str(tokenizer.decode(said))
