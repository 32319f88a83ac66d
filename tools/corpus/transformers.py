"""Whole transformers in FP32 with attention written out, as Hugging Face had them, and what NeuSight timed of them.

The sizes are those of NeuSight's configurations (github.com/sitar-lab/NeuSight, scripts/asplos/data/DLmodel_configs). A
training step is the forward and the backward pass, without an optimizer, as NeuSight timed it.
"""

from __future__ import annotations

import gc
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tools.corpus import steps, tables
from windtunnel import gpus
from windtunnel.session import Session


class Sizes(NamedTuple):
    """Of one model; `activation` is "gelu", "gelu_new" (eight kernels) or "relu", `bert` has normalization last."""

    layers: int
    hidden: int
    heads: int
    inner: int
    words: int
    activation: str
    bert: bool = False


MODELS = {
    "bert_large": Sizes(24, 1024, 16, 4096, 30522, "gelu", bert=True),
    "gpt2_large": Sizes(36, 1280, 20, 5120, 50257, "gelu_new"),
    "gpt3_xl": Sizes(24, 3072, 24, 12288, 50257, "gelu_new"),
    "gpt3_27": Sizes(32, 2560, 32, 10240, 50257, "gelu_new"),
    "opt_13": Sizes(24, 2048, 32, 8192, 50272, "relu"),
}


class EncoderBlock(nn.Module):
    """Attention written out, and a feed-forward part."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        hidden = sizes.hidden
        self.sizes = sizes
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.parts = nn.ModuleList(nn.Linear(hidden, n * hidden) for n in ((1, 1, 1) if sizes.bert else (3,)))
        self.out, self.up, self.down = (
            nn.Linear(hidden, hidden),
            nn.Linear(hidden, sizes.inner),
            nn.Linear(sizes.inner, hidden),
        )
        self.drop = nn.Dropout(0.1)

    def attention(self, x: Tensor, mask: Tensor) -> Tensor:
        n, length, hidden = x.shape
        projected = [part(x) for part in self.parts]
        given = projected if self.sizes.bert else projected[0].split(hidden, 2)
        q, k, v = (one.view(n, length, self.sizes.heads, -1).transpose(1, 2) for one in given)
        scores = torch.matmul(q, k.transpose(-1, -2)) / (hidden / self.sizes.heads) ** 0.5
        scores = scores + mask if self.sizes.bert else torch.where(mask, scores, -3.4e38)
        weights = self.drop(torch.softmax(scores, -1))
        return self.out(torch.matmul(weights, v).transpose(1, 2).contiguous().view(n, length, hidden))

    def activation(self, x: Tensor) -> Tensor:
        if self.sizes.activation == "gelu_new":
            return 0.5 * x * (1.0 + torch.tanh(0.7978845608 * (x + 0.044715 * torch.pow(x, 3.0))))
        return torch.relu(x) if self.sizes.activation == "relu" else nn.functional.gelu(x)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        if self.sizes.bert:
            x = self.norm1(x + self.drop(self.attention(x, mask)))
            return self.norm2(x + self.drop(self.down(self.activation(self.up(x)))))
        x = x + self.drop(self.attention(self.norm1(x), mask))
        return x + self.drop(self.down(self.activation(self.up(self.norm2(x)))))


class Transformer(nn.Module):
    """Token numbers (N, S) to scores (N, S, words)."""

    def __init__(self, sizes: Sizes, length: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(sizes.words, sizes.hidden), nn.Embedding(length, sizes.hidden)
        self.blocks = nn.ModuleList(EncoderBlock(sizes) for _ in range(sizes.layers))
        self.norm, self.head = nn.LayerNorm(sizes.hidden), nn.Linear(sizes.hidden, sizes.words, bias=False)
        self.bert = sizes.bert

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        x = self.words(tokens) + self.places(torch.arange(length))
        mask = torch.zeros(tokens.shape[0], 1, 1, length) if self.bert else torch.ones(1, 1, length, length) > 0
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


class LatencyRow(NamedTuple):
    """One published latency, in milliseconds."""

    model: str
    gpu: str
    mode: str
    length: int
    batch: int
    ms: float
    cuda: str = "12.1"

    @property
    def group(self) -> str:
        return f"{self.gpu} {self.mode}"


def rows() -> list[LatencyRow]:
    """The published latencies of the models that are written here."""
    return [
        LatencyRow(r["model"], gpus.find(r["gpu"]).key, r["mode"], int(r["length"]), int(r["batch"]), float(r["ms"]))
        for r in tables.read("transformers_fp32.csv")
    ]


def run(row: LatencyRow) -> steps.Step:
    """The second step on the row's GPU."""
    with steps.emulated(row.gpu, row.cuda) as session:
        found = _second(row, session)
        gc.collect()
    return found


def _second(row: LatencyRow, session: Session) -> steps.Step:
    with torch.device("cuda"):
        model = Transformer(MODELS[row.model], row.length).train(row.mode == "train")
        tokens = torch.zeros(row.batch, row.length, dtype=torch.long)
        scores = tokens

        def step() -> None:
            nonlocal scores  # those of a step live until the next one's are there
            scores = model(tokens)
            if row.mode == "train":
                scores.sum().backward()

        with torch.set_grad_enabled(row.mode == "train"):
            return steps.timed(step, session)
