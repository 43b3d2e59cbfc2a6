"""Compiling a model for a GPU: block by block, and the last norm."""

from __future__ import annotations

from dcray.model.transformer import Transformer

VARIANTS = 64  # of a block's code: six for each shape of a batch that a process has trained on


def compile_model(model: Transformer, *, alone: bool) -> None:
    """Compile what a step repeats. alone: on one device, without FSDP's hooks in the parts."""
    import torch._dynamo

    torch._dynamo.config.recompile_limit = VARIANTS  # beyond 8 it would go on uncompiled
    for block in model.blocks:
        block.compile(dynamic=False)  # one shape: all batches are padded to it
    if alone:
        model.norm.compile(dynamic=False)
