"""The export of an ensemble: a checkpoint for each member, in one folder, and how to average them.

FOLDER/seed1, FOLDER/seed2, ... are checkpoints as of single runs; FOLDER/ensemble.json names them.
No format of transformers holds several models that are averaged.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from dcray.corpus.folder import partial_folder, publish
from dcray.evals.export.checkpoint import Export, cannot, check_target, export
from dcray.evals.run import FoundRun
from dcray.fit.ensemble import EnsembleLoss

INDEX = "ensemble.json"
HOW = "the mean of the members' softmax probabilities; its log has the ensemble's loss"


def export_members(found: FoundRun, folder: Path) -> list[Export]:
    """Write every member of an ensemble, each compared with its run; publish all or nothing.

    Raises ExportError if one differs from its run, ConfigError if the folder cannot be written.
    """
    check_target(folder)
    members = found.apart()
    with partial_folder(folder, cannot=cannot) as partial:
        done = []
        for one in members:
            run = one.load(torch.device("cpu"), precision="float32")
            done.append(export(run, partial / name_of(one)))
        (partial / INDEX).write_text(json.dumps(_index(found, members), indent=1), encoding="utf-8")
        publish(partial, folder)
    return [replace(one, folder=folder / one.folder.name) for one in done]


def name_of(member: FoundRun) -> str:
    """Return the name of a member's folder: "seed1"."""
    return f"seed{member.row.seed}"


def _index(found: FoundRun, members: Sequence[FoundRun]) -> dict[str, object]:
    losses = EnsembleLoss.from_metrics(found.row.metrics)
    return {
        "members": [name_of(one) for one in members],
        "predicts": HOW,
        "study": found.row.study,
        "key": found.row.key,
        "run_id": found.row.run_id,
        "val_loss": found.row.val_loss,
        "val_loss_of_members": losses.losses if losses else None,
        "val_loss_limit": losses.limit if losses else None,
    }
