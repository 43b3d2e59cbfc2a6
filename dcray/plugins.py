"""Objectives, laws and sources by name: a file in dcray/KIND/, an entry point, or `--plugin FILE`.

A plug-in module has one attribute `PLUGIN`, a callable that takes the options as keywords. Somebody
else's plug-in is an entry point in the group `dcray.KIND`, or a file whose `PLUGIN` carries
`kind` and `name`. Files come from the command line alone, never from data that people exchange.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import pkgutil
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from dcray.errors import ConfigError, did_you_mean

KINDS = ("objectives", "laws", "sources")
FILES_VARIABLE = "DCRAY_PLUGIN_FILES"  # travels to Ray's workers with the environment of the driver

_from_files: dict[tuple[str, str], Any] = {}
_files_read: set[str] = set()


def names(kind: str) -> tuple[str, ...]:
    """The names of every plug-in of `kind` ("objectives", "laws", "sources"), sorted."""
    return tuple(sorted({*_built_in(kind), *_entry_points(kind), *_files(kind)}))


def plugin(kind: str, name: str) -> Any:
    """The plug-in itself, not yet built: the class behind `load`.

    Raises ConfigError with the nearest name where there is none of this name.
    """
    if name in _built_in(kind):
        return import_module(f"dcray.{kind}.{name}").PLUGIN
    if name in (files := _files(kind)):
        return files[name]
    if name in (points := _entry_points(kind)):
        loaded = points[name].load()
        return getattr(loaded, "PLUGIN", loaded)
    raise ConfigError(f'no {kind[:-1]} is called "{name}"{did_you_mean(name, names(kind))}')


def load(kind: str, name: str, **options: Any) -> Any:
    """The plug-in `name`, built with its options: load("objectives", "mir", weight=0.4)."""
    return plugin(kind, name)(**options)


def use_file(path: str | Path) -> None:
    """Make the plug-in of a file known here and, through the environment, in Ray's workers.

    Raises ConfigError where the file has no `PLUGIN` with a `kind` and a `name`.
    """
    resolved = str(Path(path).resolve())
    _read_file(resolved)
    known = [p for p in os.environ.get(FILES_VARIABLE, "").split(os.pathsep) if p]
    if resolved not in known:
        os.environ[FILES_VARIABLE] = os.pathsep.join([*known, resolved])


def _built_in(kind: str) -> set[str]:
    if kind not in KINDS:
        raise ConfigError(f'no kind of plug-in is called "{kind}"{did_you_mean(kind, KINDS)}')
    package = import_module(f"dcray.{kind}")
    return {m.name for m in pkgutil.iter_modules(package.__path__) if not m.name.startswith("_")}


def _entry_points(kind: str) -> dict[str, importlib.metadata.EntryPoint]:
    return {point.name: point for point in importlib.metadata.entry_points(group=f"dcray.{kind}")}


def _files(kind: str) -> dict[str, Any]:
    for path in os.environ.get(FILES_VARIABLE, "").split(os.pathsep):
        if path and path not in _files_read:
            _read_file(path)
    return {name: found for (its_kind, name), found in _from_files.items() if its_kind == kind}


def _read_file(path: str) -> None:
    if path in _files_read:
        return
    module_name = f"dcray_plugin_{Path(path).stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None or not Path(path).is_file():
        raise ConfigError(f"--plugin must be a Python file, got {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    found = getattr(module, "PLUGIN", None)
    kind, name = getattr(found, "kind", None), getattr(found, "name", None)
    if kind not in KINDS or not isinstance(name, str):
        raise ConfigError(
            f"--plugin {path} must set PLUGIN to something with a kind (one of {', '.join(KINDS)}) "
            f"and a name, got kind={kind!r}, name={name!r}"
        )
    _files_read.add(path)
    _from_files[kind, name] = found
