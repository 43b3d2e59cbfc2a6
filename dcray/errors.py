"""What cannot be done: sentences that name the field, the rule, the value and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class ConfigError(ValueError):
    """Problems of a user's input, each a sentence; the command ends with exit code 2."""

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(self.problems))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[tuple[str, ...]]]:
        return type(self), (self.problems,)


class RecordAwayError(RuntimeError):
    """The record could not be reached for the stated time; what was buffered is kept."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """' (did you mean "wsd"?)' for the nearest of `known`, else ' (one of: ...)'."""
    choices = sorted(known)
    near = difflib.get_close_matches(name, choices, n=1, cutoff=0.6)
    if near:
        return f' (did you mean "{near[0]}"?)'
    return f" (one of: {', '.join(choices)})" if choices else ""
