"""Convolutions by images, channels, size, filter, stride and groups: types, layouts, forward and backward."""

from __future__ import annotations

from typing import Any

from tools.hardware.kernels import Calls, backward, half

SIZES = [
    (64, 64, 64, 56, 3, 1, 1), (64, 256, 64, 56, 1, 1, 1), (64, 64, 256, 56, 1, 1, 1), (64, 256, 512, 28, 1, 2, 1),
    (64, 128, 128, 28, 3, 1, 1), (64, 256, 256, 14, 3, 1, 1), (64, 512, 512, 14, 3, 1, 1), (64, 512, 512, 7, 3, 1, 1),
    (64, 128, 128, 56, 3, 2, 1), (64, 3, 64, 224, 7, 2, 1), (64, 3, 32, 224, 3, 2, 1), (64, 3, 96, 224, 4, 4, 1),
    (64, 3, 768, 224, 16, 16, 1), (64, 96, 192, 56, 2, 2, 1), (64, 192, 192, 56, 3, 1, 192),
    (64, 192, 192, 28, 7, 1, 192), (64, 96, 96, 112, 3, 2, 96), (64, 96, 96, 56, 7, 1, 96),
    (64, 240, 240, 28, 5, 2, 240), (64, 512, 512, 14, 3, 1, 32), (64, 128, 128, 56, 3, 1, 32),
]  # fmt: skip
FURTHER = [
    (64, 512, 128, 28, 1, 1, 1), (64, 128, 512, 28, 1, 1, 1), (64, 1024, 256, 14, 1, 1, 1),
    (64, 256, 1024, 14, 1, 1, 1), (64, 2048, 512, 7, 1, 1, 1), (64, 512, 2048, 7, 1, 1, 1),
    (64, 16, 96, 112, 1, 1, 1), (64, 96, 24, 56, 1, 1, 1), (64, 144, 24, 56, 1, 1, 1), (64, 240, 40, 28, 1, 1, 1),
    (64, 672, 112, 14, 1, 1, 1), (64, 1152, 320, 7, 1, 1, 1), (64, 320, 1280, 7, 1, 1, 1),
    (64, 512, 1024, 28, 1, 2, 1), (64, 1024, 2048, 14, 1, 2, 1), (64, 64, 64, 112, 3, 1, 1),
    (64, 32, 64, 112, 3, 1, 1), (64, 256, 256, 28, 3, 2, 1), (64, 512, 512, 14, 3, 2, 1), (16, 320, 320, 64, 3, 1, 1),
    (16, 640, 640, 32, 3, 1, 1), (256, 64, 64, 56, 3, 1, 1), (256, 3, 64, 224, 7, 2, 1), (64, 3, 24, 224, 3, 2, 1),
    (64, 3, 1024, 224, 14, 14, 1), (256, 3, 768, 224, 16, 16, 1), (64, 192, 384, 28, 2, 2, 1),
    (64, 384, 768, 14, 2, 2, 1), (64, 32, 32, 112, 3, 1, 32), (64, 144, 144, 56, 3, 1, 144),
    (64, 144, 144, 56, 5, 2, 144), (64, 480, 480, 14, 3, 1, 480), (64, 672, 672, 14, 5, 1, 672),
    (64, 1152, 1152, 7, 5, 1, 1152), (64, 384, 384, 14, 7, 1, 384), (64, 768, 768, 7, 7, 1, 768),
    (256, 96, 96, 56, 7, 1, 96), (64, 256, 256, 28, 3, 1, 32), (64, 1024, 1024, 7, 3, 1, 32),
    (64, 240, 240, 28, 3, 1, 10), (64, 48, 48, 56, 3, 1, 2), (64, 576, 576, 14, 3, 2, 24),
]  # fmt: skip
"""In 16 bits alone."""


def calls(short: bool) -> Calls:
    """The library chooses by its heuristics, as PyTorch lets it by default."""
    import torch

    torch.backends.cudnn.allow_tf32 = False
    for size in [(2, 16, 16, 16, 3, 1, 1)] if short else [*SIZES, *FURTHER]:
        for dtype, words in ((half(), ""), (torch.float32, " fp32"))[: 1 + (size not in FURTHER)]:
            for layout in (torch.contiguous_format, torch.channels_last):
                name = "{} x {} to {} x {}, {k} x {k}, stride {}, {} groups".format(*size[:4], *size[5:], k=size[4])
                name += words + (" channels last" if layout == torch.channels_last else "")
                conv, x = _made(size, dtype, layout)
                yield name, lambda conv=conv, x=x: _forward(conv, x)
                yield f"{name} backward", backward(conv, x, weights=(conv.weight,))


def _made(size: tuple[int, ...], dtype: Any, layout: Any) -> tuple[Any, Any]:
    import torch

    images, before, after, side, kernel, stride, groups = size
    padding = 0 if kernel == stride else kernel // 2
    conv = torch.nn.Conv2d(before, after, kernel, stride, padding, groups=groups, bias=False)
    x = torch.randn(images, before, side, side, device="cuda", dtype=dtype).to(memory_format=layout)
    return conv.to("cuda", dtype).to(memory_format=layout), x  # type: ignore[call-overload]


def _forward(conv: Any, x: Any) -> Any:
    import torch

    with torch.no_grad():
        return conv(x)
