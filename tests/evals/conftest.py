"""A record with an AR, a MIR and a diffusion run, their checkpoints and corpus: real files."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from dcray.config.run import RunConfig, override
from dcray.corpus.manifest import Corpus
from dcray.evals.validation import rows_of
from dcray.track.store import Store
from dcray.train.checkpoint.manager import Checkpoints
from dcray.train.evaluate import FINAL_DRAW, evaluate
from dcray.train.optim import build_optimizer
from dcray.train.shard import RankContext, build_model
from dcray.types import Cell, RunKey
from tests.evals.support import SEQ_LEN
from tests.support import TINY

PLACE = RankContext(torch.device("cpu"))
RECIPES = ("ar", "mir", "mdlm")


@dataclass
class Record:
    """Where the record and the corpus lie, and the run id of each recipe."""

    directory: Path
    corpus: Path
    ids: dict[str, str]

    def name(self, recipe: str) -> str:
        return f"study/tiny/900/{recipe}"


@pytest.fixture(scope="session")
def finished(tiny_corpus, tmp_path_factory) -> Record:
    """Untrained weights under finished runs: what reads them cannot tell."""
    directory = tmp_path_factory.mktemp("record")
    corpus, ids = Corpus.open(tiny_corpus), {}
    with Store.open(directory, study="study") as store:
        for seed, recipe in enumerate(RECIPES):
            ids[recipe] = _run(store, corpus, directory, recipe, seed)
    return Record(directory, tiny_corpus, ids)


@pytest.fixture
def record(finished, tmp_path) -> Record:
    """A copy that a test may damage; the database names its artifacts where the first one lies."""
    directory = Path(shutil.copytree(finished.directory, tmp_path / "record"))
    return Record(directory, finished.corpus, finished.ids)


def _run(store: Store, corpus: Corpus, directory: Path, recipe: str, seed: int) -> str:
    changes: dict[str, Any] = TINY | {
        "data.seq_len": SEQ_LEN, "data.unique_tokens": 900, "objective": recipe, "seed": seed,
    }  # fmt: skip
    config = override(RunConfig(), changes).resolved(vocab_size=corpus.vocab_size)
    reads = corpus.reads(900, None)
    key = RunKey(Cell("study", "tiny", 900, recipe), config.identity(reads), seed)
    model = build_model(config, PLACE)
    with torch.no_grad():
        model.embed.weight.mul_(16)
    home = directory / "study" / "checkpoints" / key.name
    kept = Checkpoints(home, config, PLACE, keep=1)
    kept.save(model, build_optimizer(model, config), {}, step=11)
    objective = config.objective.build()
    if objective.keeps_best:
        kept.save_best(model, {"step": 11})
    rows = rows_of(corpus, SEQ_LEN, None)
    loss = evaluate(
        model, objective.final(), rows, PLACE,
        mask_id=corpus.mask_id, microbatch_size=4, draw=FINAL_DRAW,
    )  # fmt: skip
    tags = {"objective": recipe, "bound": objective.bound, "corpus": corpus.path,
            "budget": "900"}  # fmt: skip
    manifest = corpus.manifest.model_dump(mode="json")
    params = {"num_epochs": 4, "lr": 0.01, "weight_decay": 0.5}
    with store.begin(
        key, config=config.to_dict(), params=params, tags=tags, manifest=manifest
    ) as result:
        result.finish({"val_loss": loss.loss})
    return result.run_id
