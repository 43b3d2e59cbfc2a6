"""Row order: a permutation every epoch, the same however it is cut."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dcray.config.sections import rows_in
from dcray.corpus.order import (
    DocumentRows,
    Order,
    cut_rows,
    document_starts,
    epoch_order,
    pack,
    paper_order,
    split_spans,
)
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


@pytest.mark.parametrize("order", ["rows", "documents"])
def test_a_run_starts_anywhere(order):
    order = Order(tiny_config(data__order=order))
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


def starts_of(lengths, num_tokens):
    """Where documents of these lengths start, of as many tokens as the budget takes."""
    starts = np.cumsum([0, *lengths])
    return starts[starts < num_tokens]


def documents_config(starts, num_tokens, **changes):
    """A run of three epochs, and its rows' pieces of the stream."""
    config = tiny_config(
        data__order="documents", data__unique_tokens=num_tokens, num_epochs=3, **changes
    )

    def packing(epoch):
        return pack(starts, num_tokens, seed=config.seed, epoch=epoch)

    return config, DocumentRows(config.data, packing)


def read(rows_of, ids):
    """The rows of a stream whose token t is t: (n, T + 1)."""
    starts, stops = rows_of.spans(ids)
    pieces = [np.arange(*span) for span in zip(starts, stops, strict=True)]
    return np.concatenate(pieces).reshape(len(ids), -1)


LENGTHS = st.lists(st.integers(1, 60), min_size=2, max_size=40)


@settings(deadline=None, max_examples=150)
@given(
    LENGTHS, st.integers(2, 24), st.booleans(), st.floats(0, 1), st.sampled_from([1, 3, 8]),
    st.sampled_from([1, 2, 3]), st.integers(0, 3),
)  # fmt: skip
def test_documents_are_whole_and_each_token_is_a_target_once_an_epoch(
    lengths, seq_len, disjoint, share, batch, world, seed
):
    """Counted over 3 epochs, what all ranks train on; the budget cuts the last document."""
    num_tokens = seq_len + 1 + int(share * max(0, sum(lengths) - seq_len - 1))
    lengths = [*lengths, seq_len]
    starts = starts_of(lengths, num_tokens)
    config, rows_of = documents_config(
        starts, num_tokens, seed=seed, batch_size=batch,
        data__seq_len=seq_len, data__row_stride=seq_len + disjoint,
    )  # fmt: skip
    fixed = tiny_config(
        num_epochs=3, batch_size=batch, data__unique_tokens=num_tokens,
        data__seq_len=seq_len, data__row_stride=seq_len + disjoint,
    )  # fmt: skip
    assert (config.num_steps, config.train_tokens) == (fixed.num_steps, fixed.train_tokens)
    rows = {epoch: {} for epoch in range(3)}
    for whole in Order(config).batches():
        for rank in range(world):
            part = whole.part(rank, world, 2)
            found = read(rows_of, part.row_ids)
            for epoch, at, row in zip(
                part.epochs[part.real], part.row_ids[part.real], found[part.real], strict=True
            ):
                assert at not in rows[epoch]  # each row once
                rows[epoch][at] = row
    stops = [*starts[1:], num_tokens]
    for epoch, of_epoch in rows.items():
        assert sorted(of_epoch) == [epoch * config.data.num_rows + i for i in range(len(of_epoch))]
        assert len(of_epoch) == config.usable_rows
        packed = [of_epoch[at] for at in sorted(of_epoch)]
        targets = np.concatenate([row[1:] for row in packed])
        assert len(np.unique(targets)) == len(targets) == config.unique_tokens
        if disjoint:
            laid = np.concatenate(packed)
        else:
            assert all(row[-1] == after[0] for row, after in pairwise(packed))
            laid = np.concatenate([packed[0][:1], targets])
        rest, met = laid, set()
        while len(rest):  # whole documents, each once; the last one to where the rows end
            number = int(np.searchsorted(starts, rest[0]))
            assert starts[number] == rest[0]
            document = np.arange(starts[number], stops[number])
            assert np.array_equal(rest[: len(document)], document[: len(rest)])
            assert number not in met
            met.add(number)
            rest = rest[len(document) :]
        left = num_tokens - len(laid)
        assert 0 <= left < config.data.stride  # no more than fixed rows leave
        assert left == num_tokens - 1 - (config.usable_rows - 1) * config.data.stride - seq_len


def test_documents_meet_anew_every_epoch_and_by_the_key_alone():
    starts = starts_of([7] * 60, 400)
    drawn = {
        (seed, epoch): tuple(pack(starts, 400, seed=seed, epoch=epoch).sources)
        for seed in (1, 2)
        for epoch in (0, 1, 2)
    }
    assert len(set(drawn.values())) == 6
    assert all(sorted(order) == list(starts) for order in drawn.values())
    again = pack(starts, 400, seed=2, epoch=1)
    assert tuple(again.sources) == drawn[2, 1]
    assert again.places[-1] == 400
    rows = epoch_order(len(starts), seed=1, epoch=0)
    assert tuple(starts[rows]) != drawn[1, 0]  # as many rows are in another order


def test_epochs_of_documents_hold_other_rows_and_a_seed_the_same_ones():
    lengths = np.random.default_rng(0).integers(5, 50, 40)
    starts = starts_of(lengths, 1000)
    config, rows_of = documents_config(starts, 1000, seed=7)
    rows = config.data.num_rows
    first, second = (read(rows_of, np.arange(e * rows, (e + 1) * rows)) for e in (0, 1))
    assert not {tuple(row) for row in first} & {tuple(row) for row in second}
    _, again = documents_config(starts, 1000, seed=7)
    assert np.array_equal(read(again, np.arange(rows, 2 * rows)), second)
    mixed = np.array([rows + 3, 0, 2 * rows, rows - 1])  # in any order of epochs
    assert np.array_equal(read(again, mixed)[[0, 1]], [second[3], first[0]])


@given(LENGTHS, st.data())
def test_spans_are_split_at_borders(lengths, data):
    borders = np.cumsum([0, *lengths])
    first = np.array(data.draw(st.lists(st.integers(0, borders[-1] - 1), min_size=1, max_size=8)))
    stop = np.array([data.draw(st.integers(f + 1, borders[-1])) for f in first.tolist()])
    number, begin, end = split_spans(first, stop, borders)
    expected = [
        (i, max(a, borders[i]), min(b, borders[i + 1]))
        for a, b in zip(first, stop, strict=True)
        for i in range(len(lengths))
        if max(a, borders[i]) < min(b, borders[i + 1])
    ]
    assert [*zip(number, begin, end, strict=True)] == expected


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40), st.data())
def test_a_document_starts_at_each_endoftext_and_at_the_beginning(tokens, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(tokens)), max_size=3)))
    budget = data.draw(st.integers(1, len(tokens)))
    arrays = np.split(np.array(tokens, "<u2"), cuts)
    expected = [i for i in range(budget) if i == 0 or tokens[i] == 2]
    assert document_starts(arrays, 2, budget).tolist() == expected
