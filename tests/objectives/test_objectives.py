"""AR, MIR and MDLM: what is masked, what is counted, and exact expectations."""

import itertools
import math

import numpy as np
import pytest
import torch

from dcray import plugins
from dcray.objectives import Batch
from dcray.rng import keyed
from dcray.train.shard import RankContext, build_model
from tests.support import MASK_ID, VOCAB_SIZE, run_tiny, tiny_config

CPU = RankContext(torch.device("cpu"))


class Spy:
    """A model that is uniform over the vocabulary and remembers what it was shown."""

    def __init__(self) -> None:
        self.seen: list[tuple[torch.Tensor, torch.Tensor, bool]] = []

    def __call__(self, tokens, *, causal, key=None, targets=None):
        self.seen.append((tokens, targets, causal))
        return torch.full(targets.shape, math.log(VOCAB_SIZE), dtype=torch.float64)


def batch(rows: int = 4, length: int = 64, seed: int = 0) -> tuple[Batch, torch.Tensor]:
    tokens = torch.randint(
        0, MASK_ID, (rows, length + 1), generator=torch.Generator().manual_seed(seed)
    )
    key = torch.from_numpy(keyed.row_keys(seed, np.zeros(rows), np.arange(rows)))
    return Batch(tokens, torch.ones(rows), MASK_ID, torch.ones_like(tokens)), key


def test_mir_masks_inputs_and_never_targets():
    one, key = batch(64)
    model = Spy()
    terms = list(plugins.load("objectives", "mir").terms(model, one, key))
    assert [(t.name, t.weight) for t in terms] == [("ar", 1.0), ("masked", 0.4)]
    (clean, clean_targets, _), (masked, masked_targets, causal) = model.seen
    assert torch.equal(clean, one.inputs)
    assert causal
    for targets in (clean_targets, masked_targets):
        assert torch.equal(targets, one.targets)
        assert not (targets == MASK_ID).any()
    hidden = masked == MASK_ID
    assert torch.equal(masked[~hidden], one.inputs[~hidden])
    assert 0.2 < hidden.double().mean() < 0.3  # r ~ U(0, 0.5)
    assert terms[1].num_tokens == 64 * 64  # averaged over all positions, not the masked ones


def test_mir_variants():
    one, key = batch()
    mixed = list(plugins.load("objectives", "mir", weight=0.3, mixed=True).terms(Spy(), one, key))
    assert [t.weight for t in mixed] == [0.7, 0.3]
    late = plugins.load("objectives", "mir", mask_ratio_min=0.9, mask_ratio_max=1.0, mask_from=8)
    assert not (late.masked_inputs(one, key)[:, :8] == MASK_ID).any()


def test_mir_with_weight_0_is_ar():
    ar, _ = run_tiny(tiny_config())
    mir, _ = run_tiny(tiny_config(objective={"name": "mir", "weight": 0.0}))
    assert mir.val_loss == ar.val_loss


def test_padding_rows_count_for_nothing():
    one, key = batch()
    padded = Batch(one.tokens, torch.tensor([1.0, 1.0, 0.0, 0.0]), MASK_ID, one.text_bytes)
    for name in plugins.names("objectives"):
        objective = plugins.load("objectives", name)
        for term in objective.terms(
            build_model(tiny_config(data__seq_len=64, data__unique_tokens=999), CPU), padded, key
        ):
            half = Batch(one.tokens[:2], torch.ones(2), MASK_ID)
            model = build_model(tiny_config(data__seq_len=64, data__unique_tokens=999), CPU)
            same = {t.name: t for t in objective.terms(model, half, key[:2])}[term.name]
            assert float(term.nats) == pytest.approx(float(same.nats), rel=1e-5)
            assert term.num_tokens == same.num_tokens == 2 * 64


def test_mdlm_of_a_uniform_model_is_ln_v():
    """E[(1/r) * masked] = 1 whatever r is; V is the vocabulary without the padding."""
    one, _ = batch(rows=8, length=128)
    objective = plugins.load("objectives", "mdlm")
    values = []
    for draw in range(400):
        key = torch.from_numpy(keyed.row_keys(1, np.full(8, draw), np.arange(8)))
        (term,) = objective.terms(Spy(), one, key)
        values.append(float(term.nats / term.num_tokens))
    error = np.std(values, ddof=1) / math.sqrt(len(values))
    assert abs(np.mean(values) - math.log(VOCAB_SIZE)) < 3 * error


def test_mdlm_validation_meets_exact_enumeration():
    """Every mask of a row of 6 tokens, every ratio by quadrature, on a real bidirectional model."""
    length, rows = 6, 2
    config = tiny_config(
        objective="mdlm",
        data__seq_len=length,
        data__unique_tokens=100,
        runtime__precision="float64",
    )
    model = build_model(config, CPU)
    one, _ = batch(rows, length)
    objective = plugins.load("objectives", "mdlm", draws=8)
    exact = _exact_mdlm(model, one, objective)
    values = []
    for draw in range(150):
        key = torch.from_numpy(keyed.row_keys(2, np.full(rows, draw), np.arange(rows)))
        with torch.no_grad():
            term = objective.validation(model, one, key)
        values.append(float(term.nats / term.num_tokens))
    error = np.std(values, ddof=1) / math.sqrt(len(values))
    assert abs(np.mean(values) - exact) < 3 * error
    assert error < 0.1 * exact


@torch.no_grad()
def _exact_mdlm(model, one: Batch, objective) -> float:
    length = one.seq_len
    nodes, weights = np.polynomial.legendre.leggauss(400)
    ratios = objective.ratios(torch.from_numpy((nodes + 1) / 2)).numpy()
    total = 0.0
    for mask in itertools.product([False, True], repeat=length):
        hidden = torch.tensor(mask).expand(len(one.tokens), length)
        nats = model(one.inputs.masked_fill(hidden, MASK_ID), causal=False, targets=one.inputs)
        count = sum(mask)
        chance = ratios**count * (1 - ratios) ** (length - count) / ratios
        total += float((nats * hidden).sum()) * float((chance * weights / 2).sum())
    return total / one.inputs.numel()


def test_mdlm_is_bidirectional_and_scores_its_inputs():
    one, key = batch()
    model = Spy()
    list(plugins.load("objectives", "mdlm").terms(model, one, key))
    ((_, targets, causal),) = model.seen
    assert not causal
    assert torch.equal(targets, one.inputs)


def test_mdlm_keeps_its_best_epoch_and_scores_it_again(tmp_path):
    """A learning rate that ruins the model late: the best epoch is kept, its score is fresh."""
    config = tiny_config(
        objective={"name": "mdlm", "draws": 64, "final_draws": 64},
        num_epochs=12,
        optim__lr=0.5,
        optim__weight_decay=0.0,
        schedule__warmup_frac=0.9,
        schedule__decay_frac=0.05,
        validation__epochs=1,
    )
    outcome, reports = run_tiny(config, folder=tmp_path, num_val_rows=60)
    curve = {
        round(p.epoch): p.values["val/loss"]
        for r in reports
        for p in r.points
        if "val/loss" in p.values
    }
    assert set(curve) == set(range(1, 13))
    best = min(curve, key=curve.get)
    assert outcome.best_epoch == best < 12
    assert outcome.val_loss != curve[best]  # fresh draws
    assert outcome.val_loss == pytest.approx(curve[best], abs=0.15)
    assert abs(outcome.val_loss - curve[best]) < abs(curve[12] - curve[best])
