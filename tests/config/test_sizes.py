"""Parameter counts and FLOPs against published figures and brute force."""

import pytest

from dcray.config.sizes import (
    GPT2_VOCAB_SIZE,
    MINI_SIZES,
    PAPER_SIZES,
    Pass,
    attended_keys,
    forward_flops,
    layer_windows,
    num_non_embedding_params,
    num_params,
    pad_vocab,
)

PUBLISHED = {  # paper, tab:scaling_ladder
    "72m": 71_965_952,
    "140m": 140_983_680,
    "257m": 257_190_400,
    "664m": 664_200_960,
    "1.4b": 1_439_273_984,
}


@pytest.mark.parametrize("size", PUBLISHED)
def test_the_five_published_parameter_counts(size):
    assert num_params(PAPER_SIZES[size], GPT2_VOCAB_SIZE) == PUBLISHED[size]
    assert PAPER_SIZES[size].head_dim == 64


def test_mini_sizes_are_called_what_they_count():
    counts = {
        name: num_params(s, 4096 if name.endswith("m") else 512) for name, s in MINI_SIZES.items()
    }
    assert counts == {
        "60k": 59_616, "119k": 118_704, "226k": 225_824, "431k": 430_848, "984k": 984_320,
        "5.5m": 5_507_584, "31.5m": 31_467_008,
    }  # fmt: skip


def test_vocabulary_is_padded_to_a_multiple_of_64():
    assert [pad_vocab(v) for v in (1, 64, 65, 50_258)] == [64, 64, 128, 50_304]


@pytest.mark.parametrize(("seq_len", "window"), [(8, None), (8, 4), (7, 3), (16, 1), (4, 9)])
def test_attended_keys_by_brute_force(seq_len, window):
    reach = seq_len if window is None else window
    brute = sum(1 for i in range(seq_len) for j in range(seq_len) if 0 <= i - j <= reach)
    assert attended_keys(seq_len, window, causal=True) == brute
    assert attended_keys(seq_len, window, causal=False) == seq_len**2


def test_the_last_layer_is_always_long():
    assert layer_windows(6, 2048, "SSSL") == [1024, 1024, 1024, None, 1024, None]


def test_flops_approach_2n_per_token_as_the_row_gets_short():
    shape = PAPER_SIZES["257m"]
    flops = forward_flops(shape, GPT2_VOCAB_SIZE, Pass(seq_len=1))
    matmul_params = num_non_embedding_params(shape) + pad_vocab(GPT2_VOCAB_SIZE) * shape.dim
    assert flops == pytest.approx(2 * matmul_params, rel=1e-3)
