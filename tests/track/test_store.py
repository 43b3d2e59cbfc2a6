"""What is written: one run a key, under its cell, truthful, once."""

import json
import math
import shutil
import threading
import time
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dcray.errors import ConfigError, RecordAwayError
from dcray.track import runs
from dcray.track.locks.lease import CellHeldError
from dcray.track.locks.owner import Owner
from dcray.track.mlflow.write_queue import Write
from dcray.types import Cell
from tests.track.support import (
    CELL,
    PARAMS,
    STUDY,
    begin,
    key,
    locked,
    open_store,
    point,
    rows_in_database,
)


def mlflow_run(store, run_id):
    return store.connection.client.get_run(run_id)


def test_a_result_from_begin_to_finish(store, directory):
    result = store.begin(
        key(),
        config={"num_epochs": 16},
        params=PARAMS,
        tags={"device": "cpu", "threads": 1, "world_size": 1, "causal": True},
        manifest={"tokens": 3},
    )
    result.log([point(s, **{"train/loss": 5.0 - s, "optim/lr": 1e-3}) for s in range(3)])
    assert result.finish({"val_loss": 3.5, "val_bpb": 1.25, "device_seconds": 2.0})
    run = mlflow_run(store, result.run_id)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "mini 64k ar ep16 wd0.8 lr3e-3 seed42"
    assert run.data.params == {
        **{name: str(value) for name, value in PARAMS.items()},
        "size": "mini",
        "unique_tokens": "64000",
        "recipe": "ar",
        "seed": "42",
    }
    tags = run.data.tags
    assert tags["dcray.complete"] == "true"
    assert (tags["device"], tags["threads"], tags["causal"]) == ("cpu", "1", "true")
    assert tags["version.mlflow"]
    assert len(tags["commit"]) == 40
    parent = mlflow_run(store, tags["mlflow.parentRunId"])
    assert parent.info.run_name == CELL.name
    artifacts = directory / "artifacts" / STUDY / result.run_id / "artifacts"
    assert json.loads((artifacts / "config.json").read_text()) == {"num_epochs": 16}
    assert json.loads((artifacts / "manifest.json").read_text()) == {"tokens": 3}
    row = store.find(key())
    assert (row.state, row.val_loss, row.tau, row.num_params) == ("complete", 3.5, 1.25, 226_000)
    assert [p.values for p in runs.curve(directory, result.run_id)] == [
        {"optim/lr": 1e-3, "train/loss": 5.0 - s} for s in range(3)
    ]
    assert [p.tokens_seen for p in runs.curve(directory, result.run_id)] == [0, 2048, 4096]


def test_a_cell_has_the_dataset_and_the_source_of_its_results_once(store):
    budgets = [{"tokens": CELL.unique_tokens, "sha256": "ab" * 32}]
    manifest = {"budgets": budgets, "tokenizer": {"vocab_size": 512}}
    for seed in (1, 2):
        told = {"tags": {"corpus": "/data/text"}, "manifest": manifest}
        result = store.begin(key(seed=seed), config={}, params=PARAMS, **told)
    run = mlflow_run(store, result.run_id)
    for one in (run, mlflow_run(store, run.data.tags["mlflow.parentRunId"])):
        (read,) = one.inputs.dataset_inputs
        assert (read.dataset.name, read.dataset.digest) == ("text 64k", "abababab")
        assert one.data.tags["mlflow.source.name"] == "dcray"


def test_nothing_is_found_before_it_was_begun(store):
    assert store.find(key()) is None


def test_one_run_a_key_nested_under_one_run_a_cell(store):
    other_cell = Cell(STUDY, "mini", 128_000, "ar")
    keys = [key(), key(seed=1), key(kind="confirmation"), key("def456"), key(cell=other_cell)]
    ids = [begin(store, k).run_id for k in keys]
    assert len(set(ids)) == 5
    parents = {mlflow_run(store, i).data.tags["mlflow.parentRunId"] for i in ids}
    assert parents == {store.cell(CELL), store.cell(other_cell)}
    assert [begin(store, k).run_id for k in keys] == ids


