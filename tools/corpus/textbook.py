"""GPT-2 as a textbook writes it out, made faster in published stages: programs that no curve was fitted on.

The stages and their throughput are those of "Build a Large Language Model (From Scratch)" (`gpt2_stages.csv`); only the
operators matter here. A stage keeps what the ones before it brought. The published figures count an evaluation of two
batches in every fifteen steps.
"""

from __future__ import annotations

import gc
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from tools.corpus import steps, tables

WORDS, LENGTH, WIDTH, HEADS, LAYERS, DROPOUT = 50257, 1024, 768, 12, 12, 0.1
STAGES = ("fp32", "tf32", "fused optimizer", "bf16", "PyTorch's layers", "flash attention")
GPU, CUDA = "A100-SXM4-40GB", "12.4"
EVALUATED_EVERY = 15


class WrittenNorm(nn.Module):
    """Layer normalization, written out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
        return self.scale * ((x - mean) / torch.sqrt(variance + 1e-5)) + self.shift


class WrittenGelu(nn.Module):
    """GELU by its formula with tanh."""

    def forward(self, x: Tensor) -> Tensor:
        root = torch.sqrt(torch.tensor(2.0 / torch.pi))
        return 0.5 * x * (1 + torch.tanh(root * (x + 0.044715 * torch.pow(x, 3))))


class Attention(nn.Module):
    """Causal attention of several heads, by products and a softmax or by one call."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        self.inputs = nn.ModuleList(
            nn.Linear(WIDTH, width, bias=False) for width in ((3 * WIDTH,) if fused else (WIDTH,) * 3)
        )
        self.out, self.drop = nn.Linear(WIDTH, WIDTH), nn.Dropout(DROPOUT)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        if self.fused:
            parts = self.inputs[0](x).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
            context = scaled_dot_product_attention(*parts, dropout_p=DROPOUT * self.training, is_causal=True)
        else:
            q, k, v = (layer(x).view(batch, length, HEADS, -1).transpose(1, 2) for layer in self.inputs)
            scores = q @ k.transpose(2, 3)
            later = torch.triu(torch.ones(length, length, device=x.device), diagonal=1).bool()
            scores.masked_fill_(later, -torch.inf)
            context = self.drop(torch.softmax(scores / k.shape[-1] ** 0.5, -1)) @ v
        return self.out(context.transpose(1, 2).contiguous().view(batch, length, WIDTH))


class TextbookBlock(nn.Module):
    """Normalization first, a dropout behind each of the two parts."""

    def __init__(self, stage: int) -> None:
        super().__init__()
        norm = nn.LayerNorm if stage >= 4 else WrittenNorm
        gelu = nn.GELU(approximate="tanh") if stage >= 4 else WrittenGelu()
        self.norm1, self.norm2, self.attention = norm(WIDTH), norm(WIDTH), Attention(stage >= 5)
        self.forward_part = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), gelu, nn.Linear(4 * WIDTH, WIDTH))
        self.drop = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(self.attention(self.norm1(x))) + x
        return self.drop(self.forward_part(self.norm2(x))) + x


class Model(nn.Module):
    """Token numbers (N, T) to scores (N, T, 50257), with a last layer of its own."""

    def __init__(self, stage: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.drop, self.blocks = nn.Dropout(DROPOUT), nn.Sequential(*(TextbookBlock(stage) for _ in range(LAYERS)))
        self.norm = (nn.LayerNorm if stage >= 4 else WrittenNorm)(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(self.drop(x))))


def rows() -> list[dict[str, str]]:
    """The published stages."""
    return tables.read("gpt2_stages.csv")


class Training:
    """One stage's program on the current device."""

    def __init__(self, stage: int, batch: int) -> None:
        self.model = Model(stage).to("cuda", torch.bfloat16 if stage >= 3 else torch.float32)
        options: dict[str, Any] = {"fused": True} if stage >= 2 else {}
        self.optimizer = torch.optim.AdamW(self.model.parameters(), weight_decay=0.1, **options)
        self.tokens = torch.zeros(batch, LENGTH, dtype=torch.long, device="cpu")

    def loss(self) -> Tensor:
        scores = self.model(self.tokens.to("cuda"))
        return cross_entropy(scores.flatten(0, 1), self.tokens.to("cuda").flatten())

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.loss().backward()
        self.optimizer.step()

    def evaluate(self) -> None:
        self.model.eval()
        with torch.no_grad():
            for _ in range(2):
                self.loss().item()
        self.model.train()


def predict(name: str, batch: int, count: int = 2) -> tuple[float, float | None]:
    """Tokens a second of a stage, as the emulated program's own clock says, and the run's band."""
    stage = STAGES.index(name)
    with steps.emulated(GPU, CUDA) as session:
        torch.set_float32_matmul_precision("high" if stage >= 1 else "highest")
        try:
            training = Training(stage, batch)
            training.step()
            step_s = _timed(lambda: [training.step() for _ in range(count)]) / count
            evaluation_s = _timed(training.evaluate)
        finally:
            torch.set_float32_matmul_precision("highest")
        band = session.machine.band()
        gc.collect()
    return EVALUATED_EVERY * batch * LENGTH / (EVALUATED_EVERY * step_s + evaluation_s), band


def _timed(work: Any) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter_ns()
    work()
    torch.cuda.synchronize()
    return (time.perf_counter_ns() - begin) / 1e9
