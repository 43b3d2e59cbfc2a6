"""Our Triton kernels' common ground: which tensors they compute on."""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import Tensor

HALVES = (torch.bfloat16, torch.float16)
HAS_TRITON = find_spec("triton") is not None  # torch has it beside it on most GPUs, not on all


def on_kernels(x: Tensor) -> bool:
    """Whether kernels of ours compute on this tensor: half precision on a GPU."""
    return HAS_TRITON and x.is_cuda and x.dtype in HALVES
