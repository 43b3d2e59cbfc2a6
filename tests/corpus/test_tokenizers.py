"""Tokenizers: every byte of the source is accounted for, and what is stored reads back the same."""

import hashlib
import json

import numpy as np
import pytest
import tokenizers as hf
from hypothesis import given, settings
from hypothesis import strategies as st

from dcray.corpus.tokenizers import encoders, vocabularies
from dcray.corpus.tokenizers import tokenizer as tokenizers
from dcray.errors import ConfigError

TRAINING = [
    "the cat sat on the mat, the cat ran",
    "caf\u00e9 na\u00efve \u4f60\u597d \U0001f642 " * 9,
]
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
AWKWARD = [
    "",
    "na\u00efve caf\u00e9",
    "e\u0301 \ufb01 \u2168 \u00c5",
    "\u4f60\u597d\uff0c\u4e16\u754c",
    "\U0001f642\U0001f468\u200d\U0001f469",
    "  two  spaces\n\n\ttab ",
    "<|endoftext|> [MASK] [UNK]",
]


def normalizing_tokenizer(folder):
    """Lower case, NFKC, words: nothing that keeps bytes one by one."""
    model = hf.Tokenizer(hf.models.WordLevel({"[UNK]": 0, "the": 1, "cat": 2}, unk_token="[UNK]"))
    model.normalizer = hf.normalizers.Sequence([hf.normalizers.NFKC(), hf.normalizers.Lowercase()])
    model.pre_tokenizer = hf.pre_tokenizers.Whitespace()
    model.add_special_tokens(["</s>"])
    model.save(str(folder / "tokenizer.json"))
    return encoders.HuggingFaceTokenizer.from_file(folder / "tokenizer.json")


@pytest.fixture(scope="module", params=["byte", "bpe", "hf"])
def tokenizer(request, tmp_path_factory):
    if request.param == "byte":
        return encoders.ByteTokenizer()
    if request.param == "bpe":
        return vocabularies.train_bpe("bpe:290", TRAINING)
    return normalizing_tokenizer(tmp_path_factory.mktemp("hf"))


def check(tokenizer, text):
    (ids,) = tokenizer.encode_batch([text])
    lengths = tokenizer.token_bytes(text, ids)
    assert len(lengths) == len(ids)
    assert tokenizer.token_bytes(text, ids[:3]).tolist() == lengths[:3].tolist()
    assert (lengths >= 0).all()
    if len(ids):
        assert lengths.sum() == len(text.encode())
        assert ids.max() < tokenizer.vocab_size
    assert tokenizer.eot_id not in ids
    assert tokenizer.mask_id not in ids


@pytest.mark.parametrize("text", AWKWARD)
def test_source_bytes_of_awkward_texts(tokenizer, text):
    check(tokenizer, text)


@settings(max_examples=60, deadline=None)
@given(TEXTS)
def test_source_bytes_of_any_text(tokenizer, text):
    check(tokenizer, text)


