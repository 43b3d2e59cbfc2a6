"""A study has one corpus: bound by the first job, kept by those that follow, told by each reader.

What must be told apart is planted: manifests with other tokenizers, validation sets and streams.
"""

import hashlib
import json
import shutil
import sqlite3
import subprocess

import numpy as np
import pytest
from mlflow.tracking._tracking_service.utils import _artifact_repos_cache

from dcray.corpus.manifest import Corpus
from dcray.errors import ConfigError, RecordAwayError
from dcray.track import find, runs
from dcray.track.locks.corpus_binding import check_corpus, hold_corpus
from dcray.track.locks.corpus_fingerprint import TAG, Mark, marks_of
from dcray.track.locks.owner import Owner, this_process
from tests.track.support import CELL, STUDY, begin, driver, key, open_store

STREAM = np.arange(1_000, dtype="<u2") % 250


@pytest.fixture
def folder(tmp_path):
    """Makes a corpus folder of a stream, with its budgets; what else is given is other."""

    def make(name, *budgets, stream=STREAM, validation="b" * 64, tokenizer="a" * 64):
        path = tmp_path / name
        path.mkdir()
        data = stream[: max(budgets)].astype("<u2")
        (path / "train-00000.bin").write_bytes(data.tobytes())
        (path / "validation.bin").write_bytes(STREAM[:100].tobytes())
        shas = {b: hashlib.sha256(data[:b].tobytes()).hexdigest() for b in budgets}
        part = {"documents": 1, "tokens": max(budgets), "source_bytes": None}
        manifest = {
            "format": 1, "dcray": "0", "python": "3.11", "request": {}, "source": {},
            "split": "row", "seed": 42, "dtype": "uint16", "train": part,
            "validation": part | {"tokens": 100},
            "tokenizer": {"name": "byte", "sha256": tokenizer, "vocab_size": 258, "eot_id": 256,
                          "mask_id": 257},
            "available_tokens": max(budgets), "available_exact": True,
            "budgets": [{"tokens": b, "sha256": sha} for b, sha in shas.items()],
            "shards": [{"file": "train-00000.bin", "start": 0, "tokens": max(budgets),
                        "sha256": shas[max(budgets)]}],
            "files": {"validation.bin": validation},
            "overlap": {"shared_documents": 0, "duplicates_removed": 0},
        }  # fmt: skip
        (path / "manifest.json").write_text(json.dumps(manifest))
        return Corpus.open(path)

    return make


def train_on(store, corpus, config_hash="abc123", *, loss=3.0, budget=None):
    """A complete result on a corpus, as the driver writes it."""
    cell = CELL if budget is None else type(CELL)(STUDY, "mini", budget, "ar")
    one = key(config_hash, cell=cell)
    tags = {"corpus_hash": corpus.reads(min(corpus.num_tokens, 300)), "corpus": corpus.path}
    manifest = corpus.manifest.model_dump(mode="json")
    result = store.begin(
        one, config={}, params={"num_epochs": 1, "num_params": 1}, tags=tags, manifest=manifest
    )
    result.finish({"val_loss": loss})
    return one


def other_stream(at):
    stream = STREAM.copy()
    stream[at] += 1
    return stream


def test_the_first_corpus_binds_and_budgets_may_grow(store, folder):
    first = folder("first", 300)
    hold_corpus(store, first, {})
    train_on(store, first)
    hold_corpus(store, folder("longer", 300, 900), {})
    hold_corpus(store, folder("shorter", 200), {})  # looked up in the first's own folder
    experiment = runs.experiment_of(store.connection, STUDY)
    assert set(Mark.from_json(experiment.tags[TAG]).budgets) == {200, 300, 900}
    late = folder("late", 300, 900, stream=other_stream(850))
    with pytest.raises(ConfigError, match=r"other training tokens, before 900"):
        hold_corpus(store, late, {})


