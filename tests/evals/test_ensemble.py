"""An ensemble against brute force over its members: validation, requests of tasks, greedy text."""

import math

import pytest
import torch

from dcray.evals.tasks.generate import generate
from dcray.evals.tasks.packing import Request
from dcray.evals.tasks.score import log_likelihoods
from dcray.model.ensemble import Ensemble, averaged, members_of
from tests.evals.support import BYTES, SEQ_LEN, model_of

VOCAB_SIZE = BYTES.eot_id + 2


@pytest.fixture(scope="module")
def members():
    return [model_of(VOCAB_SIZE, seed=seed) for seed in (1, 2, 3)]


def mean_probabilities(members, ids):
    """(T, V): computed one member after the other, as probabilities, in float64."""
    rows = torch.tensor([ids])
    each = [one(rows, causal=True)[0, :, :VOCAB_SIZE].double().softmax(-1) for one in members]
    return sum(each) / len(each)


def test_its_nats_and_logits_are_those_of_mean_probabilities(members):
    ids = [5, 80, 7, 101, 32, 32, 9]
    both = Ensemble(members)
    mean = mean_probabilities(members, ids[:-1])
    logits = both(torch.tensor([ids[:-1]]), causal=True)[0]
    torch.testing.assert_close(logits.double().exp(), mean, atol=1e-6, rtol=1e-5)
    targets = torch.tensor([ids[1:]])
    nats = both(torch.tensor([ids[:-1]]), causal=True, targets=targets)[0]
    wanted = -mean[torch.arange(6), targets[0]].log()
    torch.testing.assert_close(nats, wanted, atol=1e-5, rtol=1e-5)
    assert members_of(both) == members
    assert members_of(members[0]) == [members[0]]


def test_requests_are_scored_by_mean_probabilities(members):
    """Shared contexts, one token and several, and what greedy decoding of the mean yields."""
    contexts = [(3, 60, 61, 7), (90, 91), (8,) * SEQ_LEN]
    requests = [
        Request(context, continuation)
        for context in contexts
        for continuation in ((65,), (66, 67, 68), tuple(range(70, 80)))
    ]
    best = int(mean_probabilities(members, contexts[0])[-1].argmax())
    requests.append(Request(contexts[0], (best,)))
    for batch_size in (1, 4):
        found = log_likelihoods(Ensemble(members), requests, seq_len=SEQ_LEN, batch_size=batch_size)
        for request, score in zip(requests, found, strict=True):
            cut, _ = request.cut(SEQ_LEN)
            whole = [*cut.context, *cut.continuation]
            mean = mean_probabilities(members, whole[:-1])[len(cut.context) - 1 :]
            chosen = [float(row[token]) for row, token in zip(mean, cut.continuation, strict=True)]
            assert score.log_likelihood == pytest.approx(sum(map(math.log, chosen)), abs=1e-4)
            assert score.greedy == (mean.argmax(-1).tolist() == list(cut.continuation))
        assert found[-1].greedy


def test_greedy_text_follows_the_mean(members):
    ids, wanted = [72, 101], []
    for _ in range(5):
        mean = mean_probabilities(members, ids)[-1]
        mean[BYTES.mask_id] = 0
        wanted.append(int(mean.argmax()))
        ids.append(wanted[-1])
    said = generate(Ensemble(members), BYTES, [72, 101], until=[], num_tokens=5, seq_len=SEQ_LEN)
    if BYTES.eot_id in wanted:
        wanted = wanted[: wanted.index(BYTES.eot_id)]
    assert said == BYTES.decode(wanted)


def test_of_one_model_the_logits_are_its_own():
    logits = torch.randn(2, 5)
    assert averaged([logits]) is logits
    equal = averaged([logits, logits])
    torch.testing.assert_close(equal, logits.log_softmax(-1))
