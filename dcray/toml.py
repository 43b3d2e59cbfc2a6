"""What a person writes in TOML: a file, or field=value on a command line."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from dcray.errors import ConfigError


def read_toml(path: str | Path) -> dict[str, Any]:
    """A TOML file's table; ConfigError names the file and the line that cannot be read."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def parse_assignments(assignments: list[str]) -> dict[str, Any]:
    """{"optim.lr": 0.003} from ["optim.lr=3e-3"]: values are TOML, else plain strings."""
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
