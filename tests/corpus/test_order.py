"""Row order: a permutation every epoch, the same however it is cut."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dcray.config.sections import rows_in
from dcray.corpus.order import Order, cut_rows, epoch_order, paper_order
from dcray.errors import ConfigError
from tests.support import tiny_config


@given(st.integers(1, 200), st.integers(0, 5), st.integers(0, 5))
def test_an_epoch_visits_every_row_once(num_rows, seed, epoch):
    order = epoch_order(num_rows, seed=seed, epoch=epoch)
    assert sorted(order) == list(range(num_rows))
    assert np.array_equal(order, epoch_order(num_rows, seed=seed, epoch=epoch))


def test_epochs_and_seeds_differ():
    orders = [tuple(epoch_order(50, seed=s, epoch=e)) for s in (1, 2) for e in (0, 1, 2)]
    assert len(set(orders)) == 6


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(1, 5), st.sampled_from([1, 2, 3, 4, 8, 16]))
def test_batches_cross_epochs_and_see_each_row_once_per_epoch(rows, epochs, batch):
    config = tiny_config(data__unique_tokens=16 * rows + 1, num_epochs=epochs, batch_size=batch)
    order = Order(config)
    batches = list(order.batches())
    assert len(batches) == config.num_steps == -(-epochs * rows // batch)
    assert [len(b) for b in batches[:-1]] == [batch] * (len(batches) - 1)
    seen = np.concatenate([b.row_ids for b in batches])
    of_epoch = np.concatenate([b.epochs for b in batches])
    for epoch in range(epochs):
        assert sorted(seen[of_epoch == epoch]) == list(range(rows))


@settings(deadline=None)
@given(st.integers(0, 10), st.sampled_from([1, 2, 3, 5]), st.sampled_from([1, 2, 4]))
def test_ranks_share_a_batch_equally_and_miss_nothing(step, world, multiple):
    whole = Order(tiny_config()).batch(step)
    parts = [whole.part(rank, world, multiple) for rank in range(world)]
    assert len({len(p) for p in parts}) == 1
    assert len(parts[0]) % multiple == 0
    real = np.concatenate([p.row_ids[p.real] for p in parts])
    assert sorted(real) == sorted(whole.row_ids)


def test_a_run_starts_anywhere():
    order = Order(tiny_config())
    late = list(order.batches(7))
    assert [b.row_ids.tolist() for b in late] == [
        b.row_ids.tolist() for b in list(order.batches())[7:]
    ]


def test_the_papers_order_keeps_batches_together_and_permutes_them_cumulatively():
    unit, rows = 4, 22
    expected = np.arange(rows // unit * unit).reshape(-1, unit)
    assert np.array_equal(paper_order(rows, unit=unit, epoch=0), expected.reshape(-1))
    data = torch.from_numpy(expected)
    for epoch in (1, 2):
        generator = torch.Generator()
        generator.manual_seed(epoch + 1)
        data = data[torch.randperm(len(data), generator=generator)]
        assert np.array_equal(paper_order(rows, unit=unit, epoch=epoch), data.reshape(-1).numpy())


def test_the_papers_order_drops_its_tail_as_the_released_trainer_does():
    config = tiny_config(
        data__order="paper", data__row_stride=17, data__unique_tokens=17 * 22, batch_size=8
    )
    assert config.data.num_rows == 22
    assert config.usable_rows == 16
    assert config.num_steps == 4 * 2
    seen = np.concatenate([b.row_ids for b in Order(config).batches()])
    assert sorted(seen) == sorted(list(range(16)) * 4)


@given(st.integers(2, 200), st.integers(2, 20), st.booleans())
def test_rows_are_cut_as_written(num_tokens, seq_len, disjoint):
    stride = seq_len + disjoint
    tokens = np.arange(num_tokens)
    count = rows_in(num_tokens, seq_len, stride)
    expected = num_tokens // (seq_len + 1) if disjoint else (num_tokens - 1) // seq_len
    assert count == expected
    if count:
        rows = cut_rows(tokens, seq_len, stride)
        assert len(rows) == count
        for i in (0, count - 1):
            assert list(rows[i]) == list(range(i * stride, i * stride + seq_len + 1))
        if not disjoint:
            targets = rows[:, 1:].reshape(-1)
            assert list(targets) == list(range(1, count * seq_len + 1))  # each a target once


@pytest.mark.parametrize("workers", ["auto", 1])
def test_paper_units_that_do_not_fit_are_refused(workers):
    paper = {"data__order": "paper", "data__row_stride": 17, "runtime__workers": workers}
    with pytest.raises(ConfigError, match="must be at most the 3 rows, got 8"):
        tiny_config(**paper, data__unique_tokens=17 * 3)
    with pytest.raises(ConfigError, match="must divide batch_size"):
        tiny_config(**paper, data__unique_tokens=17 * 22, data__paper_unit=3)


@pytest.mark.parametrize("unit", [4, 8])
def test_paper_units_divide_a_batch(unit):
    config = tiny_config(
        data__order="paper", data__row_stride=17, data__unique_tokens=17 * 22, data__paper_unit=unit
    )
    assert config.usable_rows == 22 // unit * unit
