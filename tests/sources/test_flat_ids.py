"""Flat ids as people have them: headers, widths, raw .npy; validation sets that lie beside."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dcray.corpus.manifest import Corpus
from dcray.corpus.prepare import prepare
from dcray.errors import ConfigError
from dcray.sources import parse

few = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def shard(path, ids, magic=20240520, version=1, dtype=np.uint16, count=None):
    """As llm.c's dev/data/data_common.py writes one: 256 int32, then the ids."""
    header = np.zeros(256, np.int32)
    header[:3] = magic, version, len(ids) if count is None else count
    path.write_bytes(header.tobytes() + np.asarray(ids, dtype).tobytes())


def read(path, **options):
    return np.concatenate(list(parse(f"tokens:{path}", options).tokens()))


def gpt2_like(count, top=50_257, seed=0):
    """Ids with a long tail, as of text: most are small, all of 0 ... top - 1 can occur."""
    return (top * np.random.default_rng(seed).random(count) ** 3).astype(np.int64)


@few
@given(ids=st.lists(st.integers(0, 2**16 - 1), min_size=1, max_size=60))
def test_a_shard_of_llm_c_or_modded_nanogpt_gives_its_ids(tmp_path, ids):
    shard(tmp_path / "a.bin", ids)
    assert read(tmp_path / "a.bin").tolist() == ids
    assert read(tmp_path / "a.bin", dtype="uint32").tolist() == ids  # the header knows better


@few
@given(ids=st.lists(st.integers(0, 128_255), min_size=1, max_size=60))
def test_a_shard_of_llm_c_for_llama_3_is_uint32(tmp_path, ids):
    shard(tmp_path / "a.bin", ids, 20240801, 7, np.uint32)
    assert read(tmp_path / "a.bin").tolist() == ids


@pytest.mark.parametrize(
    ("write", "said"),
    [
        ({"count": 101}, "says in its header that 101 ids of uint16 follow, and 200 bytes do: it"),
        ({"count": 99}, "it was cut off, or added to"),
        ({"count": -1}, "it was cut off, or added to"),
        ({"dtype": np.uint32}, "give --option dtype=uint32"),
        ({"version": 2}, "of version 2; known is 1"),
        ({"magic": 20240522}, "multiple-choice questions"),
    ],
)
def test_a_header_that_does_not_fit_is_refused(tmp_path, write, said):
    shard(tmp_path / "a.bin", np.arange(100), **write)
    with pytest.raises(ConfigError, match=said) as raised:
        read(tmp_path / "a.bin")
    assert str(raised.value).startswith(str(tmp_path / "a.bin"))


def test_a_shard_of_another_dtype_is_read_if_that_is_said(tmp_path):
    shard(tmp_path / "a.bin", np.arange(100), dtype=np.uint32)
    assert read(tmp_path / "a.bin", dtype="uint32").tolist() == list(range(100))


@pytest.mark.parametrize("suffix", [".bin", ".npy"])
@pytest.mark.parametrize("top", [65, 50_257, 128_256, 1_000_000])
@pytest.mark.parametrize(
    ("stored", "read_as", "named"),
    [
        (np.int32, None, "uint32"),
        (np.uint32, None, "uint32"),
        (np.int64, None, "int64"),
        (np.int64, "uint32", "int64"),
        (np.int64, "int32", "int64"),
    ],
)
def test_ids_wider_than_they_are_read_are_refused(tmp_path, suffix, top, stored, read_as, named):
    """And as the dtype that the sentence names they are read."""
    path = tmp_path / f"a{suffix}"
    ids = gpt2_like(3000, top)
    path.write_bytes(ids.astype(stored).tobytes())
    options = {"dtype": read_as} if read_as else {}
    with pytest.raises(ConfigError, match=rf"holds ids of {named}.*--option dtype={named}"):
        read(path, **options)
    assert np.array_equal(read(path, dtype=named), ids)


