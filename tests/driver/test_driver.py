"""What a search keeps between two looks at the record, and in it."""

import pytest

from dcray.corpus.manifest import Corpus
from dcray.driver.limits import ComputeLimit
from dcray.driver.recorder import columns
from dcray.driver.session import Session
from dcray.driver.study import TAG_CHARACTERS, StudyDriver, dropped_results, dropped_tag
from dcray.errors import ConfigError
from dcray.search.specs import fingerprints
from dcray.study.study import Study
from dcray.track.runs import CellRow
from dcray.track.store import Store
from dcray.types import Cell, RunKey, RunResult
from tests.driver.test_session import Silent
from tests.studies import write_study


def test_what_a_sampler_proposed_is_not_asked_for_at_every_look(tiny_corpus, tmp_path):
    """A Gaussian process over 16 trunks takes 0.6 s a cell; a start looks three times."""
    asked, corpus = Study.read(str(write_study(tmp_path))), Corpus.open(tiny_corpus)
    with Store.open(tmp_path / "runs", study="micro") as store:
        session = Session(corpus, store, tmp_path / "runs", Silent())
        reads = fingerprints(corpus, asked.cell_specs)
        task = StudyDriver(asked.cell_specs, reads, session, ComputeLimit(), lambda lines: None)
        task._read()
        before = task.state
        task._read()
    assert task.state is not before
    assert [*map(id, task.state.searches.values())] == [*map(id, before.searches.values())]


def test_a_size_that_is_another_model_than_on_record_is_refused(tiny_corpus, tmp_path):
    """Somebody edits [sizes.tiny]: the old model's results would stand in its cells as winners."""
    path, corpus = write_study(tmp_path), Corpus.open(tiny_corpus)
    with Store.open(tmp_path / "runs", study="micro") as store:
        session = Session(corpus, store, tmp_path / "runs", Silent())

        def task():
            cell_specs = Study.read(str(path)).cell_specs
            return StudyDriver(
                cell_specs,
                fingerprints(corpus, cell_specs),
                session,
                ComputeLimit(),
                lambda lines: None,
            )

        before = task()
        before._read()
        one = before.state.ready()[0][0]
        params, config = columns(one.config), one.config.to_dict()
        store.begin(one.key, config=config, params=params).finish({"val_loss": 3.0})
        task()._read()
        path.write_text(path.read_text().replace("mlp_dim = 32", "mlp_dim = 64"))
        with pytest.raises(ConfigError, match=r"tiny 500 ar .* another model: [0-9,]+ parameters"):
            task().run()


@pytest.mark.parametrize("number", [0, 1, 400, 1000])
def test_what_asha_stopped_is_kept_whole(number):
    cell = Cell("s", "60k", 8_000, "ar")
    keys = [RunKey(cell, f"{at:016x}", 42) for at in range(number)]
    done = RunKey(cell, "f" * 16, 42)
    known = {done: RunResult(done, "complete", 3.0)}
    text = dropped_tag(known | {key: RunResult(key, "dropped") for key in keys})
    assert len(text) <= TAG_CHARACTERS
    row = CellRow("s", "60k", 8_000, "ar", "id", "KILLED", None, None, False, {"dropped": text})
    read = list(dropped_results([row]))
    assert read == [RunResult(key, "dropped") for key in keys[: len(read)]]
    assert len(read) == min(number, 400)
