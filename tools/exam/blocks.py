"""Blocks of BERT, GPT-2 and T5 in 16 bits, as mli/transformers-benchmarks times those of transformers 4.21.

Sizes are a batch and a length; a row's `forward` is timed with its graph, `full` with the backward pass of the sum,
whose gradients add up. Dropout is on. The images have apex, whose fused RMS norm T5 takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from tools.exam.layers import Layer, of_sum

Tensor = torch.Tensor
HIDDEN, HEADS, INNER = 1024, 16, 4096
DROPPED = 0.1


def dropout(x: Tensor) -> Tensor:
    return functional.dropout(x, DROPPED)


def half(*modules: nn.Module) -> list[nn.Module]:
    return [module.half().cuda() for module in modules]


def by_head(x: Tensor) -> Tensor:
    """(batch, heads, length, size of a head)"""
    return x.view(*x.shape[:2], HEADS, -1).permute(0, 2, 1, 3)


def merged(x: Tensor) -> Tensor:
    return x.permute(0, 2, 1, 3).contiguous().view(x.shape[0], -1, HIDDEN)


def block(of: Callable[[Tensor], Tensor], batch: int, length: int) -> Layer:
    return of_sum(of, torch.randn(batch, length, HIDDEN, device="cuda").half(), False)


def bert(_: torch.dtype, batch: int, length: int) -> Layer:
    q, k, v, o = half(*(nn.Linear(HIDDEN, HIDDEN) for _ in range(4)))
    up, down, first, second = half(nn.Linear(HIDDEN, INNER), nn.Linear(INNER, HIDDEN),
                                   *(nn.LayerNorm(HIDDEN, eps=1e-12) for _ in range(2)))  # fmt: skip

    def of(x: Tensor) -> Tensor:
        scores = torch.matmul(by_head(q(x)), by_head(k(x)).transpose(-1, -2)) / math.sqrt(HIDDEN // HEADS)
        weights = dropout(torch.softmax(scores, dim=-1))
        attended = first(dropout(o(merged(torch.matmul(weights, by_head(v(x)))))) + x)
        result: Tensor = second(dropout(down(functional.gelu(up(attended)))) + attended)
        return result

    return block(of, batch, length)


class Transposed(nn.Module):
    """A linear layer whose weight is (inputs, outputs), as GPT-2's are."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(inputs, outputs)), nn.Parameter(torch.zeros(outputs))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], -1)


def tanh_gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def gpt2(_: torch.dtype, batch: int, length: int) -> Layer:
    qkv, o, up, down = half(*(Transposed(*sizes) for sizes in (
        (HIDDEN, 3 * HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, INNER), (INNER, HIDDEN))))  # fmt: skip
    first, second = half(nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN))
    seen = torch.tril(torch.ones(1, 1, length, length, dtype=torch.uint8, device="cuda"))

    def of(x: Tensor) -> Tensor:
        q, k, v = (by_head(one) for one in qkv(first(x)).split(HIDDEN, dim=2))
        scores = torch.matmul(q, k.transpose(-1, -2))
        scores = scores / torch.tensor(v.size(-1) ** 0.5, dtype=scores.dtype, device=scores.device)
        least = torch.tensor(torch.finfo(scores.dtype).min, dtype=scores.dtype).to(scores.device)
        scores = torch.where(seen[:, :, :length, :length].to(torch.bool), scores, least)
        weights = dropout(torch.softmax(scores, dim=-1).type(v.dtype))
        attended = dropout(o(merged(torch.matmul(weights, v)))) + x
        result: Tensor = attended + dropout(down(tanh_gelu(up(second(attended)))))
        return result

    return block(of, batch, length)


def t5(batch: int, length: int, crosses: bool) -> Layer:
    def attention() -> list[nn.Module]:
        return half(*(nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(4)))

    own, cross = attention(), attention()
    up, down = half(nn.Linear(HIDDEN, INNER, bias=False), nn.Linear(INNER, HIDDEN, bias=False))
    norms = half(*(nn.RMSNorm(HIDDEN, eps=1e-6) for _ in range(3)))

    def clamped(x: Tensor) -> Tensor:
        return x.clamp(-65000.0, 65000.0) if torch.isinf(x).any() else x

    def attended(x: Tensor, layers: list[nn.Module], norm: nn.Module, keys: Tensor | None) -> Tensor:
        q, k, v, o = layers
        normed = norm(x)
        keys = normed if keys is None else keys
        scores = torch.matmul(by_head(q(normed)), by_head(k(keys)).transpose(3, 2))
        scores += torch.zeros(1, HEADS, length, length, dtype=scores.dtype, device=scores.device)
        weights = dropout(functional.softmax(scores.float(), dim=-1).type_as(scores))
        return clamped(x + dropout(o(merged(torch.matmul(weights, by_head(v(keys)))))))

    def of(x: Tensor) -> Tensor:
        after = attended(x, own, norms[0], None)
        if crosses:
            after = attended(after, cross, norms[1], x)
        inner = functional.dropout(functional.relu(up(norms[2](after))), DROPPED)
        return clamped(after + dropout(down(inner)))

    return block(of, batch, length)


BLOCKS: dict[str, Callable[..., Layer]] = {
    "bert-layer": bert,
    "gpt2-layer": gpt2,
    "t5-encoder": lambda _, batch, length: t5(batch, length, False),
    "t5-decoder": lambda _, batch, length: t5(batch, length, True),
}
"""By the name of a row's program."""