def test_a_stream_that_ends_between_two_known_budgets_is_compared_to_its_end(store, folder):
    """200 and 300 are known and 250 comes: its first 200 tokens are the same, one of the rest not.

    Of a folder that is no longer what it was nothing is concluded.
    """
    first = folder("first", 200, 300)
    hold_corpus(store, first, {})
    train_on(store, first)
    with pytest.raises(ConfigError, match="other training tokens, before 250"):
        hold_corpus(store, folder("other", 250, stream=other_stream(249)), {})
    hold_corpus(store, folder("same", 250), {})
    experiment = runs.experiment_of(store.connection, STUDY)
    assert set(Mark.from_json(experiment.tags[TAG]).budgets) == {200, 250, 300}
    shutil.rmtree(first.path)
    changed = folder("first", 220, stream=other_stream(210))
    with pytest.raises(ConfigError, match="only 220 tokens, which cannot be compared"):
        hold_corpus(store, changed, {})


def test_corpus_and_owner_are_one_write(store, folder):
    """Over a network each write may be the last that arrives."""
    hold_corpus(store, folder("first", *range(1, 301)), {})  # more budgets than a tag holds
    tags = runs.experiment_of(store.connection, STUDY).tags
    assert [name for name in tags if name.startswith("dcray.corpus")] == [TAG]
    assert Owner.from_json(Mark.from_json(tags[TAG]).owner) == this_process()
    assert len(tags[TAG]) < 5_000


def test_manifests_that_were_not_compared_are_not_merged(store, folder):
    """Of an older dcray: equal up to 200; nobody has compared one's 250 with the other's 300."""
    train_on(store, folder("first", 200, 300), budget=64_000)
    train_on(store, folder("second", 200, 250, stream=other_stream(249)), budget=128_000)
    rows = runs.latest(store.connection, STUDY)[0]
    assert set(marks_of(STUDY, rows, store.connection.client).budgets) == {200, 300}


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"tokenizer": "c" * 64}, "another tokenizer"),
        ({"validation": "c" * 64}, "another validation set"),
        ({"stream": other_stream(299)}, "other training tokens, before 300"),
    ],
)
def test_a_second_corpus_is_refused_with_both_named(store, folder, change, what):
    first, second = folder("first", 300), folder("second", 300, **change)
    hold_corpus(store, first, {})
    train_on(store, first)
    for refuse in (check_corpus, hold_corpus):
        with pytest.raises(ConfigError) as refused:
            refuse(store, second, {})
        said = str(refused.value)
        assert f"{second.path.absolute()} (" in said
        assert f"{first.path.absolute()} (" in said
        assert f"has {what}" in said
        assert f"Give --study another name, --corpus {first.path.absolute()}" in said


def test_a_shorter_corpus_that_cannot_be_compared_is_refused(store, folder):
    first = folder("first", 300)
    hold_corpus(store, first, {})
    train_on(store, first)
    shorter = folder("shorter", 200)
    shutil.rmtree(first.path)
    with pytest.raises(ConfigError, match="only 200 tokens, which cannot be compared"):
        hold_corpus(store, shorter, {})


def test_other_validation_tokens_of_the_same_corpus_are_refused(store, folder):
    first = folder("first", 300)
    train_on(store, first, budget=300)
    hold_corpus(store, first, {300: first.reads(300)})
    with pytest.raises(ConfigError, match=r"data\.val_tokens"):
        check_corpus(store, first, {300: first.reads(300, 50)})


def binder(directory, corpus):
    """A driver that has bound the study to a corpus; it dies when its input ends."""
    code = """
        from dcray.corpus.manifest import Corpus
        from dcray.track.locks.corpus_binding import hold_corpus
        store = open_store(directory)
        hold_corpus(store, Corpus.open(sys.argv[1]), {})
        print("bound", flush=True)
        sys.stdin.read()
        os._exit(1)
    """
    child = driver(code, directory, str(corpus.path), stdin=subprocess.PIPE)
    assert child.stdout.readline() == "bound\n", child.stderr.read()
    return child


def test_a_binding_without_a_result_is_void_when_its_driver_is_dead(directory, folder):
    """And a second driver of the same corpus answers for it in the first's place."""
    first, other = folder("first", 300), folder("other", 300, validation="c" * 64)
    binder(directory, first).communicate("")
    child = binder(directory, first)
    with open_store(directory) as store:
        with pytest.raises(ConfigError, match="another validation set"):  # it is about to train
            hold_corpus(store, other, {})
        child.communicate("")
        hold_corpus(store, other, {})


