"""Models of one vocabulary that predict together: by the mean of their probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dcray.model.transformer import Transformer


class Ensemble(nn.Module):
    """An ensemble of causal models, for evaluation alone; all members are on one device.

    It is called as a Transformer is. Its logits are logs of probabilities, (B, T, V).
    """

    def __init__(self, members: Sequence[Transformer]) -> None:
        super().__init__()
        sizes = {member.vocab_size for member in members}
        assert len(members) > 1, "an ensemble has two members at least"
        assert len(sizes) == 1, "members have one vocabulary"
        self.members = nn.ModuleList(members)
        self.vocab_size = members[0].vocab_size
        self.embed = members[0].embed

    def forward(
        self,
        tokens: Tensor,  # (B, T) int64
        *,
        causal: bool,
        key: Tensor | None = None,
        targets: Tensor | None = None,  # (B, T) int64
    ) -> Tensor:
        """Compute logs of mean probabilities (B, T, V), or the nats of `targets` (B, T)."""
        found = [one(tokens, causal=causal, key=key, targets=targets) for one in self.members]
        if targets is None:
            return averaged([logits[..., : self.vocab_size] for logits in found])
        nats = torch.stack([one.double() for one in found])
        return math.log(len(found)) - torch.logsumexp(-nats, 0)


def members_of(model: Transformer | Ensemble) -> list[Transformer]:
    """List the models of an ensemble; a model alone is its own only one."""
    if not isinstance(model, Ensemble):
        return [model]
    return [one for one in model.members if isinstance(one, Transformer)]


def averaged(logits: Sequence[Tensor]) -> Tensor:
    """Compute the log of the mean probabilities (..., V) of several models' logits (..., V).

    The logits of one model are returned as they are.
    """
    if len(logits) == 1:
        return logits[0]
    logs = torch.stack([one.float().log_softmax(-1) for one in logits])
    return torch.logsumexp(logs, 0) - math.log(len(logits))
