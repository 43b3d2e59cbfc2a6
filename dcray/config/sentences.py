"""Errors of a configuration as sentences that name its fields."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError

from dcray.errors import did_you_mean, rule_of


def sentences(error: ValidationError, names: Sequence[str]) -> list[str]:
    """Format a pydantic error as one sentence a field, with the rules it breaks and its value.

    names: every dotted field of the configuration.
    """
    rules: dict[str, list[str]] = {}
    found: list[str] = []
    for detail in error.errors():
        path = _path(detail["loc"], names)
        message = rule_of(detail)
        if detail["type"] == "extra_forbidden":
            found.append(f'"{path}" is not a field{did_you_mean(path, names)}')
        elif not path or message.startswith((path, path.split(".")[0] + ".", '"', "no ")):
            found.append(message)  # it names the field itself
        else:  # one of a union's rules must hold
            verb = f"{path} {{}}" if message.startswith("must ") else f"{path}: {{}}"
            rule = f"{message[:1].lower()}{message[1:]}"
            rules.setdefault(f"{verb}, got {detail['input']!r}", []).append(rule)
    return found + [text.replace("{}", "; or ".join(every), 1) for text, every in rules.items()]


def _path(steps: tuple[int | str, ...], names: Sequence[str]) -> str:
    """Find the dotted field of a pydantic location, without steps that name a branch of a union."""
    path = ""
    for step in steps:
        longer = f"{path}.{step}" if path else str(step)
        if step in ("NAME", "TABLE"):
            continue
        if path in names and longer not in names and not (path == "size" or isinstance(step, int)):
            break
        path = longer
    return path