def test_stored_and_read_again(tokenizer, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(tokenizers.dumps(tokenizer))
    again = tokenizers.load(tmp_path / "tokenizer.json")
    assert again == tokenizer
    assert tokenizers.sha256(again) == tokenizers.sha256(tokenizer)
    for one, other in zip(
        tokenizer.encode_batch(AWKWARD), again.encode_batch(AWKWARD), strict=True
    ):
        assert one.tolist() == other.tolist()


@settings(max_examples=60, deadline=None)
@given(TEXTS)
def test_byte_level_tokenizers_give_the_text_back(text):
    for built in (encoders.ByteTokenizer(), vocabularies.train_bpe("bpe:280", TRAINING)):
        assert built.decode(built.encode_batch([text])[0]) == text


def test_special_text_is_ordinary_text():
    built = vocabularies.train_bpe("bpe:290", TRAINING)
    text = "a<|endoftext|>[MASK]b"
    assert built.decode(built.encode_batch([text])[0]) == text


def test_bpe_lays_out_its_ids():
    built = vocabularies.train_bpe("bpe:280", TRAINING)
    assert built.ranks[:256] == tuple(bytes([i]) for i in range(256))
    assert (built.vocab_size, built.eot_id, built.mask_id) == (280, 278, 279)
    assert len(built.ranks) == 278
    assert tokenizers.sha256(built) == tokenizers.sha256(
        vocabularies.train_bpe("bpe:280", TRAINING)
    )


def test_more_merges_than_a_text_gives_are_refused_with_the_most_it_gives():
    """ "abab" merges twice: ab, then abab; so 256 bytes, two merges and two special ids."""
    with pytest.raises(ConfigError, match=r"needs 4,742 merges, .* gives 2: choose bpe:260 at"):
        vocabularies.train_bpe("bpe:5000", ["abab"])
    built = vocabularies.train_bpe("bpe:260", ["abab"])
    assert built.vocab_size == len(built.ranks) + 2 == 260
    assert built.encode_batch(["abab"])[0].tolist() == [257]
    assert built.decode([257]) == "abab"


def test_a_corpus_tokenizer_serves_another_corpus(tmp_path):
    """hf:PATH takes the file that prepare wrote, or its folder: the same ids, the same identity."""
    built = vocabularies.train_bpe("bpe:280", TRAINING)
    (tmp_path / "tokenizer.json").write_bytes(tokenizers.dumps(built))
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        again = vocabularies.build(f"hf:{path}")
        assert again == built
        assert tokenizers.sha256(again) == tokenizers.sha256(built)


@settings(max_examples=100, deadline=None)
@given(st.text(st.sampled_from("ab \n."), max_size=200), st.integers(2, 40))
def test_pieces_join_to_the_text(text, limit):
    cut = list(encoders.pieces(text, limit))
    assert "".join(cut) == text
    assert max(map(len, cut)) <= limit


def test_pieces_cut_at_words_change_no_id(monkeypatch):
    built = vocabularies.train_bpe("bpe:290", TRAINING)
    text = "the cat sat, 1234 caf\u00e9 on the mat. " * 50
    whole = built.encode_batch([text])[0]
    monkeypatch.setattr(encoders, "PIECE_CHARS", 64)
    assert built.encode_batch([text])[0].tolist() == whole.tolist()


def test_hugging_face_special_ids(tmp_path):
    built = normalizing_tokenizer(tmp_path)
    assert (built.eot_id, built.mask_id, built.vocab_size) == (3, 4, 5)
    ids = built.encode_batch(["The </s> CAT"])[0]
    assert ids[0] == 1
    assert ids[-1] == 2
    assert 3 not in ids


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gtp2", 'did you mean "gpt2"'),
        ("bpe:100", "V >= 258"),
        ("bpe:x", "V >= 258"),
        ("hf:/nowhere/tokenizer.json", "cannot be read"),
    ],
)
def test_bad_names(name, said):
    with pytest.raises(ConfigError, match=said):
        vocabularies.build(name)


@pytest.fixture
def tiny_gpt2(tmp_path, monkeypatch):
    """Two files in the published format: bytes and the merges "th" and "the"."""
    letters = {byte: letter for letter, byte in vocabularies.byte_letters().items()}
    order = [b for b in range(256) if letters[b] == chr(b)]
    order += [b for b in range(256) if letters[b] != chr(b)]
    encoder = {letters[byte]: rank for rank, byte in enumerate(order)} | {"th": 256, "the": 257}
    texts = {
        "http://127.0.0.1:9/vocab.bpe": b"#version: 0.2\nt h\nth e\n",
        "http://127.0.0.1:9/encoder.json": json.dumps(encoder | {"<|endoftext|>": 258}).encode(),
    }
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    held = {url: tmp_path / hashlib.sha1(url.encode()).hexdigest() for url in texts}
    for url, text in texts.items():
        held[url].write_bytes(text)
    return {url: hashlib.sha256(text).hexdigest() for url, text in texts.items()}, list(
        held.values()
    )


def test_gpt2_from_its_two_files(tiny_gpt2):
    built = vocabularies.gpt2(tiny_gpt2[0])
    assert (built.vocab_size, built.eot_id, built.mask_id) == (260, 258, 259)
    assert built.encode_batch(["the"])[0].tolist() == [257]
    assert (
        built.decode(built.encode_batch(["the \u00e9<|endoftext|>"])[0])
        == "the \u00e9<|endoftext|>"
    )


