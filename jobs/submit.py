"""Send dcray commands to a cluster as jobs, several budgets side by side; watch them to their end.

    python jobs/submit.py search STUDY --budgets 100m,200m --dir /shared/dcray-runs

The cluster is the one whose dashboard --address, RAY_API_SERVER_ADDRESS or RAY_ADDRESS names. What
travels is this folder, less what .gitignore and .rayignore leave out; too large a folder is refused
before anything is sent. Exit codes: 0 every job succeeded; 1 one did not; 2 bad input; 3 left by
Ctrl-C, the jobs go on.
"""

from __future__ import annotations

import argparse
import logging
import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dcray.errors import ConfigError

COMMANDS = ("search", "train", "analyze")
EXCLUDES = ["dcray-runs", "corpora", "mlruns", "*.db", "*.egg-info", ".*_cache"]  # beside Ray's own
MAX_BYTES = 50e6  # code and study files are a hundredth of it; Ray itself stops at 500 MiB
CARRIED = ("MLFLOW_TRACKING_URI",)  # dcray reads it wherever it runs
POLL_SECONDS = 2.0
TAIL_LINES = 40  # of the log of a job that failed
SUCCEEDED = "SUCCEEDED"


def main() -> None:
    """Check the folder, send the jobs, and watch them unless told otherwise."""
    given = parser().parse_args()
    logging.disable(logging.INFO)  # Ray's remarks on what it packs
    try:
        check_size(given.working_dir)
        client = connected(given.address)
        plugins = [word for path in given.plugin for word in ("--plugin", path)]
        entrypoints = [
            shlex.join(["python", "-m", "dcray", *plugins, *words])
            for words in split([given.command, *given.words])
        ]
        jobs = send(client, entrypoints, given.working_dir)
        sys.exit(0 if given.no_wait else watch(client, jobs))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("the jobs go on; ray job stop ID ends one", file=sys.stderr)
        sys.exit(3)


def parser() -> argparse.ArgumentParser:
    """Our own options, then the words of a dcray command as they are."""
    ours = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ours.add_argument("--address", help="the dashboard, such as http://127.0.0.1:8265")
    ours.add_argument("--working-dir", type=Path, default=Path(), help="the folder to send")
    ours.add_argument("--no-wait", action="store_true", help="send the jobs and return")
    ours.add_argument("--plugin", action="append", default=[], help="a file that travels too")
    ours.add_argument("command", choices=COMMANDS)
    ours.add_argument("words", nargs=argparse.REMAINDER, help="as after dcray COMMAND")
    return ours


def split(words: Sequence[str]) -> list[list[str]]:
    """One command for each budget of `--budgets A,B`: jobs of one study run side by side."""
    for at, word in enumerate(words):
        if word == "--budgets" and at + 1 < len(words):
            before, budgets, after = words[: at + 1], words[at + 1], words[at + 2 :]
            return [[*before, budget, *after] for budget in budgets.split(",") if budget]
        if word.startswith("--budgets="):
            budgets = word.removeprefix("--budgets=")
            return [
                [*words[:at], "--budgets", budget, *words[at + 1 :]]
                for budget in budgets.split(",")
                if budget
            ]
    return [list(words)]


def travelling(folder: Path) -> dict[Path, int]:
    """The bytes of every file that Ray would send, by Ray's own rule."""
    from ray._private.ray_constants import get_runtime_env_default_excludes
    from ray._private.runtime_env import packaging

    sizes: dict[Path, int] = {}

    def note(path: Path) -> None:
        if path.is_file():
            sizes[path] = path.stat().st_size

    left_out = packaging._get_excludes(folder, [*get_runtime_env_default_excludes(), *EXCLUDES])
    packaging._dir_travel(folder, [left_out], note, include_gitignore=True)
    return sizes


def check_size(folder: Path) -> None:
    """Raise ConfigError, with the five largest paths, where the folder is too large to send."""
    if not folder.is_dir():
        raise ConfigError(f"--working-dir must be a folder, got {folder}")
    sizes = travelling(folder)
    total = sum(sizes.values())
    if total > MAX_BYTES:
        largest = sorted(sizes, key=lambda path: -sizes[path])[:5]
        named = ", ".join(
            f"{path.relative_to(folder)} ({sizes[path] / 1e6:,.1f} MB)" for path in largest
        )
        raise ConfigError(
            f"--working-dir must be at most {MAX_BYTES / 1e6:g} MB, got {total / 1e6:,.1f} MB in "
            f"{folder.absolute()}; the largest: {named}. Add what need not travel to .rayignore; "
            "corpora and records belong on storage that the nodes share"
        )


def connected(address: str | None) -> Any:
    """A client of the cluster's dashboard; raises ConfigError where there is none."""
    from ray.job_submission import JobSubmissionClient

    try:
        return JobSubmissionClient(address)
    except Exception as error:  # what the HTTP library, the address or the token say
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError(
            f"--address must name the dashboard of a running cluster ({reason}); for a local one: "
            "--address http://127.0.0.1:8265"
        ) from None


def send(client: Any, entrypoints: Sequence[str], folder: Path) -> dict[str, str]:
    """Submit every entry point; the entry points by the id of their job."""
    jobs = {}
    carried = {name: os.environ[name] for name in CARRIED if name in os.environ}
    for entrypoint in entrypoints:
        runtime_env = {"working_dir": str(folder), "excludes": EXCLUDES, "env_vars": carried}
        try:
            job = client.submit_job(entrypoint=entrypoint, runtime_env=runtime_env)
        except RuntimeError as error:  # what the head answers, in a line
            raise ConfigError(
                f"the cluster takes no job ({str(error).strip().splitlines()[0]}). If its agent's "
                "port is held by another Ray, start the head with a free one: "
                "ray start --head --dashboard-agent-listen-port 0"
            ) from None
        jobs[job] = entrypoint
        print(f"{job}: {entrypoint}", flush=True)
    print(f"follow one: ray job logs --follow {next(iter(jobs))}", flush=True)
    return jobs


def watch(client: Any, jobs: dict[str, str]) -> int:
    """Say what each job becomes; the log's tail where it is no success. 0 if all succeeded."""
    states: dict[str, str] = {}
    while not all(ended(state) for state in states.values()) or len(states) < len(jobs):
        for job in jobs:
            info = client.get_job_info(job)
            state = str(info.status.value)
            if states.get(job) == state:
                continue
            states[job] = state
            print(f"{job}: {state}", flush=True)
            if ended(state) and state != SUCCEEDED:
                tail = client.get_job_logs(job).rstrip().splitlines()[-TAIL_LINES:]
                print("\n".join([*tail, info.message or ""]), flush=True)
        time.sleep(POLL_SECONDS)
    return 0 if set(states.values()) == {SUCCEEDED} else 1


def ended(state: str) -> bool:
    """Tell whether a job's state is its last one."""
    return state in (SUCCEEDED, "FAILED", "STOPPED")


if __name__ == "__main__":
    main()
