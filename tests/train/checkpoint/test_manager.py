"""Checkpoints on disk: whole or not at all, few, of this configuration, and exact."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import namedtuple
from pathlib import Path

import pytest
import torch

from dcray.errors import ConfigError
from dcray.train.checkpoint import manager, writer
from dcray.train.checkpoint.manager import Checkpoints
from dcray.train.checkpoint.metadata import check_same, read_meta
from dcray.train.optim import build_optimizer
from dcray.train.shard import RankContext, build_model
from tests.support import run_tiny, tiny_config

CPU = RankContext(torch.device("cpu"))


def pair(config, seed: int = 0):
    """A model and its optimizer after one step, so that there are moments."""
    model = build_model(config, CPU)
    optimizer = build_optimizer(model, config)
    torch.manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return model, optimizer


def tensors(model, optimizer) -> list[torch.Tensor]:
    moments = [state[name] for state in optimizer.state.values() for name in sorted(state)]
    return [*(p.detach() for p in model.parameters()), *moments]


def same(one, other) -> bool:
    return all(torch.equal(a, b) for a, b in zip(tensors(*one), tensors(*other), strict=True))


def save(held: Checkpoints, model, optimizer, progress: dict, *, step: int) -> None:
    """Save and wait until it is on disk."""
    held.save(model, optimizer, progress, step=step)
    held.settle()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_is_loaded_is_what_was_saved(tmp_path):
    """Weights, moments and step counts, into a fresh optimizer that has none."""
    config = tiny_config()
    saved = pair(config)
    save(Checkpoints(tmp_path, config, CPU, keep=2), *saved, {"step": 3}, step=3)
    fresh = build_model(config, CPU)
    found = fresh, build_optimizer(fresh, config)
    assert Checkpoints(tmp_path, config, CPU, keep=2).load(*found) == {"step": 3}
    assert len(found[1].state) > 0
    assert same(saved, found)


def test_there_is_nothing_to_load_at_first(tmp_path):
    config = tiny_config()
    for folder in (tmp_path, tmp_path / "none"):
        assert Checkpoints(folder, config, CPU, keep=2).load(*pair(config)) is None


def test_the_newest_are_kept_and_loaded(tmp_path):
    config = tiny_config()
    held = Checkpoints(tmp_path, config, CPU, keep=2)
    for step in (5, 9, 10, 200):
        save(held, *pair(config, seed=step), {"step": step}, step=step)
    assert names(tmp_path) == ["step-00000010", "step-00000200"]
    found = pair(config)
    assert held.load(*found) == {"step": 200}
    assert same(pair(config, seed=200), found)


def test_a_checkpoint_may_be_written_again(tmp_path):
    config = tiny_config()
    held = Checkpoints(tmp_path, config, CPU, keep=2)
    for seed in (1, 2):
        save(held, *pair(config, seed=seed), {"step": 5, "seed": seed}, step=5)
    found = pair(config)
    assert held.load(*found) == {"step": 5, "seed": 2}
    assert same(pair(config, seed=2), found)
    assert names(tmp_path) == ["step-00000005"]


def test_the_best_is_no_step_and_is_not_pruned(tmp_path):
    config = tiny_config()
    held = Checkpoints(tmp_path, config, CPU, keep=1)
    best, _ = pair(config, seed=1)
    held.save_best(best, {"step": 1})
    held.settle()
    for step in (1, 2, 3):
        save(held, *pair(config, seed=5 + step), {"step": step}, step=step)
    assert names(tmp_path) == ["best", "step-00000003"]
    model, _ = pair(config, seed=9)
    held.load_best(model)
    for a, b in zip(best.parameters(), model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert read_meta(tmp_path / "best")["progress"] == {"step": 1}


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    """What lies on disk is the state at the save, whatever the weights have become meanwhile."""
    config, may_write = tiny_config(), threading.Event()
    write = writer.unwrapped

    def slowly(*args, **kwargs) -> None:
        assert may_write.wait(60)
        write(*args, **kwargs)

    monkeypatch.setattr(writer, "unwrapped", slowly)
    held = Checkpoints(tmp_path, config, CPU, keep=2)
    model, optimizer = pair(config, seed=1)
    held.save(model, optimizer, {"step": 1}, step=1)
    with torch.no_grad():  # the next step, before a byte is written
        for tensor in tensors(model, optimizer):
            tensor.add_(1)
    held.poll()
    assert names(tmp_path) == []
    may_write.set()
    held.settle()
    found = pair(config)
    assert held.load(*found) == {"step": 1}
    assert same(pair(config, seed=1), found)


@pytest.mark.parametrize("at_end", [False, True])
def test_a_write_that_fails_is_told_at_the_next_report_or_at_the_end(tmp_path, monkeypatch, at_end):
    config = tiny_config(runtime__checkpoint_seconds=1e9 if at_end else 0)

    def full(*_args) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(writer.os, "fsync", full)
    seen: list = []
    with pytest.raises(ConfigError, match="no space left for a checkpoint"):
        run_tiny(config, folder=tmp_path, seen=seen)
    steps = config.num_steps
    assert len(seen) == steps if at_end else 1 < len(seen) < steps
    assert not list(tmp_path.glob("step-*"))


KILLED = """
import os, signal, sys
from pathlib import Path
from dcray.train.checkpoint import manager
from dcray.train.checkpoint import writer
from tests.train.checkpoint.test_manager import CPU, pair, save, tiny_config
config = tiny_config()
held = manager.Checkpoints(Path(sys.argv[1]), config, CPU, keep=2)
save(held, *pair(config, seed=1), {"step": 1}, step=1)
die = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
where, at = sys.argv[2:]
setattr(writer, where, die)
save(held, *pair(config, seed=int(at)), {"step": int(at)}, step=int(at))
"""


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("where", ["_write_synced", "_replace"])
def test_killed_between_write_and_rename(tmp_path, where, step):
    """The last whole checkpoint is found again, bit for bit, and the next save cleans up."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), where, str(step)],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    assert names(tmp_path) == [f".partial-step-0000000{step}", "step-00000001"]
    config = tiny_config()
    held = Checkpoints(tmp_path, config, CPU, keep=2)
    found = pair(config)
    assert held.load(*found) == {"step": 1}
    assert same(pair(config, seed=1), found)
    save(held, *found, {"step": step}, step=step)
    assert not [name for name in names(tmp_path) if name.startswith(".")]


