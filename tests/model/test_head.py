"""Nats of targets on a CPU, against the framework's cross-entropy and finite differences."""

import math

import pytest
import torch
import torch.nn.functional as F

from dcray.model.head import target_nats


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_it_is_the_framework_s_over_the_real_vocabulary(dtype, rtol):
    torch.manual_seed(0)
    logits = torch.randn(2, 3, 8, dtype=dtype).requires_grad_()
    targets, weight = torch.tensor([[0, 4, 2], [1, 1, 3]]), torch.rand(2, 3, dtype=dtype)
    ours = target_nats(logits, targets, vocab_size=5)
    plain = F.cross_entropy(logits[..., :5].flatten(0, 1), targets.reshape(-1), reduction="none")
    torch.testing.assert_close(ours, plain.view(2, 3), rtol=rtol, atol=rtol)
    by_ours, by_plain = (
        torch.autograd.grad((nats.view(2, 3) * weight).sum(), logits)[0] for nats in (ours, plain)
    )
    torch.testing.assert_close(by_ours, by_plain, rtol=rtol, atol=rtol)
    assert (by_ours[..., 5:] == 0).all()  # the padding of the head


def test_its_gradients_are_the_finite_differences():
    logits = torch.randn(2, 2, 6, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([[0, 5], [3, 3]])
    assert torch.autograd.gradcheck(lambda x: target_nats(x, targets, 6), (logits,))


def test_uniform_logits_cost_ln_v_and_large_ones_do_not_overflow():
    targets = torch.tensor([[1]])
    assert float(target_nats(torch.zeros(1, 1, 6), targets, 6)) == pytest.approx(math.log(6))
    large = torch.tensor([[[1e4, 0.0, 0.0]]])
    assert float(target_nats(large, targets, 3)) == pytest.approx(1e4)
