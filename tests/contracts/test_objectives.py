"""One suite for every objective: a new file in dcray/objectives is held to it as it is."""

import json
import math

import numpy as np
import pytest
import torch

from dcray import plugins
from dcray.config.run import RunConfig, override
from dcray.objectives import Batch
from dcray.rng import keyed
from dcray.train.shard import RankContext, build_model
from tests.support import MASK_ID, VOCAB_SIZE, tiny_config

NAMES = plugins.names("objectives")
ROWS, LENGTH = 6, 16


@pytest.fixture
def model():
    """A tiny model in float64, dropout on where a key is given."""
    return build_model(tiny_config(runtime__precision="float64"), RankContext(torch.device("cpu")))


def batch(real=(1.0,) * ROWS, *, rows=slice(None)) -> tuple[Batch, torch.Tensor]:
    """Random rows, keys of their own, one byte a token but for every fifth: <|endoftext|>."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, MASK_ID, (ROWS, LENGTH + 1), generator=generator)
    text_bytes = torch.ones_like(tokens)
    text_bytes[:, ::5] = -1
    key = torch.from_numpy(keyed.row_keys(3, np.ones(ROWS), np.arange(ROWS)))
    whole = Batch(tokens[rows], torch.tensor(real)[rows], MASK_ID, text_bytes[rows])
    return whole, key[rows]


def gradients(model) -> torch.Tensor:
    found = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    model.zero_grad(set_to_none=True)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_terms_are_sums_with_counts(name, model):
    objective = plugins.load("objectives", name)
    terms = list(objective.terms(model, *batch()))
    assert terms
    assert len({term.name for term in terms}) == len(terms)
    for term in terms:
        assert term.nats.shape == term.num_tokens.shape == ()
        assert term.num_tokens == ROWS * LENGTH
        assert torch.isfinite(term.nats)
        assert term.nats >= 0
        assert math.isfinite(term.weight)
    assert len(terms) == round(objective.num_passes)  # what plans and FLOPs count on


@pytest.mark.parametrize("name", NAMES)
def test_gradient_flows_into_every_parameter(name, model):
    for term in plugins.load("objectives", name).terms(model, *batch()):
        (term.weight * term.nats).backward()
    for label, parameter in model.named_parameters():
        assert parameter.grad is not None, label
        assert torch.isfinite(parameter.grad).all(), label
        assert parameter.grad.abs().sum() > 0, label


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_micro_batches_change_nothing(name, size, model):
    objective = plugins.load("objectives", name)

    def of(parts):
        sums: dict[str, float] = {}
        for rows in parts:
            for term in objective.terms(model, *batch(rows=rows)):
                (term.weight * term.nats).backward()
                sums[term.name] = sums.get(term.name, 0.0) + float(term.nats.detach())
        return sums, gradients(model)

    whole, gradient = of([slice(None)])
    cut, again = of([slice(start, start + size) for start in range(0, ROWS, size)])
    assert cut == pytest.approx(whole, rel=1e-10)
    assert float((gradient - again).norm() / gradient.norm()) < 1e-10


@pytest.mark.parametrize("name", NAMES)
def test_padding_rows_count_for_nothing(name, model):
    objective = plugins.load("objectives", name)
    padded, key = batch(real=(1.0, 1.0, 1.0, 1.0, 0.0, 0.0))
    short, short_key = batch(rows=slice(4))
    pairs = zip(
        [*objective.terms(model, padded, key), objective.validation(model, padded, key)],
        [*objective.terms(model, short, short_key), objective.validation(model, short, short_key)],
        strict=True,
    )
    for with_padding, without in pairs:
        assert float(with_padding.nats) == pytest.approx(float(without.nats), rel=1e-12)
        assert with_padding.num_tokens == without.num_tokens == 4 * LENGTH
        if without.text_bytes is not None:
            assert with_padding.text_bytes == without.text_bytes
            assert float(with_padding.text_nats) == pytest.approx(float(without.text_nats))


@pytest.mark.parametrize("name", NAMES)
def test_the_same_keys_give_the_same_terms_and_others_others(name, model):
    objective = plugins.load("objectives", name)
    one, key = batch()
    first, again = ([float(t.nats) for t in objective.terms(model, one, key)] for _ in range(2))
    assert first == again
    other = [float(t.nats) for t in objective.terms(model, one, key + 1)]
    assert all(a != b for a, b in zip(first, other, strict=True))  # dropout, at the least


@pytest.mark.parametrize("name", NAMES)
def test_validation_is_one_term_in_nats_and_over_text(name, model):
    objective = plugins.load("objectives", name)
    one, key = batch()
    with torch.no_grad():
        term = objective.validation(model, one, key)
        plain = objective.validation(model, Batch(one.tokens, one.real, MASK_ID), key)
    assert term.num_tokens == ROWS * LENGTH
    assert 0 < float(term.nats / term.num_tokens) < 3 * math.log(VOCAB_SIZE)
    assert 0 < float(term.text_nats) < float(term.nats)  # <|endoftext|> is no text
    assert 0 < int(term.text_bytes) < ROWS * LENGTH
    assert float(plain.nats) == pytest.approx(float(term.nats))
    assert plain.text_nats is None
    final = objective.final()
    assert final.validation(model, one, key).num_tokens == ROWS * LENGTH


@pytest.mark.parametrize("name", NAMES)
def test_options_are_plain_and_build_the_same_objective(name):
    objective = plugins.load("objectives", name)
    options = json.loads(json.dumps(objective.options()))
    assert plugins.load("objectives", name, **options) == objective
    config = override(RunConfig(), {"objective": {"name": name, **options}})
    assert config.objective.build() == objective
    assert RunConfig.model_validate(config.to_dict()).objective.build() == objective


@pytest.mark.parametrize("name", NAMES)
def test_an_objective_says_what_it_is(name):
    objective = plugins.load("objectives", name)
    assert isinstance(objective.causal, bool)
    assert isinstance(objective.keeps_best, bool)
    assert objective.bound is None or isinstance(objective.bound, str)
    assert objective.num_passes > 0
    assert objective.num_validation_passes > 0
    with pytest.raises(ValueError, match="colour"):
        plugins.load("objectives", name, colour="red")


@pytest.mark.parametrize("name", NAMES)
def test_a_causal_objective_s_validation_does_not_look_ahead(name, model):
    """The first half's nats do not change with the second half's tokens, where it is causal."""
    objective = plugins.load("objectives", name)
    one, key = batch()
    half = LENGTH // 2
    changed = one.tokens.clone()
    changed[:, half + 1 :] = (changed[:, half + 1 :] + 1) % MASK_ID

    def first_half(tokens: torch.Tensor) -> float:
        text_bytes = torch.full_like(tokens, -1)
        text_bytes[:, 1 : half + 1] = 1
        with torch.no_grad():
            term = objective.validation(model, Batch(tokens, one.real, MASK_ID, text_bytes), key)
        return float(term.text_nats)

    same = first_half(one.tokens) == pytest.approx(first_half(changed), rel=1e-12)
    assert same == objective.causal
