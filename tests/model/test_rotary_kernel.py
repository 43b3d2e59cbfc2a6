"""The GPU's rotation and norm of heads, run by Triton's interpreter: against float64, plainly."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMPARED = """
import sys
import torch
from dcray.model import rotary_kernel
from dcray.model.norm import RMSNorm
from dcray.model.rotary import rotary_tables, rotated_norm

batch, seq_len, heads, dim = map(int, sys.argv[1:])
generator = torch.Generator().manual_seed(0)
x, grad, gain = (
    torch.randn(shape, dtype=torch.float64, generator=generator)
    for shape in ((batch, seq_len, heads, dim), (batch, seq_len, heads, dim), (dim,))
)
norm = RMSNorm(dim, 1e-5, None).double()
norm.weight.data.copy_(gain)
tables = rotary_tables(seq_len, dim, 10_000.0, torch.device("cpu"), torch.float64)
exact = x.clone().requires_grad_()
y = rotated_norm(exact, *tables, norm)
wanted = [y, *torch.autograd.grad(y, (exact, norm.weight), grad)]

ours, tables = x.float(), [table.float() for table in tables]
found, by_x = torch.full_like(ours, float("nan")), torch.full_like(ours, float("nan"))
grid, sizes, blocks = rotary_kernel._grid(ours)
parts = torch.full((grid[0], dim), float("nan"))
how = (*sizes, 1e-5, *blocks)
rotary_kernel._forward[grid](ours, *tables, gain.float(), found, *how)
rotary_kernel._backward[grid](ours, *tables, gain.float(), grad.float(), by_x, parts, *how)
for one, other in zip([found, by_x, parts.sum(0)], wanted):
    error = float(((one.double() - other).norm() / other.norm()).detach())
    assert error < 1e-5, error
print("the same")
"""


@pytest.mark.parametrize("shape", [(2, 5, 3, 16), (1, 32, 2, 32), (3, 11, 4, 64), (1, 3, 2, 128)])
def test_heads_rotated_and_normed_and_their_gradients(shape):
    """Heads of a part of a program, of one program, and of several with a remainder."""
    done = subprocess.run(
        [sys.executable, "-c", COMPARED, *map(str, shape)],
        env=os.environ
        | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(Path(__file__).parent.parent.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "the same\n"), done.stderr
