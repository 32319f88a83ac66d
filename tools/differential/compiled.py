"""Random functions compiled by `torch.compile` beside the same functions uncompiled, on an emulated GPU.

    python -m tools.differential compiled [--functions 0:60]    # make differential-compiled; --functions 7: one again

A function is a list of steps over a growing list of tensors: views, arithmetic, reductions, products, norms, writes to
what it has made and to its arguments, branches on values. It is called twice, the second time with longer tensors.
Results (values, types, shapes, strides, devices), what was written to the arguments, gradients, and the memory that is
left once all is dropped must be those of the uncompiled function. The seed also chooses the mode of `torch.compile`.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

import windtunnel
from tools.differential import seeds

WIDTH = 16
LENGTHS = (12, 20)
"""The first dimension of the arguments at the first call, and at the second."""
STEPS = 10
RTOL, ATOL = 1e-4, 1e-4
WAYS: tuple[dict[str, object], ...] = (
    {},
    {"dynamic": True},
    {"mode": "reduce-overhead"},
    {"mode": "max-autotune-no-cudagraphs"},
    {"fullgraph": True},
)


class FunctionStep(NamedTuple):
    """One step: which of `STEP`, the tensors that it takes, and a number."""

    name: str
    first: int
    second: int
    number: int


Unary = Callable[[Tensor, int], Tensor]
UNARY: dict[str, Unary] = {
    "sine": lambda x, n: torch.sin(x) * n,
    "gelu": lambda x, n: F.gelu(x),
    "softmax": lambda x, n: x.softmax(n % x.dim()),
    "norm": lambda x, n: F.layer_norm(x, x.shape[-1:]),
    "centred": lambda x, n: x - x.mean(n % x.dim(), keepdim=True),
    "running": lambda x, n: x.cumsum(n % x.dim()) / x.shape[n % x.dim()],
    "largest": lambda x, n: x.amax(-1, keepdim=True) + x,
    "turned": lambda x, n: x.transpose(0, 1).contiguous().transpose(0, 1),
    "reversed": lambda x, n: x.flip(n % x.dim()),
    "rolled": lambda x, n: x.roll(n, 0),
    "columns": lambda x, n: F.pad(x[:, n % 8 :: 2], (0, x.shape[1] - len(range(n % 8, x.shape[1], 2)))),
    "rows": lambda x, n: torch.cat([x[n % 4 :], x[: n % 4]]),
    "picked": lambda x, n: x[torch.arange(x.shape[0], device=x.device) % (1 + n)],
    "halved": lambda x, n: x.to((torch.float64, torch.bfloat16, torch.float16)[n % 3]).float(),
    "chosen": lambda x, n: torch.where(x > 0.1 * n, x, -x),
    "constant": lambda x, n: x + torch.tensor([0.5 * n], device=x.device),
    "product": lambda x, n: (x @ x.transpose(0, 1)) @ x / WIDTH,
    "filter": lambda x, n: F.conv1d(x[:, None], torch.ones(1, 1, 3, device=x.device) / 3, padding=1)[:, 0],
}
BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": torch.add,
    "times": lambda x, y: x * y.sigmoid(),
    "larger": torch.maximum,
    "attention": lambda x, y: F.scaled_dot_product_attention(x[None], y[None], x[None])[0],
    "outer": lambda x, y: torch.einsum("ij,kj->ik", x, y) @ y / WIDTH,
}
WRITE: dict[str, Callable[[Tensor, int], object]] = {
    "add_": lambda x, n: x.add_(n),
    "clamp_": lambda x, n: x.clamp_(-n, n),
    "first_": lambda x, n: x[:, 0].mul_(n),
    "rest_": lambda x, n: x[1:].copy_(x[:-1].clone()),
}
BRANCH = "branch"
"""A step that reads a value to the host: it ends a graph, so that functions in one graph have none."""
THRESHOLD = 0.4
"""What a branch compares a sum with. Not 0: the sum of a centred tensor is rounding, whose sign is the processor's."""


