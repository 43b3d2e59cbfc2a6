"""A fresh record costs 3 s of migrations: it is made once and copied."""

import pytest

from dcray.track.mlflow.connection import connect
from tests.track.support import copy_of, open_store


@pytest.fixture(scope="session")
def template(tmp_path_factory):
    directory = tmp_path_factory.mktemp("template")
    connect(directory, None, create=True).client  # noqa: B018  the tables, and nothing else
    return directory


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """A mistake of ours should fail in seconds, not after the patience that a lock deserves."""
    monkeypatch.setattr("dcray.track.store.PATIENCE_SECONDS", 8.0)
    monkeypatch.setattr("dcray.track.run.FINISH_SECONDS", 8.0)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture
def directory(template, tmp_path):
    return copy_of(template, tmp_path / "record")


@pytest.fixture
def store(directory):
    with open_store(directory) as store:
        store.experiment.make()  # else the first write does
        yield store
