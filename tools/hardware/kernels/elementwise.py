"""Kernels that go over elements: of one tensor and several, broadcast, in another order, of another type, in lists."""

from __future__ import annotations

from typing import Any

from tools.hardware.kernels import Call, Calls, half

SIZES = [(1024, 256), (2048, 1024), (8192, 1024), (16384, 1024), (16384, 4096)]


def calls(short: bool) -> Calls:
    """By name, rows and columns, and the type where it is not the 16-bit one."""
    import torch

    for rows, columns in [(128, 128)] if short else SIZES:
        for dtype, words in ((half(), ""), (torch.float32, " fp32")):
            x, y = (torch.randn(rows, columns, device="cuda", dtype=dtype) for _ in range(2))
            table = {**_plain(x, y), **_reordered(x, y)}
            for name, call in table.items():
                yield f"{name} {rows} x {columns}{words}", call
    if not short:
        yield from _images()
        yield from _lists().items()


def _plain(x: Any, y: Any) -> dict[str, Call]:
    import torch
    from torch.nn import functional

    row, column = x[0].clone(), x[:, :1].clone()
    single = x.float()
    return {
        "add": lambda: x + y,
        "add itself": lambda: x + x,
        "add in place": lambda: x.add_(y),
        "mul scalar": lambda: x * 0.5,
        "mul row": lambda: x * row,
        "mul column": lambda: x * column,
        "relu in place": lambda: x.relu_(),
        "gelu": lambda: functional.gelu(x),
        "gelu backward": lambda: torch.ops.aten.gelu_backward(x, y),
        "silu": lambda: functional.silu(x),
        "tanh": lambda: x.tanh(),
        "pow 3": lambda: x**3,
        "threshold backward": lambda: torch.ops.aten.threshold_backward(x, y, 0),
        "where": lambda: torch.where(x > 0, x, y),
        "masked_fill": lambda: x.masked_fill(x > 0, 0.0),
        "dropout": lambda: functional.dropout(x, 0.1),
        "to fp32": lambda: x.to(torch.float32, copy=True),
        "from fp32": lambda: single.to(half()),
        "clone": lambda: x.clone(),
        "sum rows": lambda: x.sum(-1),
        "sum columns": lambda: x.sum(0),
        "sum": lambda: x.sum(),
        "max": lambda: x.max(-1),
        "argmax": lambda: x.argmax(-1),
        "fill": lambda: x.fill_(1.0),
    }


def _reordered(x: Any, y: Any) -> dict[str, Call]:
    import torch

    rows, columns = x.shape
    places = torch.randint(0, rows, (rows,), device="cuda")
    along = torch.randint(0, columns, (rows, columns), device="cuda")
    return {
        "transpose": lambda: x.t().contiguous(),
        "split heads": lambda: x.view(rows // 64, 64, columns // 64, 64).transpose(1, 2).contiguous(),
        "windows": lambda: x.view(rows // 64, 8, 8, columns).transpose(0, 1).contiguous(),
        "half of columns": lambda: x[:, : columns // 2].contiguous(),
        "add half of columns": lambda: x[:, : columns // 2] + x[:, columns // 2 :],
        "add transposed": lambda: x.view(columns, rows).t() + y,
        "expand": lambda: x[:1].expand(rows, columns).contiguous(),
        "roll": lambda: x.view(rows // 64, 64, columns).roll(3, 1),
        "cat columns": lambda: torch.cat((x, y), 1),
        "cat rows": lambda: torch.cat((x, y)),
        "cat halves": lambda: torch.cat((x[:, columns // 2 :], x[:, : columns // 2]), -1),
        "embedding": lambda: torch.nn.functional.embedding(places, x),
        "index_select": lambda: x.index_select(0, places),
        "index": lambda: x[places],
        "index_add": lambda: x.index_add_(0, places, y),
        "gather": lambda: x.gather(-1, along),
        "cumsum": lambda: x.cumsum(-1),
        "sort": lambda: x.sort(-1),
        "topk 8": lambda: x.topk(8, -1),
    }


def _images() -> Calls:
    """Products with a number a channel, pooling, means over the image, resizing: 64 images of 256 x 56 x 56."""
    import torch
    from torch.nn import functional

    for layout, last in ((torch.contiguous_format, ""), (torch.channels_last, " channels last")):
        x = torch.randn(64, 256, 56, 56, device="cuda", dtype=half()).to(memory_format=layout)
        channel = torch.randn(256, device="cuda", dtype=half()).view(1, -1, 1, 1)
        image = torch.randn(64, 256, 1, 1, device="cuda", dtype=half())
        leaf = x.detach().clone().requires_grad_()
        pooled = functional.max_pool2d(leaf, 3, 2, 1)
        gradient = torch.randn_like(pooled)
        table: dict[str, Call] = {
            "add channel": lambda x=x, channel=channel: x + channel,
            "add channel in place": lambda x=x, channel=channel: x.add_(channel),
            "mul image": lambda x=x, image=image: x * image,
            "mean": lambda x=x: x.mean((2, 3)),
            "sum to channels": lambda x=x: x.sum((0, 2, 3)),
            "adaptive_avg_pool2d": lambda x=x: functional.adaptive_avg_pool2d(x, 1),
            "max_pool2d": lambda x=x: functional.max_pool2d(x, 3, 2, 1),
            "max_pool2d backward": lambda p=pooled, x=leaf, g=gradient: torch.autograd.grad(p, x, g, retain_graph=True),
            "avg_pool2d": lambda x=x: functional.avg_pool2d(x, 2),
            "nearest": lambda x=x: functional.interpolate(x, scale_factor=2.0),
            "to the other layout": lambda x=x: (
                x.permute(0, 2, 3, 1).contiguous() if x.is_contiguous() else x.contiguous()
            ),
        }
        for name, call in table.items():
            yield f"{name}{last}", call


def _lists() -> dict[str, Call]:
    """What an optimizer does: 100 tensors of a million and 200 of 1024 numbers, in 32 bits."""
    import torch

    lists = [
        [torch.rand(size, device="cuda") for size in [1 << 20] * 100 + [1024] * 200] for _ in range(4)
    ]  # fmt: skip
    a, b, c, _ = lists
    parameters = [torch.nn.Parameter(x.clone()) for x in a]
    for p, g in zip(parameters, b, strict=True):
        p.grad = g.clone()
    fused = torch.optim.AdamW(parameters, lr=1e-3, fused=True)
    many = torch.optim.AdamW(parameters, lr=1e-3, foreach=True)
    return {
        "foreach mul scalar": lambda: torch._foreach_mul_(a, 0.999),
        "foreach add": lambda: torch._foreach_add_(a, b),
        "foreach lerp": lambda: torch._foreach_lerp_(a, b, 0.1),
        "foreach addcmul": lambda: torch._foreach_addcmul_(a, b, c, 0.1),
        "foreach addcdiv": lambda: torch._foreach_addcdiv_(a, b, c, 0.1),
        "foreach sqrt": lambda: torch._foreach_sqrt(c),
        "foreach norm": lambda: torch._foreach_norm(b),
        "fused AdamW": lambda: fused.step(),
        "foreach AdamW": lambda: many.step(),
    }
