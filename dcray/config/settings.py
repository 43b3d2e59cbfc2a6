"""The settings of a run beside its epochs, weight decay and lr: which vary, and their names.

A setting has the full name of its field ("objective.weight"); tables show the last part of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from dcray.config.plugged import PLUGGED
from dcray.config.run import RunConfig

COLUMNS = {  # columns of the record that have a name of their own: the field
    "batch_size": "batch_size",
    "seq_len": "data.seq_len",
    "schedule": "schedule.kind",
    "dropout": "model.dropout",
}
SHORT = {"schedule.kind": "schedule", "average.kind": "average"}


def settings_of(config: RunConfig, axes: Iterable[str] = ()) -> dict[str, Any]:
    """Collect the settings of a configuration: options of plug-ins, the average, COLUMNS and axes.

    An axis that the configuration does not have (another objective's option) is left out.
    """
    tree = config.model_dump(mode="json")
    options = [f"{field}.{name}" for field in PLUGGED for name in tree[field] if name != "name"]
    averaged = [f"average.{name}" for name in config.average.fields()]
    names = dict.fromkeys([*options, *averaged, *COLUMNS.values(), *axes])
    found = {name: _leaf(tree, name.split(".")) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def recorded_settings(params: Mapping[str, str]) -> dict[str, Any]:
    """Read the settings of a result on record from its columns, numbers as numbers."""
    found = {COLUMNS[name]: text for name, text in params.items() if name in COLUMNS}
    found |= {name: text for name, text in params.items() if "." in name}
    return {name: _parsed(text) for name, text in found.items()}


def varied(settings: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """List the names that have more than one value among the settings that have them, sorted."""
    values: dict[str, set[str]] = {}
    for one in settings:
        for name, value in one.items():
            values.setdefault(name, set()).add(str(value))
    return tuple(sorted(name for name, found in values.items() if len(found) > 1))


def short_names(names: Sequence[str], taken: Collection[str] = ()) -> dict[str, str]:
    """Name each setting for a table: its last part, unless another column is called the same."""
    last = {name: SHORT.get(name, name.rpartition(".")[2]) for name in names}
    parts = [*last.values(), *taken]
    return {name: short if parts.count(short) == 1 else name for name, short in last.items()}


def in_words(settings: Mapping[str, Any], *, gap: str = " ") -> list[str]:
    """Format settings for people under their short names: ["weight 0.4", "mixed true"]."""
    names = short_names(list(settings))
    return [f"{names[name]}{gap}{value_text(value)}" for name, value in settings.items()]


def value_text(value: Any) -> str:
    """Format a setting's value for people: "0.4", "true", "" for None."""
    if value is None or isinstance(value, bool):
        return "" if value is None else str(value).lower()
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _leaf(tree: Any, path: Sequence[str]) -> Any:
    for part in path:
        tree = tree.get(part) if isinstance(tree, Mapping) else None
    return tree


def _parsed(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
