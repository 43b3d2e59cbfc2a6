"""The outcome of a trial's error: refused, lost (it is tried again), or failed.

Lost is no fault of the run: a process, a node or an object of Ray's is gone, a rank gave no
sign, the connection between two ranks broke, or the memory did not suffice for this place or this
micro-batch. Ray and Ray Train wrap an error several times.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dcray.errors import ConfigError, first_line, plural

Failures = Mapping[int | None, BaseException]  # by rank; None: not of one rank

PEER = re.compile(  # what gloo, NCCL and torch's store say if another rank is gone or silent
    r"Connection (reset|closed) by peer|Broken pipe|Connection refused|Socket (closed|Timeout)"
    r"|Timed out waiting \d+\s?ms|Application timeout|collective operation timeout"
    r"|remote process exited|NCCL.*(remote|network) error|failed to (recv|send)",
    re.IGNORECASE,
)
NO_MEMORY = re.compile(r"out of memory|can't allocate memory", re.IGNORECASE)  # torch's words
PEER_GRACE = 30.0  # how much longer than for a silent process a rank waits for another one, seconds


def outcome_of(error: BaseException, traceback: str) -> dict[str, Any]:
    """Classify the `error` that ended a leg, as plain types: state, reason, traceback."""
    failures = failures_of(error)
    for one in failures.values():
        if isinstance(one, ConfigError):
            return {"state": "refused", "reason": str(one)}
    reason = _lost(failures)
    if reason:
        return {"state": "lost", "reason": reason}
    if any(NO_MEMORY.search(str(one)) for one in failures.values()):
        return {"state": "lost", "reason": "it ran out of memory", "out_of_memory": True}
    rank, real = next((r, e) for r, e in failures.items() if not _of_a_peer(e))
    return {
        "state": "failed",
        "reason": f"{_of_rank(rank)}{type(real).__name__}: {real}",
        "traceback": traceback,
    }


def memory_reason(microbatch_size: int) -> str:
    """Say with which micro-batch a run ran out of memory, and what comes next or needs less."""
    said = f"it ran out of memory with {plural(microbatch_size, 'sequence')} in a micro-batch"
    if microbatch_size > 1:
        return f"{said}; it is tried again with fewer"
    return f"{said}; a smaller size, a shorter data.seq_len or more runtime.workers need less"


def outcome_of_files(pickled: str | None, text: str | None) -> dict[str, Any]:
    """Classify the end of a trial's process, by the error that Tune kept as two files."""
    from ray import cloudpickle

    trace = Path(text).read_text() if text and Path(text).exists() else ""
    try:
        return outcome_of(cloudpickle.loads(Path(pickled or "").read_bytes()), trace)
    except OSError:  # it kept none
        return {"state": "lost", "reason": "its process ended without a word", "traceback": trace}


def failures_of(error: BaseException) -> dict[int | None, BaseException]:
    """Unwrap the errors that happened, by rank, out of Ray's, Tune's and Ray Train's errors."""
    from ray.exceptions import RayTaskError
    from ray.train import ControllerError, WorkerGroupError

    if isinstance(error, WorkerGroupError) and error.worker_failures:
        return {
            rank: inner
            for rank, one in sorted(error.worker_failures.items())
            for inner in failures_of(one).values()
        }
    if isinstance(error, ControllerError):
        return failures_of(error.controller_failure)
    if isinstance(error, RayTaskError) and isinstance(error.cause, Exception):
        return failures_of(error.cause)
    return {None: error}


def group_environment(hang_seconds: float) -> dict[str, str]:
    """Set how long Ray Train waits for a process's answer and a rank's report, in seconds."""
    return {
        "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": f"{hang_seconds:g}",
        "RAY_TRAIN_COLLECTIVE_TIMEOUT_S": f"{hang_seconds + PEER_GRACE:g}",
    }


def peer_seconds(hang_seconds: float) -> int:
    """Compute how long a rank waits in a collective: a silent process is named before that."""
    return math.ceil(hang_seconds + PEER_GRACE)


def _lost(failures: Failures) -> str:
    """Say why the run was lost, "" if an error of its own is among the failures."""
    for rank, error in failures.items():
        if gone := _gone(error):
            return f"{_of_rank(rank)}{gone}"
    for rank, error in failures.items():
        if silent := _silent(rank, error):
            return silent
    if failures and all(map(_of_a_peer, failures.values())):
        said = first_line(next(iter(failures.values())))
        ranks = ", ".join(str(rank) for rank in failures)
        return f"the connection to another rank broke, as rank {ranks} saw it: {said}"
    return ""


def _gone(error: BaseException) -> str:
    """Say which process, node or object is gone, "" if none is."""
    from ray import exceptions as ray
    from ray.train.v2._internal import exceptions as group
    from ray.train.v2.api.exceptions import PreemptionError

    if isinstance(error, group.WorkerHealthCheckFailedError):
        inner = error.health_check_failure
        return _gone(inner) or f"{type(inner).__name__}: {first_line(inner)}"
    if isinstance(error, ray.RayActorError):
        return "" if error.actor_init_failed else f"its process is gone ({_first_sentence(error)})"
    kinds = (
        ray.WorkerCrashedError,
        ray.NodeDiedError,
        ray.LocalRayletDiedError,
        ray.OutOfMemoryError,  # Ray ended it because the node was short of memory
        ray.ObjectLostError,
        group.WorkerGroupStartupFailedError,
        PreemptionError,
    )
    return f"{type(error).__name__}: {first_line(error)}" if isinstance(error, kinds) else ""


def _silent(rank: int | None, error: BaseException) -> str:
    """Say which rank gave no sign, "" if the error does not tell."""
    from ray.train.v2._internal import exceptions as group

    if isinstance(error, group.WorkerHealthCheckTimeoutError):
        return (
            f"{_of_rank(rank)}its process did not answer for runtime.hang_seconds, "
            "so the group was ended"
        )
    if isinstance(error, group.BroadcastCollectiveTimeoutError):
        missing = ", ".join(map(str, error._missing_ranks))
        return f"rank {missing}: it sent no report for {error._timeout_s:g} s"
    return ""


def _of_a_peer(error: BaseException) -> bool:
    """Tell whether the error says only that another rank is gone or silent."""
    from ray.train.v2._internal.execution.checkpoint import sync_actor

    if isinstance(error, sync_actor.SynchronizationBarrierResetError):
        return True
    return any(PEER.search(str(one)) is not None for one in _chain(error))


def _chain(error: BaseException) -> Iterator[BaseException]:
    one: BaseException | None = error
    while one is not None:
        yield one
        one = one.__cause__


def _of_rank(rank: int | None) -> str:
    return "" if rank is None else f"rank {rank}: "


def _first_sentence(error: BaseException) -> str:
    """Find what Ray says of a dead process; the rest of the text guesses at causes."""
    said = re.search(r"The actor (?:is dead|died|never ran)[^.\n]*", str(error))
    return said[0] if said else first_line(error)
