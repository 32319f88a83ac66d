"""`xformers.ops.swiglu_op`: a gated feed-forward block."""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import nn
from torch.nn import functional as F

from windtunnel.libraries import refuse, unanswered

from .unbind import stack_or_none, unbind

Tensor = torch.Tensor
HALVES = (torch.float16, torch.bfloat16)


def __getattr__(name: str) -> NoReturn:
    refuse("xformers 0.0.31", "xformers.ops.swiglu_op", name)


class _Gate(torch.autograd.Function):
    """silu(x1) * x2 in one kernel, forward and backward, which keeps both and computes their product again."""

    @staticmethod
    def forward(ctx, x1, x2):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x1, x2)
        return F.silu(x1) * x2

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        x1, x2 = ctx.saved_tensors
        return torch.ops.aten.silu_backward(grad * x2, x1), grad * F.silu(x1)


def _check(w1: Tensor, b1: Tensor | None, w2: Tensor, b2: Tensor | None, w3: Tensor, b3: Tensor | None) -> None:
    if w1.dim() != 2 or w1.shape != w2.shape:
        raise ValueError(f"Invalid shapes for w1: {w1.shape} / w2: {w2.shape}")
    for name, bias, weight in (("b1", b1, w1), ("b2", b2, w2)):
        if bias is not None and (bias.dim() != 1 or bias.shape[0] != weight.shape[0]):
            raise ValueError(f"Invalid shapes for {name}: {bias.shape}")
    if w3.dim() != 2 or w3.shape[1] != w2.shape[0]:
        raise ValueError(f"Invalid shape for w3: {w3.shape}")
    if b3 is not None and (b3.dim() != 1 or b3.shape[0] != w3.shape[0]):
        raise ValueError(f"Invalid shapes for w3: {w3.shape} / b3: {b3.shape}")


def swiglu(
    x: Tensor, w1: Tensor, b1: Tensor | None, w2: Tensor, b2: Tensor | None, w3: Tensor, b3: Tensor | None, *,
    op: object = None,
) -> Tensor:  # fmt: skip
    """`linear(silu(linear(x, w1, b1)) * linear(x, w2, b2), w3, b3)`; one product of both where `w1`, `w2` are one."""
    if op is not None:
        unanswered("xformers 0.0.31", "swiglu with op")
    _check(w1, b1, w2, b2, w3, b3)
    both = stack_or_none((w1, w2), 0)
    biases = None if b1 is None or b2 is None else stack_or_none((b1, b2), 0)
    half = x.dtype in HALVES or torch.is_autocast_enabled("cuda")
    packed = half and both is not None and (b1 is None or biases is not None)
    if packed and both is not None:
        hidden = F.linear(x, both.flatten(0, 1), None if biases is None else biases.flatten())
        x1, x2 = hidden.unflatten(-1, (2, -1)).unbind(-2)
    else:
        x1, x2 = F.linear(x, w1, b1), F.linear(x, w2, b2)
    gated = _Gate.apply(x1, x2) if half else F.silu(x1) * x2
    return F.linear(gated, w3, b3)


class SwiGLU(nn.Module):
    """The block as a layer, with one weight of both products (`_pack_weights`) or two."""

    def __init__(
        self, in_features: int, hidden_features: int, out_features: int | None = None, bias: bool = True, *,
        _pack_weights: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        out = out_features or in_features
        hidden = hidden_features or in_features
        self.w12: nn.Linear | None
        if _pack_weights:
            self.w12 = nn.Linear(in_features, 2 * hidden, bias=bias)
        else:
            self.w12 = None
            self.w1 = nn.Linear(in_features, hidden, bias=bias)
            self.w2 = nn.Linear(in_features, hidden, bias=bias)
        self.w3 = nn.Linear(hidden, out, bias=bias)
        self.hidden_features, self.out_features, self.in_features = hidden, out, in_features
        self.op = None

    def forward(self, x: Tensor) -> Tensor:
        """The block of [..., in_features]."""
        return swiglu(x, *self._ordered_params(), op=self.op)

    def _ordered_params(self) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None, Tensor, Tensor | None]:
        b1: Tensor | None
        b2: Tensor | None
        if self.w12 is None:
            w1, w2, b1, b2 = self.w1.weight, self.w2.weight, self.w1.bias, self.w2.bias
        else:
            w1, w2 = unbind(self.w12.weight.unflatten(0, (2, -1)), 0)
            b1 = b2 = None
            if self.w12.bias is not None:
                b1, b2 = unbind(self.w12.bias.unflatten(0, (2, -1)), 0)
        return w1, b1, w2, b2, self.w3.weight, self.w3.bias
