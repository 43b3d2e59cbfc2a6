"""What the errors mean that Ray, Tune and Ray Train raise, in the layers that they really wrap."""

import pickle

import pytest
import ray
import torch
from ray.exceptions import (
    ActorDiedError,
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayTaskError,
    RuntimeEnvSetupError,
    WorkerCrashedError,
)
from ray.train import ControllerError, WorkerGroupError
from ray.train.v2._internal.exceptions import (
    BroadcastCollectiveTimeoutError,
    WorkerGroupStartupFailedError,
    WorkerHealthCheckFailedError,
    WorkerHealthCheckTimeoutError,
)

from dcray.errors import ConfigError
from dcray.train.failure import memory_reason, outcome_of, outcome_of_files

DEAD = ActorDiedError()
KILLED = WorkerHealthCheckFailedError("Worker health check failed.", DEAD)
PEER = RuntimeError("[../third_party/gloo/pair.cc:544] Connection closed by peer [127.0.0.1]:1234")


def in_task(error: Exception) -> Exception:
    """As `ray.get` raises what a task raised."""
    return RayTaskError("train", "Traceback ...", error).as_instanceof_cause()


def group(**failures: Exception) -> WorkerGroupError:
    ranks = {int(name.removeprefix("rank")): error for name, error in failures.items()}
    return WorkerGroupError("[Rank ...]", ranks)


LOST = {
    "one of two ranks is killed": group(rank1=KILLED),
    "and the other one sees it": group(rank0=PEER, rank1=KILLED),
    "the other one sees it first": group(rank0=PEER),
    "beside an error that follows from it": group(rank0=ValueError("torn"), rank1=KILLED),
    "while the group starts": ControllerError(WorkerGroupStartupFailedError("failed to start")),
    "the process of a trial": DEAD,
    "its node": NodeDiedError("the node died"),
    "a worker of Ray Data": in_task(WorkerCrashedError()),
    "the resident stream": ObjectLostError("ab" * 14, None, ""),
    "Ray ends it for memory": OutOfMemoryError("the node was running low on memory"),
}
OURS = {
    "one process": (ValueError("bad"), "ValueError: bad"),
    "a rank": (group(rank1=ValueError("bad")), "rank 1: ValueError: bad"),
    "a rank, and its peer": (group(rank0=PEER, rank1=KeyError("x")), "rank 1: KeyError: 'x'"),
    "the actor itself cannot be made": (
        RuntimeEnvSetupError("no such module"),
        "RuntimeEnvSetupError: ",
    ),
}


@pytest.mark.parametrize("case", LOST)
def test_what_is_lost_says_nothing_against_the_run(case):
    error = pickle.loads(ray.cloudpickle.dumps(LOST[case]))
    found = outcome_of(error, "trace")
    assert found["state"] == "lost", found
    assert "memory?" not in found["reason"]  # no cause is guessed
    assert ("rank 1: its process is gone" in found["reason"]) == (
        isinstance(error, WorkerGroupError) and 1 in error.worker_failures
    )


@pytest.mark.parametrize("case", OURS)
def test_a_real_error_is_failed_with_its_rank(case):
    error, reason = OURS[case]
    found = outcome_of(error, "trace")
    assert (found["state"], found["traceback"]) == ("failed", "trace")
    assert found["reason"].startswith(reason)


@pytest.mark.parametrize(
    "error",
    [ConfigError("no"), group(rank0=PEER, rank1=ConfigError("no")), in_task(ConfigError("no"))],
)
def test_a_refusal_is_a_refusal_wherever_it_comes_from(error):
    assert outcome_of(error, "") == {"state": "refused", "reason": "no"}


def test_a_rank_that_is_silent_is_named():
    hung = group(rank1=WorkerHealthCheckTimeoutError("hangs"))
    assert "rank 1: its process did not answer" in outcome_of(hung, "")["reason"]
    late = group(rank0=BroadcastCollectiveTimeoutError(9.0, [1, 3], 8.0))
    assert outcome_of(late, "")["reason"] == "rank 1, 3: it sent no report for 8 s"
    slow = group(rank0=RuntimeError("Timed out waiting 8000ms for recv operation to complete"))
    assert outcome_of(slow, "")["state"] == "lost"


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        in_task(RuntimeError("CUDA error: out of memory")),
    ],
)
def test_a_run_short_of_memory_is_lost_and_may_do_with_less(error):
    found = outcome_of(error, "trace")
    assert (found["state"], found["out_of_memory"]) == ("lost", True)
    assert "out_of_memory" not in outcome_of(ValueError("bad"), "trace")
    beside = outcome_of(group(rank0=PEER, rank1=error), "trace")  # the others hear that it is gone
    assert beside["out_of_memory"]
    assert memory_reason(4).startswith("it ran out of memory with 4 sequences in a micro-batch; it")
    assert "1 sequence in a micro-batch; a smaller size, a shorter data.seq_len" in memory_reason(1)


def test_what_tune_kept_of_a_dead_trial(tmp_path):
    path = tmp_path / "error.pkl"
    path.write_bytes(ray.cloudpickle.dumps(DEAD))
    (tmp_path / "error.txt").write_text("trace")
    assert outcome_of_files(str(path), str(tmp_path / "error.txt"))["state"] == "lost"
    assert outcome_of_files(None, None)["reason"] == "its process ended without a word"
    path.write_bytes(ray.cloudpickle.dumps(in_task(ValueError("bad"))))
    assert outcome_of_files(str(path), None)["state"] == "failed"
