"""The request for a corpus, and whether a folder answers it already."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dcray.corpus.record import MANIFEST, Manifest, read_manifest
from dcray.corpus.tokenizers import vocabularies
from dcray.corpus.tokenizers.encoders import tokenizer_file
from dcray.errors import ConfigError
from dcray.sources import content, left_out_line, source_name


@dataclass(frozen=True)
class Request:
    """The request for a corpus; its record is stored and compared with the next request."""

    source: Any
    tokenizer: str
    budgets: tuple[int, ...]
    val_tokens: int
    seed: int

    def record(self) -> dict[str, Any]:
        """Return the request as JSON; equal records give equal corpora."""
        asked = getattr(self.source, "request", None)
        return {
            "source": asked() if asked else {"source": source_name(self.source)},
            "tokenizer": self.tokenizer,
            **self._tokenizer_file(),
            "budgets": list(self.budgets),
            "val_tokens": self.val_tokens,
            "seed": self.seed,
        }

    def _tokenizer_file(self) -> dict[str, str]:
        """Hash the file of hf:PATH: if it was edited, the request is another one."""
        kind, _, path = self.tokenizer.partition(":")
        file = tokenizer_file(Path(path))
        if kind != "hf" or not file.is_file():  # the missing file is told by what reads it
            return {}
        return {"tokenizer_content": content(file.parent, [file])}

    def left_out(self) -> str:
        """Write the end of a sentence that names what the source left out; "" for nothing."""
        record: dict[str, Any] = getattr(self.source, "left_out", dict)()
        return f"; left out: {left_out_line(record)}" if record else ""

    @property
    def needed(self) -> int:
        return self.budgets[-1] + self.val_tokens


def checked_tokenizer(
    source: Any, tokenizer: str | None, budgets: Sequence[int], val_tokens: int
) -> str:
    """Return the tokenizer's name; raises ConfigError with all that is wrong with a request."""
    problems: list[str] = []
    if not budgets or min(budgets) < 2:
        problems.append(f"budgets must be counts of at least 2 tokens, got {list(budgets)}")
    if val_tokens < 2:
        problems.append(f"val_tokens must be at least 2, got {val_tokens}")
    vocabulary = getattr(source, "vocabulary", None)
    ids = hasattr(source, "tokens")
    name = tokenizer or vocabulary or ""
    if not name and ids:
        problems.append(
            "a source of tokens must say what its ids mean: give --option vocabulary=gpt2 (or "
            "byte, hf:PATH, bpe:V, or ids:V for V ids whose text does not matter)"
        )
    elif not name:
        problems.append(f"tokenizer must be given (one of: {', '.join(vocabularies.NAMES)})")
    elif vocabulary and name != vocabulary:
        problems.append(
            f'tokenizer must be "{vocabulary}", the vocabulary of the source, got "{name}"'
        )
    else:
        try:
            vocabularies.check_name(name)
        except ConfigError as error:
            problems += error.problems
    if not ids and name.startswith("ids:"):
        problems.append(f"tokenizer {name} encodes no text: it is for sources of tokens")
    if problems:
        raise ConfigError(problems)
    return name


def already_there(out: Path, request: Request) -> Manifest | None:
    """Read the manifest of `out` if it answers the same request; None if `out` is empty or absent.

    Raises ConfigError if the folder holds something else.
    """
    if not out.exists():
        return None
    if out.is_dir() and not any(out.iterdir()):
        return None
    if not (out / MANIFEST).is_file():
        raise ConfigError(f"{out} exists and is no corpus; choose another folder")
    held = read_manifest(out)
    if differences := list(_differences(held.request, request.record())):
        raise ConfigError(
            f"{out} holds another corpus ({'; '.join(differences)}); choose another folder, or "
            "move that one away"
        )
    return held


def _differences(held: dict[str, Any], asked: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key in sorted({*held, *asked}):
        old, new = held.get(key), asked.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _differences(old, new, f"{prefix}{key}.")
        elif old != new:
            yield f"{prefix}{key} is {json.dumps(old)} there, {json.dumps(new)} here"
