"""RUN by id and by cell, and remarks that leave a result as it was."""

import pytest

from dcray.errors import ConfigError
from dcray.track import runs
from dcray.track.evaluations import remark
from dcray.track.find import find, manifest
from tests.track.support import CELL, STUDY, begin, key, point

NAME = "tests/mini/64k/ar"


def finish(store, which, loss):
    with begin(store, which) as result:
        result.log([point(10), point(20)])
        result.finish({"val_loss": loss, "val_bpb": 1.0})
    return result.run_id


def test_a_cell_is_its_winner_and_an_id_is_itself(store, directory):
    worse, better = (finish(store, key(h), loss) for h, loss in (("aaa", 3.2), ("bbb", 3.1)))
    finish(store, key("ccc", kind="confirmation"), 2.0)
    assert find(directory, NAME).run_id == better
    assert find(directory, worse).run_id == worse


def test_the_search_s_seed_decides_where_there_is_one(store, directory):
    store.cell(CELL, tags={"search_seed": 1})
    finish(store, key("aaa", seed=42), 3.0)
    with pytest.raises(ConfigError, match="no result at its search's seed"):
        find(directory, NAME)
    searched = finish(store, key("aaa", seed=1), 3.3)
    assert find(directory, NAME).run_id == searched


def test_what_is_no_result_is_told(store, directory):
    with begin(store) as result:
        result.log([point(10)])
    with pytest.raises(ConfigError, match="no result that counts: it is interrupted"):
        find(directory, NAME)
    with pytest.raises(ConfigError, match="has no result: it is interrupted, not complete"):
        find(directory, result.run_id)
    with pytest.raises(ConfigError, match="is no result of dcray but cell's"):
        find(directory, store.cell(CELL))
    with pytest.raises(ConfigError, match="cannot be read"):
        manifest(directory, runs.every_result(directory, study=STUDY)[0])


def test_remarks_change_neither_state_nor_loss_nor_curve(store, directory):
    run_id = finish(store, key(), 3.0)
    before, curve = find(directory, run_id), runs.curve(directory, run_id)
    for value in (0.25, 0.5):
        remark(directory, before, {"boolq/acc": value, "boolq/odd": float("nan")},
               artifacts={"boolq/acc": {"0-x": 1.0}})  # fmt: skip
    after = find(directory, run_id)
    assert after.metrics == {**before.metrics, "eval/boolq/acc": 0.5}
    assert (after.state, after.tags, after.val_loss) == ("complete", before.tags, 3.0)
    assert runs.curve(directory, run_id) == curve
    assert (after.owner, after.started_at) == (before.owner, before.started_at)
    held = directory / "artifacts" / STUDY / run_id / "artifacts" / "eval" / "boolq" / "acc.json"
    assert held.read_text() == '{"0-x": 1.0}'
    with pytest.raises(ConfigError, match="letters, digits"):
        remark(directory, before, {"a b": 1.0})
