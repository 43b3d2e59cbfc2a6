"""One suite for every source: a new file in dcray/sources is held to it without a new test."""

import json

import numpy as np
import pytest

from dcray import plugins
from dcray.errors import ConfigError
from dcray.sources import parse, source_name

NAMES = plugins.names("sources")


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """Each source, built on something small; one that is not listed must work without options."""
    root = tmp_path_factory.mktemp("sources")
    texts = root / "texts"
    texts.mkdir()
    for number in range(5):
        (texts / f"{number}.jsonl").write_text(json.dumps({"text": f"text {number}"}) + "\n")
    np.save(root / "ids.npy", np.arange(500, dtype=np.uint16))
    values = {"files": texts, "huggingface": texts, "tokens": root / "ids.npy"}
    options = {"tokens": {"vocabulary": "ids:500"}}
    return lambda name: parse(
        f"{name}:{values[name]}" if name in values else name, options.get(name)
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_source_says_what_it_is(name, build):
    source = build(name)
    assert source_name(source) == name
    assert source.request() == build(name).request()
    described = json.loads(json.dumps(source.describe()))
    assert described["source"] == name
    assert {"revision", "licence"} <= set(described)


@pytest.mark.parametrize("name", NAMES)
def test_a_source_gives_documents_or_tokens_twice_the_same(name, build, ray_session):
    source = build(name)
    if hasattr(source, "tokens"):
        first, again = (list(source.tokens()) for _ in range(2))
        assert isinstance(source.vocabulary, str)
        assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
        assert first[0].dtype.kind == "u"
        return
    first, again = (source.documents().take_all() for _ in range(2))
    assert {"id", "text"} <= set(first[0])
    assert all(isinstance(row["id"], str) and isinstance(row["text"], str) for row in first)
    ids = [row["id"] for row in first]
    assert len(set(ids)) == len(ids)
    assert sorted(ids) == sorted(row["id"] for row in again)
    assert {row["id"]: row["text"] for row in first} == {row["id"]: row["text"] for row in again}


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_option_is_named(name):
    with pytest.raises(ConfigError, match=f'source "{name}" has no option "colour"'):
        parse(name, {"colour": "red"})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("stdlb", 'did you mean "stdlib"'),
        ("./texts", r"write files:\./texts"),
        ("stdlib:here", "takes nothing after a colon"),
        ("files", 'needs its option "path"'),
    ],
)
def test_what_cannot_be_parsed(text, said):
    with pytest.raises(ConfigError, match=said):
        parse(text)


def test_the_standard_library_leaves_tests_and_packages_out():
    source = parse("stdlib")
    paths = source.paths()
    assert len(paths) > 500
    assert paths == sorted(paths)
    assert not any({"test", "tests", "site-packages"} & set(path.parts[-3:-1]) for path in paths)
    assert source.describe()["revision"].startswith("Python 3.1")
