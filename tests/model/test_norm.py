"""Our own RMSNorm on a CPU, against the framework's and against finite differences."""

import pytest
import torch
import torch.nn.functional as F

from dcray.model.norm import RMSNorm


def both(dtype, shape=(3, 5, 16)):
    """(value, gradients) of the norm and of the framework's, at the same random point."""
    torch.manual_seed(0)
    norm = RMSNorm(shape[-1], 1e-5, None).to(dtype)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 1.5)
    x, grad = torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype)
    found = []
    for form in (norm, lambda x: F.rms_norm(x, shape[-1:], norm.weight, 1e-5)):
        here = x.clone().requires_grad_()
        y = form(here)
        found.append((y, *torch.autograd.grad(y, (here, norm.weight), grad)))
    return found


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_it_is_the_framework_s(dtype, rtol):
    for ours, theirs in zip(*both(dtype), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=rtol, atol=rtol)


def test_its_gradients_are_the_finite_differences():
    norm = RMSNorm(8, 1e-5, None).double()
    x = torch.randn(4, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, gain: norm(x), (x, norm.weight))


def test_half_precision_is_left_to_the_framework():
    norm, x = RMSNorm(8, 1e-5, None), torch.randn(4, 8).bfloat16()
    expected = F.rms_norm(x, (8,), norm.weight.bfloat16(), 1e-5)
    assert torch.equal(norm(x), expected)


def test_a_view_that_is_not_contiguous():
    norm = RMSNorm(8, 1e-5, None)
    x = torch.randn(8, 4).T
    torch.testing.assert_close(norm(x), F.rms_norm(x, (8,), norm.weight, 1e-5))
