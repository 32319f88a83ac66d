"""Single kernels by family and shape, as the clock needs them to be fitted: measured beside modelled."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

from hardware.context import Context, Items, Row, both, failed, shown
from hardware.stages.facts import ratio

ORDER = 55
TITLE = "Kernels by family and shape"
LIMIT_S = 240
ITEM_S = 60
OPTIONS = ("--no-data", "--assume", "1")
Call = Callable[[], object]


def items(context: Context) -> Items:
    """A family each."""
    return {name: lambda table=table: times(table, context) for name, table in FAMILIES.items()}


def times(table: Callable[[bool], dict[str, Call]], context: Context) -> dict[str, float]:
    """Microseconds of each shape between CUDA events; emulated, the model's own."""
    import torch

    from understudy.measure import curves

    torch.manual_seed(0)
    return {shape: round(curves.kernel_us(call), 3) for shape, call in table(context.short).items()}


def _half() -> Any:
    import torch

    return torch.bfloat16 if torch.cuda.get_device_capability() >= (8, 0) else torch.float16


def _products(dtype: Any, short: bool) -> dict[str, Call]:
    import torch

    sizes = [(512, 512, 512)] if short else [
        (m, n, k) for m in (64, 1024, 8192) for n, k in ((1024, 1024), (4096, 1024), (1024, 4096), (4095, 4096))
    ]  # fmt: skip
    found: dict[str, Call] = {}
    for m, n, k in sizes:
        a, b = (torch.randn(*shape, device="cuda", dtype=dtype) for shape in ((m, k), (k, n)))
        found[f"{m} x {n} x {k}"] = lambda a=a, b=b: a @ b
    return found


def products(short: bool) -> dict[str, Call]:
    """Matrix products in 16 bits."""
    return _products(_half(), short)


def products_fp32(short: bool) -> dict[str, Call]:
    """The same in 32 bits, without TF32."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    return _products(torch.float32, short)


def attention(short: bool) -> dict[str, Call]:
    """Fused attention: batch, heads, heads of keys, length, size of a head; masked and not; with its backward pass."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    sizes = [(2, 4, 4, 128, 64)] if short else [
        (batch, 16, keys, length, dim)
        for dim in (64, 128) for batch, length in ((16, 256), (8, 1024), (2, 4096)) for keys in (16, 4)
    ]  # fmt: skip
    found: dict[str, Call] = {}
    for batch, heads, keys, length, dim in sizes:
        for causal in (False, True):
            shapes = ((batch, heads, length, dim), (batch, keys, length, dim), (batch, keys, length, dim))
            q, k, v = (torch.randn(*shape, device="cuda", dtype=_half()) for shape in shapes)
            name = f"{batch} x {heads}/{keys} x {length} x {dim}{' causal' if causal else ''}"
            found[name] = lambda q=q, k=k, v=v, causal=causal, gqa=keys != heads: scaled_dot_product_attention(
                q, k, v, is_causal=causal, enable_gqa=gqa
            )
    return found


def convolutions(short: bool) -> dict[str, Call]:
    """Images, channels in and out, size, kernel, stride and groups, in 16 bits, in both layouts."""
    import torch

    sizes = [(2, 16, 16, 16, 3, 1, 1)] if short else [
        (64, 64, 64, 56, 3, 1, 1), (64, 256, 64, 56, 1, 1, 1), (64, 256, 512, 28, 1, 2, 1), (64, 512, 512, 14, 3, 1, 1),
        (64, 3, 64, 224, 7, 2, 1), (64, 192, 192, 56, 3, 1, 192), (64, 192, 192, 28, 7, 1, 192),
        (64, 512, 512, 14, 3, 1, 32),
    ]  # fmt: skip
    found: dict[str, Call] = {}
    for images, before, after, side, kernel, stride, groups in sizes:
        for layout in (torch.contiguous_format, torch.channels_last):
            conv = torch.nn.Conv2d(before, after, kernel, stride, kernel // 2, groups=groups, bias=False)
            conv = conv.to("cuda", _half(), memory_format=layout)
            x = torch.randn(images, before, side, side, device="cuda", dtype=_half()).to(memory_format=layout)
            name = f"{images} x {before} to {after} x {side}, {kernel} x {kernel}, stride {stride}, {groups} groups"
            last = " channels last" if layout == torch.channels_last else ""
            found[name + last] = lambda conv=conv, x=x: conv(x)
    return found


def memory_bound(short: bool) -> dict[str, Call]:
    """Element-wise kernels, normalizations, softmax, reductions, gathers, sorts: rows and columns, in 32 bits."""
    import torch
    from torch import nn

    found: dict[str, Call] = {}
    for rows, columns in ((64, 64),) if short else ((1024, 256), (8192, 1024), (16384, 4096)):
        x = torch.randn(rows, columns, device="cuda")
        norm, table = nn.LayerNorm(columns).cuda(), torch.randint(0, rows, (rows,), device="cuda")
        calls: dict[str, Call] = {
            "add": lambda x=x: x + x,
            "gelu": lambda x=x: nn.functional.gelu(x),
            "layer norm": lambda x=x, norm=norm: norm(x),
            "softmax": lambda x=x: x.softmax(-1),
            "sum": lambda x=x: x.sum(-1),
            "copy": lambda x=x: x.t().contiguous(),
            "embedding": lambda x=x, table=table: nn.functional.embedding(table, x),
            "cumsum": lambda x=x: x.cumsum(-1),
            "sort": lambda x=x: x.sort(-1),
        }
        found |= {f"{name} {rows} x {columns}": call for name, call in calls.items()}
    return found


FAMILIES = {
    "products": products,
    "products fp32": products_fp32,
    "attention": attention,
    "convolutions": convolutions,
    "memory-bound": memory_bound,
}


def rows(native: dict[str, Any], emulated: dict[str, Any]) -> list[Row]:
    """Both times of each shape, and of each family the median of their ratios' distances from 1."""
    found = []
    for family, real, ours in both(native, emulated):
        if failed(real) or failed(ours):
            found.append(Row(family, shown(real), shown(ours), True))
            continue
        shapes = [shape for shape in real if shape in ours]
        for shape in shapes:
            words = f"{ours[shape]} us ({ratio(real[shape], ours[shape])})"
            found.append(Row(f"{family}, {shape}", f"{real[shape]} us", words, False))
        errors = [abs(ours[shape] / real[shape] - 1.0) for shape in shapes if real[shape]]
        if errors:
            found.append(Row(f"{family}, median error of {len(errors)}", "", f"{median(errors):.1%}", False))
    return found