def test_a_complete_result_is_not_begun_again(store):
    begin(store).finish({"val_loss": 3.0})
    with pytest.raises(ValueError, match="already on record"):
        begin(store)


@pytest.mark.parametrize(
    ("end", "state", "status"),
    [
        (lambda r: r.interrupt("budget"), "interrupted", "KILLED"),
        (lambda r: r.diverge("loss is nan at step 3"), "diverged", "FAILED"),
        (lambda r: r.fail("Traceback ...\nKeyError: 'x'\n"), "failed", "FAILED"),
        (lambda r: r.finish({"val_loss": math.nan}), "diverged", "FAILED"),
        (lambda r: r.finish({"val_loss": math.inf}), "diverged", "FAILED"),
    ],
)
def test_every_other_end_is_told_and_may_be_begun_again(store, end, state, status):
    result = begin(store)
    end(result)
    row = store.find(key())
    assert (row.state, row.val_loss) == (state, None)
    assert row.reason
    assert mlflow_run(store, result.run_id).info.status == status
    again = begin(store)
    assert again.run_id == result.run_id
    assert store.find(key()).state == "running"
    assert store.find(key()).reason is None
    again.finish({"val_loss": 3.0})
    assert store.find(key()).state == "complete"


def test_an_exception_leaves_a_failed_run_with_its_traceback(store, directory):
    with pytest.raises(ZeroDivisionError), begin(store) as result:
        result.log([point(1 / 0)])
    row = store.find(key())
    assert (row.state, row.reason) == ("failed", "ZeroDivisionError: division by zero")
    artifacts = directory / "artifacts" / STUDY / result.run_id / "artifacts"
    assert "ZeroDivisionError" in (artifacts / "traceback.txt").read_text()


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_ctrl_c_leaves_a_run_to_be_continued(store, stop):
    with pytest.raises(stop), begin(store):
        raise stop
    assert store.find(key()).state == "interrupted"


def test_a_block_that_just_ends_is_not_complete(store):
    with begin(store):
        pass
    assert store.find(key()).state == "interrupted"


def test_closing_the_store_interrupts_what_is_open(directory):
    with open_store(directory) as store, store.claim(CELL):
        result = begin(store)
        result.log([point(1)])
        store.close()
    assert [r.state for r in runs.every_result(directory, study=STUDY)] == ["interrupted"]
    assert [c.status for c in runs.cells(directory, study=STUDY)] == ["KILLED"]
    assert len(rows_in_database(directory, result.run_id)) == 3


