"""Ctrl-C and SIGTERM, turned into a request to the trials to save and end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from dcray.train.worker import STOP_FILE


@dataclass
class StopRequest:
    """A request to stop, by Ctrl-C or SIGTERM: trials save and end; a second one ends at once."""

    event: threading.Event = field(default_factory=threading.Event)
    folders: list[Path] = field(default_factory=list)

    def set(self) -> None:
        """Ask every trial to save and end, and start no more."""
        self.event.set()
        for folder in self.folders:
            self._ask(folder)

    def watch(self, folder: Path) -> None:
        """Add the folder of a run that starts, so that the run is asked too, now or later."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / STOP_FILE).unlink(missing_ok=True)
        self.folders.append(folder)
        if self.event.is_set():
            self._ask(folder)

    def leave(self, folder: Path) -> None:
        """Remove the folder of a run that has ended."""
        self.folders.remove(folder)

    @staticmethod
    def _ask(folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / STOP_FILE).touch()


@contextmanager
def stop_on_signals(on_first: Callable[[], None]) -> Iterator[StopRequest]:
    """Turn SIGINT and SIGTERM in the block into a StopRequest; a second one raises."""
    request = StopRequest()

    def handle(_number: int, _frame: FrameType | None) -> None:
        if request.event.is_set():
            raise KeyboardInterrupt
        request.set()
        on_first()

    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
