"""Quiet libraries in every test; one private Ray and one tiny corpus for all that need one."""

import functools
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dcray.cluster.environment import set_environment
from dcray.cluster.start import ray_cluster

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as a shell starts what runs behind: `&`
    signal.signal(signal.SIGINT, signal.default_int_handler)  # else no child would hear Ctrl-C

set_environment()
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of tiny products, threads that wait cost thrice


COMPUTE = {"config", "corpus", "evals", "fit", "laws", "model", "objectives", "ranks", "report",
           "rng", "study", "theory", "train"}  # fmt: skip
NICENESS = 5  # of tests that only compute: those whose processes wait for each other go first
SLOW = ["driver/test_search_stops.py", "cli/test_quickstart.py", "cli/test_search.py",
        "driver/test_lost_ranks.py", "jobs/test_jobs.py", "cli/test_stops.py"]  # fmt: skip


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Share the tests out to the workers of `-n`; a mark cannot (pytest 9.2 with xdist 3.8).

    The first worker computes and then tests the record; the others run commands and Rays file by
    file, the slowest files first, so that no worker is left with much to do when the others end.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Lanes(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            path = config.rootpath / nodeid.partition("::")[0]
            return str(path) if lane(path) == "processes" else lane(path)

        def _assign_work_unit(self, node):
            whole = ["compute", "record"]

            def rank(scope):
                slow = [number for number, name in enumerate(SLOW) if name in scope]
                if scope in whole:
                    return whole.index(scope) if node.gateway.id == "gw0" else 1_000
                return 10 + (slow[0] if slow else len(SLOW))

            self.workqueue.move_to_end(min(self.workqueue, key=rank), last=False)
            super()._assign_work_unit(node)

    return Lanes(config, log)


@functools.cache
def lane(path: Path) -> str:
    """Return what a file of tests waits for most.

    "compute" is for the CPU, "record" for servers and locks of the record, "processes" for Ray and
    for commands of ours.
    """
    room = path.relative_to(Path(__file__).parent).parts[0]
    if room == "track":
        return "record"
    alone = room in COMPUTE and not re.search("ray_session|tiny_corpus", path.read_text())
    return "compute" if alone else "processes"


def pytest_runtest_setup(item):
    if "PYTEST_XDIST_WORKER" in os.environ and lane(item.path) == "compute":
        os.nice(max(0, NICENESS - os.nice(0)))  # only root may go back


@pytest.fixture(autouse=True)
def _quiet_checkpoints():
    logging.getLogger("torch.distributed.checkpoint._dedup_save_plans").setLevel(logging.ERROR)
    logging.getLogger("c10d-NullHandler-dcp_logger").setLevel(logging.ERROR)


@pytest.fixture(scope="session")
def ray_session():
    """One private Ray for all tests that need one; they leave it as free as they found it."""
    import ray

    with ray_cluster(num_cpus=2):
        yield
        deadline = time.monotonic() + 60
        while ray.available_resources().get("CPU") != 2.0:
            assert time.monotonic() < deadline, f"CPUs are lost: {ray.available_resources()}"
            time.sleep(0.5)


@pytest.fixture(scope="session")
def tiny_corpus(ray_session, tmp_path_factory) -> Path:
    """Bytes of small documents in several shards, made by the product; not to be written to."""
    from dcray.corpus.prepare import prepare
    from dcray.sources import parse

    root = tmp_path_factory.mktemp("tiny")
    (root / "texts").mkdir()
    for number in range(40):
        words = " ".join(f"{word} {number * word % 97}" for word in range(40))
        (root / "texts" / f"{number}.txt").write_text(f"document {number}: {words}\n")
    prepare(
        parse(f"files:{root / 'texts'}"),
        root / "corpus",
        tokenizer="byte",
        budgets=[500, 1_000, 4_000],
        val_tokens=600,
        shard_tokens=300,
    )
    return root / "corpus"


@pytest.fixture
def corpus_copy(tiny_corpus, tmp_path) -> Path:
    """A copy of the tiny corpus, to be damaged."""
    return Path(shutil.copytree(tiny_corpus, tmp_path / "corpus"))


@pytest.fixture
def other_corpus(corpus_copy) -> Path:
    """The tiny corpus but for one token of its validation set."""
    import hashlib
    import json

    data = bytearray((corpus_copy / "validation.bin").read_bytes())
    data[2] ^= 1
    (corpus_copy / "validation.bin").write_bytes(data)
    manifest = json.loads((corpus_copy / "manifest.json").read_text())
    manifest["files"]["validation.bin"] = hashlib.sha256(data).hexdigest()
    (corpus_copy / "manifest.json").write_text(json.dumps(manifest))
    return corpus_copy


@pytest.fixture
def small_disk(tmp_path):
    """Makes a file system of a size such as "400k"; its folder."""
    path = tmp_path / "disk"
    path.mkdir()

    def mount(size: str) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "dcray-test", str(path)]
        if subprocess.run(command, check=False, capture_output=True).returncode:
            pytest.skip("only root can mount a small disk")
        return path

    yield mount
    if path.is_mount():
        subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.fixture
def dcray(monkeypatch, capfd) -> Callable[..., tuple[int, str, str]]:
    """The command in this process: (exit code, standard output, error output), as a user sees.

    A plug-in file that it is given is forgotten after the test.
    """
    from dcray import cli, plugins

    monkeypatch.setenv(plugins.FILES_VARIABLE, "")
    monkeypatch.setattr(plugins, "_from_files", {})
    monkeypatch.setattr(plugins, "_sources", {})

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dcray", *map(str, words)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        printed = capfd.readouterr()
        assert isinstance(stopped.value.code, int)
        return stopped.value.code, printed.out, printed.err

    return run
