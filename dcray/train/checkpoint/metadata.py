"""The metadata of a checkpoint: its format, its configuration, its progress."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dcray.config.run import RunConfig
from dcray.errors import ConfigError

FORMAT = 1


def read_meta(path: Path) -> dict[str, Any]:
    """Read the meta.json of one checkpoint; raises ConfigError if a newer dcray wrote it."""
    meta: dict[str, Any] = json.loads((path / "meta.json").read_text(encoding="utf-8"))
    if meta["format"] > FORMAT:
        raise ConfigError(
            f"the checkpoint {path} has format {meta['format']}, written by a newer dcray; "
            f"this one reads up to {FORMAT}: upgrade dcray"
        )
    return meta


def check_same(
    saved: Mapping[str, Any], config: RunConfig, path: Path, *, but: Collection[str] = ()
) -> None:
    """Raise ConfigError that names every field in which the checkpoint's configuration differs.

    but: fields that may differ.
    """
    try:
        theirs, ours = RunConfig.model_validate(saved), config
    except ValidationError as error:
        fields = ", ".join(".".join(map(str, detail["loc"])) for detail in error.errors())
        raise ConfigError(
            f"the checkpoint {path} is of another dcray: its configuration has no meaning here "
            f"({fields}). Go on with that dcray, or move the folder away to start afresh"
        ) from None
    pairs = _differences(_named(theirs), _named(ours))
    pairs = [pair for pair in pairs if pair[0] not in but]
    if pairs:
        listed = "; ".join(f"{name} is {a!r} there and {b!r} here" for name, a, b in pairs)
        raise ConfigError(
            f"the checkpoint {path} is of another configuration: {listed}. "
            "Train with its values, or move the folder away to start afresh"
        )


def _named(config: RunConfig) -> dict[str, Any]:
    named = {"seed": config.seed, "optimizer": config.to_dict()["optimizer"]}
    return config.identity_fields() | named


def _differences(a: Any, b: Any, name: str = "") -> list[tuple[str, Any, Any]]:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        keys = sorted({*a, *b})
        prefix = f"{name}." if name else ""
        return [d for k in keys for d in _differences(a.get(k), b.get(k), f"{prefix}{k}")]
    return [] if a == b else [(name, a, b)]
