"""Convolutions in FP32, with TF32 and without: few channels, lines, volumes, transposed, dilated, depthwise."""

from __future__ import annotations

from typing import Any

from tools.hardware.kernels import Calls, backward

PLAIN: list[tuple[str, tuple[int, ...], tuple[Any, ...], dict[str, Any]]] = [
    ("Conv2d", (16, 3, 224, 224), (3, 64, 7), {"stride": 2, "padding": 3}),
    ("Conv2d", (256, 3, 224, 224), (3, 96, 11), {"stride": 4, "padding": 2}),
    ("Conv2d", (16, 3, 512, 512), (3, 64, 3), {}),
    ("Conv2d", (8, 1, 512, 512), (1, 32, 5), {"padding": 2}),
    ("Conv2d", (16, 64, 256, 256), (64, 128, 3), {"padding": 1}),
    ("Conv2d", (64, 64, 56, 56), (64, 64, 3), {"padding": 1}),
    ("Conv2d", (64, 256, 14, 14), (256, 256, 3), {"padding": 1}),
    ("Conv2d", (16, 512, 28, 28), (512, 512, 1), {}),
    ("Conv2d", (16, 64, 128, 256), (64, 128, (3, 7)), {}),
    ("Conv2d", (16, 64, 256, 256), (64, 128, 3), {"dilation": 3}),
    ("Conv2d", (8, 32, 512, 512), (32, 64, (5, 9)), {"padding": (2, 4), "dilation": (2, 3)}),
    ("Conv2d", (64, 128, 56, 56), (128, 128, 3), {"padding": 1, "groups": 32}),
    ("Conv2d", (64, 512, 28, 28), (512, 512, 3), {"padding": 1, "groups": 512}),
    ("Conv2d", (16, 64, 512, 512), (64, 64, 3), {"groups": 64}),
    ("Conv2d", (32, 128, 128, 128), (128, 128, (3, 1)), {"groups": 128}),
    ("Conv2d", (16, 64, 512, 512), (64, 128, 1), {}),
    ("Conv1d", (32, 64, 131072), (64, 128, 3), {}),
    ("Conv1d", (64, 64, 65536), (64, 128, 3), {"stride": 3, "dilation": 4}),
    ("Conv1d", (16, 1, 160000), (1, 512, 10), {"stride": 5}),
    ("Conv3d", (16, 3, 64, 64, 64), (3, 64, 3), {}),
    ("Conv3d", (8, 32, 64, 64, 64), (32, 64, (3, 5, 7)), {}),
    ("Conv3d", (2, 16, 128, 128, 128), (16, 16, 3), {"padding": 1}),
    ("Conv3d", (4, 64, 16, 112, 112), (64, 64, 3), {"padding": 1}),
    ("ConvTranspose2d", (8, 64, 256, 256), (64, 64, 3), {}),
    ("ConvTranspose2d", (64, 512, 8, 8), (512, 256, 4), {"stride": 2, "padding": 1}),
    ("ConvTranspose2d", (16, 32, 64, 128), (32, 64, (3, 5)), {"stride": (2, 3), "dilation": (2, 1)}),
    ("ConvTranspose2d", (8, 32, 256, 256), (32, 32, 3), {"groups": 4}),
    ("ConvTranspose3d", (16, 32, 16, 32, 32), (32, 64, 3), {}),
    ("ConvTranspose3d", (8, 48, 32, 32, 32), (48, 48, 3), {"stride": 2}),
    ("ConvTranspose3d", (4, 32, 24, 48, 96), (32, 32, (3, 5, 7)), {"stride": 2, "padding": (1, 2, 3), "groups": 4}),
    ("ConvTranspose1d", (16, 32, 32768), (32, 64, 5), {"dilation": 3}),
    ("ConvTranspose1d", (64, 128, 16384), (128, 128, 3), {}),
]
"""Class, input, (channels before, after, kernel), what else."""


def calls(short: bool) -> Calls:
    """Each with TF32, as PyTorch has it, and without; the 2-D ones in channels last too; forward and backward."""
    import torch

    for kind, shape, sizes, options in PLAIN[:1] if short else PLAIN:
        layouts = [(torch.contiguous_format, "")]
        if len(shape) == 4:
            layouts.append((torch.channels_last, " channels last"))
        shape = (2, shape[1], *(min(side, 32) for side in shape[2:])) if short else shape
        for layout, last in layouts:
            conv = getattr(torch.nn, kind)(*sizes, **options, bias=False).cuda().to(memory_format=layout)
            x = torch.randn(*shape, device="cuda").to(memory_format=layout)
            for tf32 in (True, False):
                named = ", ".join(f"{key} {value}" for key, value in options.items())
                name = f"{kind} {' x '.join(map(str, shape))} by {sizes} {named} {'tf32' if tf32 else 'fp32'}{last}"
                yield name, lambda conv=conv, x=x, tf32=tf32: _forward(conv, x, tf32)
                torch.backends.cudnn.allow_tf32 = tf32
                yield f"{name} backward", backward(conv, x, weights=(conv.weight,))


def _forward(conv: Any, x: Any, tf32: bool) -> Any:
    import torch

    torch.backends.cudnn.allow_tf32 = tf32
    with torch.no_grad():
        return conv(x)
