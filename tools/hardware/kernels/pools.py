"""Pooling and resizing in one, two and three dimensions, forward and backward, in both layouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tools.hardware.kernels import Calls, half
from tools.hardware.kernels.norms import both

IMAGES = [(16, 64, 512), (64, 256, 56), (256, 64, 112)]
WINDOWS = [(2, 2, 0), (3, 2, 1), (3, 1, 1), (4, 1, 1), (11, 11, 0)]


def calls(short: bool) -> Calls:
    """Images by window; lines and volumes; resizing."""
    import torch
    from torch.nn import functional

    for images, channels, side in [(2, 8, 16)] if short else IMAGES:
        for dtype, words in ((torch.float32, " fp32"), (half(), "")):
            for layout, last in ((torch.contiguous_format, ""), (torch.channels_last, " channels last")):
                x = torch.randn(images, channels, side, side, device="cuda", dtype=dtype).to(memory_format=layout)
                name = f"{images} x {channels} x {side}{words}{last}"
                for window, stride, padding in (
                    WINDOWS[:1] if short else WINDOWS if x.dtype == torch.float32 else WINDOWS[1:3]
                ):
                    for word, pool in (("max", torch.nn.MaxPool2d), ("avg", torch.nn.AvgPool2d)):
                        module = pool(window, stride, padding)
                        yield from both(f"{word} pool {window} by {stride} {name}", module, x)
                yield from both(f"adaptive avg pool to 7 {name}", lambda x: functional.adaptive_avg_pool2d(x, 7), x)
                if side < 512:
                    for mode in ("bilinear", "bicubic"):
                        yield from both(f"{mode} {name}", resized(mode), x)
                yield f"reflect pad {name}", lambda x=x: functional.pad(x, (1, 1, 1, 1), mode="reflect")
    if short:
        return
    for shape, kind, arguments in (
        ((64, 192, 65536), torch.nn.MaxPool1d, (8, 1, 4)),
        ((64, 128, 65536), torch.nn.AvgPool1d, (8, 1, 4)),
        ((16, 32, 128, 128, 128), torch.nn.MaxPool3d, (3, 2, 1)),
        ((16, 32, 128, 128, 128), torch.nn.AvgPool3d, (3, 2, 1)),
    ):
        x = torch.randn(*shape, device="cuda")
        yield from both(f"{kind.__name__} {arguments} {' x '.join(map(str, shape))} fp32", kind(*arguments), x)


def resized(mode: str) -> Callable[[Any], Any]:
    """A call that doubles an image's sides."""
    from torch.nn import functional

    return lambda x: functional.interpolate(x, scale_factor=2.0, mode=mode)