def test_gpt2_says_which_file_goes_where(tiny_gpt2):
    files, held = tiny_gpt2
    for path in held:
        path.unlink()
    with pytest.raises(ConfigError) as raised:
        vocabularies.gpt2(files)
    for url, path in zip(files, held, strict=True):
        assert f"put {url} at {path}" in str(raised.value)


def test_gpt2_keeps_a_file_with_a_wrong_hash(tiny_gpt2):
    files, held = tiny_gpt2
    held[0].write_bytes(b"mine")
    with pytest.raises(ConfigError, match="sha256 must be"):
        vocabularies.gpt2(files)
    assert held[0].read_bytes() == b"mine"


def test_gpt2_ids_are_the_published_ones():
    assert set(vocabularies.GPT2_FILES) == {
        f"{vocabularies.GPT2_URL}/vocab.bpe",
        f"{vocabularies.GPT2_URL}/encoder.json",
    }
    ids = vocabularies.ids_only("gpt2")
    assert (ids.vocab_size, ids.eot_id, ids.mask_id) == (50_258, 50_256, 50_257)
    assert tokenizers.from_dict(ids.to_dict()) == ids
    with pytest.raises(ConfigError, match="known by its ids alone"):
        ids.decode(np.array([1]))


def unknown_of(folder, model):
    """A tokenizer.json of a model that knows the letters a ... f, cut letter by letter."""
    built = hf.Tokenizer(model)
    built.pre_tokenizer = hf.pre_tokenizers.Sequence(
        [hf.pre_tokenizers.WhitespaceSplit(), hf.pre_tokenizers.Split(hf.Regex("."), "isolated")]
    )
    built.save(str(folder / "tokenizer.json"))
    return encoders.HuggingFaceTokenizer.from_file(folder / "tokenizer.json")


LETTERS = {letter: number for number, letter in enumerate(["<unk>", *"abcdef"])}
MODELS = {
    "words": lambda: hf.models.WordLevel(LETTERS, unk_token="<unk>"),
    "pieces": lambda: hf.models.WordPiece(LETTERS, unk_token="<unk>"),
    "unigram": lambda: hf.models.Unigram([(letter, -1.0) for letter in LETTERS], unk_id=0),
    "merges": lambda: hf.models.BPE(LETTERS, [], unk_token="<unk>"),
    "drops": lambda: hf.models.BPE(LETTERS, []),  # without an unknown id: characters vanish
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_tokenizer_that_knows_less_than_half_of_a_text_is_refused(tmp_path, kind):
    """The share is counted by hand: letters a ... f of all that is no white space."""
    tokenizer = unknown_of(tmp_path, MODELS[kind]())
    for text, known in {
        "abc def": 1.0,
        "abc\u00e9 \u4f60\u597d": 0.5,
        " ": 1.0,
        "fed\nxf": 0.8,
    }.items():
        assert tokenizers.known_frac(tokenizer, [text]) == known
    assert tokenizers.known_frac(tokenizer, ["abcd", "xxxx"]) == 0.5
    for text, said in {"xyz \u4f60": "0%", "ab xyz": "40%"}.items():
        with pytest.raises(ConfigError, match=rf"knows {said} of the characters of this text"):
            tokenizers.known_frac(tokenizer, [text])


def test_a_byte_level_tokenizer_knows_every_text():
    assert tokenizers.known_frac(vocabularies.train_bpe("bpe:290", TRAINING), ["\u4f60"]) is None
    assert tokenizers.known_frac(encoders.ByteTokenizer(), ["\u4f60"]) is None


def test_what_byte_fallback_spells_is_known(tmp_path):
    """As Llama's: a character that is no token is spelled by its bytes."""
    spelled = {f"<0x{byte:02X}>": byte for byte in range(256)}
    model = hf.models.BPE(
        spelled | {"<unk>": 256, "a": 257}, [], unk_token="<unk>", byte_fallback=True
    )
    tokenizer = unknown_of(tmp_path, model)
    assert tokenizers.known_frac(tokenizer, ["a \u4f60\u597d \u00e9"]) == 1.0
