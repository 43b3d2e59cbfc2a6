"""Streamed data sets, on local files in the form that the hub serves."""

import json

import pyarrow as pa
import pyarrow.parquet
import pytest

from dcray.errors import ConfigError
from dcray.sources import huggingface, parse


@pytest.fixture(scope="module", params=["json", "parquet"])
def dataset(request, tmp_path_factory):
    """Three shards of four rows."""
    root = tmp_path_factory.mktemp("small")
    for shard in range(3):
        rows = [{"text": f"text {shard} {row}", "content": f"c{row}"} for row in range(4)]
        if request.param == "json":
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            (root / f"part-{shard}.jsonl").write_text(lines)
        else:
            pyarrow.parquet.write_table(pa.Table.from_pylist(rows), root / f"part-{shard}.parquet")
    return root


def read(source):
    return {row["id"]: row["text"] for row in source.documents().take_all()}


def test_every_document_once_with_stable_ids(dataset, ray_session):
    found = read(parse(f"huggingface:{dataset}"))
    assert sorted(found.values()) == sorted(f"text {s} {r}" for s in range(3) for r in range(4))
    assert found[f"{dataset.name}/1/2"] == "text 1 2"


def test_the_first_documents_have_the_same_ids(dataset, ray_session):
    whole = read(parse(f"huggingface:{dataset}"))
    part = read(parse(f"huggingface:{dataset}", {"num_documents": "6"}))
    assert len(part) == 6
    assert part.items() <= whole.items()
    assert f"{dataset.name}/1/1" in part


def test_another_column(dataset, ray_session):
    found = read(parse(f"huggingface:{dataset}", {"text_column": "content"}))
    assert set(found.values()) == {"c0", "c1", "c2", "c3"}


def test_a_local_folder_has_no_revision(dataset):
    described = parse(f"huggingface:{dataset}").describe()
    assert described["revision"] == {str(dataset): None}


def test_a_local_folder_that_was_edited_is_another_request(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n')
    before = parse(f"huggingface:{tmp_path}").request()
    assert parse(f"huggingface:{tmp_path}").request() == before
    (tmp_path / "a.jsonl").write_text('{"text": "two"}\n')
    assert parse(f"huggingface:{tmp_path}").request() != before


def test_a_full_commit_needs_no_network():
    commit = "0123456789abcdef0123456789abcdef01234567"
    assert huggingface.resolve("owner/name", commit) == commit


def test_stack_v2_says_what_it_needs():
    with pytest.raises(ConfigError, match="gated and holds ids without contents"):
        parse("huggingface:stack_v2").documents()


def test_an_unknown_preset():
    with pytest.raises(ConfigError, match='did you mean "dclm"'):
        parse("huggingface:dclmm").parts()


def test_dclm_is_topped_up_at_pinned_revisions(monkeypatch):
    monkeypatch.setattr(huggingface, "resolve", lambda name, revision: revision)
    base, more = parse("huggingface:dclm", {"num_documents": "1k"}).parts()
    assert (base.name, base.revision, base.num_documents) == (
        "konwoo/dclm-164k-docs-train",
        "c4f5716",
        None,
    )
    assert more.num_documents == 1000
    assert more.revision == "a3b142c"
