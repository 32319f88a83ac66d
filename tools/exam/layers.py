"""Layers and losses of language models, as linkedin/Liger-Kernel times what it compares its kernels with.

A row names the program and what is timed: `rms-norm forward`, `rms-norm backward` or `rms-norm full`. Its times are
those of `triton.testing.do_bench`, which clears L2 before each call; its peak of memory is that of a full call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

Tensor = torch.Tensor


class Layer(NamedTuple):
    """What is called, how its gradients are asked for, and whose are dropped before each call."""

    forward: Callable[[], tuple[Tensor, ...]]
    backward: Callable[[tuple[Tensor, ...]], object]
    dropped: tuple[Tensor, ...] = ()
    whole: Callable[[tuple[Tensor, ...]], object] | None = None
    """The backward of a full call, where it is another one: a gradient drawn anew, or a graph that is not kept."""
    beside: nn.Module | None = None

    def call(self, what: str) -> Callable[[], object]:
        """A call of one kind: forward, backward of one graph that is kept, or full."""
        if what == "forward":
            return self.forward
        if what == "full":
            backward = self.whole or self.backward
            return lambda: backward(self.forward())
        outputs = self.forward()
        return lambda: self.backward(outputs)


def drawn(*sizes: int, dtype: torch.dtype = torch.float32, grad: bool = True) -> Tensor:
    return torch.randn(sizes, dtype=dtype, device="cuda", requires_grad=grad)


def loss(of: Callable[[], Tensor], keep: bool = False, beside: nn.Module | None = None) -> Layer:
    """A loss, whose gradients add up; the benchmark has what is `beside` it in memory."""
    return Layer(lambda: (of(),), lambda one: one[0].backward(retain_graph=True), (),
                 lambda one: one[0].backward(retain_graph=keep), beside)  # fmt: skip


def with_gradient(layer: Callable[..., Tensor], x: Tensor) -> Layer:
    """A layer, whose gradient was drawn once; those of its weights add up."""
    dy = torch.randn_like(x)
    return Layer(lambda: (layer(x),), lambda one: one[0].backward(dy, retain_graph=True), (x,))


def with_drawn_gradient(layer: Callable[..., Tensor], x: Tensor) -> Layer:
    """A layer, whose gradient a full call draws, and others once."""
    once = cache(drawn)

    def backward(one: tuple[Tensor, ...]) -> None:
        one[0].backward(once(*one[0].shape, dtype=one[0].dtype, grad=False), retain_graph=True)

    return Layer(lambda: (layer(x),), backward, (x,),
                 lambda one: one[0].backward(torch.randn_like(one[0]), retain_graph=True))  # fmt: skip


def of_sum(layer: Callable[..., Tensor], x: Tensor, drops: bool) -> Layer:
    """A layer, whose sum is the loss; the program itself may drop the gradient before."""

    def forward() -> tuple[Tensor, ...]:
        if drops:
            x.grad = None
        return (layer(x),)

    return Layer(forward, lambda one: one[0].sum().backward())


def cross_entropy(_: torch.dtype, tokens: int, words: int) -> Layer:
    logits, target = drawn(tokens, words), torch.randint(words, (tokens, 1), device="cuda").squeeze(1)
    entropy = nn.CrossEntropyLoss()
    return loss(lambda: entropy(logits, target))


def linear_cross_entropy(dtype: torch.dtype, tokens: int, hidden: int, words: int) -> Layer:
    head, other = (nn.Linear(hidden, words, bias=False, dtype=dtype, device="cuda") for _ in range(2))
    entropy = nn.CrossEntropyLoss()
    x = drawn(tokens, hidden, dtype=dtype)
    target = torch.randint(words, (tokens, 1), device="cuda").squeeze(1)
    return loss(lambda: entropy(head(x), target), beside=other)


def kl_divergence(_: torch.dtype, tokens: int, words: int) -> Layer:
    x, target = drawn(tokens, words).log_softmax(-1), drawn(tokens, words, grad=False).softmax(-1)
    divergence = nn.KLDivLoss(reduction="batchmean")
    return loss(lambda: divergence(x, target), keep=True)


def shannon(log_q: Tensor, log_p: Tensor, dtype: torch.dtype) -> Tensor:
    log_p, log_q = log_p.to(torch.float), log_q.to(torch.float)
    divergence = nn.KLDivLoss(reduction="batchmean", log_target=True)
    mixed = torch.lerp(torch.exp(log_p), torch.exp(log_q), 0.5)
    return (0.5 * divergence(torch.log(mixed), log_p) + 0.5 * divergence(torch.log(mixed), log_q)).to(dtype)


def jensen_shannon(_: torch.dtype, tokens: int, words: int) -> Layer:
    x, target = drawn(tokens, words).log_softmax(-1), drawn(tokens, words, grad=False).log_softmax(-1)
    return loss(lambda: shannon(x, target, torch.float), keep=True)


def jensen_shannon_rows(_: torch.dtype, tokens: int, words: int) -> Layer:
    x, target = drawn(tokens, words).log_softmax(-1), drawn(tokens, words, grad=False).log_softmax(-1)
    divergence = nn.KLDivLoss(reduction="none", log_target=True)

    def of(x: Tensor) -> Tensor:
        mixed = torch.lerp(torch.exp(x), torch.exp(target), 0.5)
        rows = 0.5 * divergence(torch.log(mixed), target).sum(-1) + 0.5 * divergence(torch.log(mixed), x).sum(-1)
        return (rows / tokens).sum()

    return with_drawn_gradient(of, x)


def linear_jensen_shannon(dtype: torch.dtype, tokens: int, hidden: int, words: int) -> Layer:
    pupil, teacher = (nn.Linear(hidden, words, bias=False, dtype=dtype, device="cuda") for _ in range(2))
    x, y = drawn(tokens, hidden, dtype=dtype), drawn(tokens, hidden, dtype=dtype, grad=False)

    def of() -> Tensor:
        ours, theirs = pupil(x), teacher(y)
        return shannon(torch.log_softmax(ours / 1.0, -1), torch.log_softmax(theirs / 1.0, -1), dtype)

    return loss(of)


def total_variation(_: torch.dtype, tokens: int, words: int) -> Layer:
    p, q = drawn(tokens, words).softmax(-1), drawn(tokens, words, grad=False).softmax(-1)
    return loss(lambda: torch.sum(torch.abs(p - q) / 2.0) / p.size(0), keep=True)


def layer_norm(dtype: torch.dtype, rows: int, columns: int) -> Layer:
    return with_gradient(nn.LayerNorm(columns, eps=1e-6, device="cuda"), drawn(rows, columns, dtype=dtype))


def group_norm(dtype: torch.dtype, batch: int, channels: int, length: int) -> Layer:
    norm = nn.GroupNorm(channels // 4, channels, eps=1e-6, device="cuda")
    return with_gradient(norm, drawn(batch, channels, length, dtype=dtype))


def normalized(x: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    variance = x.pow(2).mean(-1, keepdim=True)
    x = x * torch.rsqrt(variance + 1e-6)
    return weight * x.to(dtype)


def rms_norm(dtype: torch.dtype, rows: int, columns: int) -> Layer:
    weight = nn.Parameter(torch.ones(columns, device="cuda"))
    return with_gradient(lambda x: normalized(x.to(torch.float32), weight, dtype), drawn(rows, columns, dtype=dtype))


def add_rms_norm(dtype: torch.dtype, rows: int, columns: int) -> Layer:
    weight = nn.Parameter(torch.ones(columns, device="cuda"))
    x, r = (drawn(rows, columns, dtype=dtype) for _ in range(2))
    seeds = torch.randn_like(x), torch.randn_like(r)

    def forward() -> tuple[Tensor, ...]:
        both = x.to(torch.float32) + r.to(torch.float32)
        return normalized(both, weight, dtype), both.to(dtype)

    return Layer(forward, lambda one: torch.autograd.backward(one, seeds, retain_graph=True), (x, r),
                 lambda one: torch.autograd.backward(one, seeds))  # fmt: skip


def fused_rms_norm(dtype: torch.dtype, rows: int, columns: int) -> Layer:
    return of_sum(
        nn.RMSNorm(columns, eps=1e-6, device="cuda", dtype=dtype), drawn(rows, 1, columns, dtype=dtype), False
    )


def softmax(dtype: torch.dtype, rows: int, columns: int) -> Layer:
    return with_gradient(nn.Softmax(dim=-1), drawn(rows, columns, dtype=dtype))


def relu_squared(dtype: torch.dtype, rows: int, columns: int) -> Layer:
    return with_gradient(lambda x: torch.square(functional.relu(x)), drawn(rows, columns, dtype=dtype))


def sparsemax(dtype: torch.dtype, rows: int, columns: int) -> Layer:
    def of(x: Tensor) -> Tensor:
        ordered, _ = torch.sort(x, dim=-1, descending=True)
        sums = torch.cumsum(ordered, dim=-1)
        places = torch.arange(1, columns + 1, device="cuda", dtype=dtype).view(1, -1)
        support = 1 + places * ordered > sums
        number = support.sum(-1, keepdim=True).clamp(min=1)
        return torch.clamp(x - ((ordered * support).sum(-1, keepdim=True) - 1) / number, min=0)

    return with_gradient(of, drawn(rows, columns, dtype=dtype))


def gated(
    dtype: torch.dtype, batch: int, length: int, hidden: int, inner: int, act: Callable[[Tensor], Tensor]
) -> Layer:
    gate, up = (nn.Linear(hidden, inner, bias=False, dtype=dtype, device="cuda") for _ in range(2))
    down = nn.Linear(inner, hidden, bias=False, dtype=dtype, device="cuda")
    x = drawn(batch, length, hidden, dtype=dtype)
    return with_drawn_gradient(lambda x: down(act(gate(x)) * up(x)), x)


def swiglu(dtype: torch.dtype, batch: int, length: int, hidden: int, inner: int) -> Layer:
    return gated(dtype, batch, length, hidden, inner, functional.silu)


def geglu(dtype: torch.dtype, batch: int, length: int, hidden: int, inner: int) -> Layer:
    return gated(dtype, batch, length, hidden, inner, lambda x: functional.gelu(x, approximate="tanh"))


def chunked_swiglu(dtype: torch.dtype, length: int, batch: int, inner: int) -> Layer:
    def of(x: Tensor) -> Tensor:
        gate, up = torch.chunk(x, 2, -1)
        return functional.silu(gate) * up

    x = drawn(length, batch, 2 * inner, dtype=dtype)
    return of_sum(of, x, True)


def embedding(dtype: torch.dtype, batch: int, length: int, words: int, hidden: int) -> Layer:
    table = nn.Embedding(words, hidden, device="cuda", dtype=dtype)
    ids = torch.randint(0, words, (batch, length), device="cuda")
    return Layer(lambda: (table(ids),), lambda one: one[0].backward(torch.randn_like(one[0])))


def heads(dtype: torch.dtype, length: int, hidden: int) -> tuple[Tensor, Tensor]:
    """Queries and keys of 32 and 8 heads."""
    size = hidden // 32
    return drawn(1, length, 32, size, dtype=dtype), drawn(1, length, 8, size, dtype=dtype)


def rotated(forward: Callable[[], tuple[Tensor, ...]], q: Tensor, k: Tensor) -> Layer:
    seeds = torch.randn_like(q), torch.randn_like(k)
    return Layer(forward, lambda one: torch.autograd.grad(one, (q, k), seeds, allow_unused=True, retain_graph=True), (),
                 lambda one: torch.autograd.grad(one, (q, k), seeds, allow_unused=True))  # fmt: skip


def rope(dtype: torch.dtype, length: int, hidden: int) -> Layer:
    q, k = (x.transpose(1, 2) for x in heads(dtype, length, hidden))
    cos, sin = (drawn(1, length, hidden // 32, dtype=dtype, grad=False) for _ in range(2))

    def turned(x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        return torch.cat((-x[..., half:], x[..., :half]), dim=-1)

    def forward() -> tuple[Tensor, ...]:
        c, s = cos.unsqueeze(1), sin.unsqueeze(1)
        return (q * c) + (turned(q) * s), (k * c) + (turned(k) * s)

    return rotated(forward, q, k)


def complex_rope(dtype: torch.dtype, length: int, hidden: int) -> Layer:
    q, k = heads(dtype, length, hidden)
    angles = torch.polar(*(drawn(1, length, hidden // 64, grad=False) for _ in range(2)))

    def turned(x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * angles[:, :, None, :]).flatten(3).type_as(x)

    return rotated(lambda: (turned(q), turned(k)), q, k)


LAYERS: dict[str, Callable[..., Layer]] = {
    "cross-entropy": cross_entropy,
    "linear-cross-entropy": linear_cross_entropy,
    "kl-divergence": kl_divergence,
    "jensen-shannon": jensen_shannon,
    "jensen-shannon-rows": jensen_shannon_rows,
    "linear-jensen-shannon": linear_jensen_shannon,
    "total-variation": total_variation,
    "layer-norm": layer_norm,
    "group-norm": group_norm,
    "rms-norm": rms_norm,
    "add-rms-norm": add_rms_norm,
    "fused-rms-norm": fused_rms_norm,
    "softmax": softmax,
    "relu-squared": relu_squared,
    "sparsemax": sparsemax,
    "swiglu": swiglu,
    "geglu": geglu,
    "chunked-swiglu": chunked_swiglu,
    "embedding": embedding,
    "rope": rope,
    "complex-rope": complex_rope,
}
"""By the name of a row's program; sizes follow the type."""
