"""prepare: the same corpus every time, split by document, nothing lost and nothing half-written."""

import gzip
import json
import math
import os
import resource
import shutil
from contextlib import nullcontext

import numpy as np
import pytest
import tokenizers

from dcray.corpus.manifest import Corpus, sha256_file
from dcray.corpus.order import cut_rows
from dcray.corpus.prepare import prepare
from dcray.corpus.request import Request
from dcray.corpus.spool import place
from dcray.errors import ConfigError
from dcray.sources import files, parse

WORDS = ["alpha", "beta", "caf\u00e9", "na\u00efve", "\u4f60\u597d", "\u4e16\u754c", "\U0001f642"]
ASKED = {"tokenizer": "byte", "budgets": [500, 2000], "val_tokens": 700}


def text(number, words=60):
    rng = np.random.default_rng(number)
    return " ".join(rng.choice(WORDS, words)) + f" {number}\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Forty documents of some 500 bytes, accents, Chinese and emoji among them."""
    root = tmp_path_factory.mktemp("texts")
    for number in range(40):
        (root / f"{number:02d}.txt").write_text(text(number), encoding="utf-8")
    return root


@pytest.fixture(scope="module")
def corpus(folder, tmp_path_factory, ray_session):
    out = tmp_path_factory.mktemp("prepared") / "corpus"
    prepare(parse(f"files:{folder}"), out, **ASKED)
    return Corpus.open(out)


def hashes(path):
    return {p.name: sha256_file(p) for p in path.iterdir() if p.name != "manifest.json"}


