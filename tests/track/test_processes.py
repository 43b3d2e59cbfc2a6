"""Several drivers, killed drivers, and what a driver leaves behind: real processes, real files."""

import signal
import subprocess
import time

import pytest

from dcray.errors import ConfigError
from dcray.track import runs
from dcray.track.locks.lease import CellHeldError
from tests.track.support import (
    CELL,
    STUDY,
    begin,
    driver,
    key,
    open_store,
    point,
    rows_in_database,
)

LOG_FOR_EVER = """
    store = open_store(directory)
    store.claim(CELL)
    result = begin(store)
    result.log([point(s) for s in range(20)])
    store.writer.drain(None, seconds=20)
    print("ready", flush=True)
    for step in range(20, 100_000):
        result.log([point(step)])
        time.sleep(0.01)
"""


def wait_for(process, word):
    line = process.stdout.readline()
    assert line.strip() == word, process.stderr.read()


def test_eight_drivers_open_a_fresh_record_at_once(tmp_path):
    code = """
        with open_store(directory) as store:
            with begin(store, key(seed=int(sys.argv[1]))) as result:
                result.log([point(s) for s in range(5)])
                result.finish({"val_loss": 3.0})
    """
    processes = [driver(code, tmp_path, str(seed)) for seed in range(8)]
    outputs = [process.communicate(timeout=600) for process in processes]
    assert [process.returncode for process in processes] == [0] * 8, outputs
    assert outputs == [("", "")] * 8
    assert len(runs.results(tmp_path, study=STUDY).rows) == 8
    assert len(runs.cells(tmp_path, study=STUDY)) == 1


@pytest.fixture
def killed(directory):
    """A record whose driver was killed with -9 while it was logging."""
    process = driver(LOG_FOR_EVER, directory)
    wait_for(process, "ready")
    process.send_signal(signal.SIGKILL)
    time.sleep(0.2)  # not waited for: a zombie is dead too
    assert [r.state for r in runs.every_result(directory, study=STUDY)] == ["running"]
    yield directory
    process.communicate()


def test_a_killed_drivers_run_is_settled_and_continued(killed):
    before = runs.every_result(killed, study=STUDY)[0]
    with open_store(killed) as store:
        row = store.find(key())
        assert (row.state, row.run_id) == ("interrupted", before.run_id)
        assert "is gone" in row.reason
        assert runs.cells(killed, study=STUDY)[0].status == "KILLED"
        with store.claim(CELL), begin(store) as result:
            assert result.run_id == before.run_id
            result.log([point(s) for s in range(10, 30)])
            result.finish({"val_loss": 3.0})
    rows, exclusions = runs.results(killed, study=STUDY)
    assert ([r.run_id for r in rows], exclusions) == ([before.run_id], [])
    steps = [s for k, s, _ in rows_in_database(killed, before.run_id) if k == "train/loss"]
    assert steps == sorted(set(steps))
    assert set(range(30)) <= set(steps)


def test_a_living_drivers_run_is_left_alone(directory):
    process = driver(LOG_FOR_EVER, directory)
    wait_for(process, "ready")
    with open_store(directory) as store:
        assert store.find(key()).state == "running"
        with pytest.raises(ConfigError, match=f"trained by process {process.pid}"):
            begin(store)
        with pytest.raises(CellHeldError, match=f"process {process.pid}"):
            store.claim(CELL)
        assert runs.cells(directory, study=STUDY)[0].held
    process.kill()
    process.communicate()


CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


@pytest.fixture
def container():
    """A command that runs another in a PID namespace of its own, as a container does."""
    if subprocess.run([*CONTAINER, "true"], check=False, capture_output=True).returncode:
        pytest.skip("only root can make a PID namespace")
    return CONTAINER


