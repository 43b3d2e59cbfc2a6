"""The Python standard library's sources on this machine, 12 MB: a corpus that needs no network."""

from __future__ import annotations

import platform
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcray.sources import SourceOptions
from dcray.sources._encoding import REPLACE
from dcray.sources.files import read_files

if TYPE_CHECKING:
    import ray.data

LEFT_OUT = frozenset(
    {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
)


class Stdlib(SourceOptions):
    """Every .py file of the standard library but its tests and what was installed beside it."""

    def request(self) -> dict[str, Any]:
        """Return the options and Python's version: another version is another corpus."""
        return {**super().request(), "python": platform.python_version()}

    def describe(self) -> dict[str, Any]:
        version = platform.python_version()
        return {**self.request(), "revision": f"Python {version}", "licence": "PSF-2.0"}

    def paths(self) -> list[Path]:
        """List the files, sorted by path."""
        root = stdlib_folder()
        found = (p for p in root.rglob("*.py") if p.is_file())
        return sorted(p for p in found if not LEFT_OUT & set(p.relative_to(root).parts[:-1]))

    def documents(self) -> ray.data.Dataset:
        return read_files(stdlib_folder(), self.paths(), not_utf8=REPLACE)


def stdlib_folder() -> Path:
    """Return the folder of this Python's standard library."""
    return Path(sysconfig.get_paths()["stdlib"])


PLUGIN = Stdlib
