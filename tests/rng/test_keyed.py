"""Keyed draws: right distributions, and functions of their coordinates alone."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dcray.rng import keyed
from dcray.rng.dropout import dropped, element_hashes, keyed_dropout, layer_keys
from dcray.rng.masking import mask_positions, mask_ratios, uniform


def keys(count: int, seed: int = 0, epoch: int = 0) -> torch.Tensor:
    return torch.from_numpy(keyed.row_keys(seed, np.full(count, epoch), np.arange(count)))


def python_splitmix(state: int) -> int:
    """SplitMix64's published output function, in Python's unbounded integers."""
    z = (state + 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 10_000))
def test_derive_is_splitmix64(key, salt):
    expected = python_splitmix((key + salt * 0x9E3779B97F4A7C15) % 2**64)
    assert int(keyed.derive(torch.tensor([key]), salt)[0]) % 2**64 == expected
    assert int(keyed.derive(torch.tensor([key]), torch.tensor([salt]))[0]) % 2**64 == expected


@given(st.integers(-(2**31), 2**31 - 1))
def test_mix32_is_lowbias32(value):
    x = value % 2**32
    x = (x ^ (x >> 16)) * 0x7FEB352D % 2**32
    x = (x ^ (x >> 15)) * 0x846CA68B % 2**32
    x = x ^ (x >> 16)
    mixed = int(keyed.mix32(torch.tensor([value], dtype=torch.int32))[0])
    assert mixed % 2**32 == x


def test_row_keys_differ_by_every_coordinate():
    found = {
        int(key)
        for seed in (0, 1, 42)
        for epoch in range(20)
        for key in keyed.row_keys(seed, np.full(50, epoch), np.arange(50))
    }
    assert len(found) == 3 * 20 * 50


@pytest.mark.parametrize(("low", "high"), [(0.0, 0.5), (0.2, 0.9)])
def test_mask_ratios_are_uniform(low, high):
    ratios = mask_ratios(keys(20_000), low, high).numpy()
    assert low <= ratios.min()
    assert ratios.max() < high
    assert stats.kstest(ratios, stats.uniform(low, high - low).cdf).pvalue > 0.01


def test_positions_are_masked_at_their_rows_ratio_and_independently():
    ratios = torch.tensor([0.1, 0.5, 0.9]).double().repeat(1000)
    hidden = mask_positions(keys(3000), ratios, 256)
    for offset, ratio in enumerate((0.1, 0.5, 0.9)):
        count = int(hidden[offset::3].sum())
        assert stats.binomtest(count, 1000 * 256, ratio).pvalue > 0.001
    same = (hidden[1::3][:-1] == hidden[1::3][1:]).double().mean()
    assert abs(float(same) - 0.5) < 0.005  # neighbouring rows agree by chance alone


def test_a_position_is_masked_where_its_uniform_draw_lies_below_the_ratio():
    """The draws themselves, as float64, against every kind of ratio: never, always, and between."""
    rows = keys(200)
    ratios = torch.rand(200, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ratios[:2], ratios[2:4] = 0.0, 1.0
    draw = uniform(keyed.derive(rows, keyed.POSITIONS), 5)  # of position 5, for every row
    ratios[4] = draw[4]  # not below itself
    ratios[5] = torch.nextafter(draw[5], torch.tensor(1.0).double())
    hidden = mask_positions(rows, ratios, 9)[:, 5]
    assert torch.equal(hidden, draw < ratios)
    assert not hidden[:2].any()
    assert hidden[2:4].all()
    assert (hidden[4], hidden[5]) == (False, True)


def test_mask_from_leaves_the_first_inputs():
    hidden = mask_positions(keys(100), torch.full((100,), 0.99).double(), 32, mask_from=8)
    assert not hidden[:, :8].any()
    assert hidden[:, 8:].double().mean() > 0.95


def test_draws_of_different_salts_are_uncorrelated():
    a, b = (uniform(keys(20_000), salt).numpy() for salt in (keyed.RATIO, keyed.POSITIONS))
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.03


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropout_drops_its_share_everywhere(rate):
    hashes = element_hashes(64, 48, torch.device("cpu"))
    drop = dropped(hashes, layer_keys(keys(64), 3)[1], rate).double()
    assert stats.binomtest(int(drop.sum()), drop.numel(), rate).pvalue > 0.001
    assert float((drop.mean((1, 2)) - rate).abs().max()) < 0.04  # every row
    assert float((drop.mean((0, 1)) - rate).abs().max()) < 0.04  # every channel
    flat = drop.flatten(1) - rate
    correlation = (flat @ flat.T / flat.square().mean() / flat.shape[1]).fill_diagonal_(0)
    assert float(correlation.abs().max()) < 0.1  # no two rows alike


def test_dropout_keeps_the_mean_and_depends_on_the_row_alone():
    x, key = torch.ones(64, 64, 48), layer_keys(keys(64), 2)[0]
    hashes = element_hashes(64, 48, torch.device("cpu"))
    y = keyed_dropout(x, hashes, key, 0.1)
    assert float(y.mean()) == pytest.approx(1.0, abs=0.01)
    order = torch.randperm(64)
    assert torch.equal(keyed_dropout(x, hashes, key[order], 0.1), y[order])


def test_layers_and_passes_drop_differently():
    one, other = layer_keys(keys(8), 2)
    masked = layer_keys(keyed.derive(keys(8), keyed.MASKED_DROPOUT), 1)[0]
    clean = layer_keys(keyed.derive(keys(8), keyed.CLEAN_DROPOUT), 1)[0]
    hashes = element_hashes(64, 48, torch.device("cpu"))
    for a, b in ((one, other), (clean, masked)):
        together = (dropped(hashes, a, 0.5) == dropped(hashes, b, 0.5)).double().mean()
        assert float(together) == pytest.approx(0.5, abs=0.02)
