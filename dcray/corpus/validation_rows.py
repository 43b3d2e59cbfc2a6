"""The validation rows of a corpus, and the files of what runs give their targets.

A file DIR/STUDY/validation/RUN.npy holds the nats (rows, T) float32 of every validation target
under the final weights of one run: all that the loss of an ensemble needs of its members.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcray.errors import ConfigError


@dataclass(frozen=True)
class ValidationRows:
    """All validation rows, with the source bytes of their tokens if the corpus has text."""

    tokens: NDArray[Any]  # (rows, T + 1)
    text_bytes: NDArray[Any] | None  # (rows, T + 1); -1 marks <|endoftext|>

    def __len__(self) -> int:
        return len(self.tokens)


def nats_file(home: Path, name: str) -> Path:
    """Return the place of a run's nats of validation targets; home: the folder of its study."""
    return home / "validation" / f"{name}.npy"


def write_nats(path: Path, nats: NDArray[np.float32]) -> None:
    """Write nats (rows, T) to a file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"partial-{path.name}")
    np.save(partial, nats, allow_pickle=False)
    partial.replace(path)


def read_nats(path: Path) -> NDArray[np.float32]:
    """Read nats (rows, T) from a file; raise ConfigError if it is damaged or not there."""
    try:
        found: NDArray[np.float32] = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ConfigError(
            f"the nats of validation targets {path} cannot be read ({error}): they are written at "
            "the end of a confirmation; delete that run in MLflow and search again to train it anew"
        ) from None
    return found
