"""The progress of a long computation: it counts, and a command that shows it listens, if any."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")
Listener = Callable[[str, int, int | None], None]  # stage, done, total (None: not known)

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


def counted(stage: str, items: Iterable[T]) -> Iterator[T]:
    """Yield the items; tell the listener the number done at the start and after each of them."""
    listener = _listener.get()
    if listener is None:
        yield from items
        return
    total = len(items) if isinstance(items, Sequence) else None
    listener(stage, 0, total)
    for number, item in enumerate(items, start=1):
        yield item
        listener(stage, number, total)


@contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
    """Pass what is counted inside the block to `listener`."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
