"""Small runs for tests: random tokens in memory, one process or two gloo ranks."""

from __future__ import annotations

import os
import pickle
import shutil
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from dcray.config.run import RunConfig, override
from dcray.corpus.order import cut_rows, pack
from dcray.reports import Outcome, Report
from dcray.train.checkpoint.manager import Checkpoints
from dcray.train.evaluate import ValidationRows
from dcray.train.loop import Data, train
from dcray.train.shard import RankContext, this_place

VOCAB_SIZE = 100  # padded to 128, so that the padding is always in play
MASK_ID = VOCAB_SIZE - 1

TINY: dict[str, Any] = {
    "size": {"dim": 16, "num_layers": 2, "num_heads": 2, "mlp_dim": 32},
    "data.seq_len": 16,
    "data.unique_tokens": 16 * 22 + 1,  # 22 rows: 4 epochs are 11 batches of 8
    "batch_size": 8,
    "num_epochs": 4,
    "optim.lr": 1e-2,
    "optim.weight_decay": 0.5,
    "validation.epochs": "end",
    "runtime.report_seconds": 0,
}


def tiny_config(**changes: Any) -> RunConfig:
    """A resolved configuration of seconds; changes are written with __ for the dots."""
    dotted = {name.replace("__", "."): value for name, value in changes.items()}
    return override(RunConfig(), TINY | dotted).resolved(vocab_size=VOCAB_SIZE)


def tiny_tokens(num_tokens: int = 16 * 22 + 1, seed: int = 0) -> np.ndarray:
    """Random walks over the vocabulary: there is something to learn."""
    rng = np.random.default_rng(seed)
    return (np.cumsum(rng.integers(0, 3, num_tokens)) % (VOCAB_SIZE - 2)).astype(np.uint16)


def packed_rows(tokens: np.ndarray, starts: np.ndarray, config: RunConfig) -> np.ndarray:
    """The rows of all epochs by their ids: documents cut out, laid end to end, cut again."""
    data = config.data
    documents = np.split(tokens[: data.unique_tokens], starts[1:])
    epochs = []
    for epoch in range(config.num_epochs):
        packing = pack(starts, data.unique_tokens, seed=config.seed, epoch=epoch)
        order = np.searchsorted(starts, packing.sources)
        laid = np.concatenate([documents[i] for i in order])
        epochs.append(cut_rows(laid, data.seq_len, data.stride))
    return np.concatenate(epochs)


def tiny_data(
    config: RunConfig, *, num_val_rows: int = 5, seen: list[np.ndarray] | None = None
) -> Data:
    """Rows of `tiny_tokens` in memory; `seen` collects the row ids that were fetched.

    Documents to be packed anew are of 37 tokens.
    """
    tokens = tiny_tokens(config.data.unique_tokens)
    if config.data.order == "documents":
        rows = packed_rows(tokens, np.arange(0, len(tokens), 37), config)
    else:
        rows = cut_rows(tokens, config.data.seq_len, config.data.stride)
    val = cut_rows(
        tiny_tokens(num_val_rows * config.data.seq_len + 1, seed=1),
        config.data.seq_len,
        config.data.seq_len,
    )

    def fetch(all_ids: Any) -> Any:
        for ids in all_ids:
            if seen is not None:
                seen.append(ids)
            yield rows[ids]

    return Data(fetch, ValidationRows(val, np.ones(val.shape, dtype=np.int16)), MASK_ID)


def run_tiny(
    config: RunConfig,
    place: RankContext | None = None,
    *,
    folder: Path | None = None,
    microbatch_size: int = 4,
    stop_at: int | None = None,
    num_val_rows: int = 5,
    seen: list[np.ndarray] | None = None,
    on_result: Callable[[Any], None] = lambda model: None,
) -> tuple[Outcome, list[Report]]:
    """Train on this rank; stops at a report from step `stop_at` on."""
    torch.set_num_threads(1)
    place = place or RankContext(torch.device("cpu"))
    reports: list[Report] = []
    checkpoints = (
        Checkpoints(folder, config, place, keep=config.runtime.keep_checkpoints) if folder else None
    )
    outcome = train(
        config,
        tiny_data(config, num_val_rows=num_val_rows, seen=seen),
        place,
        microbatch_size=microbatch_size,
        report=reports.append,
        checkpoints=checkpoints,
        should_stop=lambda: (
            stop_at is not None and bool(reports) and reports[-1].step + 1 >= stop_at
        ),
        on_result=on_result,
    )
    return outcome, reports


def on_ranks(world_size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """function(place, *args) on `world_size` gloo processes; what each returned, by rank."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = tempfile.mkdtemp()
    mp.spawn(_rank, (world_size, port, folder, function, args), world_size)
    found = [Path(folder, str(rank)).read_bytes() for rank in range(world_size)]
    shutil.rmtree(folder)
    return [pickle.loads(data) for data in found]


def _rank(
    rank: int, world_size: int, port: int, folder: str, function: Callable[..., Any], args: Any
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size
    )
    found = function(this_place(torch.device("cpu")), *args)
    Path(folder, str(rank)).write_bytes(pickle.dumps(found))
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # all is written: gloo's threads may abort an interpreter that tears itself down