@pytest.mark.parametrize("suffix", [".bin", ".npy"])
@few
@given(
    ids=arrays.arrays(
        np.uint16,
        st.integers(1, 300),
        elements=st.one_of(st.integers(0, 3), st.integers(0, 2**16 - 1)),
    )
)
def test_raw_uint16_is_read_or_said_to_look_wider_and_never_changed(tmp_path, suffix, ids):
    path = tmp_path / f"a{suffix}"
    path.write_bytes(ids.tobytes())
    assert np.array_equal(read(path, dtype="uint16"), ids)  # said, so it is so
    try:
        assert np.array_equal(read(path), ids)
    except ConfigError:
        assert (ids[1 : len(ids) // 4 * 4 : 2] < 16).all()  # no text's ids, but of a wider dtype


@pytest.mark.parametrize("top", [2, 4, 65, 256, 50_257])
def test_uint16_of_text_is_never_taken_for_wider(tmp_path, top):
    for seed in range(20):
        ids = gpt2_like(2000, top, seed).astype(np.uint16)
        ids.tofile(tmp_path / "a.bin")
        assert np.array_equal(read(tmp_path / "a.bin"), ids)


def test_a_vocabulary_beyond_16_bits_needs_a_dtype(tmp_path):
    np.arange(4000, dtype=np.uint16).tofile(tmp_path / "a.bin")
    asked = {"tokenizer": "ids:128256", "budgets": [1000], "val_tokens": 200}
    with pytest.raises(
        ConfigError, match=r"128,256 ids does not fit in uint16.*a\.bin.*dtype=uint32"
    ):
        prepare(parse(f"tokens:{tmp_path / 'a.bin'}"), tmp_path / "c", **asked)
    assert not (tmp_path / "c").exists()
    shard(tmp_path / "b.bin", np.arange(4000) + 70_000, 20240801, 7, np.uint32)
    prepare(parse(f"tokens:{tmp_path / 'b.bin'}"), tmp_path / "c", **asked)
    assert Corpus.open(tmp_path / "c").tokens(2).tolist() == [72_048, 72_049]


def test_a_padded_or_negative_id_is_named(tmp_path):
    np.array([*range(300), -100], np.int32).tofile(tmp_path / "a.bin")
    with pytest.raises(ConfigError, match=r"a\.bin holds the id -100; ids are not negative"):
        read(tmp_path / "a.bin", dtype="int32")


@pytest.mark.parametrize("name", ["a.bin", "a.npy"])
def test_a_pointer_of_git_lfs_is_not_the_file(tmp_path, name):
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9999\n"
    (tmp_path / name).write_bytes(pointer)
    with pytest.raises(ConfigError, match=r"is a pointer of Git LFS and not the file itself"):
        read(tmp_path / name)
    (tmp_path / "a.txt").write_bytes(pointer)
    with pytest.raises(ConfigError, match=r"a\.txt is a pointer of Git LFS"):
        parse(f"files:{tmp_path / 'a.txt'}").paths()


TRAIN, VALIDATION = np.arange(3000), np.arange(500) + 5000


def prepared(source, out, **options):
    asked = {"tokenizer": "ids:9000", "budgets": [3000], "val_tokens": 500}
    prepare(parse(f"tokens:{source}", options), out, **asked)
    corpus = Corpus.open(out)
    return corpus.tokens().tolist(), corpus.validation()[0].tolist(), corpus.manifest.source


@pytest.mark.parametrize(
    ("train", "validation", "write"),
    [
        (["train.bin"], ["val.bin"], "raw"),  # nanoGPT
        (
            ["fineweb_train_000001.bin", "fineweb_train_000002.bin"],
            ["fineweb_val_000000.bin"],
            "llm.c",
        ),
        (["TinyStories_train.bin"], ["TinyStories_val.bin"], "llm.c"),
        (["edufineweb_train_000001.npy"], ["edufineweb_val_000000.npy"], "npy"),  # build-nanogpt
        (["a.bin", "b.bin"], ["validation.bin"], "raw"),
    ],
)
def test_validation_files_in_a_folder_are_the_validation_set(tmp_path, train, validation, write):
    folder = tmp_path / "data"
    folder.mkdir()
    for name, ids in [
        *zip(train, np.split(TRAIN, len(train)), strict=True),
        (validation[0], VALIDATION),
        *([("test.bin", np.arange(7))] if write == "raw" else []),
    ]:
        if write == "npy":
            np.save(folder / name, ids.astype(np.uint16))
        elif write == "llm.c":
            shard(folder / name, ids)
        else:
            ids.astype(np.uint16).tofile(folder / name)
    (folder / "meta.pkl").write_bytes(b"x")
    (folder / "._train.bin").write_bytes(b"\0\5\x16\7")
    tokens, held, said = prepared(folder, tmp_path / "c")
    assert (tokens, held) == (TRAIN.tolist(), VALIDATION.tolist())
    assert said["validation_files"] == validation
    assert said["left_out"][".pkl"] == {"count": 1, "examples": ["meta.pkl"]}
    assert said["left_out"]["hidden"] == {"count": 1, "examples": ["._train.bin"]}
    assert ("for tests" in said["left_out"]) == (write == "raw")


def test_a_val_file_beside_the_train_file_is_the_validation_set(tmp_path):
    for name in ("train.bin", "val.bin", "other_val.bin"):
        ids = TRAIN if name == "train.bin" else VALIDATION
        ids.astype(np.uint16).tofile(tmp_path / name)
    tokens, held, said = prepared(tmp_path / "train.bin", tmp_path / "c")
    assert (tokens, held, said["validation_files"]) == (
        TRAIN.tolist(),
        VALIDATION.tolist(),
        ["val.bin"],
    )
    other = {"validation": str(tmp_path / "other_val.bin")}
    assert prepared(tmp_path / "train.bin", tmp_path / "d", **other)[2]["validation_files"] == [
        "other_val.bin"
    ]


def test_a_validation_file_that_is_too_small_is_told(tmp_path):
    TRAIN.astype(np.uint16).tofile(tmp_path / "train.bin")
    VALIDATION[:499].astype(np.uint16).tofile(tmp_path / "val.bin")
    with pytest.raises(
        ConfigError, match="the validation files hold 499 tokens, fewer than the 500"
    ):
        prepared(tmp_path, tmp_path / "c")


def test_files_that_no_name_tells_apart_give_their_first_rows(tmp_path):
    np.arange(6000, dtype=np.uint16).tofile(tmp_path / "ids.bin")
    tokens, held, said = prepared(tmp_path, tmp_path / "c")
    assert held == list(range(500))
    assert tokens[0] == 2048
    assert said["validation_files"] == []


def test_a_validation_set_alone_is_what_is_meant(tmp_path):
    np.arange(6000, dtype=np.uint16).tofile(tmp_path / "val.bin")
    assert prepared(tmp_path, tmp_path / "c")[0][0] == 2048
