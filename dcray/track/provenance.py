"""The origin of a result: the user's commit, and the versions of what computed it."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from pathlib import Path

PACKAGES = ("dcray", "ray", "torch", "mlflow", "optuna", "numpy")


def provenance(folder: Path | None = None) -> dict[str, str]:
    """Collect tags: versions, and commit and dirty of the git checkout around `folder` (or here).

    A checkout is dirty if a tracked file differs from its commit.
    """
    tags = {"version.python": platform.python_version()}
    for package in PACKAGES:
        try:
            tags[f"version.{package}"] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    commit = _git("rev-parse", "HEAD", folder=folder)
    if commit:
        changes = _git("status", "--porcelain", "--untracked-files=no", folder=folder)
        tags |= {"commit": commit, "mlflow.source.git.commit": commit}
        if changes is not None:
            tags["dirty"] = str(bool(changes)).lower()
    return tags


def _git(*arguments: str, folder: Path | None) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
