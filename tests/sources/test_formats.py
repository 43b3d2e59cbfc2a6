"""Any documents, written in any form, come back once, in order, with stable ids; damage is told."""

import bz2
import gzip
import json
import lzma
import os
import shutil

import pyarrow as pa
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dcray.errors import ConfigError
from dcray.sources import Document, parse
from dcray.sources.files import read_file

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
PACK = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.compress,
}
ENCODINGS = ["utf-8", "utf-8-sig", "utf-16", "utf-32"]  # Python writes the marks of three
few = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def read(path, **options):
    return list(read_file(path, path.name, **options))


def as_lines(rows, indent):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def as_array(rows, indent):
    return json.dumps(rows, ensure_ascii=False, indent=indent)


@pytest.mark.parametrize("packed", PACK)
@pytest.mark.parametrize("form", ["a.jsonl", "a.ndjson", "lines.json", "array.json"])
@few
@given(texts=st.lists(TEXTS, min_size=1), encoding=st.sampled_from(ENCODINGS), indent=st.booleans())
def test_documents_come_back_once_in_order(tmp_path, packed, form, texts, encoding, indent):
    write = as_array if form == "array.json" else as_lines
    path = tmp_path / (form + packed)
    rows = [{"id": i, "text": text} for i, text in enumerate(texts)]
    path.write_bytes(PACK[packed](write(rows, 2 if indent else None).encode(encoding)))
    expected = [Document(f"{path.name}:{i}", text) for i, text in enumerate(texts, 1)]
    assert read(path) == expected


@few
@given(texts=st.lists(TEXTS, min_size=1), group=st.integers(1, 5))
def test_rows_of_parquet_come_back_once_in_order(tmp_path, texts, group):
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pa.table({"text": texts}), path, row_group_size=group)
    assert read(path) == [Document(f"a.parquet:{i}", text) for i, text in enumerate(texts)]


@pytest.mark.parametrize("name", ["a.txt", "a.py", "README", "a.md.gz", "a.txt.zst", "a.txt.xz"])
@few
@given(text=TEXTS.filter(lambda text: "\0" not in text), encoding=st.sampled_from(ENCODINGS))
def test_a_text_is_one_document_in_any_encoding_that_is_marked(tmp_path, name, text, encoding):
    path = tmp_path / name
    text = text.removeprefix("\ufeff")
    path.write_bytes(PACK.get(path.suffix, bytes)(text.encode(encoding)))
    assert read(path) == [Document(name, text)]
    assert parse(f"files:{tmp_path / name}").paths() == [path]


@few
@given(frames=st.lists(st.lists(TEXTS, min_size=1, max_size=3), min_size=1, max_size=4))
def test_every_frame_of_a_zst_is_read(tmp_path, frames):
    """As pzstd and `cat` write them, with a frame to be skipped among them."""
    skippable = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"abcd"
    packed = skippable.join(
        zstandard.compress(as_lines([{"text": text} for text in texts], None).encode())
        for texts in frames
    )
    (tmp_path / "a.jsonl.zst").write_bytes(packed)
    found = [document.text for document in read(tmp_path / "a.jsonl.zst")]
    assert found == [text for texts in frames for text in texts]


LINES = as_lines([{"text": f"number {i} " * 9} for i in range(4_000)], None).encode()


@pytest.mark.parametrize("packed", [".gz", ".bz2", ".xz", ".zst"])
@pytest.mark.parametrize("kept", [0.0, "head", 0.3, 0.9, "tail"])
def test_a_file_that_was_cut_off_is_named_wherever_it_was(tmp_path, packed, kept):
    """Also within its first block, where zstandard's own reader gives nothing and no error."""
    whole = PACK[packed](LINES)
    size = {"head": 12, "tail": len(whole) - 1}.get(kept) or int(kept * len(whole))
    path = tmp_path / f"a.jsonl{packed}"
    path.write_bytes(whole[:size])
    with pytest.raises(ConfigError, match=r"a\.jsonl.* cannot be read"):
        read(path)


def test_c4_and_dolma(tmp_path):
    """Their shards are JSON lines in a .json.gz, with other columns before the text."""
    c4 = [{"text": "one", "timestamp": "2019", "url": "u"}, {"text": "two", "url": "u"}]
    dolma = [{"id": "a", "text": "three", "metadata": {"text": "no"}, "source": "s"}]
    for name, rows in {
        "c4-train.00000-of-01024.json.gz": c4,
        "cc_head-0000.json.gz": dolma,
    }.items():
        (tmp_path / name).write_bytes(gzip.compress(as_lines(rows, None).encode()))
    found = [
        document.text for path in parse(f"files:{tmp_path}").paths() for document in read(path)
    ]
    assert found == ["one", "two", "three"]


