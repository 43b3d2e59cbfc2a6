"""TOML that a person writes: a file, or field=value on a command line."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from dcray.errors import ConfigError


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read a TOML file into a table; ConfigError names the file and the line that is wrong."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def parse_assignments(assignments: list[str]) -> dict[str, Any]:
    """Parse ["optim.lr=3e-3"] to {"optim.lr": 0.003}; values are TOML, else plain strings."""
    changes: dict[str, Any] = {}
    for text in assignments:
        path, equals, value = text.partition("=")
        if not equals or not path.strip():
            raise ConfigError(f'an override is written field=value, got "{text}"')
        try:
            changes[path.strip()] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            changes[path.strip()] = value.strip()
    return changes
