"""Peak memory of stock models, with what it is made of: ResNet-50, bert-large and GPT-2 on stock PyTorch, without data.

Every number is modelled: the allocator is PyTorch's, what the operators take is a model of the CUDA kernels. Run as
`make bench-memory`, or `python -m benchmarks.bench_memory --gpu H100 --models gpt2 --batches 8 32`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator

import torch
from tools.docs import figures
from torch import nn
from torch.nn import functional as F

import windtunnel
from windtunnel.reports.parts.peak import Peak, peaks

MIB = 1 << 20
STEPS = 2
CATEGORIES = (
    "parameter", "gradient", "optimizer", "activation", "temporary", "workspace", "autocast", "input", "other",
)  # fmt: skip


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions with batch norm around a shortcut (ResNet v1.5)."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.first = nn.Sequential(nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(True))
        middle = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.middle = nn.Sequential(middle, nn.BatchNorm2d(width), nn.ReLU(True))
        self.last = nn.Sequential(nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out))
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, channels, height, width) to (batch, 4 width, height / stride, width / stride)."""
        out = self.last(self.middle(self.first(x)))
        out += self.shortcut(x)
        return F.relu(out, inplace=True)


def resnet50() -> nn.Module:
    """ResNet-50, 25.6 million parameters."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(True)]
    layers.append(nn.MaxPool2d(3, 2, 1))
    channels = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(blocks):
            layers.append(Bottleneck(channels, width, stride if number == 0 else 1))
            channels = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


class Attention(nn.Module):
    """Self-attention with one projection for queries, keys and values."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.inside, self.outside = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, length, width) to the same."""
        batch, length, width = x.shape
        parts = self.inside(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=self.causal)
        return self.outside(out.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """One layer of a transformer; GPT-2 normalizes before, BERT after."""

    def __init__(self, width: int, heads: int, causal: bool, dropout: float = 0.1) -> None:
        super().__init__()
        self.before = causal
        self.attention = Attention(width, heads, causal)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.drop = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, length, width) to the same."""
        if self.before:
            x = x + self.drop(self.attention(self.norms[0](x)))
            return x + self.drop(self.feed(self.norms[1](x)))
        x = self.norms[0](x + self.drop(self.attention(x)))
        return self.norms[1](x + self.drop(self.feed(x)))


class Transformer(nn.Module):
    """Embeddings, layers, and a head that shares the words' embedding."""

    def __init__(self, words: int, length: int, width: int, layers: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads, causal) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(batch, length) of word numbers to (batch, length, words) of scores."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.words(tokens) + self.places(places))))


def bert_large() -> nn.Module:
    """bert-large with the masked-word head, 335 million parameters."""
    return Transformer(30522, 512, 1024, 24, 16, causal=False)


def gpt2() -> nn.Module:
    """GPT-2, 124 million parameters."""
    return Transformer(50257, 1024, 768, 12, 12, causal=True)


def images(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images of 224 x 224 and their classes."""
    return torch.empty(batch, 3, 224, 224), torch.zeros(batch, dtype=torch.long)


def tokens(length: int) -> Callable[[int], tuple[torch.Tensor, torch.Tensor]]:
    """Word numbers, (batch, length), and the words to find."""
    return lambda batch: (torch.zeros(batch, length, dtype=torch.long), torch.zeros(batch, length, dtype=torch.long))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], tuple[torch.Tensor, torch.Tensor]]]] = {
    "resnet50": (resnet50, images),
    "bert-large": (bert_large, tokens(512)),
    "gpt2": (gpt2, tokens(1024)),
}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters),
}


def measure(gpu: str, name: str, batch: int, amp: bool, optimizer: str) -> tuple[Peak | None, int]:
    """The peak of a few training steps and the bytes reserved; None where it does not fit."""
    build, make = MODELS[name]
    with windtunnel.emulate(gpu, no_data=True, memory_history=True) as session:
        try:
            with torch.device("cuda"):
                model = build()
            train(model, make(batch), OPTIMIZERS[optimizer](model.parameters()), amp)
        except torch.OutOfMemoryError:
            return None, 0
        session.complete()
        return peaks(session.trace)[0], torch.cuda.max_memory_reserved()


def train(
    model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor], optimizer: torch.optim.Optimizer, amp: bool
) -> None:
    """A few steps, as programs write them."""
    for _ in range(STEPS):
        inputs, targets = (part.cuda() for part in batch)
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16, enabled=amp):
            scores = model(inputs)
            loss = F.cross_entropy(scores.flatten(0, -2), targets.flatten())
        loss.backward()
        optimizer.step()


def rows(arguments: argparse.Namespace) -> Iterator[list[str]]:
    """The lines of the table."""
    yield ["model", "batch", "numbers", "optimizer", "peak", "reserved", *CATEGORIES]
    for name in arguments.models:
        for batch in arguments.batches:
            for amp in (False, True):
                for optimizer in OPTIMIZERS:
                    peak, reserved = measure(arguments.gpu, name, batch, amp, optimizer)
                    line = [name, str(batch), "AMP" if amp else "FP32", optimizer]
                    if peak is None:
                        yield [*line, "does not fit", "", *("" for _ in CATEGORIES)]
                        continue
                    sizes = [peak.allocated_bytes, reserved, *(peak.categories.get(c, 0) for c in CATEGORIES)]
                    yield [*line, *(f"{size / MIB:.0f}" for size in sizes)]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gpu", default="A100-SXM4-40GB")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--batches", nargs="+", type=int, default=[4, 16])
    parser.add_argument("--record", action="store_true", help="write docs/figures/memory-models.json")
    arguments = parser.parse_args()
    begin = time.perf_counter()
    print(f"EMULATED {arguments.gpu}, modelled; MiB at the peak of {STEPS} steps; PyTorch {torch.__version__}")
    found: dict[str, dict[str, int]] = {}
    for cells in rows(arguments):
        widths = (11, 5, 7, 9, 12, 8, *(max(9, len(c)) for c in CATEGORIES))
        print("  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)), flush=True)
        name, batch, numbers, optimizer, peak, reserved = cells[:6]
        if optimizer == "Adam" and reserved:
            columns = ("peak", "reserved") if numbers == "FP32" else ("amp", "amp-reserved")
            row = found.setdefault(f"{name[0].lower()}{batch}", {})
            row |= dict(zip(columns, (int(peak), int(reserved)), strict=True))
    print(f"{time.perf_counter() - begin:.0f} s")
    if arguments.record:
        figures.record("memory-models", found)


if __name__ == "__main__":
    main()