def test_one_object_is_one_document_however_it_is_printed(tmp_path):
    for indent in (None, 2):
        (tmp_path / "a.json").write_text(json.dumps({"n": 1, "text": "one"}, indent=indent))
        assert read(tmp_path / "a.json") == [Document("a.json:1", "one")]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"text": "one"}\n{"text": ', r"line 2 is not JSON"),
        (b'[{"text": "one"},', r"is neither JSON lines nor one JSON value"),
        (b'[{"text": "one"}, {"txt": "two"}]', r'entry 2 has no text in "text".*leave_out=a\.json'),
        (b'{\n"name": "package"\n}', r'entry 1 has no text in "text".*name the column'),
        (b"7", r"entry 1 has no text"),
        (b'["one"]', r"entry 1 has no text"),
        (b'{"text": "caf\xe9"}\n', r"line 1 is not UTF-8 \(byte 0xe9.*not_utf8=cp1252"),
        (b'[\n{"text": "caf\xe9"}]\n', r"the file is not UTF-8 \(byte 0xe9"),
        (b"[" * 100_000, "is neither"),
    ],
)
def test_json_that_cannot_be_read_as_meant_is_named(tmp_path, content, said):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ConfigError, match=rf"a\.json,? {said}"):
        read(tmp_path / "a.json")


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.jsonl.gz", "a.parquet"])
def test_a_file_without_a_document_is_an_empty_one(tmp_path, name):
    """So it is counted and named, as an empty text is."""
    path = tmp_path / name
    if name == "a.parquet":
        pyarrow.parquet.write_table(pa.table({"text": pa.array([], pa.string())}), path)
    else:
        path.write_bytes(PACK.get(path.suffix, bytes)(b"\n\n"))
    assert read(path) == [Document(name, "")]


def test_a_file_without_an_ending_is_text_or_json_lines_or_left_out(tmp_path):
    """WikiExtractor writes both: wiki_00 of text, and with --json of lines."""
    (tmp_path / "LICENSE").write_text("{ a text")
    (tmp_path / "wiki_00").write_text('{"id": "1", "text": "one"}\n{"id": "2", "text": "two"}\n')
    (tmp_path / "program").write_bytes(b"\x7fELF\0\1")
    (tmp_path / "old").write_bytes(b"caf\xe9")
    source = parse(f"files:{tmp_path}")
    found = [document for path in source.paths() for document in read(path)]
    assert found == [
        Document("LICENSE", "{ a text"),
        Document("wiki_00:1", "one"),
        Document("wiki_00:2", "two"),
    ]
    assert source.describe()["left_out"] == {
        "without an ending, and no text": {"count": 2, "examples": ["old", "program"]}
    }


FRENCH = "L'\u00e9t\u00e9 \u00e0 la for\u00eat"


def test_files_in_another_encoding_are_all_named_or_read_as_asked(tmp_path):
    (tmp_path / "good.txt").write_text(FRENCH, encoding="utf-8")
    (tmp_path / "old.txt").write_text(FRENCH, encoding="cp1252")
    (tmp_path / "wide.txt").write_text("plain", encoding="utf-16-le")
    with pytest.raises(ConfigError) as raised:
        parse(f"files:{tmp_path}").paths()
    (said,) = raised.value.problems
    assert f"{tmp_path / 'old.txt'} is not UTF-8 (byte 0xe9" in said
    assert f"{tmp_path / 'wide.txt'} holds NUL bytes: UTF-16 without a byte order mark" in said
    assert "good.txt" not in said
    assert "--option not_utf8=cp1252" in said
    (tmp_path / "wide.txt").unlink()
    french = parse(f"files:{tmp_path}", {"not_utf8": "cp1252"})
    options = {"not_utf8": french.not_utf8}
    assert [read(path, **options) for path in french.paths()] == [
        [Document("good.txt", FRENCH)],
        [Document("old.txt", FRENCH)],
    ]
    assert parse(f"files:{tmp_path}", {"not_utf8": "replace"}).paths() == french.paths()
    assert read(tmp_path / "old.txt", not_utf8="replace")[0].replaced == 4
    with pytest.raises(ConfigError, match=r"not_utf8 must be .refuse., .replace. or the name of"):
        parse(f"files:{tmp_path}", {"not_utf8": "cp9999"})


