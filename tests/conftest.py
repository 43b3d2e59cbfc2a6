"""Quiet libraries in every test; one private Ray and one tiny corpus for all that need one."""

import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dcray.cluster import ray_cluster, set_environment

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as a shell starts what runs behind: `&`
    signal.signal(signal.SIGINT, signal.default_int_handler)  # else no child would hear Ctrl-C

set_environment()
os.environ.setdefault("HF_HUB_OFFLINE", "1")


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