class Made(NamedTuple):
    """A random function, and whether gradients are asked of it; then it writes to none of its arguments."""

    steps: tuple[FunctionStep, ...]
    differentiates: bool
    way: dict[str, object]

    def __call__(self, *arguments: Tensor) -> list[Tensor]:
        tensors = list(arguments)
        for step in self.steps:
            one, other = tensors[step.first % len(tensors)], tensors[step.second % len(tensors)]
            if step.name in UNARY:
                tensors.append(UNARY[step.name](one, step.number))
            elif step.name in BINARY:
                tensors.append(BINARY[step.name](one, other))
            elif step.name in WRITE:
                WRITE[step.name](tensors[-1].clone() if self.differentiates else one, step.number)
            else:
                tensors.append(one * 2 if one.sum() > THRESHOLD else other - 1)
        return tensors[len(arguments) :][-3:]


def made(seed: int) -> Made:
    """The function of a seed."""
    draw = random.Random(seed)
    way = WAYS[seed % len(WAYS)]
    names = [*UNARY, *BINARY, *WRITE, *([] if way.get("fullgraph") else [BRANCH])]
    steps = [
        FunctionStep(draw.choice(names), draw.randrange(99), draw.randrange(99), 1 + draw.randrange(5))
        for _ in range(STEPS)
    ]
    return Made((FunctionStep("sine", 0, 0, 1), *steps), bool(seed // len(WAYS) % 2), way)


class CallOutcome(NamedTuple):
    """What a call gives: its results, what its arguments are then, and their gradients."""

    results: list[Tensor]
    arguments: list[Tensor]
    gradients: list[Tensor]


def call(function: Callable[..., list[Tensor]], length: int, differentiates: bool, seed: int) -> CallOutcome:
    """One call with arguments that a seed decides."""
    numbers = torch.Generator().manual_seed(seed)
    shapes = ((length, WIDTH), (length, WIDTH), (1, WIDTH))
    first, second, row = (torch.randn(shape, generator=numbers).cuda() for shape in shapes)
    arguments = [first, second, (row + torch.zeros_like(first)).requires_grad_(differentiates)]
    results = function(*arguments)
    gradients: list[Tensor] = []
    asked = [result for result in results if result.requires_grad]
    if asked:
        weights = [torch.linspace(-1, 1, result.numel(), device="cuda").view(result.shape) for result in asked]
        gradients = list(torch.autograd.grad(asked, arguments[2:], weights))
    return CallOutcome([result.detach() for result in results], [one.detach() for one in arguments], gradients)


def differences(wanted: CallOutcome, found: CallOutcome) -> Iterable[str]:
    """What is not as it is uncompiled."""
    for field in CallOutcome._fields:
        ours, theirs = getattr(found, field), getattr(wanted, field)
        if len(ours) != len(theirs):
            yield f"{len(ours)} {field} instead of {len(theirs)}"
        for number, (one, other) in enumerate(zip(ours, theirs, strict=False)):
            facts = [(t.dtype, t.shape, t.stride() if field == "results" else (), t.device) for t in (one, other)]
            if facts[0] != facts[1]:
                yield f"{field} {number}: {facts[0]} instead of {facts[1]}"
            elif not torch.allclose(one, other, RTOL, ATOL, equal_nan=True):
                yield f"{field} {number}: values differ by {(one - other).abs().max().item():.3g}"


def compare(seed: int) -> list[str]:
    """Run the function of a seed both ways; what differs."""
    function = made(seed)
    found: list[str] = []
    with windtunnel.emulate("A100"):
        torch._dynamo.reset()
        compiled = torch.compile(function.__call__, **function.way)  # type: ignore[call-overload]
        left = []
        for length in LENGTHS:
            wanted = call(function.__call__, length, function.differentiates, seed)
            found += differences(wanted, call(compiled, length, function.differentiates, seed))
            del wanted
            gc.collect()
            left.append(torch.cuda.memory_allocated())
        if "mode" not in function.way and left[0] != left[1]:  # CUDA graphs keep memory
            found.append(f"{left[1]} bytes are left after the second call, {left[0]} after the first")
    return found


def main(words: Sequence[str]) -> int:
    """Compare functions, and print what differs; 1 where anything does."""
    counts = seeds.judged(
        "function", seeds.arguments(words, "functions", 60, __doc__ or ""), compare, lambda seed: made(seed).way
    )
    return 1 if counts else 0
