"""Errors of the user's input: sentences that name the field, the rule, the value and the remedy."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


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
    """Format a count with its noun: "1 document", "2,000 documents"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _by_value(name: str) -> tuple[bool, float, str]:
    """Return the sort key of a name: counts such as 72m by value, then words by letter."""
    count = re.fullmatch(r"(\d+\.?\d*)([kmb]?)", name)
    value = float(count[1]) * 1000.0 ** " kmb".index(count[2] or " ") if count else 0.0
    return count is None, value, name


RULES = (  # pydantic's words and dcray's
    (r"^Field required$", "must be given"),
    (r"^Input should be a valid integer.*", "must be a whole number"),
    (r"^Input should be a finite number.*", "must be a finite number"),
    (r"^Input should be a valid number.*", "must be a number"),
    (r"^Input should be a valid string.*", "must be a text"),
    (r"^Input should be a valid boolean.*", "must be true or false"),
    (r"^Input should be a valid (?:list|tuple|array).*", "must be a list"),
    (r"^Input should be (?:a valid dictionary|an object).*", "must be a table"),
    (r"^(?:List|Tuple|Dictionary) should have at least (\d+) items?.*", r"must hold at least \1"),
    (r"^Input should be greater than or equal to (.*)", r"must be at least \1"),
    (r"^Input should be greater than (.*)", r"must be above \1"),
    (r"^Input should be less than or equal to (.*)", r"must be at most \1"),
    (r"^Input should be less than (.*)", r"must be below \1"),
    (r"^Input should be ('[^']*')$", r"must be \1"),
    (r"^Input should be '", "must be one of '"),
    (r"^Input should be ", "must be "),
    (r"^input should be ", "must be "),
)


def rule_of(detail: Mapping[str, Any]) -> str:
    """Translate a pydantic error into the rule that was broken: "must be above 0"."""
    message = str(detail["msg"]).removeprefix("Value error, ")
    for pattern, ours in RULES:
        if re.search(pattern, message):
            return re.sub(pattern, ours, message)
    return message


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, at most 300 characters."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:300]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Format ' (did you mean "wsd"?)' for the nearest of `known`, else ' (one of: ...)'."""
    choices = sorted(known, key=_by_value)
    near = difflib.get_close_matches(name, choices, n=1, cutoff=0.6)
    if near:
        return f' (did you mean "{near[0]}"?)'
    return f" (one of: {', '.join(choices)})" if choices else ""
