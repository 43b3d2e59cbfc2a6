"""A run to evaluate: its row, weights and tokenizer, each checked against the others.

run = find_run(Path("dcray-runs"), "mine/60k/32k/ar")       # the record alone, no weights yet
loaded = run.load(torch.device("cpu"))
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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

    from dcray.model.ensemble import Ensemble
    from dcray.model.transformer import Transformer


@dataclass(frozen=True)
class FoundRun:
    """A complete result whose weights and corpus are available; nothing large is loaded yet.

    weights: the folder of its weights; of an ensemble, that of each member.
    """

    name: str  # as it was asked for
    row: Row
    weights: tuple[Path, ...]
    corpus: Corpus
    members: tuple[Row, ...]  # of an ensemble its members' results, of a run its own

    @property
    def label(self) -> str:
        """Format study, cell and seed for people, or seeds."""
        seeds = ", ".join(str(row.seed) for row in self.members)
        several = "s" if len(self.members) > 1 else ""
        return f"{'/'.join(find.names_of(self.row))} seed{several} {seeds}"

    @property
    def place(self) -> str:
        """Format where the weights are, for people."""
        return ", ".join(map(str, self.weights))

    def apart(self) -> list[FoundRun]:
        """List the members of an ensemble as runs of their own; a run is its own only one."""
        pairs = zip(self.members, self.weights, strict=True)
        return [replace(self, row=row, weights=(at,), members=(row,)) for row, at in pairs]

    def load(
        self, device: torch.device, *, precision: str = "auto", compiled: bool = False
    ) -> LoadedRun:
        """Load the model, or all of an ensemble, onto `device`.

        Raises ConfigError if a file is damaged.
        """
        from dcray.model.ensemble import Ensemble

        how: dict[str, Any] = {"precision": precision, "compiled": compiled}
        loaded = [load_weights(path, device, **how) for path in self.weights]
        config, first = loaded[0]
        model = first if len(loaded) == 1 else Ensemble([one for _, one in loaded])
        return LoadedRun(self, config, model, config.objective.build())


@dataclass(frozen=True)
class LoadedRun:
    """A run, its configuration and its model; of an ensemble, the first member's configuration."""

    found: FoundRun
    config: RunConfig
    model: Transformer | Ensemble
    objective: Objective

    @property
    def seq_len(self) -> int:
        """Return the longest input, in tokens, that the model was trained on."""
        return self.config.data.seq_len

    @property
    def single(self) -> Transformer:
        """Return the model of a run by itself, which is no ensemble."""
        from dcray.model.transformer import Transformer

        assert isinstance(self.model, Transformer), "an ensemble has several models"
        return self.model

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
    members = find.member_rows(directory, row, tracking_uri=tracking_uri)
    home = directory / row.study / "checkpoints"
    weights = tuple(_weights(home, one, of_several=len(members) > 1) for one in members)
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
    return FoundRun(name, row, weights, opened, tuple(members))


def _weights(home: Path, row: Row, *, of_several: bool) -> Path:
    """Find the weights of a run; raise ConfigError if it has none."""
    try:
        return weights_folder(home / row.key)
    except ConfigError as error:
        if not of_several:
            raise
        raise ConfigError(
            f"the member of seed {row.seed} has no weights in {home / row.key}: a search keeps "
            f"them from when its file names the ensemble. Delete run {row.run_id} in MLflow and "
            "search again to train that member anew, or give --dir the folder it was trained in"
        ) from error
