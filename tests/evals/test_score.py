"""Log-likelihoods against brute force: every kind of pair, every batch size, every length."""

import random

import pytest
import torch

from dcray.evals.tasks.packing import Request, pack
from dcray.evals.tasks.score import log_likelihoods
from tests.evals.support import (
    BYTES,
    SEQ_LEN,
    brute_force,
    byte_pairs,
    instances,
    lm_of,
    model_of,
    text,
)

TOKENIZERS = {"byte": BYTES, "bpe": byte_pairs()}


def pairs(count: int) -> list[tuple[str, str]]:
    """One-token, empty-context, too long and non-ASCII ones among them; contexts are shared."""
    rng = random.Random(7)
    found: list[tuple[str, str]] = []
    while len(found) < count:
        context = text(rng, rng.choice([0, 0, 1, 3, 10, 30, 80]))
        if rng.random() < 0.2:
            context += " "
        found += [
            (context, rng.choice(["a", " ", "\u00e9", text(rng, 2), text(rng, 9), text(rng, 40)]))
            for _ in range(rng.choice([1, 2, 4]))
        ]
    return found[:count]


@pytest.mark.parametrize("name", TOKENIZERS)
def test_300_pairs_meet_brute_force_at_every_batch_size(name):
    tokenizer = TOKENIZERS[name]
    model, asked = model_of(tokenizer.vocab_size), pairs(300)
    expected = [brute_force(model, tokenizer, *pair) for pair in asked]
    assert len({len(c.encode()) for c, _ in asked}) > 10
    assert sum(c == "" for c, _ in asked) > 20
    for batch_size in (1, 7, 32):
        lm = lm_of(model, tokenizer, batch_size)
        found = lm.loglikelihood(instances(asked))
        apart = [abs(a[0] - b[0]) for a, b in zip(found, expected, strict=True)]
        assert max(apart) <= 1e-4
        assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]
        assert 0.1 < lm.truncation.share("task") < 0.9


def test_bfloat16_scores_lie_near():
    model, half = (model_of(258, runtime__precision=p) for p in ("float32", "bfloat16"))
    exact, rough = (lm_of(m, BYTES, 8).loglikelihood(instances(pairs(40))) for m in (model, half))
    assert half.dtype == torch.bfloat16
    for (a, _), (b, _) in zip(exact, rough, strict=True):
        assert b == pytest.approx(a, rel=0.03, abs=0.3)


def test_greedy_says_what_the_model_says():
    model = model_of(258)
    ids = [1, 2, 3]
    for _ in range(6):
        ids.append(int(model(torch.tensor([ids]), causal=True)[0, -1, :258].argmax()))
    said, other = Request((1, 2, 3), tuple(ids[3:])), Request((1, 2, 3), (*ids[3:-1], 0, 7))
    scores = log_likelihoods(model, [said, other], seq_len=SEQ_LEN, batch_size=2)
    assert [score.greedy for score in scores] == [True, False]


def test_a_shorter_row_says_the_same_as_a_longer_one():
    """The windows are the trained length's: half of a short row would be another model."""
    model = model_of(258)
    row = torch.randint(0, 258, (1, SEQ_LEN), generator=torch.Generator().manual_seed(0))
    whole = model(row, causal=True)
    for length in (1, 5, 16, 20, 31):
        assert torch.allclose(model(row[:, :length], causal=True), whole[:, :length], atol=1e-5)
    longer = model(torch.cat([row, row], 1), causal=True)
    assert torch.allclose(longer[:, :SEQ_LEN], whole, atol=1e-5)


def test_a_context_is_encoded_once_and_one_token_choices_cost_nothing():
    context = tuple(range(20))
    rows = pack([Request(context, (i,)) for i in range(4)], SEQ_LEN)
    assert [len(row) for row in rows] == [20]
    rows = pack([Request(context, (i, i, i)) for i in range(4)], SEQ_LEN)
    assert [len(row) for row in rows] == [20 + 4 * 2]


def test_what_is_too_long_loses_its_oldest_tokens():
    long = Request(tuple(range(40)), (50, 51))
    assert long.cut(SEQ_LEN) == (Request(tuple(range(9, 40)), (50, 51)), True)
    all_of_it = Request((1, 2), tuple(range(100, 140)))
    cut, truncated = all_of_it.cut(SEQ_LEN)
    assert truncated
    assert (cut.context, len(cut.continuation)) == ((107,), SEQ_LEN)
    assert Request((1,), (2,)).cut(SEQ_LEN) == (Request((1,), (2,)), False)


def test_empty_continuations_are_certain():
    lm = lm_of(model_of(258), BYTES, 4)
    assert lm.loglikelihood(instances([("abc", ""), ("", "")])) == [(0.0, True), (0.0, True)]


@pytest.mark.parametrize("length", [1, 10, SEQ_LEN, SEQ_LEN + 1, 100])
def test_rolling_scores_each_token_once_with_all_that_fits_before_it(length):
    model, whole = model_of(258), text(random.Random(length), length)
    ids = [BYTES.eot_id, *BYTES.encode_batch([whole])[0].tolist()]
    expected, start = 0.0, 1
    while start < len(ids):
        stop = min(start + SEQ_LEN, len(ids))
        row = ids[max(0, stop - 1 - SEQ_LEN) : stop]
        logits = model(torch.tensor([row[:-1]]), causal=True)[0, :, :258].double().log_softmax(-1)
        expected += sum(float(logits[-1 - k, ids[stop - 1 - k]]) for k in range(stop - start))
        start = stop
    (found,) = lm_of(model, BYTES, 3).loglikelihood_rolling(
        instances([(whole,)], "loglikelihood_rolling")
    )
    assert found == pytest.approx(expected, abs=1e-4)


def test_generation_is_greedy_and_ends_at_a_stop():
    model = model_of(258)
    with torch.no_grad():  # what it says is ASCII: a stop is whole as soon as it is said
        model.head.weight[123:256] = model.head.weight[97]
    ids = BYTES.encode_batch(["the"])[0].tolist()
    said = []
    for _ in range(8):
        logits = model(torch.tensor([ids]), causal=True)[0, -1, :257]  # never [MASK]
        token = int(logits.argmax())
        if token == BYTES.eot_id:
            break
        said.append(token)
        ids.append(token)
    lm, whole = lm_of(model, BYTES, 1), BYTES.decode(said)
    ask = lambda **k: lm.generate_until(instances([("the", k)], "generate_until"))[0]  # noqa: E731
    assert ask(until=[], max_gen_toks=8) == whole
    stop = whole[len(whole) // 2]
    assert ask(until=[stop], max_gen_toks=8) == whole[: whole.index(stop)]
    with pytest.raises(NotImplementedError, match="greedy"):
        ask(until=[], max_gen_toks=2, do_sample=True, temperature=1.0)