def test_two_runs_give_identical_hashes(corpus, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_BLOCKS", 3)  # cut into other tasks, too
    prepare(parse(f"files:{folder}"), tmp_path / "again", **ASKED)
    assert hashes(tmp_path / "again") == hashes(corpus.path)
    assert Corpus.open(tmp_path / "again").manifest == corpus.manifest
    corpus.verify()


def test_what_is_stored_is_the_text(corpus, folder):
    stream = corpus.tokens()
    starts = corpus.offsets()
    assert (stream[starts] == corpus.eot_id).all()
    assert (stream == corpus.eot_id).sum() == len(starts) == corpus.manifest.train.documents
    known = {path.read_text(encoding="utf-8") for path in folder.iterdir()}
    pieces = np.split(stream, starts[1:])
    assert all(corpus.tokenizer.decode(piece[1:]) in known for piece in pieces[:-1])
    assert corpus.manifest.train.source_bytes == (stream != corpus.eot_id).sum()


def test_order_is_by_keyed_hash_of_the_id(corpus, folder):
    names = sorted((path.name for path in folder.iterdir()), key=lambda name: place(name, 42))
    tokens, _ = corpus.validation()
    first = (folder / names[0]).read_bytes()
    assert bytes(tokens[1 : 1 + len(first)].astype(np.uint8)) == first


def test_another_seed_is_another_order(corpus, folder, tmp_path):
    other = prepare(parse(f"files:{folder}"), tmp_path / "seed", **ASKED, seed=1)
    assert other.budgets[0].sha256 != corpus.manifest.budgets[0].sha256


def test_budgets_are_nested_row_by_row_and_do_not_move_the_split(corpus, folder, tmp_path):
    asked = ASKED | {"budgets": [3000, 1000, 500]}
    prepare(parse(f"files:{folder}"), tmp_path / "more", **asked, shard_tokens=800)
    other = Corpus.open(tmp_path / "more")
    assert len(other.manifest.shards) == 4
    for small, large in ((500, 1000), (1000, 3000)):
        rows = cut_rows(other.tokens(small), 16, 16)
        assert np.array_equal(rows, cut_rows(other.tokens(large), 16, 16)[: len(rows)])
    assert np.array_equal(other.tokens(2000), corpus.tokens(2000))
    assert np.array_equal(other.validation()[0], corpus.validation()[0])
    for unique_tokens, val_tokens in ((500, None), (777, 300), (2000, None)):
        assert other.reads(unique_tokens, val_tokens) == corpus.reads(unique_tokens, val_tokens)
    assert corpus.reads(500) != corpus.reads(501)
    assert corpus.reads(500, 300) != corpus.reads(500, 301)
    assert [(s[1], s[2]) for s in other.shards(900)] == [(0, 800), (800, 100)]


def test_bits_per_byte_count_the_bytes_of_the_source(corpus):
    tokens, lengths = corpus.validation()
    assert lengths.dtype == np.int16
    text_targets = lengths >= 0
    assert (tokens[~text_targets] == corpus.eot_id).all()
    raw = bytes(tokens[text_targets].astype(np.uint8))
    assert lengths[text_targets].sum() == len(raw) == corpus.manifest.validation.source_bytes
    assert "\u4f60".encode() in raw
    nats = text_targets.sum() * math.log(256)  # uniform over the 256 bytes
    assert nats / math.log(2) / lengths[text_targets].sum() == 8.0


def test_a_larger_vocabulary_counts_the_same_bytes(folder, tmp_path, ray_session):
    asked = {"tokenizer": "bpe:300", "budgets": [500], "val_tokens": 300}
    prepare(parse(f"files:{folder}"), tmp_path / "bpe", **asked)
    opened = Corpus.open(tmp_path / "bpe")
    tokens, lengths = opened.validation()
    assert (len(tokens), opened.num_tokens, opened.vocab_size) == (300, 500, 300)
    cut = [
        np.split(values, np.flatnonzero(tokens == opened.eot_id))[1:]
        for values in (tokens, lengths)
    ]
    for ids, sizes in zip(*cut, strict=True):
        raw = b"".join(opened.tokenizer.ranks[i] for i in ids[1:])
        assert len(raw) == sizes[1:].sum()


def test_each_document_twice_shares_none(folder, tmp_path, ray_session):
    twice = tmp_path / "twice"
    twice.mkdir()
    for path in folder.iterdir():
        for copy in "ab":
            (twice / f"{copy}-{path.name}").write_bytes(path.read_bytes())
    manifest = prepare(parse(f"files:{twice}"), tmp_path / "corpus", **ASKED)
    assert manifest.overlap.shared_documents == 0
    assert manifest.overlap.duplicates_removed == 40
    opened = Corpus.open(tmp_path / "corpus")
    sides = []
    for stream in (opened.tokens(), opened.validation()[0]):
        parts = np.split(stream, np.flatnonzero(stream == opened.eot_id))[1:-1]
        sides.append({part.tobytes() for part in parts})
    assert sides[0]
    assert sides[1]
    assert not sides[0] & sides[1]


def test_bpe_sees_training_documents_only(tmp_path, ray_session):
    root = tmp_path / "texts"
    root.mkdir()
    names = sorted((f"{i:02d}.txt" for i in range(40)), key=lambda name: place(name, 42))
    for number, name in enumerate(names):
        secret = "zqxj " * 200 if number < 1 else ""
        (root / name).write_text(secret + text(number))
    asked = {"tokenizer": "bpe:290", "budgets": [500], "val_tokens": 200}
    prepare(parse(f"files:{root}"), tmp_path / "corpus", **asked)
    ranks = Corpus.open(tmp_path / "corpus").tokenizer.ranks
    assert len(ranks) == 288
    assert not any(b"zq" in token or b"xj" in token for token in ranks)


def test_a_corpus_too_small_says_how_many_tokens_there_are(folder, tmp_path, ray_session):
    total = sum(len(path.read_bytes()) + 1 for path in folder.iterdir())
    asked = {"tokenizer": "byte", "budgets": [total], "val_tokens": 2}
    with pytest.raises(ConfigError) as raised:
        prepare(parse(f"files:{folder}"), tmp_path / "corpus", **asked)
    assert f"need {total} + 2" in str(raised.value)
    with pytest.raises(ConfigError, match=f"gives {total} tokens"):
        prepare(parse(f"files:{folder}"), tmp_path / "c", **{**asked, "val_tokens": 10 * total})
    with pytest.raises(ConfigError, match="too small"):
        prepare(parse(f"files:{folder}"), tmp_path / "c", **{**asked, "tokenizer": "bpe:300"})
    assert list(tmp_path.iterdir()) == []


def test_the_same_request_answers_at_once_and_another_is_refused(corpus, folder):
    seen = []
    manifest = prepare(
        parse(f"files:{folder}"), corpus.path, **ASKED, on_progress=lambda *a: seen.append(a)
    )
    assert manifest == corpus.manifest
    assert seen == []
    with pytest.raises(ConfigError, match=r"seed is 42 there, 7 here"):
        prepare(parse(f"files:{folder}"), corpus.path, **ASKED, seed=7)


def test_an_edit_of_equal_size_is_another_request(folder, tmp_path, ray_session):
    mine = shutil.copytree(folder, tmp_path / "mine")
    prepare(parse(f"files:{mine}"), tmp_path / "c", **ASKED)
    edited = mine / "00.txt"
    before, state = edited.read_text(encoding="utf-8"), edited.stat()
    edited.write_text(before[:-2] + "#\n", encoding="utf-8")
    assert edited.stat().st_size == state.st_size
    with pytest.raises(ConfigError, match=r"source\.content is .* there, .* here"):
        prepare(parse(f"files:{mine}"), tmp_path / "c", **ASKED)
    edited.write_text(before, encoding="utf-8")  # the same text at another time is the same request
    os.utime(edited, (0, 0))
    assert prepare(parse(f"files:{mine}"), tmp_path / "c", **ASKED).train.tokens == 2000


def test_one_document_is_refused_with_how_to_make_two(tmp_path, ray_session):
    alone = tmp_path / "alone.txt"
    alone.write_text(text(0, words=2000), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"at least 2 are needed.*cut it into several files"):
        prepare(parse(f"files:{alone}"), tmp_path / "c", **ASKED)
    lines = tmp_path / "lines.jsonl"
    rows = [{"text": text(number)} for number in range(40)]
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert prepare(parse(f"files:{lines}"), tmp_path / "c", **ASKED).split == "document"


def test_a_second_corpus_by_the_first_one_s_tokenizer(folder, tmp_path, ray_session):
    asked = {"budgets": [500], "val_tokens": 200}
    first = prepare(parse(f"files:{folder}"), tmp_path / "a", tokenizer="bpe:290", **asked)
    named = f"hf:{tmp_path / 'a'}"
    again = prepare(parse(f"files:{folder}"), tmp_path / "b", tokenizer=named, **asked, seed=7)
    assert again.tokenizer == first.tokenizer
    assert again.used_ids == len(np.unique(Corpus.open(tmp_path / "b").tokens()))
    (tmp_path / "a" / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match="tokenizer_content is"):
        prepare(parse(f"files:{folder}"), tmp_path / "b", tokenizer=named, **asked, seed=7)


def test_a_folder_that_is_no_corpus_is_left_alone(folder, tmp_path):
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(ConfigError, match="is no corpus"):
        prepare(parse(f"files:{folder}"), tmp_path, **ASKED)
    assert (tmp_path / "mine").read_text() == "mine"


def test_all_problems_of_a_request_at_once(folder, tmp_path):
    with pytest.raises(ConfigError) as raised:
        prepare(
            parse(f"files:{folder}"), tmp_path / "c", tokenizer="gtp2", budgets=[0], val_tokens=0
        )
    assert len(raised.value.problems) == 3


@pytest.mark.parametrize("damage", ["edited", "truncated", "missing"])
def test_a_damaged_shard_is_named(corpus, folder, tmp_path, damage):
    prepare(parse(f"files:{folder}"), tmp_path / "c", **ASKED)
    path = tmp_path / "c" / "train-00000.bin"
    raw = bytearray(path.read_bytes())
    if damage == "edited":
        raw[100] ^= 1
        path.write_bytes(raw)
    elif damage == "truncated":
        path.write_bytes(raw[:-2])
    else:
        path.unlink()
    opened = Corpus.open(tmp_path / "c")
    with pytest.raises(ConfigError, match=r"train-00000\.bin .* dcray prepare again"):
        opened.verify()
    with pytest.raises(ConfigError, match=r"train-00000\.bin"):
        opened.tokens(100, verify=True)
    with pytest.raises(ConfigError, match=r"train-00000\.bin"):
        opened.verify_shard(path)


def test_a_newer_manifest_is_refused(corpus, tmp_path):
    record = json.loads((corpus.path / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps(record | {"format": 99, "new": 1}))
    with pytest.raises(ConfigError, match="newer dcray"):
        Corpus.open(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        Corpus.open(tmp_path)
    with pytest.raises(ConfigError, match="is no corpus"):
        Corpus.open(tmp_path / "nowhere")


def test_a_budget_beyond_the_corpus_is_refused(corpus):
    with pytest.raises(ConfigError, match="at most 2000"):
        corpus.tokens(2001)
    with pytest.raises(ConfigError, match=r"1 \.\.\. 700"):
        corpus.validation(701)


def test_invalid_utf8_and_empty_files_are_counted_and_named(tmp_path, ray_session):
    root = tmp_path / "texts"
    root.mkdir()
    for number in range(10):
        (root / f"{number}.txt").write_text(text(number))
    (root / "bad.txt").write_bytes(b"ok \xff\xfe then \xef\xbf\xbd a true one " + b"x" * 50)
    (root / "empty.txt").write_bytes(b"")
    (root / "lone.jsonl").write_text('{"text": "half a pair \\ud83d here"}\n')
    asked = {"tokenizer": "byte", "budgets": [1000], "val_tokens": 100}
    with pytest.raises(ConfigError, match=r"bad\.txt is not UTF-8 \(byte 0xff"):
        prepare(parse(f"files:{root}"), tmp_path / "c", **asked)
    assert not (tmp_path / "c").exists()
    source = parse(f"files:{root}", {"not_utf8": "replace"})
    manifest = prepare(source, tmp_path / "c", **asked)
    assert manifest.invalid_utf8.count == 5
    assert manifest.invalid_utf8.examples == ("bad.txt", "lone.jsonl:1")
    assert manifest.empty_documents.examples == ("empty.txt",)


def test_a_corpus_of_old_is_read_and_answers_the_same_request(corpus, folder, tmp_path):
    """Its manifest knows nothing of what was left out, nor of what the tokenizer knows."""
    old = shutil.copytree(corpus.path, tmp_path / "old")
    record = json.loads((old / "manifest.json").read_text())
    del record["known_frac"], record["source"]["left_out"]
    (old / "manifest.json").write_text(json.dumps(record))
    Corpus.open(old).verify()
    assert prepare(parse(f"files:{folder}"), old, **ASKED).source == record["source"]


def test_a_text_unknown_to_its_tokenizer_is_refused_and_nothing_is_left(
    folder, tmp_path, ray_session
):
    """The folder's text is of Chinese, emoji and words: a, b, c, ... are less than half of it."""
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0, "beta": 1}, "<unk>"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    model.save(str(tmp_path / "tokenizer.json"))
    asked = ASKED | {"tokenizer": f"hf:{tmp_path}"}
    with pytest.raises(ConfigError, match=r"knows \d+% of the characters of this text"):
        prepare(parse(f"files:{folder}"), tmp_path / "c", **asked)
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]


def test_an_unreadable_file_is_named_and_nothing_is_left(tmp_path, ray_session):
    root = tmp_path / "texts"
    root.mkdir()
    (root / "good.txt").write_text(text(1))
    (root / "cut.jsonl.gz").write_bytes(gzip.compress(b'{"text": "abc"}\n' * 99)[:-20])
    with pytest.raises(ConfigError, match=r"cut\.jsonl\.gz cannot be read"):
        prepare(parse(f"files:{root}"), tmp_path / "c", **ASKED)
    assert [path.name for path in tmp_path.iterdir()] == ["texts"]


def test_a_source_that_is_too_small_says_what_it_left_out(tmp_path):
    """Most often that is why: the text is in files of a kind that is not read."""
    np.save(tmp_path / "ids.npy", np.arange(1000, dtype=np.uint16))
    (tmp_path / "more.npz").write_bytes(b"PK")
    source = parse(f"tokens:{tmp_path}", {"vocabulary": "ids:1000"})
    with pytest.raises(ConfigError, match=r"is too small.*; left out: 1 \.npz \(more\.npz\)"):
        prepare(source, tmp_path / "c", tokenizer=None, budgets=[2000], val_tokens=50)


def test_only_empty_files(tmp_path, ray_session):
    (tmp_path / "void.txt").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"no text, 0 tokens.*void\.txt"):
        prepare(parse(f"files:{tmp_path / 'void.txt'}"), tmp_path / "c", **ASKED)


