"""Jobs on a cluster started with `ray start --head`: real uploads, real drivers, a real record."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.heads import BIN, Head, outside, ray_head
from tests.jobs.submitter import ROOT, submit
from tests.studies import final_table, search_words, write_study
from tests.training import broken_objective, client_of, runs, words


@pytest.fixture(scope="module")
def head(tmp_path_factory):
    with ray_head(tmp_path_factory.mktemp("head") / "home") as head:
        yield head


@pytest.fixture
def client(head):
    from ray.job_submission import JobSubmissionClient

    return JobSubmissionClient(head.dashboard)


def submitted(head: Head, tmp_path: Path, *entrypoint: object) -> subprocess.CompletedProcess[str]:
    """`ray job submit --working-dir . -- ENTRYPOINT` in the repository, as the README has it."""
    command = [BIN / "ray", "job", "submit", "--working-dir", ".", "--", *entrypoint]
    return subprocess.run(
        [str(word) for word in command],
        cwd=ROOT,
        env=outside(tmp_path / "home") | {"RAY_API_SERVER_ADDRESS": head.dashboard},
        capture_output=True,
        text=True,
        timeout=180,
    )


def newest(client):
    return max(client.list_jobs(), key=lambda job: job.start_time)


def nothing_in_default(directory: Path) -> bool:
    client = client_of(directory)
    default = client.get_experiment_by_name("Default")
    return default is None or client.search_runs([default.experiment_id]) == []


def test_a_job_writes_the_given_record(head, client, tiny_corpus, tmp_path):
    record = tmp_path / "runs"
    uri = f"sqlite:///{record / 'mlflow.db'}"
    asked = words(tiny_corpus, tmp_path / "dir", "--tracking-uri", uri)[1:]
    done = submitted(head, tmp_path, "python", "jobs/train.py", *asked)
    assert done.returncode == 0, done.stdout + done.stderr
    job = newest(client)
    assert job.status.value == "SUCCEEDED"
    assert "done, val loss" in client.get_job_logs(job.submission_id)
    (run,) = runs(record)
    assert run.info.status == "FINISHED"
    assert nothing_in_default(record)
    assert not (tmp_path / "dir" / "mlflow.db").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dir", "home", "runs"]


@pytest.mark.slow
def test_a_failing_job_says_so_and_keeps_its_traceback(head, client, tiny_corpus, tmp_path):
    plugin = broken_objective(tmp_path / "broken.py", 'RuntimeError("broken on purpose")')
    asked = ["--plugin", plugin, *words(tiny_corpus, tmp_path / "runs")[1:]]
    done = submitted(head, tmp_path, "python", "jobs/train.py", *asked, "objective=broken")
    assert done.returncode == 1
    job = newest(client)
    assert job.status.value == "FAILED"
    assert "exit code 1" in job.message
    log = client.get_job_logs(job.submission_id)
    assert "Traceback" in log
    assert "RuntimeError: broken on purpose" in log
    (run,) = runs(tmp_path / "runs")
    assert run.info.status == "FAILED"
    kept = client_of(tmp_path / "runs").list_artifacts(run.info.run_id)
    assert "traceback.txt" in [entry.path for entry in kept]


def test_a_record_inside_the_job_s_own_folder_is_refused(head, client, tiny_corpus, tmp_path):
    """Ray deletes its copy of the working folder after the job: the results would go with it."""
    done = submitted(head, tmp_path, "python", "jobs/train.py", *words(tiny_corpus, "runs")[1:])
    assert done.returncode == 1
    job = newest(client)
    assert "exit code 2" in job.message
    assert "must outlive the job" in client.get_job_logs(job.submission_id)


@pytest.mark.slow
def test_two_budgets_side_by_side(head, client, tiny_corpus, tmp_path, capsys):
    """Of one study: two searches on one cluster and one fresh record."""
    record = tmp_path / "runs"
    study = write_study(tmp_path, budgets=("500", "1k"), epochs=(40, 80))
    asked = search_words(study, tiny_corpus, record, "--budgets", "500,1k")
    commands = submit.split(asked)
    entrypoints = [shlex.join(["python", "jobs/search.py", *one[1:]]) for one in commands]
    jobs = submit.send(client, entrypoints, ROOT)
    assert submit.watch(client, jobs) == 0
    first, second = (client.get_job_info(job) for job in jobs)
    assert first.start_time < second.end_time
    assert second.start_time < first.end_time
    assert {run.data.tags["budget"] for run in runs(record, "micro")} == {"500", "1k"}
    assert {run.info.status for run in runs(record, "micro")} == {"FINISHED"}
    assert len(final_table(record)) == 2 * (4 + 2 + 1 + 1)
    assert nothing_in_default(record)
    assert capsys.readouterr().out.count("SUCCEEDED") == 2


@pytest.mark.slow
def test_the_submitter_shows_why_a_job_failed(head, tmp_path):
    sent = [sys.executable, "jobs/submit.py", "--address", head.dashboard]
    done = subprocess.run(
        [*sent, "train", "size=60m", "--corpus", "none"],
        cwd=ROOT,
        env=outside(tmp_path / "home"),
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 1
    assert "FAILED" in done.stdout
    assert 'no size is called "60m"' in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_one_job_for_each_budget():
    asked = ["search", "dclm", "--budgets", "100m,200m", "--dir", "/shared"]
    assert submit.split(asked) == [
        ["search", "dclm", "--budgets", "100m", "--dir", "/shared"],
        ["search", "dclm", "--budgets", "200m", "--dir", "/shared"],
    ]
    assert submit.split(["search", "dclm", "--budgets=1k,2k", "-q"]) == [
        ["search", "dclm", "--budgets", "1k", "-q"],
        ["search", "dclm", "--budgets", "2k", "-q"],
    ]
    assert submit.split(["train", "size=60k"]) == [["train", "size=60k"]]


@pytest.fixture
def folder(tmp_path):
    """A folder with 60 MB too many, and with what nobody wants to send."""
    for name, megabytes in {
        "a.bin": 30, "deep/b.bin": 12, "c.bin": 8, "d.bin": 6, "e.bin": 4, "f.py": 0.001,
        "corpora/x.bin": 90, "dcray-runs/y.pt": 90, ".git/z": 90, ".venv/w": 90, "ignored/v": 90,
        "rayignored/u": 90, "mlflow.db": 90,
    }.items():  # fmt: skip
        path = tmp_path / "folder" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.truncate(int(megabytes * 1e6))
    (tmp_path / "folder" / ".gitignore").write_text("ignored/\n")
    (tmp_path / "folder" / ".rayignore").write_text("rayignored/\n")
    return tmp_path / "folder"


def test_too_large_a_folder_is_refused_before_anything_is_sent(folder):
    done = subprocess.run(
        [sys.executable, ROOT / "jobs/submit.py", "--address", "http://127.0.0.1:9", "train"],
        cwd=folder,
        env=outside(folder.parent / "home") | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    largest = (
        "a.bin (30.0 MB), deep/b.bin (12.0 MB), c.bin (8.0 MB), d.bin (6.0 MB), e.bin (4.0 MB)"
    )
    assert f"got 60.0 MB in {folder}; the largest: {largest}. Add" in done.stderr


def test_what_travels_is_what_ray_packs(folder, tmp_path):
    """The size that is checked is of the very files in the archive that Ray makes."""
    import zipfile

    from ray._private.ray_constants import get_runtime_env_default_excludes
    from ray._private.runtime_env.packaging import create_package

    archive = tmp_path / "package.zip"
    excludes = [*get_runtime_env_default_excludes(), *submit.EXCLUDES]
    create_package(str(folder), archive, include_gitignore=True, excludes=excludes)
    packed = {i.filename for i in zipfile.ZipFile(archive).infolist() if not i.is_dir()}
    assert packed == {str(p.relative_to(folder)) for p in submit.travelling(folder)}
    assert "a.bin" in packed


def test_this_repository_is_small_enough_to_send():
    sizes = submit.travelling(ROOT)
    assert sum(sizes.values()) < 5e6
    assert ROOT / "jobs" / "train.py" in sizes
    assert ROOT / "dcray" / "cli" / "train.py" in sizes


@pytest.mark.parametrize("address", ["http://127.0.0.1:9", "127.0.0.1", "nonsense://x"])
def test_no_cluster_is_a_sentence(address):
    with pytest.raises(Exception, match="must name the dashboard of a running cluster"):
        submit.connected(address)


@pytest.mark.parametrize("command", ["search", "train", "analyze"])
def test_an_entry_point_forwards_its_words(command, tmp_path):
    """`python jobs/COMMAND.py --help` is `dcray COMMAND --help`, exit code and all."""
    done = [
        subprocess.run(
            [sys.executable, *how, "--help"],
            cwd=ROOT, env=outside(tmp_path / "home") | {"PYTHONPATH": str(ROOT)},
            capture_output=True, text=True,
        )
        for how in ([f"jobs/{command}.py"], ["-m", "dcray", command])
    ]  # fmt: skip
    assert done[0].returncode == done[1].returncode
    assert (
        done[0].stdout.split("Usage:")[-1].splitlines()[1:]
        == (done[1].stdout.split("Usage:")[-1].splitlines()[1:])
    )
