"""The transformer against brute force: windows, causality, padding, weights, overfitting."""

import math

import numpy as np
import pytest
import torch

from dcray.model.attention import attend, mask_of, window_mask
from dcray.model.rotary import rotary_tables, rotate
from dcray.objectives import Batch
from dcray.rng import keyed
from dcray.train.optim import build_optimizer
from dcray.train.shard import RankContext, build_model
from dcray.train.step import train_step
from tests.support import VOCAB_SIZE, tiny_config

CPU = RankContext(torch.device("cpu"))


def tokens(rows: int = 3, length: int = 16, seed: int = 0) -> torch.Tensor:
    return torch.randint(
        0, VOCAB_SIZE, (rows, length), generator=torch.Generator().manual_seed(seed)
    )


@pytest.mark.parametrize(("seq_len", "window"), [(16, 8), (17, 8), (9, 1), (8, None), (8, 20)])
def test_windowed_attention_is_a_brute_force_softmax(seq_len, window):
    g = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, 3, seq_len, 4, generator=g, dtype=torch.float64) for _ in range(3))
    mask = mask_of(seq_len, window, torch.device("cpu"), causal=True)
    out = attend(q, k, v, mask, causal=True)
    reach = seq_len if window is None else window
    for i in range(seq_len):
        seen = [j for j in range(seq_len) if 0 <= i - j <= reach]
        scores = torch.einsum("bhd,bhjd->bhj", q[:, :, i], k[:, :, seen]) / 2
        expected = torch.einsum("bhj,bhjd->bhd", scores.softmax(-1), v[:, :, seen])
        assert torch.allclose(out[:, :, i], expected, atol=1e-12)


def test_a_window_of_half_the_row_holds_1025_keys_at_2048():
    mask = window_mask(2048, 1024, torch.device("cpu"))
    assert mask.sum(1).max() == 1025
    assert mask[2047].nonzero().min() == 1023


def test_rotary_scores_depend_on_distance_alone():
    cos, sin = rotary_tables(32, 8, 10_000.0, torch.device("cpu"), torch.float64)
    g = torch.Generator().manual_seed(0)
    q, k = (torch.randn(8, generator=g, dtype=torch.float64).expand(1, 1, 32, 8) for _ in range(2))
    scores = (rotate(q, cos, sin) @ rotate(k, cos, sin).transpose(-1, -2))[0, 0]
    for distance in (0, 3, 11):
        diagonal = scores.diagonal(-distance)
        assert torch.allclose(diagonal, diagonal[:1].expand_as(diagonal), atol=1e-10)
    assert not torch.allclose(scores[10, 10], scores[10, 3])


@pytest.mark.parametrize("position", [0, 7, 14])
def test_a_causal_models_loss_at_t_ignores_what_comes_after(position):
    model = build_model(tiny_config(), CPU)
    rows, other = tokens(), tokens()
    other[:, position + 1 :] = (other[:, position + 1 :] + 1) % VOCAB_SIZE
    key = torch.from_numpy(keyed.row_keys(0, [0, 0, 0], [0, 1, 2]))
    for k in (None, key):
        a, b = (model(x, causal=True, key=k) for x in (rows, other))
        assert torch.equal(a[:, : position + 1], b[:, : position + 1])
        assert not torch.allclose(a[:, position + 1], b[:, position + 1])
    a, b = (model(x, causal=False) for x in (rows, other))
    assert not torch.allclose(a[:, position], b[:, position])


def test_short_layers_do_not_see_beyond_their_window():
    shape = {"dim": 16, "num_layers": 1, "num_heads": 2, "mlp_dim": 32}
    config = tiny_config(size=shape, model__window_pattern="S")
    long_alone = build_model(config, CPU)  # one layer: the last one, so long whatever the pattern
    rows, other = tokens(1), tokens(1)
    other[:, 0] = (other[:, 0] + 1) % VOCAB_SIZE
    a, b = (long_alone(x, causal=True)[0, -1] for x in (rows, other))
    assert not torch.allclose(a, b)
    two = build_model(tiny_config(model__window_pattern="S"), CPU)
    seen = []
    two.blocks[0].register_forward_hook(lambda _m, _a, out: seen.append(out[0] + out[1]))
    for x in (rows, other):
        two(x, causal=True)
    assert torch.equal(seen[0][:, 9:], seen[1][:, 9:])  # T // 2 = 8 back, and no further
    assert not torch.allclose(seen[0][:, 8], seen[1][:, 8])


def test_padding_stays_out_of_the_softmax():
    model = build_model(tiny_config(), CPU)
    torch.nn.init.zeros_(model.head.weight)
    nats = model(tokens(), causal=True, targets=tokens(seed=1))
    assert torch.allclose(nats, torch.full_like(nats, math.log(VOCAB_SIZE)))
    model = build_model(tiny_config(), CPU)
    with torch.no_grad():
        model.head.weight[VOCAB_SIZE:] = 1e3
    logits = model(tokens(), causal=True)
    assert logits.shape[-1] == 128
    nats = model(tokens(), causal=True, targets=tokens(seed=1))
    expected = -logits[..., :VOCAB_SIZE].log_softmax(-1).gather(-1, tokens(seed=1)[..., None])
    assert torch.allclose(nats, expected[..., 0], atol=1e-5)


def test_initial_weights_have_the_papers_scales():
    config = tiny_config(size={"dim": 256, "num_layers": 1, "num_heads": 4, "mlp_dim": 512})
    model = build_model(config, CPU)
    sigma_of_truncated = 0.8796  # a standard normal cut at +-2
    for name, parameter in model.named_parameters():
        if parameter.ndim < 2:
            assert torch.equal(parameter, torch.ones_like(parameter))
            continue
        sigma = 1 / 256 if name == "embed.weight" else parameter.shape[1] ** -0.5
        assert float(parameter.detach().std()) == pytest.approx(
            sigma * sigma_of_truncated, rel=0.03
        )
        assert float(parameter.detach().abs().max()) <= 2 * sigma
    again = build_model(config, CPU)
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True)
    )
    other = build_model(config.model_copy(update={"seed": 1}), CPU)
    assert not torch.equal(model.head.weight, other.head.weight)


def test_a_model_of_the_papers_shape_overfits_one_batch():
    from dcray.config.run import RunConfig, override

    config = override(
        RunConfig(),
        {"size": "72m", "data.seq_len": 16, "data.unique_tokens": 1000, "optim.lr": 2e-3},
    ).resolved(vocab_size=50_258)
    model = build_model(config, CPU)
    optimizer = build_optimizer(model, config)
    rows = torch.randint(0, 50_258, (2, 17), generator=torch.Generator().manual_seed(0))
    key = torch.from_numpy(keyed.row_keys(0, np.zeros(2), np.arange(2)))
    losses = []
    for _ in range(12):
        batch = Batch(rows, torch.ones(2), 50_257)
        sums = train_step(
            model,
            optimizer,
            config.objective.build(),
            [(batch, key)],
            step_tokens=32,
            world_size=1,
            max_grad_norm=1.0,
        )
        losses.append(float(sums.nats["ar"]) / 32)
    assert losses[0] == pytest.approx(math.log(50_258), abs=1.0)
    assert losses[-1] < 0.5
