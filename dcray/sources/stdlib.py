"""The Python standard library's own sources on this machine: a corpus that all have, 12 MB."""

from __future__ import annotations

import platform
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcray.sources import SourceOptions
from dcray.sources.files import read_files

if TYPE_CHECKING:
    import ray.data

LEFT_OUT = frozenset(
    {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
)


class Stdlib(SourceOptions):
    """Every .py file of the standard library but its tests and what was installed beside it."""

    def request(self) -> dict[str, Any]:
        """Names the Python: another version is another corpus."""
        return {**super().request(), "python": platform.python_version()}

    def describe(self) -> dict[str, Any]:
        version = platform.python_version()
        return {**self.request(), "revision": f"Python {version}", "licence": "PSF-2.0"}

    def paths(self) -> list[Path]:
        """The files, sorted by path."""
        root = stdlib_folder()
        found = (p for p in root.rglob("*.py") if p.is_file())
        return sorted(p for p in found if not LEFT_OUT & set(p.relative_to(root).parts[:-1]))

    def documents(self) -> ray.data.Dataset:
        return read_files(stdlib_folder(), self.paths())


def stdlib_folder() -> Path:
    """Where this Python keeps its standard library."""
    return Path(sysconfig.get_paths()["stdlib"])


PLUGIN = Stdlib
