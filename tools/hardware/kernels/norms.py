"""Normalizations and softmax, forward and backward: rows by columns, and images in both layouts."""

from __future__ import annotations

from typing import Any

from tools.hardware.kernels import Calls, backward, half

ROWS = [
    (802816, 96), (200704, 192), (50176, 384), (12544, 768), (50432, 768), (8192, 1024), (1024, 256), (8192, 4096),
    (16384, 8192), (4096, 512), (100352, 128), (25088, 512), (32768, 768), (2048, 2048), (65536, 256), (131072, 64),
]  # fmt: skip
SOFTMAX = [
    (786432, 49),
    (196608, 512),
    (65536, 1024),
    (8192, 4096),
    (4096, 50257),
    (16384, 128),
    (98304, 197),
    (32768, 256),
    (2048, 1000),
]
IMAGES = [
    (128, 64, 112),
    (128, 256, 56),
    (128, 512, 28),
    (128, 1024, 14),
    (128, 2048, 7),
    (128, 96, 112),
    (128, 32, 56),
]


def calls(short: bool) -> Calls:
    """Layer, RMS, batch and group norms, softmax and log-softmax."""
    import torch

    for dtype, words in ((half(), ""), (torch.float32, " fp32")):
        for rows, columns in [(64, 64)] if short else ROWS:
            x = torch.randn(rows, columns, device="cuda", dtype=dtype)
            for kind in (torch.nn.LayerNorm, torch.nn.RMSNorm):
                norm = kind(columns).to("cuda", dtype)
                yield from both(f"{kind.__name__} {rows} x {columns}{words}", norm, x)
        for rows, columns in [(64, 64)] if short else SOFTMAX:
            x = torch.randn(rows, columns, device="cuda", dtype=dtype)
            yield from both(f"softmax {rows} x {columns}{words}", lambda x: x.softmax(-1), x)
            yield from both(f"log_softmax {rows} x {columns}{words}", lambda x: x.log_softmax(-1), x)
        for images, channels, side in [(2, 8, 8)] if short else IMAGES:
            for layout in (torch.contiguous_format, torch.channels_last):
                last = " channels last" if layout == torch.channels_last else ""
                x = torch.randn(images, channels, side, side, device="cuda", dtype=dtype).to(memory_format=layout)
                name = f"{images} x {channels} x {side}{words}{last}"
                yield from both(f"batch norm {name}", torch.nn.BatchNorm2d(channels).cuda(), x)
                still = torch.nn.BatchNorm2d(channels).to("cuda", dtype).eval()
                yield f"batch norm in eval {name}", lambda norm=still, x=x: _quiet(norm, x)
                yield from both(f"group norm {name}", torch.nn.GroupNorm(8, channels).to("cuda", dtype), x)


def both(name: str, norm: Any, x: Any) -> Calls:
    """The forward pass, as training has it, and the backward pass."""
    weights = tuple(norm.parameters()) if hasattr(norm, "parameters") else ()
    yield name, lambda: norm(x)
    yield f"{name} backward", backward(norm, x, weights=weights)


def _quiet(norm: Any, x: Any) -> Any:
    import torch

    with torch.no_grad():
        return norm(x)