def test_two_containers_of_one_host_name_leave_each_other_alone(directory, container):
    """A pid of the other one means nothing here: process 1 of both lives, or is another's."""
    process = driver(LOG_FOR_EVER, directory, inside=container)
    wait_for(process, "ready")
    look = """
        from dcray.errors import ConfigError
        from dcray.track.locks.lease import CellHeldError
        with open_store(directory) as store:
            print(os.getpid(), store.find(key()).state)
            try:
                store.claim(CELL)
            except CellHeldError as error:
                print(error.owner.pid, error.advice)
            try:
                begin(store)
            except ConfigError as error:
                print(error)
    """
    try:
        for inside in (container, ()):
            seen, errors = driver(look, directory, inside=inside).communicate(timeout=60)
            first, held, trained = seen.splitlines()
            assert first.endswith(" running"), errors
            assert held.startswith("1 wait for it, or end that process (its last sign of life is ")
            assert "is being trained by process 1 on " in trained
        run = runs.every_result(directory, study=STUDY)[0]
        assert run.state == "running"
    finally:
        process.kill()
        process.communicate()
    with open_store(directory) as store:  # its last heartbeat is young: who can tell?
        assert store.find(key()).state == "running"
        old = str(time.time() - 130)
        for run_id in (run.run_id, store.cell(CELL)):
            store.connection.client.set_tag(run_id, "dcray.heartbeat", old)
        store.settle_orphans()
        assert store.find(key()).state == "interrupted"
        assert "gave no sign of life for 120 s" in store.find(key()).reason
        assert store.claim(CELL).held()


@pytest.mark.parametrize(
    ("ending", "state"),
    [
        ("raise KeyError('x')", "interrupted"),
        ("sys.exit(0)", "interrupted"),
        ("os.kill(os.getpid(), 15); time.sleep(9)", "running"),
    ],
)
def test_no_way_to_die_gives_finished(directory, ending, state):
    start = "store = open_store(directory); begin(store).log([point(1)])"
    process = driver(f"{start}; {ending}", directory)
    process.communicate(timeout=30)
    assert [r.state for r in runs.every_result(directory, study=STUDY)] == [state]
    with open_store(directory) as store:
        assert store.find(key()).state == "interrupted"


def test_nothing_is_left_elsewhere_and_nothing_is_said(directory, tmp_path):
    place = tmp_path / "elsewhere"
    place.mkdir()
    code = """
        with open_store(directory) as store:
            with store.claim(CELL), begin(store) as result:
                result.log([point(s) for s in range(5)])
                result.finish({"val_loss": 3.0}, {"a.txt": "text"})
        default = store.connection.client.search_runs(["0"])
        from mlflow.telemetry import get_telemetry_client
        print(len(default), get_telemetry_client())
    """
    process = driver(code, directory, cwd=place)
    stdout, stderr = process.communicate(timeout=60)
    assert (stdout, stderr) == ("0 None\n", "")
    assert list(place.iterdir()) == []
    names = {path.name for path in directory.iterdir()}
    assert names == {"mlflow.db", "mlflow.lock", "artifacts"}


def test_what_could_not_be_written_is_replayed_by_the_next_start(directory):
    code = """
        import dcray.track.store as module
        module.CLOSE_SECONDS = 0.5
        store = open_store(directory)
        result = begin(store)
        store.writer.drain(None, seconds=20)
        with locked(directory):
            result.log([point(s) for s in range(50)])
            store.close()
            os._exit(0)
    """
    process = driver(code, directory)
    process.communicate(timeout=60)
    assert len(list((directory / "spill").glob("*.json"))) == 1
    with open_store(directory) as store:
        row = store.find(key())
        assert (row.state, row.reason) == ("interrupted", "the driver ended")
        assert len(rows_in_database(directory, row.run_id)) == 150
        result = begin(store)
        result.log([point(s) for s in range(60)])
        result.finish({"val_loss": 3.0})
        assert len(rows_in_database(directory, row.run_id)) == 181
    assert list((directory / "spill").iterdir()) == []


def test_a_later_attempt_keeps_its_status_when_an_old_one_is_replayed(directory):
    with open_store(directory) as store:
        result = begin(store)
        store.writer.drain(None, seconds=10)
        store.writer.stop()
        result.log([point(1)])
        result.interrupt("old", seconds=0.0)
        [path] = (directory / "spill").glob("*.json")
    kept = path.read_text()
    path.unlink()
    with open_store(directory) as store:
        begin(store).finish({"val_loss": 3.0})
    path.write_text(kept)
    with open_store(directory) as store:
        row = store.find(key())
        assert row.state == "complete"
        assert len(rows_in_database(directory, row.run_id)) == 4