def test_an_encoding_that_is_marked_but_broken_is_refused(tmp_path):
    (tmp_path / "a.txt").write_bytes("text".encode("utf-16")[:-1])
    with pytest.raises(ConfigError, match=r"a\.txt is not UTF-16-LE"):
        parse(f"files:{tmp_path}").paths()
    assert read(tmp_path / "a.txt", not_utf8="replace") == [Document("a.txt", "tex\ufffd", 1)]


def ids(source):
    return [path.relative_to(source.path).as_posix() for path in source.paths()]


def test_hidden_files_and_unknown_kinds_are_left_out_and_counted(tmp_path):
    for name in (
        *(".git/config", ".git/a.py", ".ipynb_checkpoints/a.py", "._a.txt", "sub/._b.txt"),
        *("a.txt", "sub/b.txt", "x.png", "y.png", "z.pdf", "draft.md", "sub/draft.md"),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(name)
    source = parse(f"files:{tmp_path}", {"leave_out": "draft.*, q*"})
    assert ids(source) == ["a.txt", "sub/b.txt"]
    assert source.describe()["left_out"] == {
        "hidden": {"count": 4, "examples": ["._a.txt", ".git/", ".ipynb_checkpoints/"]},
        "left out as asked": {"count": 2, "examples": ["draft.md", "sub/draft.md"]},
        ".png": {"count": 2, "examples": ["x.png", "y.png"]},
        ".pdf": {"count": 1, "examples": ["z.pdf"]},
    }


def test_a_hidden_folder_that_is_asked_for_is_read(tmp_path):
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "a.txt").write_text("a")
    assert ids(parse(f"files:{tmp_path / '.cache'}")) == ["a.txt"]


def test_folders_behind_links_are_read_once_and_loops_end(tmp_path):
    root, other = tmp_path / "root", tmp_path / "other"
    for name in ("root/own/a.txt", "other/b.txt", "other/deep/c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(name)
    (root / "first").symlink_to(other)
    (root / "second").symlink_to(other)  # the same again
    (root / "again").symlink_to("own")  # has a place of its own below the root
    (root / "own" / "up").symlink_to("..")
    (root / "above").symlink_to(tmp_path)
    (other / "deep" / "round").symlink_to(other)
    source = parse(f"files:{root}")
    assert ids(source) == ["first/b.txt", "first/deep/c.txt", "own/a.txt"]
    assert source.describe()["left_out"]["links to a folder that is read already"]["count"] == 5
    moved = tmp_path / "moved"
    shutil.copytree(root, moved, symlinks=True)
    assert parse(f"files:{moved}").request()["content"] == source.request()["content"]


def test_what_is_no_file_is_counted_and_a_link_to_itself_is_named(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    os.mkfifo(tmp_path / "pipe.txt")
    source = parse(f"files:{tmp_path}")
    assert source.describe()["left_out"] == {
        "pipes or devices": {"count": 1, "examples": ["pipe.txt"]}
    }
    (tmp_path / "loop.txt").symlink_to("loop.txt")
    with pytest.raises(ConfigError, match=r"loop\.txt cannot be read: it links to nothing"):
        source.paths()


def test_a_folder_with_nothing_to_read_says_what_it_left_out(tmp_path):
    (tmp_path / "a.png").write_text("x")
    with pytest.raises(ConfigError, match=r"left out: 1 \.png \(a\.png\)"):
        parse(f"files:{tmp_path}").paths()


def test_options_of_later_leave_an_old_request_as_it_was(tmp_path):
    """A corpus that was made before there were such options answers the same request still."""
    (tmp_path / "a.txt").write_text("a")
    keys = {"source", "path", "text_column", "licence", "files", "bytes", "content"}
    assert set(parse(f"files:{tmp_path}").request()) == keys
    asked = parse(f"files:{tmp_path}", {"leave_out": "*.md"}).request()
    assert set(asked) == keys | {"leave_out"}


def test_the_licence_that_the_user_knows_is_recorded(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    described = parse(f"files:{tmp_path}", {"licence": "CC0-1.0"}).describe()
    assert (described["licence"], described["revision"]) == ("CC0-1.0", None)
