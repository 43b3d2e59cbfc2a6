"""The validation rows of a corpus, as a run and an evaluation read them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray


@dataclass(frozen=True)
class ValidationRows:
    """All validation rows, with the source bytes of their tokens if the corpus has text."""

    tokens: NDArray[Any]  # (rows, T + 1)
    text_bytes: NDArray[Any] | None  # (rows, T + 1); -1 marks <|endoftext|>

    def __len__(self) -> int:
        return len(self.tokens)
