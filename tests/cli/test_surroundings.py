"""What a command meets around it: a long TMPDIR, closed streams, a notebook's variables."""

import os
import shlex
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from dcray.cli.screen.console import follow_up
from dcray.cluster import sessions
from dcray.cluster.process import this_process
from dcray.corpus.manifest import Corpus, verify_shard
from dcray.errors import ConfigError
from tests.studies import search_words, write_study
from tests.training import words

DCRAY = [sys.executable, "-m", "dcray"]


@pytest.fixture
def long_tmpdir(tmp_path, monkeypatch):
    """A TMPDIR as a Slurm job has it."""
    place = tmp_path / "scratch" / "job_1234567.batch" / ("x" * 60)
    place.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


def test_ray_s_sockets_have_room_whatever_tmpdir_is(long_tmpdir):
    notes = []
    folder, spilled = sessions.make_folder(notes.append)
    try:
        deepest = folder + sessions.RAY_PATH
        assert len(deepest.encode()) <= 107
        assert Path(spilled).parent == long_tmpdir  # what is large stays where it is wanted
        (note,) = notes
        assert str(long_tmpdir) in note
        assert str(Path(folder).parent) in note
    finally:
        for one in (folder, spilled):
            (Path(one) / "owner").unlink()
            Path(one).rmdir()


def test_without_any_short_folder_it_is_told(long_tmpdir, monkeypatch):
    monkeypatch.setattr(sessions, "SHORT", (str(long_tmpdir),))
    with pytest.raises(ConfigError, match=r"at most \d\d bytes .* set TMPDIR to a short one"):
        sessions.make_folder()


def test_folders_of_dead_sessions_go_and_a_living_container_s_stay(tmp_path):
    dead = subprocess.Popen(["true"])
    dead.wait()
    ours = this_process()
    owners = {
        "dcray-1-dead": replace(ours, pid=dead.pid),
        "dcray-2-other-boot": replace(ours, boot="ab"),
        "dcray-3-living": ours,
        "dcray-4-container": replace(ours, namespace="7"),
    }
    for name, owner in owners.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "owner").write_text(owner.mark())
    (tmp_path / "dcray-5-without").mkdir()
    sessions.clear_dead(tmp_path)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["dcray-3-living", "dcray-4-container", "dcray-5-without"]


def shell(script, **environment):
    """A shell's exit code and error output; $DCRAY is the command."""
    done = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"DCRAY": shlex.join(DCRAY)} | environment,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "script",
    [
        "$DCRAY sizes >&-",
        "$DCRAY sizes <&- >&-",
        "$DCRAY sizes --json | head -c 1 >/dev/null; exit ${PIPESTATUS[0]}",
        "$DCRAY sizes | true; exit ${PIPESTATUS[0]}",
    ],
)
def test_nobody_reads_what_is_printed(script):
    assert shell(script) == (0, "", "")


def test_no_file_takes_the_number_of_a_closed_stream(tmp_path):
    """SQLite's file would, and what a library prints would be written into the record."""
    code = (
        "import os, sys; from dcray import cli; cli._open_streams(); "
        f"file = open({str(tmp_path / 'file')!r}, 'w'); assert file.fileno() > 2; print('lost')"
    )
    assert shell(f"{sys.executable} -c {shlex.quote(code)} >&- 2>&- <&-")[0] == 0
    assert (tmp_path / "file").read_text() == ""


@pytest.mark.parametrize("name", ["module://matplotlib_inline.backend_inline", "no backend"])
def test_a_notebook_s_backend_is_not_ours(name, tmp_path):
    code = f"""
import sys
sys.argv = ["dcray", "sizes", "--json"]
from dcray import cli
try:
    cli.main()
except SystemExit as ended:
    assert ended.code == 0
from dcray.report.figures.style import drawing, sheet
with drawing():
    sheet()[0].savefig({str(tmp_path / "drawn.png")!r})
"""
    ended = shell(f"{sys.executable} -c {shlex.quote(code)}", MPLBACKEND=name)
    assert (ended[0], ended[2]) == (0, "")
    assert (tmp_path / "drawn.png").stat().st_size > 0


