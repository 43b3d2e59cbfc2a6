"""What cannot be done: sentences that name the field, the rule, the value and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence, Set


class ConfigError(ValueError):
    """Problems of a user's input, each a sentence; the command ends with exit code 2."""

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(self.problems))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[tuple[str, ...]]]:
        return type(self), (self.problems,)


class RecordAwayError(RuntimeError):
    """The record could not be reached for the stated time; what was buffered is kept."""


def plural(count: float, noun: str) -> str:
    """ "1 document", "2,000 documents"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """' (did you mean "wsd"?)' for the nearest of `known`, else all in order (one of: ...)."""
    choices = sorted(known) if isinstance(known, Set) else list(dict.fromkeys(known))
    near = difflib.get_close_matches(name, choices, n=1, cutoff=0.6)
    if near:
        return f' (did you mean "{near[0]}"?)'
    return f" (one of: {', '.join(choices)})" if choices else ""
