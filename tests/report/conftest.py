"""A planted study is made once: 173 real results take ten seconds."""

import pytest

from tests.report.planted import plant_study


@pytest.fixture(scope="session")
def record(tmp_path_factory):
    """The directory of a record with the planted study; nobody writes to it but its analysis."""
    directory = tmp_path_factory.mktemp("planted")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        plant_study(directory)
    return directory


@pytest.fixture(autouse=True)
def no_tracking_uri(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
