"""Whole networks in 16 bits at inference: Stable Diffusion's U-Net and YOLOv5, as their projects time them.

The U-Net is that of version 1.5 for pictures of 512 x 512, in channels last; its size is the batch, of which guidance
makes two. Rows are the iterations of huggingface/diffusers' table (eager, PyTorch's nightly build of May 2023, whose
flash attention was the first version). YOLOv5's sizes are a batch, its depth and its width in hundredths, of pictures
of 640 x 640 with batch norms folded into convolutions, on ultralytics/yolov5's AWS p3.2xlarge.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from tools.exam.layers import Layer

Tensor = torch.Tensor
WIDTHS = (320, 640, 1280, 1280)
HEADS, TEXT, TIME, WORDS = 8, 768, 1280, 77


def doubled(x: Tensor) -> Tensor:
    return functional.interpolate(x, scale_factor=2.0)


class TimedBlock(nn.Module):
    """Two 3x3 convolutions behind group norms; the time is added between them."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.second = nn.GroupNorm(32, inputs, 1e-5), nn.GroupNorm(32, outputs, 1e-5)
        self.into, self.out = nn.Conv2d(inputs, outputs, 3, padding=1), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = nn.Linear(TIME, outputs)
        self.beside = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        inner = self.into(functional.silu(self.first(x))) + self.time(functional.silu(time))[:, :, None, None]
        return (self.beside(x) + self.out(functional.silu(self.second(inner)))) / 1.0


class Attention(nn.Module):
    """Attention of pixels to one another, or to the words of a text."""

    def __init__(self, width: int, keys: int) -> None:
        super().__init__()
        self.q = nn.Linear(width, width, bias=False)
        self.k, self.v = nn.Linear(keys, width, bias=False), nn.Linear(keys, width, bias=False)
        self.o = nn.Linear(width, width)

    def forward(self, x: Tensor, of: Tensor) -> Tensor:
        q, k, v = (one.unflatten(2, (HEADS, -1)).transpose(1, 2) for one in (self.q(x), self.k(of), self.v(of)))
        attended = functional.scaled_dot_product_attention(q, k, v)
        result: Tensor = self.o(attended.transpose(1, 2).flatten(2)) / 1.0
        return result


class TextBlock(nn.Module):
    """A transformer block over the pixels, between two 1x1 convolutions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, width, 1e-6)
        self.into, self.out = nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 1)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.own, self.cross = Attention(width, width), Attention(width, TEXT)
        self.up, self.down = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        size = x.shape[2:]
        inner = self.into(self.norm(x)).permute(0, 2, 3, 1).flatten(1, 2)
        normed = self.norms[0](inner)
        inner = self.own(normed, normed) + inner
        inner = self.cross(self.norms[1](inner), text) + inner
        values, gates = self.up(self.norms[2](inner)).chunk(2, dim=-1)
        inner = self.down(values * functional.gelu(gates)) + inner
        result: Tensor = self.out(inner.unflatten(1, size).permute(0, 3, 1, 2).contiguous()) + x
        return result


class Level(nn.Module):
    """Timed blocks of one resolution, each with a text block behind it where there is attention."""

    def __init__(self, inputs: list[int], width: int, attends: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(TimedBlock(one, width) for one in inputs)
        self.texts = nn.ModuleList(TextBlock(width) for _ in inputs if attends)

    def forward(self, at: int, x: Tensor, time: Tensor, text: Tensor) -> Tensor:
        x = self.blocks[at](x, time)
        return self.texts[at](x, text) if self.texts else x


class UNet(nn.Module):
    """Stable Diffusion 1.5's: 860 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(WIDTHS[0], TIME), nn.SiLU(), nn.Linear(TIME, TIME))
        self.first, self.last = nn.Conv2d(4, WIDTHS[0], 3, padding=1), nn.Conv2d(WIDTHS[0], 4, 3, padding=1)
        self.norm = nn.GroupNorm(32, WIDTHS[0])
        before = (WIDTHS[0], *WIDTHS)
        self.down = nn.ModuleList(Level([before[i], w], w, i < 3) for i, w in enumerate(WIDTHS))
        self.halves = nn.ModuleList(nn.Conv2d(w, w, 3, stride=2, padding=1) for w in WIDTHS[:3])
        self.middle = nn.ModuleList(Level([WIDTHS[3]], WIDTHS[3], attends) for attends in (True, False))
        skipped = [WIDTHS[0], *(w for i, w in enumerate(WIDTHS) for w in (w, w, w)[: 3 if i < 3 else 2])]
        ups, width = [], WIDTHS[3]
        for i in reversed(range(4)):
            inputs = [(width if n == 0 else WIDTHS[i]) + skipped.pop() for n in range(3)]
            ups.append(Level(inputs, WIDTHS[i], i < 3))
            width = WIDTHS[i]
        self.up = nn.ModuleList(ups)
        self.doubles = nn.ModuleList(nn.Conv2d(w, w, 3, padding=1) for w in reversed(WIDTHS[1:]))

    def forward(self, x: Tensor, waves: Tensor, text: Tensor) -> Tensor:
        time, x = self.time(waves), self.first(x)
        kept = [x]
        for i, level in enumerate(self.down):
            for at in range(2):
                kept.append(x := level(at, x, time, text))
            if i < 3:
                kept.append(x := self.halves[i](x))
        for level in self.middle:
            x = level(0, x, time, text)
        for i, level in enumerate(self.up):
            for at in range(3):
                x = level(at, torch.cat((x, kept.pop()), 1), time, text)
            if i < 3:
                x = self.doubles[i](doubled(x))
        result: Tensor = self.last(functional.silu(self.norm(x)))
        return result