def test_killed_between_the_two_renames_of_a_replacement(tmp_path):
    """A best that was being replaced is found: the one before it stands aside, whole."""
    config = tiny_config()
    held = Checkpoints(tmp_path, config, CPU, keep=1)
    best, _ = pair(config, seed=1)
    held.save_best(best, {"step": 1})
    held.settle()
    (tmp_path / "best").rename(tmp_path / ".old-best")  # killed here
    model, optimizer = pair(config, seed=9)
    assert held.load(model, optimizer) is None  # how every start begins
    held.load_best(model)
    for a, b in zip(best.parameters(), model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_folder_without_its_meta_is_no_checkpoint(tmp_path):
    config = tiny_config()
    held = Checkpoints(tmp_path, config, CPU, keep=2)
    for step in (1, 2):
        save(held, *pair(config, seed=step), {"step": step}, step=step)
    (tmp_path / "step-00000002" / "meta.json").unlink()
    assert held.load(*pair(config)) == {"step": 1}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"optim__lr": 0.5}, "optim.lr is 0.01 there and 0.5 here"),
        ({"seed": 7}, "seed is 42 there and 7 here"),
        ({"size__dim": 32}, "shape.dim is 16 there and 32 here"),
        ({"objective": "mir"}, "objective.name is 'ar' there and 'mir' here"),
        ({"data__unique_tokens": 17 * 16}, "data.unique_tokens is 353 there and 272 here"),
    ],
)
def test_another_configuration_is_refused_by_its_fields(tmp_path, changes, said):
    ours, theirs = tiny_config(**changes), tiny_config()
    save(Checkpoints(tmp_path, theirs, CPU, keep=2), *pair(theirs), {"step": 1}, step=1)
    with pytest.raises(ConfigError, match="is of another configuration") as refused:
        Checkpoints(tmp_path, ours, CPU, keep=2).load(*pair(ours))
    assert said in str(refused.value)
    assert "move the folder away to start afresh" in str(refused.value)


def test_what_changes_rounding_alone_is_no_other_configuration(tmp_path):
    theirs = tiny_config()
    ours = tiny_config(runtime__num_points=7, runtime__microbatch_size=2, validation__epochs=1)
    check_same(theirs.to_dict(), ours, tmp_path)
    save(Checkpoints(tmp_path, theirs, CPU, keep=2), *pair(theirs), {"step": 1}, step=1)
    assert Checkpoints(tmp_path, ours, CPU, keep=2).load(*pair(ours)) == {"step": 1}