def test_a_full_disk_leaves_nothing(folder, tmp_path, ray_session):
    """A limit on this process's files stands for the full disk: the shard cannot grow beyond it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, hard))
    try:
        with pytest.raises(ConfigError, match="no space left"):
            prepare(parse(f"files:{folder}"), tmp_path / "c", **ASKED)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def long_line(path, megabytes):
    with path.open("wb") as file:
        for _ in range(megabytes):
            file.write(b"0123456789abcdef" * 65536)


@pytest.mark.parametrize(
    ("megabytes", "tokenizer"),
    [(4, "bpe:260"), pytest.param(200, "byte", marks=[pytest.mark.slow])],
    ids=["4MB", "200MB"],
)
def test_a_single_long_line_streams_through(tmp_path, ray_session, megabytes, tokenizer):
    first, second, last = sorted(("a.txt", "b.txt", "c.txt"), key=lambda name: place(name, 42))
    long_line(tmp_path / last, megabytes)
    for name in (first, second):
        (tmp_path / name).write_text(text(name == first, 600))
    size = megabytes << 20
    asked = {"tokenizer": tokenizer, "budgets": [size // 20], "val_tokens": 1000}
    manifest = prepare(parse(f"files:{tmp_path}"), tmp_path / "c", **asked)
    assert manifest.train.tokens == size // 20
    Corpus.open(tmp_path / "c").verify()


def test_a_vocabulary_beyond_uint16_is_stored_in_uint32(tmp_path):
    np.save(tmp_path / "ids.npy", np.arange(4000, dtype=np.uint32) + 70_000)
    source = parse(
        f"tokens:{tmp_path / 'ids.npy'}", {"vocabulary": "ids:100000", "row_tokens": 100}
    )
    manifest = prepare(source, tmp_path / "c", tokenizer=None, budgets=[1000], val_tokens=200)
    opened = Corpus.open(tmp_path / "c")
    assert manifest.dtype == "uint32"
    assert opened.dtype == np.dtype("<u4")
    assert opened.tokens(3).tolist() == [70_200, 70_201, 70_202]
    assert opened.validation()[1] is None
    assert manifest.split == "row"


def test_ids_whose_meaning_is_not_said_are_refused(tmp_path):
    np.save(tmp_path / "ids.npy", np.arange(4000, dtype=np.uint16))
    source = parse(f"tokens:{tmp_path / 'ids.npy'}")
    asked = {"budgets": [1000], "val_tokens": 200}
    with pytest.raises(ConfigError, match=r"must say what its ids mean: give --option vocabulary="):
        prepare(source, tmp_path / "c", tokenizer=None, **asked)
    assert not (tmp_path / "c").exists()
    named = prepare(source, tmp_path / "c", tokenizer="ids:4000", **asked)
    assert (named.tokenizer.name, named.tokenizer.vocab_size) == ("ids:4000", 4000)
    assert named.used_ids == 1000  # each id once in the whole file


@pytest.mark.parametrize(("top", "refused"), [(50_257, False), (50_258, True)])
def test_the_first_id_beyond_the_vocabulary_is_refused(tmp_path, top, refused):
    ids = np.arange(4000, dtype=np.uint16)
    ids[-1] = top
    np.save(tmp_path / "ids.npy", ids)
    source = parse(f"tokens:{tmp_path / 'ids.npy'}", {"vocabulary": "gpt2", "row_tokens": 100})
    asked = {"tokenizer": None, "budgets": [1000], "val_tokens": 200}
    with pytest.raises(ConfigError, match="holds id 50258") if refused else nullcontext():
        prepare(source, tmp_path / "c", **asked)
    assert (tmp_path / "c").exists() is not refused


def test_ids_beyond_the_vocabulary_are_refused(tmp_path):
    np.save(tmp_path / "ids.npy", np.arange(4000, dtype=np.uint32) + 70_000)
    source = parse(f"tokens:{tmp_path / 'ids.npy'}", {"vocabulary": "gpt2"})
    with pytest.raises(ConfigError, match=r'"gpt2" has 50258 ids'):
        prepare(source, tmp_path / "c", tokenizer=None, budgets=[1000], val_tokens=200)
    assert not (tmp_path / "c").exists()


def test_training_rows_equal_to_a_validation_row_are_left_out(tmp_path):
    rows = np.arange(40, dtype=np.uint16).repeat(10).reshape(40, 10)
    twice = np.concatenate([rows, rows[:5], rows[10:]])
    np.save(tmp_path / "ids.npy", twice)
    source = parse(f"tokens:{tmp_path / 'ids.npy'}", {"vocabulary": "ids:64", "row_tokens": 10})
    manifest = prepare(source, tmp_path / "c", tokenizer=None, budgets=[600], val_tokens=50)
    assert manifest.overlap.duplicates_removed == 5
    assert manifest.overlap.shared_documents == 0
    assert manifest.available_tokens == 650
    with pytest.raises(ConfigError, match='must be "ids:64"'):
        prepare(source, tmp_path / "d", tokenizer="byte", budgets=[600], val_tokens=50)


def test_a_request_says_what_it_reads(folder):
    record = Request(parse(f"files:{folder}"), "byte", (5,), 5, 1).record()
    assert record["source"]["files"] == 40
    assert record["source"]["bytes"] == sum(p.stat().st_size for p in folder.iterdir())