def at_inference(network: nn.Module, *inputs: Tensor) -> Layer:
    """A forward pass without gradients."""

    def forward() -> tuple[Tensor, ...]:
        with torch.no_grad():
            return (network(*inputs),)

    return Layer(forward, lambda one: None)


def diffusion(dtype: torch.dtype, batch: int) -> Layer:
    network = UNet().to(dtype).cuda()
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    sizes = ((4, 64, 64), (WIDTHS[0],), (WORDS, TEXT))
    return at_inference(network, *(torch.zeros(2 * batch, *one, dtype=dtype, device="cuda") for one in sizes))


class Folded(nn.Module):
    """A convolution into which its batch norm is folded, and SiLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, padding: int | None = None) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2 if padding is None else padding)

    def forward(self, x: Tensor) -> Tensor:
        return functional.silu(self.conv(x), inplace=True)


class Partial(nn.Module):
    """YOLOv5's C3: bottlenecks over half of the channels, the other half beside them."""

    def __init__(self, inputs: int, outputs: int, depth: int, adds: bool) -> None:
        super().__init__()
        half = outputs // 2
        self.one, self.other, self.out = Folded(inputs, half), Folded(inputs, half), Folded(2 * half, outputs)
        self.inner = nn.ModuleList(nn.Sequential(Folded(half, half), Folded(half, half, 3)) for _ in range(depth))
        self.adds = adds

    def forward(self, x: Tensor) -> Tensor:
        y = self.one(x)
        for inner in self.inner:
            y = y + inner(y) if self.adds else inner(y)
        result: Tensor = self.out(torch.cat((y, self.other(x)), 1))
        return result


class Yolo(nn.Module):
    """YOLOv5 6.0: 80 classes, three sizes of anchors at each of three resolutions."""

    def __init__(self, depth: float, width: float) -> None:
        super().__init__()
        c = [math.ceil(64 * 2**i * width / 8) * 8 for i in range(5)]

        def partial(inputs: int, outputs: int, blocks: int, adds: bool = True) -> Partial:
            return Partial(inputs, outputs, max(round(blocks * depth), 1), adds)

        self.stages = nn.ModuleList((
            nn.Sequential(Folded(3, c[0], 6, 2, 2), Folded(c[0], c[1], 3, 2), partial(c[1], c[1], 3),
                          Folded(c[1], c[2], 3, 2), partial(c[2], c[2], 6)),
            nn.Sequential(Folded(c[2], c[3], 3, 2), partial(c[3], c[3], 9)),
            nn.Sequential(Folded(c[3], c[4], 3, 2), partial(c[4], c[4], 3)),
        ))  # fmt: skip
        self.pooled, self.pools = Folded(c[4], c[4] // 2), Folded(2 * c[4], c[4])
        self.narrow = nn.ModuleList((Folded(c[4], c[3]), Folded(c[3], c[2])))
        self.upward = nn.ModuleList((partial(c[4], c[3], 3, False), partial(c[3], c[2], 3, False)))
        self.halves = nn.ModuleList((Folded(c[2], c[2], 3, 2), Folded(c[3], c[3], 3, 2)))
        self.downward = nn.ModuleList((partial(c[3], c[3], 3, False), partial(c[4], c[4], 3, False)))
        self.heads = nn.ModuleList(nn.Conv2d(one, 255, 1) for one in c[2:])

    def forward(self, x: Tensor) -> Tensor:
        eighth = self.stages[0](x)
        sixteenth = self.stages[1](eighth)
        pools = [self.pooled(self.stages[2](sixteenth))]
        for _ in range(3):
            pools.append(functional.max_pool2d(pools[-1], 5, 1, 2))
        deep = self.narrow[0](self.pools(torch.cat(pools, 1)))
        middle = self.narrow[1](
            self.upward[0](torch.cat((functional.interpolate(deep, scale_factor=2.0), sixteenth), 1))
        )
        fine = self.upward[1](torch.cat((functional.interpolate(middle, scale_factor=2.0), eighth), 1))
        medium = self.downward[0](torch.cat((self.halves[0](fine), middle), 1))
        coarse = self.downward[1](torch.cat((self.halves[1](medium), deep), 1))
        return torch.cat([boxes(head(one)) for head, one in zip(self.heads, (fine, medium, coarse), strict=True)], 1)


def boxes(x: Tensor) -> Tensor:
    """(batch, anchors x rows x columns, 85): places and sizes from a head's numbers."""
    x = x.unflatten(1, (3, 85)).permute(0, 1, 3, 4, 2).contiguous()
    places, sizes, rest = x.sigmoid().split((2, 2, 81), 4)
    return torch.cat(((places * 2 - 0.5) * 8, (sizes * 2) ** 2 * 8, rest), 4).flatten(1, 3)


def yolo(dtype: torch.dtype, batch: int, depth: int, width: int) -> Layer:
    network = Yolo(depth / 100, width / 100).to(dtype).cuda()
    return at_inference(network, torch.zeros(batch, 3, 640, 640, dtype=dtype, device="cuda"))


NETWORKS: dict[str, Callable[..., Layer]] = {"stable-diffusion": diffusion, "yolov5": yolo}
"""By the name of a row's program."""
