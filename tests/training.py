"""The train command's words for runs of seconds, and how tests look at the record."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

TINY = (
    "size.dim=16",
    "size.num_layers=2",
    "size.num_heads=2",
    "size.mlp_dim=32",
    "data.seq_len=16",
    "data.unique_tokens=500",  # 31 rows
    "batch_size=8",
    "num_epochs=4",
    "optim.lr=1e-2",
    "optim.weight_decay=0.5",
    "validation.epochs=2",
)


def broken_objective(path: Path, error: str) -> Path:
    """A plug-in file: the objective "broken" raises `error`, an expression, at its first step."""
    path.write_text(
        f"""
from typing import ClassVar

from dcray.objectives.ar import AR


class Broken(AR):
    name: ClassVar[str] = "broken"

    def terms(self, model, batch, key):
        raise {error}


PLUGIN = Broken
"""
    )
    return path


def words(corpus: Path, directory: Path, *more: object) -> list[str]:
    """`train` with the tiny configuration; what comes later wins."""
    return ["train", *TINY, "--corpus", str(corpus), "--dir", str(directory), *map(str, more)]


def runs(directory: Path, experiment: str = "train") -> list[Any]:
    """Every result on record (not the cells), as MLflow gives them."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{directory / 'mlflow.db'}")
    found = client.get_experiment_by_name(experiment)
    every = client.search_runs([found.experiment_id]) if found else []
    return [run for run in every if run.data.tags["dcray.role"] == "result"]


def undisturbed_loss(corpus: Path, folder: Path, *more: object) -> float:
    """Train the tiny configuration in a command of its own that nobody disturbs; its loss."""
    child = start(words(corpus, folder / "runs", *more), folder)
    _, err = child.communicate(timeout=400)  # a quiet machine takes ten
    assert child.returncode == 0, err
    (run,) = runs(folder / "runs")
    return float(run.data.metrics["val_loss"])


def client_of(directory: Path) -> Any:
    """An MLflow client of a directory's record."""
    from mlflow.tracking import MlflowClient

    return MlflowClient(f"sqlite:///{directory / 'mlflow.db'}")


def artifact(directory: Path, run: Any, name: str) -> Any:
    """One JSON artifact of a run."""
    path = client_of(directory).download_artifacts(run.info.run_id, name)
    return json.loads(Path(path).read_text())


def start(asked: list[str], cwd: Path, **environment: str) -> subprocess.Popen[str]:
    """The command in a process group of its own, as a shell starts it; HOME is `cwd`/home."""
    (cwd / "home").mkdir(exist_ok=True)
    ours = {"HOME": str(cwd / "home"), "PYTHONPATH": str(Path(__file__).parent.parent)}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return subprocess.Popen(
        [sys.executable, "-m", "dcray", *asked],
        cwd=cwd,
        env=kept | ours | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
