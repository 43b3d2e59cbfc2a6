"""What the step's dear pieces cost alone on this card: python -m tests.bench.bench_kernels [PART]

attention   windowed causal attention, every kernel that can do it, forward and backward
loss        logits -> nats and their gradient, against the floor of one read and one write
matmul      the head's three products, and the block's with weights apart and together

Each kernel is checked against float64 first. Times are medians of 20, inputs are random.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

T, HEAD_DIM = 2048, 64


def seconds(function: Callable[[], Any]) -> float:
    """Median of 20, by device events, after 3 that do not count."""
    for _ in range(3):
        function()
    marks = [(torch.cuda.Event(True), torch.cuda.Event(True)) for _ in range(20)]
    for begin, end in marks:
        begin.record()
        function()
        end.record()
    torch.cuda.synchronize()
    return sorted(begin.elapsed_time(end) for begin, end in marks)[10] / 1e3


def relative(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted).norm() / wanted.norm())


def flex() -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    from dcray.model.attention import block_mask

    compiled = torch.compile(flex_attention)

    def run(q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
        mask = block_mask(T, window, q.device)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return compiled(q, k, v, block_mask=mask).transpose(1, 2)

    return run


def flash(q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
    more = {"window_size_left": window, "window_size_right": 0} if window < T else {}
    return torch.ops.aten._flash_attention_forward(
        q, k, v, None, None, T, T, 0.0, window >= T, False, **more
    )[0]


def sdpa(backend: str) -> Callable[..., Tensor]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def run(q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
        assert window >= T
        with sdpa_kernel(getattr(SDPBackend, backend)):
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)

    return run


def cudnn_frontend() -> Callable[..., Tensor]:
    import cudnn.sdpa.fwd.torch_op  # noqa: F401

    def run(q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
        left = window + 1 if window < T else -1
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        scale = HEAD_DIM**-0.5
        return torch.ops.cudnn.sdpa_fwd(
            q, k, v, scale, is_causal=True, window_left=left, return_lse=True
        )[0].transpose(1, 2)

    return run


def attention() -> None:
    kernels: dict[str, Any] = {
        "flex": flex,
        "flash": lambda: flash,
        "sdpa flash": lambda: sdpa("FLASH_ATTENTION"),
        "sdpa cudnn": lambda: sdpa("CUDNN_ATTENTION"),
        "cudnn frontend": cudnn_frontend,
    }
    for heads, batch in ((8, 32), (16, 16)):
        for window in (T // 2, T):
            shape = (batch, T, heads, HEAD_DIM)
            q, k, v, g = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in "qkvg")
            reach = min(window + 1, T)
            pairs = reach * (reach + 1) // 2 + (T - reach) * reach
            flops = 4 * batch * heads * pairs * HEAD_DIM
            for name, build in kernels.items():
                try:
                    one_attention(
                        f"{heads:2} heads, window {window}: {name}",
                        build(),
                        window,
                        flops,
                        [q, k, v, g],
                    )
                except Exception as error:
                    print(
                        f"{heads:2} heads, window {window}: {name}: {str(error)[:300]}", flush=True
                    )


def one_attention(
    label: str, run: Callable[..., Tensor], window: int, flops: float, tensors: list[Tensor]
) -> None:
    q, k, v, g = tensors
    small = [x[:1, :, :2].double().requires_grad_() for x in (q, k, v)]
    distance = torch.arange(T, device="cuda")[:, None] - torch.arange(T, device="cuda")
    seen = (distance >= 0) & (distance <= window)
    scores = torch.einsum("bihd,bjhd->bhij", small[0], small[1]) / HEAD_DIM**0.5
    out = torch.einsum(
        "bhij,bjhd->bihd", scores.masked_fill(~seen, -torch.inf).softmax(-1), small[2]
    )
    wanted = [out.detach(), *torch.autograd.grad(out, small, g[:1, :, :2].double())]
    ours = [x.detach().requires_grad_() for x in (q, k, v)]
    y = run(*ours, window)
    found = [y, *torch.autograd.grad(y, ours, g)]
    errors = [relative(f[:1, :, :2].detach(), w) for f, w in zip(found, wanted, strict=True)]
    with torch.no_grad():
        forward = seconds(lambda: run(q, k, v, window))
    y = run(*ours, window)
    backward = seconds(lambda: torch.autograd.grad(y, ours, g, retain_graph=True))
    print(
        f"{label:40s} forward {forward * 1e3:6.3f} ms ({flops / forward / 1e12:3.0f} TFLOP/s), "
        f"backward {backward * 1e3:6.3f} ms ({2.5 * flops / backward / 1e12:3.0f}), "
        f"errors {' '.join(f'{e:.1e}' for e in errors)}",
        flush=True,
    )


def inductor_loss(logits: Tensor, targets: Tensor, vocab_size: int) -> Tensor:
    x = logits.float()
    columns = torch.arange(x.shape[1], device=x.device)
    x = x.masked_fill(columns >= vocab_size, -torch.inf)
    lse = x.logsumexp(-1)
    nats = lse - x.gather(1, targets[:, None])[:, 0]
    grad = (x - lse[:, None]).exp() - (columns == targets[:, None]).float()
    logits.copy_(grad)
    return nats


def triton_losses() -> dict[str, Any]:
    import triton
    import triton.language as tl

    @triton.jit
    def looped(logits, targets, nats, width, vocab_size, BLOCK: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        base = logits + row * width
        target = tl.load(targets + row)
        chosen = tl.load(base + target).to(tl.float32)
        offsets = tl.arange(0, BLOCK)
        tops = tl.full((BLOCK,), -float("inf"), tl.float32)
        totals = tl.zeros((BLOCK,), tl.float32)
        for start in tl.range(0, vocab_size, BLOCK):
            columns = start + offsets
            x = tl.load(base + columns, mask=columns < vocab_size, other=-float("inf")).to(
                tl.float32
            )
            new = tl.maximum(tops, x)
            totals = totals * tl.exp(tops - new) + tl.exp(x - new)
            tops = new
        top = tl.max(tops, 0)
        total = tl.sum(totals * tl.exp(tops - top), 0)
        tl.store(nats + row, tl.log(total) + top - chosen)
        scale = 1 / total
        for start in tl.range(0, width, BLOCK):
            columns = start + offsets
            x = tl.load(base + columns, mask=columns < vocab_size, other=-float("inf")).to(
                tl.float32
            )
            grad = tl.exp(x - top) * scale - tl.where(columns == target, 1.0, 0.0)
            tl.store(base + columns, grad.to(tl.bfloat16), mask=columns < width)

    @triton.jit
    def single(logits, targets, nats, width, vocab_size, BLOCK: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        base = logits + row * width
        target = tl.load(targets + row)
        chosen = tl.load(base + target).to(tl.float32)
        offsets = tl.arange(0, BLOCK)
        top = -float("inf")
        totals = tl.zeros((BLOCK,), tl.float32)
        for start in tl.range(0, vocab_size, BLOCK):
            columns = start + offsets
            x = tl.load(base + columns, mask=columns < vocab_size, other=-float("inf")).to(
                tl.float32
            )
            x = x * 1.4426950408889634
            new = tl.maximum(top, tl.max(x, 0))
            totals = totals * tl.exp2(top - new) + tl.exp2(x - new)
            top = new
        total = tl.sum(totals, 0)
        shift = top + tl.log2(total)
        tl.store(nats + row, shift * 0.6931471805599453 - chosen)
        for start in tl.range(0, width, BLOCK):
            columns = start + offsets
            x = tl.load(base + columns, mask=columns < vocab_size, other=-float("inf")).to(
                tl.float32
            )
            grad = tl.exp2(x * 1.4426950408889634 - shift)
            tl.store(base + columns, grad.to(tl.bfloat16), mask=columns < width)
        tl.debug_barrier()
        tl.store(base + target, (tl.exp2(chosen * 1.4426950408889634 - shift) - 1).to(tl.bfloat16))

    def launch(kernel: Any, block: int, warps: int) -> Callable[..., Tensor]:
        def run(logits: Tensor, targets: Tensor, vocab_size: int) -> Tensor:
            nats = torch.empty(len(logits), device="cuda")
            kernel[(len(logits),)](
                logits, targets, nats, logits.shape[1], vocab_size, BLOCK=block, num_warps=warps
            )
            return nats

        return run

    found = {}
    for block, warps in ((2048, 4), (4096, 8), (8192, 8), (8192, 16), (16384, 16)):
        found[f"triton two exponentials {block}/{warps}"] = launch(looped, block, warps)
        found[f"triton one exponential {block}/{warps}"] = launch(single, block, warps)
    return found


def loss() -> None:
    rows, width, vocab_size = 32768, 50304, 50258
    logits = torch.randn(rows, width, device="cuda", dtype=torch.bfloat16) * 2
    targets = torch.randint(0, vocab_size, (rows,), device="cuda")
    small = logits[:256, :vocab_size].double()
    lse = small.logsumexp(-1)
    nats = lse - small.gather(1, targets[:256, None])[:, 0]
    grad = (small - lse[:, None]).exp()
    grad[torch.arange(256), targets[:256]] -= 1
    moved = 2 * logits.numel() * 2
    other = torch.empty_like(logits)
    copy = seconds(lambda: other.copy_(logits))
    print(f"copy: {copy * 1e3:.3f} ms, {moved / copy / 1e12:.2f} TB/s")
    for name, run in {"inductor": torch.compile(inductor_loss), **triton_losses()}.items():
        other.copy_(logits)
        found = run(other, targets, vocab_size)
        errors = relative(found[:256], nats), relative(other[:256, :vocab_size], grad)
        padding = float(other[:, vocab_size:].abs().max())
        took = seconds(lambda run=run: run(other, targets, vocab_size))
        print(
            f"{name:24s} {took * 1e3:.3f} ms, {moved / took / 1e12:.2f} TB/s in and out; "
            f"errors {errors[0]:.1e} {errors[1]:.1e}, padding {padding}",
            flush=True,
        )


def matmul() -> None:
    def random(*shape: int) -> Tensor:
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16)

    def say(name: str, took: float, flops: float) -> None:
        print(f"{name:44s} {took * 1e3:.3f} ms, {flops / took / 1e12:.0f} TFLOP/s", flush=True)

    rows = 32768
    for dim, mlp in ((512, 1536), (1024, 2816)):
        x, w, g = random(rows, dim), random(50304, dim), random(rows, 50304)
        flops = 2 * rows * dim * 50304
        say(f"dim {dim}: head", seconds(lambda x=x, w=w: x @ w.T), flops)
        say(f"dim {dim}: head, to input", seconds(lambda g=g, w=w: g @ w), flops)
        say(f"dim {dim}: head, to weight", seconds(lambda g=g, x=x: g.T @ x), flops)
        del g
        for name, width in (
            ("one of q, k, v", dim),
            ("q, k, v together", 3 * dim),
            ("gate", mlp),
            ("gate and up together", 2 * mlp),
        ):
            w, y = random(width, dim), random(rows, width)
            flops = 2 * rows * dim * width
            say(f"dim {dim}: {name}", seconds(lambda x=x, w=w: x @ w.T), flops)
            say(f"dim {dim}: {name}, to input", seconds(lambda y=y, w=w: y @ w), flops)
            say(f"dim {dim}: {name}, to weight", seconds(lambda y=y, x=x: y.T @ x), flops)


PARTS = {"attention": attention, "loss": loss, "matmul": matmul}

if __name__ == "__main__":
    print(torch.cuda.get_device_name(), torch.__version__, torch.backends.cudnn.version())
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
