"""A driver that was away for two minutes, whose cell another host took over meanwhile."""

import threading
import time

import pytest

from dcray.track.locks.owner import Owner
from tests.studies import cells_of, final_table, search_words, write_study
from tests.training import client_of

ALONE = """
[recipes.ar]
space = [{{ num_epochs = [100, 200], lr = [1e-2], tau = [1, 4] }}]
search = {{ sampler = "grid", keep = [1, 0.5] }}
"""
THEIRS = {"dcray.owner": Owner("elsewhere", 1).to_json(), "dcray.attempt": "theirs"}


def parent_of(directory):
    client = client_of(directory)
    experiment = client.get_experiment_by_name("micro").experiment_id
    (run,) = client.search_runs([experiment], "tags.`dcray.role` = 'cell'")
    return run


def write(directory, tags, age):
    client, run = client_of(directory), parent_of(directory)
    for name, text in (tags | {"dcray.heartbeat": str(time.time() - age)}).items():
        client.set_tag(run.info.run_id, name, text)


@pytest.mark.slow
def test_it_stops_and_leaves_the_other_alone(dcray, tiny_corpus, tmp_path, monkeypatch):
    """The same command then skips the cell; when that other is silent too, it goes on."""
    monkeypatch.setattr("dcray.track.locks.heartbeat.Heart.seconds", 0.5)
    directory = tmp_path / "runs"
    study = write_study(tmp_path, body=ALONE)
    words = search_words(study, tiny_corpus, directory)

    def other():
        while not list(directory.glob("micro/checkpoints/*/step-*")):
            time.sleep(0.05)
        write(directory, THEIRS, 0.0)

    thread = threading.Thread(target=other, daemon=True)
    thread.start()
    code, out, err = dcray(*words)
    thread.join(timeout=5)
    assert code == 3, err
    assert err.count("500 ar was taken over by process 1 on elsewhere") == 1
    assert "stopped; run the same command again to go on" in out
    parent = parent_of(directory)
    assert (parent.info.status, parent.data.tags["dcray.attempt"]) == ("RUNNING", "theirs")

    write(directory, {}, 0.0)
    code, out, err = dcray(*words)
    assert code == 3, err
    assert "500 ar is skipped: it is held by process 1 on elsewhere" in err

    write(directory, {}, 600.0)
    code, out, err = dcray(*words, "--json")
    assert code == 0, err
    assert {cell["state"] for cell in cells_of(out).values()} == {"done"}
    assert {state for _, state, _ in final_table(directory).values()} == {"complete"}
