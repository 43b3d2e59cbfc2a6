"""The GPU's loss kernel, run by Triton's interpreter: against float64 and the plain path."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMPARED = """
import sys
import torch
from dcray.model import head

num_rows, dim, padded, vocab_size = map(int, sys.argv[1:])
generator = torch.Generator().manual_seed(0)
x, weight, grad = (
    torch.randn(shape, dtype=torch.float64, generator=generator)
    for shape in ((num_rows, dim), (padded, dim), (num_rows,))
)
targets = torch.randint(0, vocab_size, (num_rows,), generator=generator)
targets[0], targets[-1] = 0, vocab_size - 1
exact = [t.clone().requires_grad_() for t in (x, weight)]
logits = (exact[0] @ exact[1].T)[:, :vocab_size]
nats = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
wanted = [nats, *torch.autograd.grad(nats, exact, grad)]

ours = [t.float().requires_grad_() for t in (x, weight)]
found = head._HeadNats.apply(*ours, targets, vocab_size, True)
alone = head._HeadNats.apply(*(t.detach() for t in ours), targets, vocab_size, False)
got = [found, *torch.autograd.grad(found, ours, grad.float())]
for one, other in zip([*got, alone], [*wanted, nats]):
    error = float(((one.double() - other).norm() / other.norm()).detach())
    assert error < 1e-5, error
assert not got[2][vocab_size:].any()  # the padding gets no gradient
print("the same")
"""


@pytest.mark.parametrize(
    "shape",
    [(5, 16, 128, 100), (3, 8, 8192, 8192), (4, 8, 8256, 8193), (2, 4, 16_448, 16_400)],
    ids=["a part of a block", "one block", "one column beyond a block", "two blocks and padding"],
)
def test_nats_and_their_gradients(shape):
    done = subprocess.run(
        [sys.executable, "-c", COMPARED, *map(str, shape)],
        env=os.environ
        | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(Path(__file__).parent.parent.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "the same\n"), done.stderr
