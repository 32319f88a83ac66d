"""Rows that are few and long, or many and short: norms, softmax, reductions, scans, sorts, scatters, losses.

PyTorch starts one block a row, or a number of blocks that a dimension gives, so that bytes alone say little of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tools.hardware.kernels import Call, Calls, half
from tools.hardware.kernels.norms import both

ROWS = [
    (1, 1 << 24),
    (8, 1 << 18),
    (16, 1 << 22),
    (64, 1 << 20),
    (128, 65536),
    (256, 16384),
    (2048, 65536),
    (1 << 20, 16),
]
CUBES = [(16, 256, 256), (128, 4096, 1023), (4, 4096, 4096)]
IMAGES = [(16, 64, 512), (112, 64, 256), (2, 512, 64), (64, 8, 32)]


def calls(short: bool) -> Calls:
    """Rows by columns in both precisions, cubes over each dimension, images, and work by index."""
    import torch

    for dtype, words in ((torch.float32, " fp32"), (half(), "")):
        for rows, columns in [(4, 4096)] if short else ROWS:
            x = torch.randn(rows, columns, device="cuda", dtype=dtype)
            name = f"{rows} x {columns}{words}"
            yield from both(f"LayerNorm {name}", torch.nn.LayerNorm(columns).to("cuda", dtype), x)
            yield from both(f"softmax {name}", lambda x: x.softmax(-1), x)
            for word, call in _over(x, -1).items():
                yield f"{word} {name}", call
        if short:
            return
        for cube in CUBES if dtype == torch.float32 else CUBES[1:2]:
            x = torch.randn(*cube, device="cuda", dtype=dtype)
            for dim in (0, 1, 2):
                for word, call in _over(x, dim).items():
                    yield f"{word} of {dim} in {' x '.join(map(str, cube))}{words}", call
        for images, channels, side in IMAGES:
            x = torch.randn(images, channels, side, side, device="cuda", dtype=dtype)
            name = f"{images} x {channels} x {side}{words}"
            yield from both(f"batch norm {name}", torch.nn.BatchNorm2d(channels).cuda(), x)
            yield from both(f"instance norm {name}", torch.nn.InstanceNorm2d(channels).cuda(), x)
            yield from both(f"group norm {name}", torch.nn.GroupNorm(8, channels).to("cuda", dtype), x)
            yield from both(f"LayerNorm of images {name}", torch.nn.LayerNorm(x.shape[1:]).to("cuda", dtype), x)
    yield from _losses()
    yield from _by_index().items()


def _over(x: Any, dim: int) -> dict[str, Call]:
    """Reductions over a dimension; over the last one also what a signature tells apart only there: scans and sorts."""
    import torch

    found: dict[str, Call] = {
        "sum": lambda: x.sum(dim),
        "max": lambda: x.amax(dim),
        "argmin": lambda: x.argmin(dim),
        "var": lambda: x.var(dim),
        "norm": lambda: torch.linalg.vector_norm(x, dim=dim),
    }
    if x.dtype == torch.float32:
        found |= {"max and where": lambda: x.max(dim), "prod": lambda: x.prod(dim)}
    if dim not in (-1, x.dim() - 1):
        return found
    found |= {"logsumexp": lambda: torch.logsumexp(x, dim), "cumsum": lambda: x.cumsum(dim)}
    if x.dtype == torch.float32:
        found["cumprod"] = lambda: x.cumprod(dim)
    if x.numel() <= 1 << 24:
        found |= {"sort": lambda: x.sort(dim), "topk 32": lambda: x.topk(min(32, x.shape[dim]), dim)}
    return found


def _losses() -> Calls:
    import torch
    from torch.nn import functional

    for rows, columns in ((32768, 4096), (4096, 50257), (64, 1000), (8192, 128256)):
        x = torch.randn(rows, columns, device="cuda")
        target = torch.randint(0, columns, (rows,), device="cuda")
        yield from both(f"cross_entropy {rows} x {columns} fp32", lambda x, t=target: functional.cross_entropy(x, t), x)
        log = x.log_softmax(-1)
        yield f"nll_loss {rows} x {columns} fp32", lambda log=log, target=target: functional.nll_loss(log, target)
    x, y = (torch.rand(32768, 8192, device="cuda") for _ in range(2))
    table: dict[str, Callable[..., Any]] = {
        "mse_loss": functional.mse_loss,
        "smooth_l1_loss": functional.smooth_l1_loss,
        "kl_div": functional.kl_div,
        "binary_cross_entropy_with_logits": functional.binary_cross_entropy_with_logits,
        "cosine_similarity": functional.cosine_similarity,
    }
    for name, loss in table.items():
        yield from both(f"{name} 32768 x 8192 fp32", lambda x, loss=loss: loss(x, y), x)


def _by_index() -> dict[str, Call]:
    """Those whose results' sizes do not depend on values, which the side without data cannot know."""
    import torch
    from torch.nn import functional

    weight = torch.randn(50257, 1024, device="cuda", requires_grad=True)
    tokens = torch.randint(0, 50257, (8192,), device="cuda")
    few = torch.randint(0, 64, (8192,), device="cuda")
    rows = torch.randn(8192, 1024, device="cuda")
    into = torch.zeros(50257, 1024, device="cuda")
    numbers = torch.randint(0, 1000, (1 << 22,), device="cuda")
    flags = torch.rand(1 << 24, device="cuda")
    found = functional.embedding(tokens, weight)
    repeated = functional.embedding(few, weight)
    along = tokens[:, None].expand(8192, 1024)

    def gradient(of: Any) -> Call:
        return lambda: torch.autograd.grad(of, weight, rows, retain_graph=True)

    return {
        "embedding backward 8192 of 50257 x 1024 fp32": gradient(found),
        "embedding backward of 64 rows 8192 x 1024 fp32": gradient(repeated),
        "index_add 8192 x 1024 fp32": lambda: into.index_add_(0, tokens, rows),
        "index_put accumulate 8192 x 1024 fp32": lambda: into.index_put_((tokens,), rows, accumulate=True),
        "scatter_add 8192 x 1024 fp32": lambda: into.scatter_add_(0, along, rows),
        "index_put 8192 x 1024 fp32": lambda: into.index_put_((tokens,), rows),
        "histc 16M": lambda: torch.histc(flags, 100),
        "argsort 4M": lambda: numbers.argsort(),
        "multinomial 1024 x 50257": lambda: torch.multinomial(weight.detach()[:1024].abs().mT[:1024].contiguous(), 4),
        "randn 16M": lambda: torch.randn(1 << 24, device="cuda"),
        "randperm 4M": lambda: torch.randperm(1 << 22, device="cuda"),
        "one_hot 8192 x 50257": lambda: functional.one_hot(tokens, 50257),
        "triu 8192 x 8192": lambda: into[:8192, :1024].contiguous().triu(),
        "cdist 4096 x 1024": lambda: torch.cdist(rows[:4096], rows[:4096]),
    }