@pytest.mark.parametrize("change", ["format", "field"])
def test_a_checkpoint_of_another_dcray(tmp_path, change):
    """Its format has risen; or its configuration has fields that we do not know."""
    config = tiny_config()
    held = Checkpoints(tmp_path, config, CPU, keep=2)
    save(held, *pair(config), {"step": 1}, step=1)
    path = tmp_path / "step-00000001" / "meta.json"
    meta = json.loads(path.read_text())
    if change == "format":
        meta["format"] = 99
    else:
        meta["config"]["optim"]["momentum"] = 0.9
    path.write_text(json.dumps(meta))
    said = "a newer dcray" if change == "format" else r"another dcray.*\(optim\.momentum\)"
    with pytest.raises(ConfigError, match=said) as refused:
        held.load(*pair(config))
    assert str(path.parent) in str(refused.value)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def zeroed(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize("damage", [Path.unlink, cut, emptied, zeroed])
@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata", "meta.json"])
def test_of_a_damaged_checkpoint_the_intact_one_before_counts(tmp_path, name, damage):
    """It is put aside with a sentence, so that it is not met, nor kept in an intact one's place."""
    config = tiny_config()
    before = pair(config, seed=1)
    held = Checkpoints(tmp_path, config, CPU, keep=2)
    save(held, *before, {"step": 1}, step=1)
    save(held, *pair(config, seed=2), {"step": 2}, step=2)
    damage(tmp_path / "step-00000002" / name)
    found = pair(config, seed=3)
    assert held.load(*found) == {"step": 1}
    assert same(before, found)
    if (name, damage) != ("meta.json", Path.unlink):  # without its meta it never was one
        (said,) = held.damaged
        assert "step-00000002 is damaged (" in said
        assert names(tmp_path) == ["damaged-step-00000002", "step-00000001"]
    assert Checkpoints(tmp_path, config, CPU, keep=2).load(*pair(config)) == {"step": 1}


def test_where_none_is_intact_there_is_nothing_to_load(tmp_path):
    config = tiny_config()
    held = Checkpoints(tmp_path, config, CPU, keep=2)
    for step in (1, 2):
        save(held, *pair(config), {"step": step}, step=step)
        (tmp_path / f"step-0000000{step}" / "__0_0.distcp").unlink()
    assert held.load(*pair(config)) is None
    assert len(held.damaged) == 2


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no"), PermissionError(13, "no")])
def test_what_says_nothing_of_the_file_leaves_it_alone(tmp_path, monkeypatch, error):
    config = tiny_config()
    held = Checkpoints(tmp_path, config, CPU, keep=2)
    save(held, *pair(config), {"step": 1}, step=1)

    def fails(*_, **__):
        raise error

    monkeypatch.setattr(manager.state_dict_loader, "load", fails)
    with pytest.raises(type(error)):
        held.load(*pair(config))
    assert names(tmp_path) == ["step-00000001"]


def test_no_space_left(tmp_path, monkeypatch):
    """Said before a byte is written, with what it takes; the last checkpoint is kept."""
    config = tiny_config()
    held = Checkpoints(tmp_path, config, CPU, keep=2)
    save(held, *pair(config, seed=1), {"step": 1}, step=1)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(writer.shutil, "disk_usage", lambda _: usage(9, 9, 1_000))
    with pytest.raises(ConfigError, match="no space left for a checkpoint") as refused:
        save(held, *pair(config, seed=2), {"step": 2}, step=2)
    assert "run the same command again" in str(refused.value)
    monkeypatch.undo()
    assert names(tmp_path) == ["step-00000001"]
    assert held.load(*pair(config)) == {"step": 1}


def test_the_disk_fills_up_while_a_checkpoint_is_written(small_disk, monkeypatch):
    """Somebody else took what was free: the sentence is the same, and nothing half is found."""
    monkeypatch.setattr(writer, "_lack_of_space", lambda *_: None)
    config, folder = tiny_config(), small_disk("400k")
    held = Checkpoints(folder, config, CPU, keep=9)
    save(held, *pair(config, seed=1), {"step": 1}, step=1)

    def fill() -> None:
        for step in range(2, 9):
            save(held, *pair(config, seed=step), {"step": step}, step=step)

    with pytest.raises(ConfigError, match="no space left for a checkpoint") as refused:
        fill()
    assert str(folder) in str(refused.value)
    found = pair(config)
    progress = held.load(*found)
    assert same(pair(config, seed=progress["step"]), found)


def test_the_space_asked_for_is_what_a_checkpoint_takes(tmp_path, monkeypatch):
    """Never less than the files hold, nor twice as much."""
    config = tiny_config(size={"dim": 128, "num_layers": 2, "num_heads": 2, "mlp_dim": 256})
    asked = []
    real = shutil.disk_usage
    seen = writer._num_bytes
    monkeypatch.setattr(writer, "_num_bytes", lambda s: asked.append(seen(s)) or seen(s))
    save(Checkpoints(tmp_path, config, CPU, keep=2), *pair(config), {"step": 1}, step=1)
    held = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert real(tmp_path).free > held
    needed = 1.05 * max(asked) + 2**20
    assert held < needed < 2 * held
