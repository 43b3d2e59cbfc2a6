"""One result while it is open: points are logged, and exactly one of its ends is called."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from dcray.errors import RecordAwayError
from dcray.track.mlflow.write_queue import Write, Writer
from dcray.track.points import PointLike, new_metrics
from dcray.types import RunKey

FINISH_SECONDS = 120.0  # how long an end waits for a record that is away before it is left on disk
INTERRUPT_SECONDS = 10.0  # Ctrl-C should not hang


class Result:
    """An open run. log() never blocks; finish(), diverge(), fail() and interrupt() end it.

    Each end returns True if it is on record, False if the record stayed away and all that was
    pending lies in DIR/spill: the driver goes on trying, and the next start replays it. Raises
    RecordAwayError if MLflow refused something for good (kept in DIR/spill too).
    """

    def __init__(
        self,
        writer: Writer,
        key: RunKey,
        run_id: str,
        attempt: str,
        recorded: set[tuple[str, int]],
        registry: dict[str, Result],
    ) -> None:
        self.key = key
        self.run_id = run_id
        self.last_step = max((step for _, step in recorded), default=0)  # the last one on record
        self._writer = writer
        self._attempt = attempt
        self._recorded = recorded
        self._nonfinite: list[str] = []
        self._registry = registry  # of what the store has open
        self._ended = False

    def log(self, points: Iterable[PointLike]) -> None:
        """Record points; a (metric, step) that is on record is skipped, so repeating is harmless.

        A value that is not finite is no metric (it would come back as 1.797e308): it is named in
        the tag dcray.nonfinite.
        """
        assert not self._ended, f"{self.key.name} has ended"
        points = list(points)
        rows, nonfinite = new_metrics(points, self._recorded)
        self.last_step = max([self.last_step, *(point.step for point in points)])
        for start in range(0, len(rows), 1000):
            self._put(metrics=rows[start : start + 1000])
        fresh = [name for name in nonfinite if name not in self._nonfinite]
        if fresh:
            self._nonfinite += fresh
            self._put(tags={"dcray.nonfinite": ", ".join(self._nonfinite[:50])})

    def spent(self, seconds: float) -> None:
        """Record the device-seconds of its process over all attempts, with or without a result."""
        now = round(time.time() * 1000)
        self._put(metrics=[("device_seconds", seconds, now, self.last_step)])

    def artifact(self, name: str, content: str | Path) -> None:
        """Keep a text, or a local file, among the run's artifacts under `name`."""
        assert not self._ended, f"{self.key.name} has ended"
        self._put(**_artifacts({name: content}))

    def finish(
        self,
        metrics: Mapping[str, float],
        artifacts: Mapping[str, str | Path] | None = None,
    ) -> bool:
        """Finish the run as FINISHED with val_loss (needed), val_bpb, device_seconds, ...

        A loss that is not finite is a divergence, and ends as one.
        """
        values = {name: float(value) for name, value in metrics.items()}
        assert "val_loss" in values, f"a complete result has a val_loss, got {sorted(values)}"
        if not math.isfinite(values["val_loss"]):
            return self.diverge(f"val_loss is {values['val_loss']}")
        now = round(time.time() * 1000)
        rows = [
            (name, value, now, self.last_step)
            for name, value in values.items()
            if math.isfinite(value)
        ]
        tags = {"dcray.complete": "true", "dcray.state": "complete", "dcray.reason": ""}
        return self._end("FINISHED", tags, FINISH_SECONDS, metrics=rows, **_artifacts(artifacts))

    def diverge(self, reason: str) -> bool:
        """End the run as diverged, FAILED: its loss is no number, so no fit uses it."""
        tags = {"dcray.state": "diverged", "dcray.reason": reason}
        return self._end("FAILED", tags, FINISH_SECONDS)

    def fail(self, trace: str) -> bool:
        """End the run as FAILED, its traceback as traceback.txt, the last line as reason."""
        last = (trace.strip().splitlines() or ["unknown"])[-1]
        tags = {"dcray.state": "failed", "dcray.reason": last[:500]}
        return self._end("FAILED", tags, FINISH_SECONDS, texts={"traceback.txt": trace})

    def interrupt(
        self, reason: str = "interrupted", *, seconds: float | None = INTERRUPT_SECONDS
    ) -> bool:
        """End the run early as KILLED; begin() with the same key continues this run.

        Waits `seconds` for the record; None only queues it, for a caller that drains all.
        """
        tags = {"dcray.state": "interrupted", "dcray.reason": reason}
        return self._end("KILLED", tags, seconds)

    def __enter__(self) -> Result:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._ended:
            return
        if isinstance(error, Exception):
            self.fail("".join(traceback.format_exception(error)))
        else:
            self.interrupt(type(error).__name__ if error else "it ended before its schedule")

    def _put(self, **fields: Any) -> None:
        self._writer.put(Write(self.run_id, self._attempt, **fields))

    def _end(self, status: str, tags: dict[str, str], seconds: float | None, **fields: Any) -> bool:
        assert not self._ended, f"{self.key.name} has ended"
        self._ended = True
        self._put(tags=tags, status=status, **fields)
        self._registry.pop(self.run_id, None)
        self._writer.heart.rest(self.run_id)
        if seconds is None or not self._writer.settle(self.run_id, seconds=seconds):
            return False
        refusal = self._writer.refusal(self.run_id)
        if refusal:
            raise RecordAwayError(f"{self.key.name} is not wholly on record: {refusal}")
        return True


def _artifacts(artifacts: Mapping[str, str | Path] | None) -> dict[str, dict[str, str]]:
    texts: dict[str, str] = {}
    files: dict[str, str] = {}
    for name, content in (artifacts or {}).items():
        if isinstance(content, Path):
            folder, _, base = name.rpartition("/")
            assert base == content.name, f"a file keeps its name: {name} from {content}"
            files[str(content.absolute())] = folder
        else:
            texts[name] = content
    return {"texts": texts, "files": files}
