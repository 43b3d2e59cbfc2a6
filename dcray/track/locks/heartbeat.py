"""Heartbeats of the runs that a driver has open, by which other hosts know that it is alive.

A driver that was away for two minutes (a laptop asleep, a network down) counts as dead: others may
have taken over what it holds. Its next heartbeat finds that out, and is not written.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import ClassVar

from dcray.errors import first_line
from dcray.track.locks.owner import HEARTBEAT_SECONDS, Owner
from dcray.track.mlflow.connection import Connection
from dcray.track.mlflow.retry import waiting_helps

_log = logging.getLogger(__name__)


class Heart:
    """The open runs, each with a heartbeat every 30 s, and a callback for runs taken over."""

    seconds: ClassVar[float] = HEARTBEAT_SECONDS  # between two beats

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._alive: dict[str, str] = {}  # run id: the attempt that has it open
        self._last_beat = time.monotonic()
        self.on_taken: Callable[[str, Owner], None] = lambda run_id, owner: None

    def begin(self, run_id: str, attempt: str) -> None:
        """Start the heartbeats of a run."""
        with self._lock:
            self._alive[run_id] = attempt

    def rest(self, run_id: str) -> None:
        """Stop the heartbeats of a run."""
        with self._lock:
            self._alive.pop(run_id, None)

    def beats(self, run_id: str) -> bool:
        """Tell whether a run is open, and ours as far as the last heartbeat could tell."""
        with self._lock:
            return run_id in self._alive

    def beat_if_due(self) -> None:
        """Write one heartbeat of each open run, if the last is 30 s old or did not get through."""
        if time.monotonic() - self._last_beat < self.seconds:
            return
        self._last_beat = time.monotonic()
        with self._lock:
            alive = sorted(self._alive.items())
        for run_id, attempt in alive:
            try:
                self._beat(run_id, attempt)
            except Exception as error:  # a heartbeat missed is told by its age
                _log.debug("no heartbeat: %s", first_line(error))
                if waiting_helps(error):  # nor would the others get through
                    self._last_beat = -math.inf  # as soon as it answers
                    return

    def _beat(self, run_id: str, attempt: str) -> None:
        tags = self._connection.client.get_run(run_id).data.tags
        owner = Owner.from_json(tags.get("dcray.owner"))
        if tags.get("dcray.attempt") == attempt or owner is None:
            self._connection.client.set_tag(run_id, "dcray.heartbeat", str(time.time()))
        elif self.beats(run_id):
            self.rest(run_id)
            self.on_taken(run_id, owner)
