"""The stream's files: shards and budgets cut it at any place without a trace."""

import errno
import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcray.cluster.process import Process, this_process
from dcray.corpus.folder import (
    NO_SPACE,
    StreamWriter,
    cannot_prepare,
    partial_folder,
    publish,
    remove_stale,
)
from dcray.errors import ConfigError


@settings(max_examples=80, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=20),
    budgets=st.lists(st.integers(2, 60), min_size=1, max_size=4),
    shard_tokens=st.integers(1, 50),
)
def test_shards_hold_the_stream_and_budgets_its_prefixes(
    tmp_path_factory, lengths, budgets, shard_tokens
):
    folder = tmp_path_factory.mktemp("stream")
    stream = np.arange(sum(lengths), dtype=np.uint16)
    writer = StreamWriter(folder, np.dtype("<u2"), budgets, shard_tokens=shard_tokens)
    taken = [writer.add(part) for part in np.split(stream, np.cumsum(lengths)[:-1])]
    writer.close()
    kept = min(len(stream), max(budgets))
    assert sum(taken) == writer.num_tokens == kept
    assert writer.full == (len(stream) >= max(budgets))
    for budget in writer.budgets:
        assert budget.sha256 == hashlib.sha256(stream[: budget.tokens].tobytes()).hexdigest()
    if writer.full:
        assert [b.tokens for b in writer.budgets] == sorted(set(budgets))
        parts = [np.fromfile(folder / shard.file, "<u2") for shard in writer.shards]
        assert np.concatenate(parts).tolist() == stream[:kept].tolist()
        assert [len(part) for part in parts] == [shard.tokens for shard in writer.shards]


def test_a_partial_folder_of_a_dead_run_is_removed_and_a_live_one_kept(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    stale = tmp_path / f".corpus.partial-{replace(this_process(), pid=dead.pid).mark()}"
    elsewhere = tmp_path / f".corpus.partial-{Process(dead.pid, 'ab', '7', 7).mark()}"
    for folder in (stale, elsewhere):
        folder.mkdir()
        (folder / "train-00000.bin").write_bytes(b"half")
    with partial_folder(tmp_path / "corpus", cannot=cannot_prepare) as partial:
        (partial / "file").write_bytes(b"whole")
        assert not stale.exists()
        publish(partial, tmp_path / "corpus")
    assert elsewhere.exists()
    assert (tmp_path / "corpus" / "file").read_bytes() == b"whole"


def test_a_partial_folder_is_known_whatever_its_name_and_its_host(tmp_path):
    """Brackets are letters, not a pattern; another corpus's partial folder stays."""
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    mark = replace(this_process(), pid=dead.pid).mark()
    stale = tmp_path / f".texts [v2].partial-{mark}"
    elsewhere = tmp_path / f".texts v.partial-{mark}"
    for folder in (stale, elsewhere):
        folder.mkdir()
    remove_stale(tmp_path / "texts [v2]")
    assert not stale.exists()
    assert elsewhere.exists()


def test_a_link_to_an_empty_folder_of_another_disk_is_filled(tmp_path):
    """One cannot rename over a link: that was found out when all was written."""
    disk = tmp_path / "disk" / "corpus"
    disk.mkdir(parents=True)
    (tmp_path / "corpus").symlink_to(disk)
    with partial_folder(tmp_path / "corpus", cannot=cannot_prepare) as partial:
        assert partial.parent == disk.parent
        (partial / "file").write_bytes(b"whole")
        publish(partial, tmp_path / "corpus")
    assert (tmp_path / "corpus").is_symlink()
    assert (disk / "file").read_bytes() == b"whole"


def test_nothing_is_left_when_the_disk_is_full(tmp_path):
    out = tmp_path / "corpus"

    def write():
        with (
            partial_folder(out, cannot=cannot_prepare) as partial,
            Path("/dev/full").open("wb", buffering=0) as full,
        ):
            (partial / "begun").write_bytes(b"x")
            full.write(b"x")

    with pytest.raises(ConfigError, match="no space left to prepare"):
        write()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("code", NO_SPACE)
def test_each_kind_of_full_disk_is_said(tmp_path, code):
    said = cannot_prepare(tmp_path / "corpus", OSError(code, os.strerror(code)))
    assert errno.errorcode[code]
    assert os.strerror(code) in said
    assert "nothing was left behind" in said
