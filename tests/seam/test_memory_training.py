"""Trainings give all memory back: after 20 steps, and when their models are gone."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import windtunnel
from windtunnel.session import Session

cuda = torch.cuda
Model = Callable[[], tuple[nn.Module, torch.Tensor]]


class Residual(nn.Module):
    """Two convolutions with batch norm around a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images of any size, as many channels out as in."""
        inner = F.relu(self.norms[0](self.first(x)))
        return F.relu(x + self.norms[1](self.second(inner)))


class Causal(nn.Module):
    """A GPT in small: embeddings, blocks of causal attention, a head that shares the embedding."""

    def __init__(self, width: int = 64, words: int = 100) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, norm_first=True, activation="gelu")
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores of the next word, (batch, length, words)."""
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        return self.blocks(self.words(tokens), mask=mask, is_causal=True) @ self.words.weight.T


def _mlp() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 10)), torch.ones(32, 64)


def _resnet() -> tuple[nn.Module, torch.Tensor]:
    stem = nn.Conv2d(3, 16, 3, padding=1)
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    return nn.Sequential(stem, Residual(16), nn.MaxPool2d(2), Residual(16), head), torch.ones(4, 3, 16, 16)


def _bert() -> tuple[nn.Module, torch.Tensor]:
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.ones(4, 16, 64)


def _gpt() -> tuple[nn.Module, torch.Tensor]:
    return Causal(), torch.ones(4, 16, dtype=torch.long)


KEYS = ("allocated_bytes", "active_bytes", "requested_bytes", "allocation", "active", "segment", "reserved_bytes")


def held() -> tuple[int, ...]:
    """Bytes and blocks that are allocated, active or reserved now."""
    stats = cuda.memory_stats()
    return tuple(stats.get(f"{key}.{pool}.current", 0) for key in KEYS for pool in ("all", "small_pool", "large_pool"))


@pytest.mark.parametrize("amp", [False, True], ids=["fp32", "amp"])
@pytest.mark.parametrize("build", [_mlp, _resnet, _bert, _gpt], ids=["mlp", "resnet", "bert", "gpt"])
def test_a_training_returns_to_its_starting_bytes(session: Session, build: Model, amp: bool) -> None:
    start = held()
    model, batch = build()
    model.cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    levels = []
    for _ in range(20):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16, enabled=amp):
            loss = model(batch.cuda()).float().square().mean()
        loss.backward()
        optimizer.step()
        del loss
        optimizer.zero_grad()
        levels.append(held())
    assert set(levels[1:]) == {levels[1]}
    assert cuda.max_memory_allocated() > cuda.memory_allocated() > 0
    del model, optimizer
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    cuda.empty_cache()
    assert held() == start == (0,) * len(start)


def test_without_data_the_numbers_are_the_same() -> None:
    found = []
    for no_data in (False, True):
        with windtunnel.emulate("V100", no_data=no_data):
            model, batch = _mlp()
            model.cuda()
            optimizer = torch.optim.Adam(model.parameters())
            for _ in range(2):
                with torch.autocast("cuda", dtype=torch.float16):
                    scores = model(batch.cuda())
                assert scores.dtype == torch.float16
                scores.float().square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            found.append(
                (cuda.max_memory_allocated(), cuda.memory_allocated(), cuda.memory_stats()["allocation.all.peak"])
            )
            del model, optimizer, scores
    assert found[0] == found[1]
