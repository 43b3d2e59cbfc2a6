"""Tokenizers by name: GPT-2's files, byte pairs trained on a corpus, a tokenizer.json, bytes."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dcray.corpus.tokenizers.encoders import (
    BytePairTokenizer,
    ByteTokenizer,
    HuggingFaceTokenizer,
    TokenIds,
    pieces,
    tokenizer_file,
)
from dcray.corpus.tokenizers.tokenizer import KINDS, Tokenizer, from_dict
from dcray.errors import ConfigError, did_you_mean

GPT2_URL = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main"
GPT2_FILES = {  # url: sha256 of the file
    f"{GPT2_URL}/vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
    f"{GPT2_URL}/encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
}
# tiktoken's r50k_base, which is possessive
GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
# GPT-4's split with numbers of at most two digits, which suits small vocabularies (nanochat)
BPE_PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
MIN_BPE = 256 + 2
NAMES = ("gpt2", "bpe:V", "hf:PATH", "byte", "ids:V")


def check_name(name: str) -> str:
    """Return the name itself; raises ConfigError if no tokenizer has that name."""
    kind, _, value = name.partition(":")
    if name in ("gpt2", "byte") or (kind == "hf" and value):
        return name
    if kind in ("bpe", "ids"):
        least = MIN_BPE if kind == "bpe" else 3
        if not value.isdigit() or not least <= int(value) <= 2**32:
            raise ConfigError(
                f"{kind}:V needs a number of ids V >= {least}, both special ones included"
                f'{" (256 bytes and two)" if kind == "bpe" else ""}, got "{name}"'
            )
        return name
    raise ConfigError(f'no tokenizer is called "{name}"{did_you_mean(name, NAMES)}')


def build(name: str) -> Tokenizer | None:
    """Build the tokenizer of that name; None for bpe:V, which must first be trained on texts."""
    kind, _, value = check_name(name).partition(":")
    match kind:
        case "gpt2":
            return gpt2()
        case "byte":
            return ByteTokenizer()
        case "hf":
            return of_file(Path(value))
        case "ids":
            return TokenIds(name, int(value), int(value) - 2, int(value) - 1)
    return None


def of_file(path: Path) -> Tokenizer:
    """Load a tokenizer.json of Hugging Face or of a corpus (then the corpus' own, id for id).

    path: the file, or the folder that holds it. Raises ConfigError if it is neither.
    """
    try:
        record = json.loads(tokenizer_file(path).read_bytes())
    except (OSError, ValueError):
        record = None  # what is wrong with it is said below
    if isinstance(record, dict) and record.get("kind") in KINDS:
        return from_dict(record)
    return HuggingFaceTokenizer.from_file(path)


def ids_only(name: str) -> Tokenizer:
    """Build a vocabulary whose text is not needed: without GPT-2's files, without training."""
    kind, _, value = check_name(name).partition(":")
    if kind == "gpt2":
        return TokenIds("gpt2", 50_258, 50_256, 50_257)
    if built := build(name):
        return built
    return TokenIds(name, int(value), int(value) - 2, int(value) - 1)


def gpt2(files: Mapping[str, str] = GPT2_FILES) -> Tokenizer:
    """Load GPT-2's byte pairs from tiktoken's cache or, online, from their published address.

    Raises ConfigError that says which file goes where. A file whose hash is wrong is named and kept
    (tiktoken would delete it).
    """
    from tiktoken.load import data_gym_to_mergeable_bpe_ranks

    folder = _tiktoken_cache()
    problems = []
    for url, digest in files.items():
        held = folder / hashlib.sha1(url.encode()).hexdigest()
        if held.exists() and hashlib.sha256(held.read_bytes()).hexdigest() != digest:
            problems.append(f"{held} is not {url}: its sha256 must be {digest}; replace it")
    if problems:
        raise ConfigError(problems)
    (bpe, bpe_hash), (encoder, encoder_hash) = files.items()
    try:
        ranks = data_gym_to_mergeable_bpe_ranks(bpe, encoder, bpe_hash, encoder_hash)
    except Exception as error:
        raise ConfigError(_where_files_go(folder, files, error)) from error
    return byte_pairs("gpt2", GPT2_PATTERN, ranks, len(ranks) + 2)


def byte_pairs(name: str, pattern: str, ranks: Mapping[bytes, int], vocab_size: int) -> Tokenizer:
    """Build byte pairs whose last two of `vocab_size` ids are <|endoftext|> and [MASK]."""
    ordered = tuple(sorted(ranks, key=lambda token: ranks[token]))
    assert len(ordered) + 2 <= vocab_size
    return BytePairTokenizer(name, pattern, ordered, vocab_size, vocab_size - 2, vocab_size - 1)


def train_bpe(name: str, texts: Iterable[str]) -> Tokenizer:
    """Train bpe:V on `texts`. Ids 0 ... 255 are the bytes, then the merges in order.

    Hugging Face `tokenizers` trains it: rustbpe takes half the time (tests/bench/bench_prepare.py
    measures both; both are deterministic), which is one second less on 12 MB. But rustbpe is at
    0.1.0, and `tokenizers` is needed for hf:PATH anyway: one dependency less.
    Raises ConfigError if the texts give fewer than V - 258 merges, so that V is always exact.
    """
    from tokenizers import Regex, models, pre_tokenizers, trainers
    from tokenizers import Tokenizer as Trained

    vocab_size = int(check_name(name).partition(":")[2])
    model = Trained(models.BPE())
    model.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(BPE_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 2,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    model.train_from_iterator((piece for text in texts for piece in pieces(text)), trainer)
    letters = byte_letters()
    learned = model.get_vocab()
    tokens = {bytes(letters[c] for c in token): rank for token, rank in learned.items()}
    merged = sorted((t for t in tokens if len(t) > 1), key=lambda token: tokens[token])
    if len(merged) < vocab_size - MIN_BPE:
        raise ConfigError(
            f"{name} needs {vocab_size - MIN_BPE:,} merges, and the text that it is trained on "
            f"gives {len(merged):,}: choose bpe:{len(merged) + MIN_BPE} at the most (a much "
            "smaller one is better trained), or more text"
        )
    ranks = {token: i for i, token in enumerate([*(bytes([b]) for b in range(256)), *merged])}
    return byte_pairs(name, BPE_PATTERN, ranks, vocab_size)


def byte_letters() -> dict[str, int]:
    """Map the printable letter that byte-level tokenizers write for each byte to that byte."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(b): b for b in shown} | {chr(256 + i): byte for i, byte in enumerate(hidden)}


def _tiktoken_cache() -> Path:
    for variable in ("TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR"):
        if os.environ.get(variable):
            return Path(os.environ[variable])
    return Path(tempfile.gettempdir()) / "data-gym-cache"


def _where_files_go(folder: Path, files: Mapping[str, str], error: Any) -> list[str]:
    why = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    places = {url: folder / hashlib.sha1(url.encode()).hexdigest() for url in files}
    return [
        f"GPT-2's vocabulary is neither in {folder} nor to be had ({why})",
        *(f"put {url} at {place}" for url, place in places.items()),
        "or set TIKTOKEN_CACHE_DIR to the folder that holds these two files",
    ]
