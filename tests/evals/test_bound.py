"""The negative ELBO: exact by enumeration, and its standard error honest."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.stats import t as student

from dcray import plugins
from dcray.cost import final_flops, training_flops, validation_epochs, validation_flops
from dcray.evals.tasks.bound import bound_log_likelihoods
from dcray.evals.tasks.packing import Request
from dcray.train.evaluate import ValidationRows, evaluate
from dcray.train.shard import RankContext, build_model
from tests.evals.support import model_of
from tests.support import MASK_ID, VOCAB_SIZE, run_tiny, tiny_config

CPU = RankContext(torch.device("cpu"))
LENGTH, ROWS = 5, 16


@torch.no_grad()
def exact_bound(model, tokens, objective):
    """Every mask of every row, the ratios by quadrature; nats per token."""
    nodes, weights = np.polynomial.legendre.leggauss(400)
    ratios = objective.ratios(torch.from_numpy((nodes + 1) / 2)).numpy()
    masks = torch.tensor(list(itertools.product([False, True], repeat=LENGTH)))
    counts = masks.sum(1).numpy()[:, None]
    chance = ratios**counts * (1 - ratios) ** (LENGTH - counts) / ratios @ (weights / 2)
    inputs = tokens[:, None, :].expand(-1, len(masks), -1).reshape(-1, LENGTH)
    hidden = masks.repeat(len(tokens), 1)
    nats = model(inputs.masked_fill(hidden, MASK_ID), causal=False, targets=inputs)
    each = (nats * hidden).sum(1).double().view(len(tokens), len(masks))
    total = float((each * torch.from_numpy(chance)).sum())
    return total / tokens.numel()


def test_the_standard_error_covers_the_exact_value_in_90_to_99_of_100_cases():
    """200 models, each with a validation set of sixteen rows of five tokens."""
    objective = plugins.load("objectives", "mdlm", draws=32)
    covered, errors = 0, []
    for case in range(200):
        config = tiny_config(
            objective="mdlm", data__seq_len=LENGTH, data__unique_tokens=100, seed=case
        )
        model = build_model(config, CPU)
        rng = np.random.default_rng(case)
        with torch.no_grad():
            model.embed.weight.mul_(10)
            model.head.weight.mul_(2)
        rows = rng.integers(0, MASK_ID, (ROWS, LENGTH + 1))
        exact = exact_bound(model, torch.from_numpy(rows[:, :-1]), objective)
        found = evaluate(
            model, objective, ValidationRows(rows, None), CPU,
            mask_id=MASK_ID, microbatch_size=ROWS, draw=case,
        )  # fmt: skip
        reach = student.ppf(0.975, ROWS * (objective.num_sets - 1)) * found.stderr
        covered += abs(found.loss - exact) <= reach
        errors.append((found.loss - exact) / found.stderr)
    assert 180 <= covered <= 198
    assert abs(np.mean(errors)) < 4 / math.sqrt(200)  # no bias
    assert 0.8 < np.std(errors) < 1.35


@pytest.mark.parametrize(
    ("draws", "sets"), [(1, 1), (2, 2), (3, 3), (4, 2), (7, 7), (8, 2), (12, 3), (32, 8), (64, 16)]
)
def test_draws_form_sets_of_four_where_they_divide(draws, sets):
    objective = plugins.load("objectives", "mdlm", draws=draws)
    assert objective.num_sets == sets
    assert draws % sets == 0


def test_exact_objectives_have_no_error_and_one_draw_tells_none():
    rows = ValidationRows(np.random.default_rng(0).integers(0, MASK_ID, (4, 17)), None)
    model = build_model(tiny_config(), CPU)
    for objective in (
        plugins.load("objectives", "ar"),
        plugins.load("objectives", "mdlm", draws=1),
    ):
        found = evaluate(model, objective, rows, CPU, mask_id=MASK_ID, microbatch_size=2, draw=0)
        assert found.stderr is None


def test_the_best_checkpoint_is_scored_with_an_error(tmp_path):
    outcome, _ = run_tiny(tiny_config(objective="mdlm"), folder=tmp_path)
    assert 0 < outcome.val_loss_stderr < 0.2 * outcome.val_loss
    assert run_tiny(tiny_config())[0].val_loss_stderr is None


@pytest.mark.parametrize("size", ["140m", "257m", "664m"])
@pytest.mark.parametrize("epochs", [16, 50, 500])
def test_scoring_takes_a_tenth_of_training_at_the_default_settings(size, epochs):
    """The paper's 100M tokens to train on and 10M to validate on; the last scoring included."""
    changes = {"objective": "mdlm", "size": size, "num_epochs": epochs}
    config = tiny_config(**changes, data__seq_len=2048, data__unique_tokens=100_000_000,
                         batch_size=256, validation__epochs="auto")  # fmt: skip
    rows = 10_000_000 // 2048
    times = validation_epochs(config, num_rows=rows)
    cost = len(times) * validation_flops(config, rows) + final_flops(config, rows)
    assert epochs in times
    assert 0.05 * training_flops(config) < cost <= 0.1 * training_flops(config)


@torch.no_grad()
def exact_continuation_bound(model, request):
    """sum over subsets S of the continuation of (1 / |S|) / C(L, |S|) * nats of S."""
    tokens = torch.tensor([request.context + request.continuation])
    first, length = len(request.context), len(request.continuation)
    total = 0.0
    for count in range(1, length + 1):
        for hidden in itertools.combinations(range(length), count):
            places = [first + i for i in hidden]
            inputs = tokens.clone()
            inputs[0, places] = MASK_ID
            nats = model(inputs, causal=False, targets=tokens)[0, places].double().sum()
            total += float(nats) / count / math.comb(length, count)
    return -total


def test_continuations_meet_their_exact_bound():
    model = model_of(VOCAB_SIZE)
    rng = np.random.default_rng(0)
    asked = [
        Request(tuple(rng.integers(0, 90, context)), tuple(rng.integers(0, 90, length)))
        for context, length in ((3, 1), (1, 2), (9, 4), (6, 6))
    ]
    exact = [exact_continuation_bound(model, request) for request in asked]
    ask = lambda draws, size: bound_log_likelihoods(  # noqa: E731
        model, asked, mask_id=MASK_ID, seq_len=32, batch_size=size, draws=draws
    )
    found = ask(2048, 64)
    assert found[0].log_likelihood == pytest.approx(exact[0], abs=1e-4)  # one token: no draw
    for score, value in zip(found, exact, strict=True):
        assert score.log_likelihood == pytest.approx(value, rel=0.02)
    one, many = ask(8, 1), ask(8, 32)
    for a, b in zip(one, many, strict=True):
        assert a.log_likelihood == pytest.approx(b.log_likelihood, abs=1e-4)
        assert a.greedy == b.greedy


def test_a_bound_says_its_continuation_by_confidence():
    """A model that is certain of the token 5 everywhere says 5 5 5, and nothing else."""
    model = model_of(VOCAB_SIZE)
    with torch.no_grad():
        model.head.weight.zero_()
        model.norm.weight.fill_(1.0)
        model.embed.weight.fill_(1.0)
        model.head.weight[5] = 1.0
    asked = [Request((1, 2), (5, 5, 5)), Request((1, 2), (5, 6, 5))]
    found = bound_log_likelihoods(model, asked, mask_id=MASK_ID, seq_len=32, batch_size=4, draws=4)
    assert [score.greedy for score in found] == [True, False]
