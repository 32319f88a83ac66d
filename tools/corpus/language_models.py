"""Trainings of MPT by llm-foundry on one node of 8 GPUs (FSDP, AMP in bfloat16), and what the published runs reached.

What runs without data is one GPU's share of a micro-batch and of an update. The weights are sharded as FSDP does: of
each block a GPU keeps its part in FP32, gathers the block in bfloat16 when it is due, and adds up its part of the
gradients. The collectives hide behind the blocks beside them and cost nothing here. The configurations are those of
llm-foundry's benchmarks: learned positions, biases, normalization in bfloat16, fused attention, no dropout, whole
blocks computed again where the row says so, AdamW, gradients clipped.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, embedding, gelu, layer_norm, linear, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from tools.corpus import steps, tables

RANKS = 8
WORDS = 50368
CUDA = "11.8"
SIZES = {
    "MPT-125m": (12, 768, 12),
    "MPT-350m": (24, 1024, 16),
    "MPT-760m": (24, 1536, 12),
    "MPT-1b": (24, 2048, 16),
    "MPT-3b": (32, 2560, 20),
    "MPT-7b": (32, 4096, 32),
    "MPT-13b": (40, 5120, 40),
    "MPT-30b": (48, 7168, 56),
    "MPT-70b": (80, 8192, 64),
}
"""Layers, width and heads."""


class Gather(torch.autograd.Function):
    """A block's weights from each GPU's part of them, and back: the part of the gradient that this GPU keeps."""

    @staticmethod
    def forward(ctx: Any, shard: Tensor, size: int) -> Tensor:
        ctx.length = shard.numel()
        return shard.new_empty(size, dtype=torch.bfloat16)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0].new_empty(ctx.length, dtype=torch.float32), None


class Sharded(nn.Module):
    """Weights of these shapes, of which a GPU keeps its part."""

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        super().__init__()
        self.shapes = [torch.Size(shape) for shape in shapes]
        self.size = sum(shape.numel() for shape in self.shapes)
        self.shard = nn.Parameter(torch.empty(-(-self.size // RANKS)))

    def gathered(self) -> list[Tensor]:
        """Views of the whole, in bfloat16."""
        parts = Gather.apply(self.shard, self.size).split([shape.numel() for shape in self.shapes])
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]


class DecoderBlock(Sharded):
    """Normalization first, attention over what came before."""

    def __init__(self, width: int, heads: int) -> None:
        self.heads = heads
        matrices = [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width)]
        super().__init__([*matrices, *((rows,) for rows, _ in matrices), *[(width,)] * 4])

    def forward(self, x: Tensor) -> Tensor:
        qkv, out, up, down, qkv_bias, out_bias, up_bias, down_bias, scale1, shift1, scale2, shift2 = self.gathered()
        n, s, width = x.shape
        parts = linear(layer_norm(x, (width,), scale1, shift1), qkv, qkv_bias).chunk(3, 2)
        q, k, v = (part.view(n, s, self.heads, -1).transpose(1, 2) for part in parts)
        y = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + linear(y.transpose(1, 2).reshape(n, s, width), out, out_bias)
        return x + linear(gelu(linear(layer_norm(x, (width,), scale2, shift2), up, up_bias)), down, down_bias)


class Mpt(Sharded):
    """Token numbers (N, S) to scores (N, S, 50368) by the embedding's own weights."""

    def __init__(self, model: str, length: int, recompute: bool) -> None:
        layers, width, heads = SIZES[model]
        super().__init__([(WORDS, width), (length, width), (width,), (width,)])
        self.blocks = nn.ModuleList(DecoderBlock(width, heads) for _ in range(layers))
        self.recompute = recompute

    def forward(self, tokens: Tensor) -> Tensor:
        words, places, scale, shift = self.gathered()
        x = embedding(tokens, words) + embedding(torch.arange(tokens.shape[1], device=tokens.device), places)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return linear(layer_norm(x, x.shape[-1:], scale, shift), words)


class LanguageRow(NamedTuple):
    """A published training: tokens a second on each GPU, in micro-batches of so many sequences."""

    model: str
    gpu: str
    length: int
    batch: int
    recompute: bool
    published: float
    cuda: str = CUDA

    @property
    def group(self) -> str:
        return f"{self.batch} x {self.length}{', recomputed' if self.recompute else ''}"

    @property
    def ms(self) -> float:
        """Milliseconds that a micro-batch took."""
        return 1000.0 * self.batch * self.length / self.published


def rows() -> list[LanguageRow]:
    """The published trainings in bfloat16."""
    return [
        LanguageRow(
            row["model"],
            row["gpu"],
            int(row["length"]),
            int(row["micro_batch"]),
            row["recompute"] == "True",
            float(row["tokens_per_s"]),
        )
        for row in tables.read("language_models.csv")
        if row["precision"] == "bf16"
    ]


def run(row: LanguageRow) -> steps.Step:
    """A micro-batch and an update on the row's GPU.

    The update is a hundredth of a micro-batch at most, so how many micro-batches come before it does not matter.
    """
    with steps.emulated(row.gpu, row.cuda) as session, torch.device("cuda"):
        step = steps.timed(training(row), session)
        gc.collect()
    return step


def training(row: LanguageRow) -> Callable[[], None]:
    """A step on the current device."""
    model = Mpt(row.model, row.length, row.recompute)
    tokens = torch.zeros(row.batch, row.length, dtype=torch.long)
    optimizer = torch.optim.AdamW(model.parameters())

    def take() -> None:
        loss = cross_entropy(model(tokens).view(-1, WORDS), tokens.view(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return take
