"""Files of ids: flat ones, and the paper's packed rows."""

import numpy as np
import pytest
import torch

from dcray.corpus.manifest import Corpus
from dcray.corpus.prepare import prepare
from dcray.errors import ConfigError
from dcray.sources import parse


def packed(path, rows, batch_size=4):
    """Write `rows` (n, T + 1) as the authors do: whole batches, the last one padded with zeros."""
    padding = np.zeros((-len(rows) % batch_size, rows.shape[1]), np.uint16)
    chunks = np.concatenate([rows, padding]).reshape(-1, batch_size * rows.shape[1])
    counts = [min(batch_size, len(rows) - start) for start in range(0, len(rows), batch_size)]
    table = {
        "chunks": [torch.from_numpy(chunk.copy()) for chunk in chunks],
        "valid_counts": counts,
        "batch_size": batch_size,
        "sequence_size": rows.shape[1],
    }
    torch.save(table, path)


@pytest.fixture
def rows():
    return np.random.default_rng(0).integers(0, 50_000, (30, 17)).astype(np.uint16)


@pytest.mark.parametrize("kind", ["bin", "npy", "pt"])
def test_rows_come_back_in_order(tmp_path, rows, kind):
    path = tmp_path / f"ids.{kind}"
    if kind == "pt":
        packed(path, rows)
    elif kind == "npy":
        np.save(path, rows)
    else:
        rows.tofile(path)
    found = list(parse(f"tokens:{path}", {"row_tokens": "17"}).tokens())
    assert np.array_equal(np.stack(found), rows)


def test_packed_rows_with_a_validation_file(tmp_path, rows):
    packed(tmp_path / "train.pt", rows)
    packed(tmp_path / "val.pt", rows[:3] + np.uint16(1))
    source = parse(f"tokens:{tmp_path / 'train.pt'}", {"validation": str(tmp_path / "val.pt")})
    out = tmp_path / "corpus"
    manifest = prepare(source, out, tokenizer="gpt2", budgets=[17 * 10, 17 * 30], val_tokens=51)
    corpus = Corpus.open(out)
    assert np.array_equal(corpus.tokens().reshape(-1, 17), rows)
    assert np.array_equal(corpus.validation()[0].reshape(-1, 17), rows[:3] + 1)
    assert (corpus.vocab_size, corpus.eot_id, corpus.mask_id) == (50_258, 50_256, 50_257)
    assert manifest.train.source_bytes is None
    assert corpus.tokenizer.name == "gpt2"


def test_bad_files_are_named(tmp_path, rows):
    torch.save({"chunks": []}, tmp_path / "half.pt")
    torch.save(parse, tmp_path / "code.pt")
    (tmp_path / "odd.bin").write_bytes(b"123")
    (tmp_path / "void.bin").write_bytes(b"")
    np.save(tmp_path / "real.npy", np.ones(3))
    np.save(tmp_path / "below.npy", np.array([1, -1]))
    for name, said in {
        "half.pt": "lacks valid_counts",
        "code.pt": "cannot be loaded as tensors alone",
        "odd.bin": "no whole number of uint16",
        "void.bin": "is empty",
        "real.npy": "whole numbers",
        "below.npy": "not negative",
    }.items():
        with pytest.raises(ConfigError, match=said) as raised:
            list(parse(f"tokens:{tmp_path / name}").tokens())
        assert name in str(raised.value)
    (tmp_path / "none").mkdir()
    for name, said in {"none": "holds no tokens to train on", "nowhere": "does not exist"}.items():
        with pytest.raises(ConfigError, match=f"{name} {said}"):
            parse(f"tokens:{tmp_path / name}").paths()
