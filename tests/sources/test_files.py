"""Each kind of file gives its documents, with ids that do not move with the folder."""

import gzip
import json
import os
import shutil
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from dcray.errors import ConfigError
from dcray.progress import heard_by
from dcray.sources import Document, decode_utf8, parse, tables, valid_text
from dcray.sources.files import read_file

ROWS = [{"text": "one\u2028line"}, {"text": "caf\u00e9 \U0001f642"}, {"text": ""}]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def write(path, kind):
    if kind == ".parquet":
        pyarrow.parquet.write_table(pa.Table.from_pylist(ROWS), path)
    else:
        pack = {".gz": gzip.compress, ".zst": zstandard.compress}.get(path.suffix, bytes)
        path.write_bytes(pack(LINES))


@pytest.mark.parametrize("kind", [".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet"])
def test_rows_are_documents(tmp_path, kind):
    write(tmp_path / f"some{kind}", kind)
    found = list(read_file(tmp_path / f"some{kind}", f"some{kind}"))
    first = 0 if kind == ".parquet" else 1
    assert found == [
        Document(f"some{kind}:{first + i}", row["text"], 0) for i, row in enumerate(ROWS)
    ]


@pytest.mark.parametrize("kind", [".jsonl", ".parquet"])
def test_a_wrong_column_is_named(tmp_path, kind):
    write(tmp_path / f"some{kind}", kind)
    with pytest.raises(ConfigError, match='did you mean "text"'):
        list(read_file(tmp_path / f"some{kind}", "some", "texts"))


def test_a_null_is_an_empty_document_and_a_byte_order_mark_is_none(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "one"}\n{"text": null}\n')
    found = [document.text for document in read_file(tmp_path / "a.jsonl", "a")]
    pyarrow.parquet.write_table(pa.table({"text": ["one", None]}), tmp_path / "a.parquet")
    assert [d.text for d in read_file(tmp_path / "a.parquet", "a")] == found == ["one", ""]
    (tmp_path / "b.jsonl").write_text('{"text": 7}\n')
    with pytest.raises(ConfigError, match='line 1 has no text in "text"'):
        list(read_file(tmp_path / "b.jsonl", "b"))


@pytest.mark.parametrize("line", ["[" * 100_000, '{"text": ' + "9" * 5_000 + "}"])
def test_json_without_end_is_named(tmp_path, line):
    (tmp_path / "a.jsonl").write_text(line)
    with pytest.raises(ConfigError, match=r"a\.jsonl, line 1 is not JSON"):
        list(read_file(tmp_path / "a.jsonl", "a"))


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.parquet"])
def test_rubbish_is_named(tmp_path, name):
    (tmp_path / name).write_bytes(b"\x00rubbish\n" * 9)
    with pytest.raises(ConfigError, match=name.replace(".", r"\.")):
        list(read_file(tmp_path / name, name))


def test_a_folder_is_read_in_order_of_its_paths(tmp_path):
    for name in ("b.py", "a.md", "sub/c.rs", "skip.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    source = parse(f"files:{tmp_path}")
    assert [path.name for path in source.paths()] == ["a.md", "b.py", "c.rs"]
    assert source.request()["files"] == 3


def test_what_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        parse(f"files:{tmp_path / 'none'}").paths()
    (tmp_path / "a.png").write_text("x")
    with pytest.raises(ConfigError, match="holds no file that can be read"):
        parse(f"files:{tmp_path}").paths()
    with pytest.raises(ConfigError, match="of no kind"):
        parse(f"files:{tmp_path / 'a.png'}").paths()
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"gone\.txt cannot be read"):
        parse(f"files:{tmp_path}").paths()


@pytest.fixture
def forbidden():
    """A folder with a text, and with a subfolder that may not be looked into; no root here.

    A root's own folders, this checkout among them, may be closed to the user that it becomes.
    """
    me = os.geteuid()
    root = Path(tempfile.mkdtemp(dir="/tmp" if me == 0 else None))
    root.chmod(0o755)
    (root / "a.txt").write_text("text")
    (root / "hidden").mkdir(mode=0)
    source = parse(f"files:{root}")
    if me == 0:
        os.seteuid(65_534)
    yield source
    os.seteuid(me)
    shutil.rmtree(root)


def test_a_folder_that_may_not_be_looked_into_is_named(forbidden):
    """What lies in it would be missing from the corpus, and nobody would know."""
    with pytest.raises(ConfigError, match=r"hidden cannot be read: Permission denied"):
        forbidden.paths()


def test_a_name_that_is_no_utf8_is_named(tmp_path):
    """Of an old archive: no id, no manifest and no screen could hold it."""
    (tmp_path / "b\u00e9.txt").write_text("fine")
    parse(f"files:{tmp_path}").request()
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.txt")).write_text("text")
    with pytest.raises(ConfigError, match=r"caf\\xe9\.txt' has a name that is no UTF-8; rename it"):
        parse(f"files:{tmp_path}").request()


def test_reading_a_large_folder_is_counted(tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(name)
    said = []
    with heard_by(lambda *told: said.append(told)):
        parse(f"files:{tmp_path}").request()
    assert said == [("files", 0, 2), ("files", 1, 2), ("files", 2, 2)]


@given(st.binary(max_size=40))
def test_decoding_counts_what_it_replaced(raw):
    text, replaced = decode_utf8(raw)
    text.encode()
    assert (replaced == 0) == (text.encode() == raw)
    assert text.count("\ufffd") == replaced + raw.count(b"\xef\xbf\xbd")


@given(st.text(st.characters(categories=["L", "Cs"]), max_size=20))
def test_lone_surrogates_are_replaced(text):
    valid, replaced = valid_text(text)
    valid.encode()
    assert (replaced == 0) == (valid == text)


def test_tables_are_bounded():
    documents = [Document(str(i), "x" * 5_000_000) for i in range(10)]
    found = list(tables(documents))
    assert [table.num_rows for table in found] == [4, 4, 2]
    assert [name for table in found for name in table["id"].to_pylist()] == [
        str(i) for i in range(10)
    ]