def test_a_resumed_run_repeats_no_row(store, directory):
    result = begin(store)
    result.log([point(s) for s in range(10)])
    result.interrupt()
    with open_store(directory) as again:
        resumed = begin(again)
        resumed.log([point(s) for s in range(5, 15)])
        resumed.finish({"val_loss": 3.0})
    rows = [r for r in rows_in_database(directory, result.run_id) if r[0] == "train/loss"]
    assert rows == [("train/loss", s, 5.0 - s / 100) for s in range(15)]


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 20)), min_size=1, max_size=4))
def test_any_sequence_of_kills_and_resumes_gives_each_row_once(store, directory, attempts):
    """Each attempt starts anywhere (its checkpoint) and logs a stretch, in two batches."""
    which = key(f"h{abs(hash(tuple(attempts)))}")
    wanted = set()
    for start, length in attempts:
        result = begin(store, which)
        steps = range(start, start + length)
        result.log([point(s) for s in steps[: length // 2]])
        result.log([point(s) for s in steps])
        wanted |= set(steps)
        result.interrupt()
    rows = [r for r in rows_in_database(directory, result.run_id) if r[0] == "train/loss"]
    assert rows == [("train/loss", s, 5.0 - s / 100) for s in sorted(wanted)]


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_is_never_a_metric(store, directory, bad):
    result = begin(store)
    result.log([point(3, **{"train/loss": bad, "optim/lr": 1e-3})])
    result.finish({"val_loss": 3.0, "val_bpb": bad})
    run = mlflow_run(store, result.run_id)
    assert set(run.data.metrics) == {
        "val_loss",
        "optim/lr",
        "progress/tokens_seen",
        "progress/epoch",
    }
    assert run.data.tags["dcray.nonfinite"] == "train/loss@3"
    assert all(abs(value) < 1e300 for _, _, value in rows_in_database(directory, result.run_id))


def test_more_than_a_thousand_metrics_in_one_call(store, directory):
    result = begin(store)
    result.log([point(s, **{"train/loss": 1.0, "optim/lr": 1.0}) for s in range(700)])
    result.finish({"val_loss": 3.0})
    assert len(rows_in_database(directory, result.run_id)) == 4 * 700 + 1


def test_a_configuration_is_read_back_and_told_where_its_artifacts_are_away(store, directory):
    with begin(store) as result:
        result.finish({"val_loss": 3.0})
    assert store.config(result.run_id) == {"num_epochs": 16}
    shutil.rmtree(directory / "artifacts")
    with pytest.raises(ConfigError, match="belong beside the record: copy DIR as a whole"):
        store.config(result.run_id)


def test_a_changed_parameter_does_not_stop_a_resume(store):
    begin(store).interrupt()
    result = store.begin(key(), config={}, params={**PARAMS, "lr": 1.0, "new": 7})
    assert result.finish({"val_loss": 3.0})
    assert store.find(key()).params["lr"] == "0.003"
    assert store.find(key()).params["new"] == "7"


def test_what_mlflow_refuses_is_told_and_kept(store, directory):
    result = begin(store)
    store.writer.put(Write(result.run_id, store.attempt, metrics=[("a (%)", 1.0, 1, 1)]))
    with pytest.raises(RecordAwayError, match="not wholly on record"):
        result.finish({"val_loss": 3.0})
    assert len(list((directory / "spill").glob("*.refused"))) == 1


def test_of_a_run_that_somebody_deleted_nothing_more_is_kept(store, directory):
    """A search reports every few seconds, for hours."""
    result = begin(store)
    store.writer.drain(None, seconds=10)
    store.connection.client.delete_run(result.run_id)
    for step in range(3):
        result.log([point(step)])
        store.writer.drain(None, seconds=10)
    with pytest.raises(RecordAwayError, match="it was deleted in MLflow while it was open"):
        result.finish({"val_loss": 3.0})
    assert not list((directory / "spill").glob("*"))


def test_a_cell_that_is_taken_again_forgets_how_it_was_left(store):
    run_id = store.cell(CELL)
    store.connection.client.set_tag(run_id, "dcray.state", "interrupted")
    with store.claim(CELL):
        pass
    assert mlflow_run(store, run_id).data.tags["dcray.state"] == ""


def test_a_file_and_a_text_are_kept(store, directory, tmp_path):
    (tmp_path / "log.txt").write_text("hello")
    result = begin(store)
    result.artifact("notes/a.txt", "text")
    result.finish({"val_loss": 3.0}, {"logs/log.txt": tmp_path / "log.txt"})
    artifacts = directory / "artifacts" / STUDY / result.run_id / "artifacts"
    assert (artifacts / "notes" / "a.txt").read_text() == "text"
    assert (artifacts / "logs" / "log.txt").read_text() == "hello"


def test_a_locked_database_costs_patience_and_loses_nothing(store, directory):
    result = begin(store)
    store.writer.drain(None, seconds=10)
    with locked(directory):
        result.log([point(s) for s in range(50)])
        assert not store.writer.drain(result.run_id, seconds=0.5)
        spilled = store.writer.spill(result.run_id)
        assert [path.suffix for path in spilled] == [".json"]
    assert result.finish({"val_loss": 3.0})
    assert not spilled[0].exists()
    assert len(rows_in_database(directory, result.run_id)) == 3 * 50 + 1


def test_a_cell_is_held_by_one_and_released(store, directory):
    with store.claim(CELL) as lease:
        assert lease.held()
        assert runs.cells(directory, study=STUDY)[0].held
    cell = runs.cells(directory, study=STUDY)[0]
    assert (cell.status, cell.held) == ("FINISHED", False)
    with pytest.raises(ZeroDivisionError), store.claim(CELL):
        raise ZeroDivisionError
    assert runs.cells(directory, study=STUDY)[0].status == "FAILED"


def theirs(store, run_id, *, age=0.0):
    """Another host's driver writes its name on a run; its last heartbeat is `age` seconds old."""
    client = store.connection.client
    client.set_tag(run_id, "dcray.owner", Owner("elsewhere", 1).to_json())
    client.set_tag(run_id, "dcray.attempt", "theirs")
    client.set_tag(run_id, "dcray.heartbeat", str(time.time() - age))


def test_a_deleted_parent_run_is_made_anew_and_its_results_go_under_it(directory):
    """The tracker's page would show them beside their cell, as results of none."""
    with open_store(directory) as store:
        with store.claim(CELL), begin(store) as result:
            result.finish({"val_loss": 3.0})
        old = store.cell(CELL)
        store.connection.client.delete_run(old)
    with open_store(directory) as store, store.claim(CELL) as lease:
        assert lease.run_id != old
        tags = store.connection.client.get_run(result.run_id).data.tags
        assert tags["mlflow.parentRunId"] == lease.run_id
        assert store.find(key()).state == "complete"


@pytest.mark.parametrize(("age", "held"), [(10, True), (60, True), (125, False)])
def test_another_hosts_cell_is_held_until_its_heartbeat_is_old(store, age, held):
    run_id = store.claim(CELL).run_id
    theirs(store, run_id, age=age)
    if held:
        with pytest.raises(CellHeldError, match="held by process 1 on elsewhere"):
            store.claim(CELL)
    else:
        assert store.claim(CELL).held()


def test_of_two_hosts_that_share_a_database_the_last_writer_holds_the_cell(store):
    """No server stands between them, and no file lock."""
    run_id = store.cell(CELL)
    store.connection = replace(store.connection, uri="postgresql://me@db/x")
    rival = threading.Timer(0.2, theirs, [store, run_id])
    rival.start()
    with pytest.raises(CellHeldError, match="held by process 1 on elsewhere"):
        store.claim(CELL)
    rival.join()


def test_what_is_taken_over_while_orphans_are_looked_for_stays_running(store, directory):
    """Two drivers start after a crash: one lists the dead one's runs, the other takes them over."""
    run_id = store.cell(CELL)
    with open_store(directory) as other:
        taking = threading.Thread(target=store.claim, args=[CELL])
        search = other.connection.client.search_runs

        def listed(*args, **kwargs):
            page = search(*args, **kwargs)
            taking.start()
            taking.join(1.0)  # not before the other is through
            return page

        store.connection.client.update_run(run_id, status="RUNNING")
        theirs(store, run_id, age=600)
        other.connection.client.search_runs = listed
        try:
            other.settle_orphans()
        finally:
            del other.connection.client.search_runs
        taking.join()
        assert runs.cells(directory, study=STUDY)[0].held


def test_a_run_that_somebody_deleted_costs_no_other_its_heartbeat(store, monkeypatch):
    open_runs = sorted(begin(store, key(seed=seed)).run_id for seed in range(3))
    client = store.connection.client
    for run_id in open_runs:
        client.set_tag(run_id, "dcray.heartbeat", "0")
    client.delete_run(open_runs[0])
    monkeypatch.setattr("dcray.track.locks.heartbeat.Heart.seconds", 0.0)
    store.writer.put(Write(open_runs[1], store.attempt, tags={"x": "y"}))  # wakes the thread
    assert store.writer.drain(open_runs[1], seconds=10)
    store.writer.put(Write(open_runs[1], store.attempt, tags={"x": "z"}))
    assert store.writer.drain(open_runs[1], seconds=10)
    for run_id in open_runs[1:]:
        assert float(mlflow_run(store, run_id).data.tags["dcray.heartbeat"]) > 0


def test_a_driver_whose_cell_was_taken_over_ends_nothing_of_it(store, directory):
    """It was away for two minutes, and comes back while another host trains its cell."""
    lease, result = store.claim(CELL), begin(store)
    assert store.writer.drain(None, seconds=10)
    for run_id in (lease.run_id, result.run_id):
        theirs(store, run_id)
    result.finish({"val_loss": 3.0})
    lease.release()
    assert runs.cells(directory, study=STUDY)[0].held
    assert store.find(key()).state == "running"


def test_after_an_outage_the_first_thing_said_is_that_we_live(store, monkeypatch):
    """Others take a lease whose heartbeat is two minutes old: none should be as old as that."""
    lease = store.claim(CELL)
    store.connection.client.set_tag(lease.run_id, "dcray.heartbeat", "0")
    monkeypatch.setattr("dcray.track.locks.heartbeat.Heart.seconds", 1.0)
    set_tag, away = store.connection.client.set_tag, threading.Event()

    def refused(*args):
        away.set()
        raise OSError("the server is away")

    store.connection.client.set_tag = refused
    assert away.wait(10)
    monkeypatch.setattr("dcray.track.locks.heartbeat.Heart.seconds", 60.0)
    store.connection.client.set_tag = set_tag
    store.writer.put(Write(lease.run_id, store.attempt, tags={"x": "y"}))  # wakes the thread
    assert store.writer.drain(lease.run_id, seconds=10)
    store.writer.put(Write(lease.run_id, store.attempt, tags={"x": "z"}))
    assert store.writer.drain(lease.run_id, seconds=10)
    assert float(mlflow_run(store, lease.run_id).data.tags["dcray.heartbeat"]) > 0


def test_a_lease_that_was_taken_over_knows_it_and_keeps_the_others_dead_heart_still(
    store, monkeypatch
):
    """A heartbeat of ours would have that other driver live for ever."""
    lease, told = store.claim(CELL), []
    store.watch(lambda cell, owner: told.append((cell, str(owner))))
    theirs(store, lease.run_id, age=100.0)
    before = mlflow_run(store, lease.run_id).data.tags["dcray.heartbeat"]
    monkeypatch.setattr("dcray.track.locks.heartbeat.Heart.seconds", 0.0)
    for text in "xy":
        store.writer.put(Write(lease.run_id, store.attempt, tags={"x": text}))  # wakes the thread
        assert store.writer.drain(lease.run_id, seconds=10)
    assert told == [(CELL, "process 1 on elsewhere")]
    assert not lease.held()
    assert mlflow_run(store, lease.run_id).data.tags["dcray.heartbeat"] == before


def test_patience_ends(store, directory, monkeypatch):
    monkeypatch.setattr("dcray.track.store.PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(
        "dcray.track.store.runs.search", lambda *_: (_ for _ in ()).throw(OSError("away"))
    )
    with pytest.raises(RecordAwayError, match=r"did not answer for 0 s: .*mlflow\.db cannot be op"):
        store.find(key())


def test_a_disk_that_takes_nothing_at_all_is_a_sentence(directory, monkeypatch):
    store = open_store(directory)
    monkeypatch.setattr("dcray.track.store.CLOSE_SECONDS", 0.2)
    begin(store)
    (directory / "spill").write_text("no folder")  # root may write to every folder, not to a file
    with locked(directory), pytest.raises(RecordAwayError, match="each run goes on from its"):
        store.close()


def test_a_cell_of_another_study_is_our_own_mistake(store):
    with pytest.raises(AssertionError):
        store.cell(Cell("other", "mini", 1000, "ar"))


def test_a_deleted_study_is_refused(store, directory):
    store.connection.client.delete_experiment(store.experiment_id)
    with pytest.raises(ConfigError, match="was deleted in MLflow"):
        open_store(directory)


def test_a_newer_format_is_refused(store, directory):
    store.connection.client.set_experiment_tag(store.experiment_id, "dcray.format", "2")
    with pytest.raises(ConfigError, match="newer dcray"):
        open_store(directory)
