"""The gap of two models: against itself, against one raised logit, in sums, kinds and memory."""

import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dcray.evals.gap import token_gap
from dcray.evals.gap.token_gap import Gap
from dcray.evals.gap.token_kinds import Token, in_context, kind_of, shares
from dcray.report.gap import _csv
from dcray.train.evaluate import ValidationRows, evaluate
from dcray.train.shard import RankContext
from tests.evals.support import BYTES, SEQ_LEN, model_of

CPU = torch.device("cpu")
CONTEXT = RankContext(CPU)
TOKENS = np.random.default_rng(3).integers(0, 256, SEQ_LEN * 40 + 5).astype(np.uint16)
DOCUMENTS = np.array([0, 1, 90, 91, 400, 1000])


def nats(model, batch_size=7):
    return token_gap.token_nats(model, TOKENS, seq_len=SEQ_LEN, batch_size=batch_size, device=CPU)


class Raised(torch.nn.Module):
    """A model with one token's logit raised by `by` everywhere."""

    def __init__(self, model, token, by):
        super().__init__()
        self.model, self.token, self.by = model, token, by

    def forward(self, tokens, *, causal, key=None, targets=None):
        logits = self.model(tokens, causal=causal)[..., : self.model.vocab_size].clone()
        logits[..., self.token] += self.by
        nats = -logits.log_softmax(-1)
        return nats.gather(-1, targets[..., None])[..., 0]


def gap_of(first, second, documents=DOCUMENTS):
    return Gap(first, second, documents, SEQ_LEN)


def test_a_model_against_itself_is_zero_everywhere():
    model = model_of(258)
    gap = gap_of(nats(model), nats(model))
    found = token_gap.summary(gap)
    assert not gap.difference().any()
    for name in ("sum_nats", "mean_nats", "b_better_frac", "b_better_by_1_nat_frac"):
        assert found[name] == 0
    assert set(found["quantiles"].values()) == {0.0}
    assert found["by_document"]["mean_nats_stderr"] == 0
    assert all(row["loss_a"] == row["loss_b"] for row in found["by_position"])
    assert len(token_gap.top(gap.difference(), favors_b=True)) == 0
    assert len(token_gap.top(gap.difference(), favors_b=False)) == 0


def test_a_raised_logit_is_exactly_what_lies_on_top():
    model, token = model_of(258), int(TOKENS[77])
    d = gap_of(nats(model), nats(Raised(model, token, 2.0))).difference()
    where = np.flatnonzero(TOKENS[1 : len(d) + 1] == token)
    top = token_gap.top(d, favors_b=True, frac=len(where) / len(d))
    assert len(where) > 2
    assert sorted(top) == list(where)
    assert (d[where] > 0).all()
    others = np.setdiff1d(np.arange(len(d)), where)
    assert (d[others] <= 0).all()
    assert list(d[top]) == sorted(d[top], reverse=True)


def test_the_sum_is_the_difference_of_the_validation_losses():
    first, second = model_of(258), model_of(258, seed=1)
    gap = gap_of(nats(first), nats(second, batch_size=64))
    rows = np.lib.stride_tricks.sliding_window_view(TOKENS, SEQ_LEN + 1)[::SEQ_LEN]
    from dcray import plugins

    ar = plugins.load("objectives", "ar")
    losses = [
        evaluate(m, ar, ValidationRows(rows, None), CONTEXT, mask_id=257, microbatch_size=3,
                 draw=0)
        for m in (first, second)
    ]  # fmt: skip
    found = token_gap.summary(gap)
    expected = losses[0].loss - losses[1].loss
    assert found["mean_nats"] == pytest.approx(expected, abs=1e-6)
    assert found["sum_nats"] / found["num_tokens"] == pytest.approx(expected, abs=1e-6)
    assert found["loss_a"] == pytest.approx(losses[0].loss, abs=1e-6)
    assert found["num_tokens"] == losses[0].num_tokens
    sums, counts = token_gap.document_sums(gap, gap.difference())
    assert sums.sum() == pytest.approx(found["sum_nats"], rel=1e-12)
    assert counts.sum() == len(gap)
    positions = found["by_position"]
    assert np.mean([row["loss_a"] for row in positions]) == pytest.approx(losses[0].loss, abs=1e-6)


