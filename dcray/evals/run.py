"""A run to evaluate: its row, weights and tokenizer, each checked against the others.

run = find_run(Path("dcray-runs"), "mine/60k/32k/ar")       # the record alone, no weights yet
loaded = run.load(torch.device("cpu"))
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcray.config.run import RunConfig
from dcray.corpus.manifest import Corpus
from dcray.errors import ConfigError
from dcray.objectives import Objective
from dcray.track import find
from dcray.track.rows import Row
from dcray.train.checkpoint.weights import load_weights, weights_folder

if TYPE_CHECKING:
    import torch

    from dcray.model.transformer import Transformer


@dataclass(frozen=True)
class FoundRun:
    """A complete result whose weights and corpus are available; nothing large is loaded yet."""

    name: str  # as it was asked for
    row: Row
    weights: Path
    corpus: Corpus

    @property
    def label(self) -> str:
        """Format study, cell and seed for people."""
        return f"{'/'.join(find.names_of(self.row))} seed {self.row.seed}"

    def load(
        self, device: torch.device, *, precision: str = "auto", compiled: bool = False
    ) -> LoadedRun:
        """Load the model onto `device`; raise ConfigError if a file is damaged."""
        config, model = load_weights(self.weights, device, precision=precision, compiled=compiled)
        return LoadedRun(self, config, model, config.objective.build())


@dataclass(frozen=True)
class LoadedRun:
    """A run, its configuration and its model."""

    found: FoundRun
    config: RunConfig
    model: Transformer
    objective: Objective

    @property
    def seq_len(self) -> int:
        """Return the longest input, in tokens, that the model was trained on."""
        return self.config.data.seq_len

    @property
    def tokenizer(self) -> Any:
        return self.found.corpus.tokenizer


def find_run(
    directory: Path, name: str, *, corpus: Path | None = None, tracking_uri: str | None = None
) -> FoundRun:
    """Find the run that `name` means (see track/find.py), with its weights and a matching corpus.

    corpus: None takes the folder that the run was trained on. Raises ConfigError for a run without
    weights, and for a corpus of another tokenizer than the checkpoint's.
    """
    row = find.find(directory, name, tracking_uri=tracking_uri)
    weights = weights_folder(directory / row.study / "checkpoints" / row.key)
    noted = row.tags.get("corpus")
    if corpus is None and (noted is None or not Path(noted).is_dir()):
        raise ConfigError(
            f"--corpus must name the corpus that {name} was trained on, for its tokenizer"
            + (f"; it was at {noted}" if noted else "")
        )
    opened = Corpus.open(corpus or Path(noted or ""))
    theirs = find.manifest(directory, row, tracking_uri=tracking_uri)["tokenizer"]
    ours = opened.manifest.tokenizer
    if theirs["sha256"] != ours.sha256:
        raise ConfigError(
            f"{name} is a checkpoint of another tokenizer: {theirs['name']} "
            f"({theirs['sha256'][:12]}), and {opened.path} has {ours.name} ({ours.sha256[:12]}); "
            "give --corpus the one that it was trained on"
        )
    return FoundRun(name, row, weights, opened)