def test_a_printed_command_can_be_pasted():
    where = Path("/data/our runs/$x")
    command = follow_up("analyze", "a b", directory=where, tracking_uri="http://me:pw@box:5000")
    assert shlex.split(command) == [
        "dcray", "analyze", "a b", "--dir", str(where), "--tracking-uri", "http://me:***@box:5000"
    ]  # fmt: skip
    assert follow_up("analyze", "mine", directory=Path("dcray-runs")) == "dcray analyze mine"


def test_a_corpus_has_a_whole_path_wherever_trials_run(tiny_corpus, monkeypatch):
    """`uv run` gives Ray's processes another working folder, and so does a Ray that runs long."""
    monkeypatch.chdir(tiny_corpus.parent)
    corpus = Corpus.open("corpus")
    assert all(shard.path.is_absolute() for shard in corpus.shards())
    monkeypatch.chdir("/")
    corpus.verify()


def test_an_intact_corpus_is_never_to_be_deleted(tiny_corpus, corpus_copy, tmp_path):
    """A folder that this machine does not see may be whole on another one."""
    shard = Corpus.open(tiny_corpus).shards()[0]
    with pytest.raises(ConfigError, match=r"is not on .* put it on a shared disk, or copy it"):
        verify_shard(tmp_path / "elsewhere" / shard.path.name, shard.sha256)
    (corpus_copy / shard.path.name).unlink()
    with pytest.raises(ConfigError, match="is missing; copy that file from an intact copy") as said:
        verify_shard(corpus_copy / shard.path.name, shard.sha256)
    assert "delete" not in str(said.value)


MODEL_BASED = """
[recipes.ar]
space = [{{ num_epochs = [1, 2], lr = [1e-3, 1e-2] }}]
search = {{ sampler = "tpe" }}
"""


def test_optuna_is_asked_for_before_anything_is_begun(dcray, tiny_corpus, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    study = write_study(tmp_path, body=MODEL_BASED)
    code, _, err = dcray(*search_words(study, tiny_corpus, tmp_path / "runs"))
    assert code == 2
    assert 'the sampler "tpe" needs optuna, which cannot be imported here (' in err
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_slurm_job_in_a_shared_folder_of_an_odd_name(tiny_corpus, tmp_path):
    """A long TMPDIR, umask 002, a relative corpus, a --dir that is no URI, and what is printed."""
    tmpdir, place = tmp_path / ("job_1234567." + "x" * 60), tmp_path / "team"
    tmpdir.mkdir()
    place.mkdir()
    relative = os.path.relpath(tiny_corpus, place)
    asked = shlex.join(words(Path(relative), Path("a ?b%20c#d")))
    script = f"umask 002; cd {shlex.quote(str(place))} && $DCRAY {asked}"
    code, out, err = shell(script, TMPDIR=str(tmpdir), PYTHONPATH=str(Path(__file__).parents[2]))
    assert code == 0, err
    assert f"TMPDIR {tmpdir} is too long for Ray's sockets: they lie in /" in err
    assert [path.name for path in place.iterdir()] == ["a ?b%20c#d"]
    assert [p for p in place.rglob("*") if not p.stat().st_mode & 0o020] == []
    line = next(one for one in out.splitlines() if one.startswith("compare runs: "))
    command = shlex.split(line.removeprefix("compare runs: "))
    from mlflow import MlflowClient

    client = MlflowClient(command[command.index("--backend-store-uri") + 1])
    (run,) = [
        run
        for run in client.search_runs([client.get_experiment_by_name("train").experiment_id])
        if run.data.tags["dcray.role"] == "result"
    ]
    assert run.info.status == "FINISHED"
    assert list(tmpdir.iterdir()) == []  # nothing of Ray's is left