def test_of_jobs_that_start_at_once_one_corpus_wins(directory, folder):
    """Four drivers, two corpora, one instant: those of one corpus pass, those of the other not."""
    paths = [folder(f"c{n}", 300, validation=str(n % 2) * 64).path for n in range(4)]
    code = """
        from dcray.corpus.manifest import Corpus
        from dcray.errors import ConfigError
        from dcray.track.locks.corpus_binding import hold_corpus
        store = open_store(directory)
        corpus = Corpus.open(sys.argv[1])
        print("ready", flush=True)
        sys.stdin.readline()
        try:
            hold_corpus(store, corpus, {})
            print("bound", flush=True)
        except ConfigError as error:
            print("refused", flush=True)
        sys.stdin.readline()
        os._exit(0)
    """
    jobs = [driver(code, directory, str(path), stdin=subprocess.PIPE) for path in paths]
    for job in jobs:
        assert job.stdout.readline() == "ready\n", job.stderr.read()
    for job in jobs:
        job.stdin.write("go\n")
        job.stdin.flush()
    said = [job.stdout.readline().strip() for job in jobs]
    for job in jobs:
        job.communicate("\n")
    assert sorted(said) == ["bound", "bound", "refused", "refused"]
    assert said[0] == said[2]


def test_a_study_of_before_is_judged_by_its_results(store, directory, folder):
    """No mark on record, as an older dcray left it: one corpus is taken up, two are refused."""
    first, second = folder("first", 300), folder("second", 300, validation="c" * 64)
    train_on(store, first, budget=64_000)
    with pytest.raises(ConfigError, match="another validation set"):
        hold_corpus(store, second, {})
    train_on(store, second, budget=128_000, loss=1.0)  # what it used to let pass
    for read in (
        lambda: runs.results(directory, study=STUDY),
        lambda: runs.every_result(directory, study=STUDY),
        lambda: find.find(directory, f"{STUDY}/mini/64k/ar"),
        lambda: hold_corpus(store, first, {}),
    ):
        with pytest.raises(ConfigError, match=r"holds results of two corpora: .*first.*second"):
            read()


def test_a_manifest_is_fetched_once(store, directory, folder):
    """A study without a mark is read again by every command's every look."""
    train_on(store, folder("first", 300))
    assert len(runs.results(directory, study=STUDY).rows) == 1
    (manifest,) = (directory / "artifacts").glob("**/manifest.json")
    manifest.unlink()
    mark = marks_of(STUDY, runs.every_result(directory, study=STUDY), client=None)
    assert set(mark.budgets) == {300}


def test_two_corpora_in_one_cell_are_told_by_every_reader(store, directory, folder):
    first = folder("first", 300)
    second = folder("second", 300, stream=other_stream(10))
    hold_corpus(store, first, {})
    train_on(store, first)
    train_on(store, second, "other", loss=1.0)
    for read in (runs.results, runs.every_result):
        with pytest.raises(ConfigError, match=r"two corpora .*first.*second"):
            read(directory, study=STUDY)
    one = runs.latest(store.connection, STUDY)[0][0]
    assert find.find(directory, one.run_id).run_id == one.run_id  # by its id it compares nothing


def test_a_result_that_keeps_no_manifest_is_no_reason(store, directory):
    begin(store).finish({"val_loss": 3.0})
    assert len(runs.results(directory, study=STUDY).rows) == 1


def test_while_artifacts_are_away_nothing_is_bound(store, directory, folder, monkeypatch):
    """No mark, and the artifacts on a server that does not answer: the check is not left out."""
    train_on(store, folder("first", 300))
    store.close()
    with sqlite3.connect(directory / "mlflow.db") as database:
        away = "http://127.0.0.1:9/api/2.0/mlflow-artifacts/artifacts/of"
        database.execute("update runs set artifact_uri = ?", [away])
    _artifact_repos_cache.clear()  # of this process, which wrote them
    monkeypatch.setattr("dcray.track.locks.corpus_binding.PATIENCE_SECONDS", 1.0)
    monkeypatch.setattr("dcray.track.runs.PATIENCE_SECONDS", 1.0)
    second = folder("second", 300, validation="c" * 64)
    with open_store(directory) as again:
        for ask in (
            lambda: hold_corpus(again, second, {}),
            lambda: runs.results(directory, study=STUDY),
        ):
            with pytest.raises(RecordAwayError, match="did not answer for 1 s"):
                ask()
    assert TAG not in runs.experiment_of(again.connection, STUDY).tags
