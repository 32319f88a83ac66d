"""Peak memory that others published, beside what is modelled: bert-large fine-tuned on a V100 of 16 GB, without data.

Hugging Face's "Model training anatomy" and "Efficient training on a single GPU" (transformers 4.20 and later, 2022)
print what nvidia-smi shows after a training with each setting. The model is written again here from its description
(24 layers, plain attention, pooler, two classes); the training is what that page's Trainer did on PyTorch 1.x: losses
divided, gradients clipped, AdamW one tensor at a time, gradients set to zero and kept. Before 1.11 softmax kept its
input for the backward pass too (pytorch#64000), so both are shown. Run as `python benchmarks/published_memory.py`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import windtunnel

MIB = 1 << 20
GPU = "V100"
WORDS, LENGTH, WIDTH, LAYERS, HEADS = 30522, 512, 1024, 24, 16


class Setting(NamedTuple):
    """One published line: how it was trained, and MiB that nvidia-smi showed; `batch` 0 is the loaded model."""

    name: str
    published_mib: int
    batch: int
    accumulate: int = 1
    checkpointing: bool = False
    half: bool = False


SETTINGS = (
    Setting("the model loaded", 2631, 0),
    Setting("batch 4", 14949, 4),
    Setting("4 batches of 1 accumulated", 8681, 1, 4),
    Setting("the same, checkpointed", 6775, 1, 4, checkpointing=True),
    Setting("batch 4, fp16", 13939, 4, half=True),
    Setting("4 batches of 1, checkpointed, fp16", 7275, 1, 4, checkpointing=True, half=True),
)


class KeepingSoftmax(torch.autograd.Function):
    """Softmax over the last dimension as PyTorch before 1.11 had it: its backward pass holds the input as well."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
    def forward(ctx: Any, scores: torch.Tensor) -> torch.Tensor:
        """Scores of any shape to weights of the same."""
        weights = torch.softmax(scores, -1)
        ctx.save_for_backward(scores, weights)
        return weights

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        """The scores' gradient, from the weights alone."""
        scores, weights = ctx.saved_tensors
        return torch.ops.aten._softmax_backward_data(grad, weights, -1, scores.dtype)


class Layer(nn.Module):
    """Attention with its scores written out, and two dense layers; each normalized with its input."""

    def __init__(self, keeping: bool) -> None:
        super().__init__()
        self.keeping = keeping
        self.parts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.inside, self.outside = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """(batch, length, width) to the same; the mask is added to the scores."""
        shape = (x.shape[0], x.shape[1], HEADS, WIDTH // HEADS)
        query, key, value = (part(x).view(shape).permute(0, 2, 1, 3) for part in self.parts[:3])
        scores = torch.matmul(query, key.transpose(-1, -2))
        scores = scores / math.sqrt(shape[-1])
        scores = scores + mask
        weights = self.drop(KeepingSoftmax.apply(scores) if self.keeping else F.softmax(scores, dim=-1))
        found = torch.matmul(weights, value).permute(0, 2, 1, 3).contiguous().view(x.shape)
        x = self.norms[0](self.drop(self.parts[3](found)) + x)
        return self.norms[1](self.drop(self.outside(F.gelu(self.inside(x)))) + x)


class Classifier(nn.Module):
    """bert-large with a pooler and two classes, 335 million parameters."""

    def __init__(self, checkpointing: bool, keeping: bool) -> None:
        super().__init__()
        self.checkpointing = checkpointing
        self.tables = nn.ModuleList(nn.Embedding(count, WIDTH) for count in (WORDS, LENGTH, 2))
        self.norm, self.drop = nn.LayerNorm(WIDTH), nn.Dropout(0.1)
        self.layers = nn.ModuleList(Layer(keeping) for _ in range(LAYERS))
        self.pooler, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """(batch, length) of word numbers to (batch, 2) of scores."""
        places = torch.arange(words.shape[1], device=words.device)
        kinds = torch.zeros_like(words)
        x = self.tables[0](words) + self.tables[2](kinds) + self.tables[1](places)
        x = self.drop(self.norm(x))
        mask = torch.zeros(words.shape[0], 1, 1, words.shape[1], device=words.device)
        for layer in self.layers:
            if self.checkpointing:
                x = checkpoint(layer, x, mask, use_reentrant=True)
            else:
                x = layer(x, mask)
        return self.head(self.drop(torch.tanh(self.pooler(x[:, 0]))))


def occupied_mib(setting: Setting, keeping: bool, steps: int = 2) -> float:
    """What nvidia-smi would show of an emulated V100 after a few steps."""
    with windtunnel.emulate(GPU, no_data=True, assume=0.0):
        with torch.device("cuda"):
            model = Classifier(setting.checkpointing, keeping)
        if setting.batch:
            train(model, setting, steps)
        free, total = torch.cuda.mem_get_info()
        return (total - free) / MIB


def train(model: nn.Module, setting: Setting, steps: int) -> None:
    """Some steps of accumulated batches."""
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    scaler = torch.amp.GradScaler("cuda", enabled=setting.half)
    for _ in range(steps):
        for _ in range(setting.accumulate):
            words = torch.zeros(setting.batch, LENGTH, dtype=torch.long).cuda()
            labels = torch.zeros(setting.batch, dtype=torch.long).cuda()
            with torch.autocast("cuda", dtype=torch.float16, enabled=setting.half):
                loss = F.cross_entropy(model(words), labels)
            scaler.scale(loss / setting.accumulate).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=False)


def main() -> None:
    """Print published and modelled."""
    print(f"EMULATED {GPU}, modelled; MiB in use as nvidia-smi counts; PyTorch {torch.__version__}")
    print("| bert-large, 512 words | published | softmax as before 1.11 | | as now | |\n|---|---:|---:|---:|---:|---:|")
    for setting in SETTINGS:
        published = setting.published_mib
        found = (occupied_mib(setting, keeping) for keeping in (True, False))
        cells = " | ".join(f"{mib:.0f} | {mib / published - 1:+.1%}" for mib in found)
        print(f"| {setting.name} | {published} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
