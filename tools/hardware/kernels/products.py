"""Matrix products in 16 bits and, without TF32, in 32: square, thin, of sides that are not aligned, in batches."""

from __future__ import annotations

from typing import Any

from tools.hardware.kernels import Call, Calls, half


def calls(short: bool) -> Calls:
    """`m x n x k` and a type; batches before, `+ bias` for linear layers."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    for dtype in (half(), torch.float32):
        words = "" if dtype == half() else " fp32"
        for m, n, k in [(512, 512, 512)] if short else _sizes():
            a, b = (torch.randn(*shape, device="cuda", dtype=dtype) for shape in ((m, k), (k, n)))
            yield f"{m} x {n} x {k}{words}", lambda a=a, b=b: a @ b
        for batch, m, n, k in [] if short else BATCHES:
            a, b = (torch.randn(batch, *shape, device="cuda", dtype=dtype) for shape in ((m, k), (k, n)))
            yield f"{batch} x {m} x {n} x {k}{words}", lambda a=a, b=b: torch.bmm(a, b)
    for m, n, k in [] if short else LINEAR:
        yield f"{m} x {n} x {k} + bias", _linear(m, n, k)


BATCHES = [(16384, 49, 49, 32), (16384, 49, 32, 49), (384, 512, 512, 64), (384, 512, 64, 512), (64, 1024, 1024, 128)]
LINEAR = [
    (8192, 50257, 768),
    (256, 1000, 2048),
    (50432, 3072, 768),
    (50432, 768, 3072),
    (802816, 384, 96),
    (4096, 30522, 768),
]


def _sizes() -> list[tuple[int, int, int]]:
    aligned = [(m, n, k) for m in (64, 1024, 8192) for n, k in ((1024, 1024), (4096, 1024), (1024, 4096))]
    odd = [(m, n, k) for m in (64, 1024, 8192) for n, k in ((4095, 4096), (4092, 4096), (4096, 4095), (50257, 768))]
    return [*aligned, *odd, (768, 50257, 4096), (4096, 768, 50257), (1023, 4096, 1024)]


def _linear(m: int, n: int, k: int) -> Call:
    import torch

    net = torch.nn.Linear(k, n, device="cuda", dtype=half()).requires_grad_(False)
    x: Any = torch.randn(m, k, device="cuda", dtype=half())
    return lambda: net(x)
