"""Plug-ins by name: a file in dcray/KIND/, an entry point, or `--plugin FILE`.

A plug-in module has one attribute `PLUGIN`, a callable that takes the options as keywords. A
plug-in from outside dcray is an entry point in the group `dcray.KIND`, or a file whose `PLUGIN` has
`kind` and `name`. Files come from the command line alone, never from data that people exchange.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
import os
import pkgutil
import sys
from collections.abc import Collection, Iterable
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from dcray.errors import ConfigError, did_you_mean

KINDS = ("objectives", "optimizers", "laws", "sources")
FILES_VARIABLE = "DCRAY_PLUGIN_FILES"  # travels to Ray's workers with the environment of the driver

_from_files: dict[tuple[str, str], Any] = {}
_origins: dict[tuple[str, str], str] = {}  # path of the file that a plug-in came from
_sources: dict[str, str] = {}  # path -> source of every file in use


def names(kind: str) -> tuple[str, ...]:
    """List the names of every plug-in of `kind` ("objectives", "laws", ...), sorted."""
    return tuple(sorted({*_built_in(kind), *_entry_points(kind), *_files(kind)}))


def plugin(kind: str, name: str) -> Any:
    """Find the plug-in itself, not yet built: the class behind `load`.

    Raises ConfigError with the nearest name if there is none of this name, and if an entry point
    has a name of dcray's own.
    """
    if name in (points := _entry_points(kind)):
        where = f"the entry point {name} = {points[name].value}"
        _refuse_taken(kind, name, where, [(_built_in(kind), "dcray's own")])
        loaded = points[name].load()
        return _sound(kind, name, where, getattr(loaded, "PLUGIN", loaded))
    if name in _built_in(kind):
        return import_module(f"dcray.{kind}.{name}").PLUGIN
    if name in (files := _files(kind)):
        return files[name]
    raise ConfigError(
        f'no {kind[:-1]} is called "{name}"{did_you_mean(name, names(kind))}; a file of your own '
        "is named before the command: dcray --plugin FILE ..."
    )


def load(kind: str, name: str, **options: Any) -> Any:
    """Build the plug-in `name` with its options: load("objectives", "mir", weight=0.4)."""
    return plugin(kind, name)(**options)


def source_hash(kind: str, name: str) -> str | None:
    """Hash the source of a plug-in from outside dcray, without what it imports: 16 hex digits.

    A compiled plug-in is hashed by its version. None for dcray's own, for which dcray answers.
    """
    if name in _built_in(kind):
        return None
    if name in _files(kind):
        source = _sources[_origins[kind, name]]
    else:
        found = plugin(kind, name)
        try:
            source = inspect.getsource(sys.modules[found.__module__])
        except (AttributeError, KeyError, OSError, TypeError):  # compiled: its version must do
            distribution = _entry_points(kind)[name].dist
            source = distribution.version if distribution else ""
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def use_file(path: str | Path) -> None:
    """Make the plug-in of a file known here and, by `carried`, in Ray's workers.

    Raises ConfigError if the file cannot be read, or has no `PLUGIN` with a `kind` and a `name`.
    """
    resolved = str(Path(path).resolve())
    if not Path(resolved).is_file():
        there = "which is no file" if Path(resolved).exists() else "which does not exist"
        raise ConfigError(f"--plugin must be a Python file, got {path}, {there}")
    try:
        source = Path(resolved).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--plugin {path} cannot be read as UTF-8 text: {error}") from None
    _register(resolved, source)
    known = [p for p in os.environ.get(FILES_VARIABLE, "").split(os.pathsep) if p]
    if resolved not in known:
        os.environ[FILES_VARIABLE] = os.pathsep.join([*known, resolved])


def carried() -> list[tuple[str, str]]:
    """List (path, source) of every file in use, for `take_up` in a process that has none."""
    _read_listed_files()
    return sorted(_sources.items())


def take_up(files: Iterable[tuple[str, str]]) -> None:
    """Register the files another process `carried`: Ray may have started before they were named."""
    for path, source in files:
        _register(path, source)


def file_modules() -> list[ModuleType]:
    """List the modules of all files, to be pickled by value since a worker cannot import them."""
    _read_listed_files()
    return [sys.modules[_module_name(path)] for path in _sources]


def _built_in(kind: str) -> set[str]:
    if kind not in KINDS:
        raise ConfigError(f'no kind of plug-in is called "{kind}"{did_you_mean(kind, KINDS)}')
    modules = pkgutil.iter_modules([str(Path(__file__).parent / kind)])
    return {module.name for module in modules if not module.name.startswith("_")}


def _entry_points(kind: str) -> dict[str, importlib.metadata.EntryPoint]:
    return _found_on(kind, tuple(sys.path))


@cache
def _found_on(kind: str, path: tuple[str, ...]) -> dict[str, importlib.metadata.EntryPoint]:
    """Find the entry points of `kind`; every package's metadata is read once for a `sys.path`."""
    return {point.name: point for point in importlib.metadata.entry_points(group=f"dcray.{kind}")}


def _files(kind: str) -> dict[str, Any]:
    _read_listed_files()
    return {name: found for (its_kind, name), found in _from_files.items() if its_kind == kind}


def _read_listed_files() -> None:
    for path in os.environ.get(FILES_VARIABLE, "").split(os.pathsep):
        if path and path not in _sources:
            use_file(path)


def _module_name(path: str) -> str:
    return f"dcray_plugin_{Path(path).stem}"


def _register(path: str, source: str) -> None:
    """Run a file's source as a module and register its plug-in."""
    if path in _sources:
        return
    module = ModuleType(_module_name(path))
    module.__file__ = path
    sys.modules[module.__name__] = module
    try:
        exec(compile(source, path, "exec"), module.__dict__)
    except Exception as error:
        raise ConfigError(
            f"--plugin {path} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    found = getattr(module, "PLUGIN", None)
    kind, name = getattr(found, "kind", None), getattr(found, "name", None)
    if kind not in KINDS or not isinstance(name, str):
        raise ConfigError(
            f"--plugin {path} must set PLUGIN to something with a kind (one of {', '.join(KINDS)}) "
            f"and a name, got kind={kind!r}, name={name!r}"
        )
    others = {other for its_kind, other in _from_files if its_kind == kind}
    taken = [(_built_in(kind), "dcray's own"), (others, "another --plugin file's")]
    taken += [({*_entry_points(kind)}, "an installed package's")]
    _refuse_taken(kind, name, f"--plugin {path}", taken)
    _from_files[kind, name] = _sound(kind, name, f"--plugin {path}", found)
    _sources[path] = source
    _origins[kind, name] = path


def _refuse_taken(
    kind: str, name: str, where: str, others: Iterable[tuple[Collection[str], str]]
) -> None:
    """Raise ConfigError if one of `others` (names, whose they are) has this name."""
    for names_there, whose in others:
        if name in names_there:
            raise ConfigError(
                f'{where}: the name "{name}" is taken by {whose} {kind[:-1]}; give yours another'
            )


def _sound(kind: str, name: str, where: str, found: Any) -> Any:
    """Return the plug-in; raise ConfigError if `dcray.KIND.faults`, if it exists, finds faults."""
    faults = getattr(import_module(f"dcray.{kind}"), "faults", None)
    if faults is not None and (problems := faults(found)):
        raise ConfigError([f'{where}: {kind[:-1]} "{name}" {problem}' for problem in problems])
    return found