def test_documents_are_those_of_the_targets():
    """Target t is token t; the first token of a document belongs to it, and token 0 is none."""
    d = np.arange(1.0, 11.0)  # of targets 1 ... 10
    gap = gap_of(np.zeros(10, np.float32), np.zeros(10, np.float32), np.array([0, 1, 4, 11]))
    sums, counts = token_gap.document_sums(gap, d)
    assert list(zip(sums, counts, strict=True)) == [(1 + 2 + 3, 3), (sum(range(4, 11)), 7)]


def test_quantities_of_a_known_gap():
    first = np.array([3.0, 1.0, 2.0, 0.5, 2.0, 5.0, 1.0, 1.0] * 4, np.float32)
    second = np.array([1.0, 1.0, 4.0, 0.5, 1.5, 3.5, 1.0, 1.0] * 4, np.float32)
    found = token_gap.summary(gap_of(first, second, np.array([0])))
    assert found["b_better_by_1_nat_frac"] == 2 / 8
    assert found["a_better_by_1_nat_frac"] == 1 / 8
    assert found["b_better_frac"] == 3 / 8
    assert sum(found["histogram"]["counts"]) == 32
    assert found["by_position"][2] == {"first": 2.0, "loss_a": 2.0, "loss_b": 4.0}


def test_ten_million_tokens_fit():
    rng = np.random.default_rng(0)
    first = rng.exponential(3, 10_000_384).astype(np.float32)
    second = first - rng.normal(0, 0.5, len(first)).astype(np.float32)
    gap = Gap(first, second, np.arange(0, len(first), 700), 2048)
    gap = Gap(first[: 4882 * 2048], second[: 4882 * 2048], gap.documents, 2048)
    tracemalloc.start()
    found = token_gap.summary(gap)
    top = token_gap.top(gap.difference(), favors_b=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(top) == 9_999
    assert found["num_tokens"] == 4882 * 2048
    assert peak < 800e6


@pytest.mark.parametrize(
    ("text", "before", "kind"),
    [
        (" ", "the cat", "white space"),
        ("\n", "", "white space"),
        (")", "(closed", "punctuation"),
        (",", "a, b", "punctuation"),
        ("42", "in 19", "number"),
        ("ing", "read", "continuation"),
        ("ing", "he is ", "other word"),
        (" and", "bread", "common word"),
        (" And", "bread.", "common word"),
        ("the", "", "common word"),
        (" zebra", "a", "other word"),
        ("s", "1990", "continuation"),
        ("\u043c\u0438", "", "non-English"),
        ("\u00e9", "caf", "non-English"),
        (")", "\u6771\u4eac\u306e (Tokyo", "non-English"),
        ("\N{REPLACEMENT CHARACTER}", "na", "continuation"),
    ],
)
def test_kinds_follow_their_rules(text, before, kind):
    assert kind_of(text, before, is_end=False) == kind


def test_tokens_are_shown_in_context():
    stream = np.array([BYTES.eot_id, *b"read the book, ", BYTES.eot_id, *b"next"], np.uint16)
    first = np.full(len(stream) - 1, np.log(4), np.float32)
    second = np.full(len(stream) - 1, np.log(2), np.float32)
    comma = list(stream).index(ord(","))
    found = in_context(BYTES, stream, [comma - 1, 15], first, second)
    assert (found[0].text, found[0].before, found[0].kind) == (",", "read the book", "punctuation")
    assert found[0].after.startswith(" next")
    assert found[0].probability_a == pytest.approx(0.25)
    assert found[0].probability_b == pytest.approx(0.5)
    assert found[0].gap == pytest.approx(np.log(2))
    assert found[0].index == comma
    assert found[1].kind == "document"
    assert shares(found) == {"document": 0.5, "punctuation": 0.5}


def test_a_table_of_tokens_is_written_where_only_one_run_is_ever_better():
    token = Token(3, -1.5, 0.9, 0.2, "before", "text", "after", "other word")
    lines = _csv(SimpleNamespace(favors_b=[], favors_a=[token])).splitlines()
    assert lines[1] == "A,3,-1.5,0.9,0.2,before,text,after,other word"
    assert len(_csv(SimpleNamespace(favors_b=[], favors_a=[])).splitlines()) == 1
