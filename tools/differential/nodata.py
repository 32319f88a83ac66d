"""Random small trainings with data beside the same without: `make differential-nodata`.

    python -m tools.differential nodata                     # 300 seeds
    python -m tools.differential nodata --program 7         # the program of one seed again
    python -m tools.differential nodata --program 300:600   # others

A program is a stack of layers, a loss, an optimizer, a precision and a way to run it, none of which reads a value. The
rows of both traces (kernels, shapes, types, streams, bytes and times), the statistics of the allocator and the host's
clock have to be equal.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import windtunnel
from tools.differential.seeds import arguments, judged
from windtunnel.trace.operation import UNKNOWN_SITE, Kind
from windtunnel.trace.trace import Record

GPUS = ("A100", "V100", "H100", "RTX4090")
PRECISIONS = ("plain", "plain", "float16", "bfloat16", "half model", "double")


class Attention(nn.Module):
    """Attention over positions, causal or not, masked or not, by heads of a size that some kernels do not take."""

    def __init__(self, width: int, heads: int, causal: bool, masked: bool) -> None:
        super().__init__()
        self.width, self.heads, self.causal, self.masked = width, heads, causal, masked
        self.into = nn.Linear(width, 3 * width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Rows of `width` as positions of one batch."""
        rows = self.into(x.reshape(1, -1, self.width))
        query, key, value = (one.unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in rows.chunk(3, -1))
        mask = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=x.device) if self.masked else None
        found = functional.scaled_dot_product_attention(query, key, value, mask, is_causal=self.causal and mask is None)
        return found.transpose(1, 2).reshape(x.shape)


class Recurrent(nn.Module):
    """A recurrent layer over rows."""

    def __init__(self, kind: str, width: int, layers: int, both: bool) -> None:
        super().__init__()
        size = width // 2 if both else width
        self.layer = getattr(nn, kind)(width, size, layers, batch_first=True, bidirectional=both, dropout=0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The outputs, shaped as the inputs."""
        return self.layer(x.reshape(2, -1, x.shape[-1]))[0].reshape(x.shape)


class Conv(nn.Module):
    """A convolution, a normalization and a pooling over rows as images."""

    def __init__(self, draw: random.Random, width: int) -> None:
        super().__init__()
        groups = draw.choice((1, 2, 4))
        norms: tuple[Callable[[], nn.Module], ...] = (
            lambda: nn.BatchNorm2d(4, affine=draw.random() < 0.7, track_running_stats=draw.random() < 0.7),
            lambda: nn.GroupNorm(2, 4),
            lambda: nn.InstanceNorm2d(4, affine=True),
            nn.Identity,
        )
        pools = (nn.Identity(), nn.AvgPool2d(3, 1, 1), nn.MaxPool2d(3, 1, 1), nn.AdaptiveAvgPool2d((4, width // 4)))
        kind = draw.choice((nn.Conv2d, nn.ConvTranspose2d))
        self.layers = nn.Sequential(
            kind(4, 4, 3, padding=1, groups=groups, bias=draw.random() < 0.5), draw.choice(norms)(), draw.choice(pools)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The outputs, shaped as the inputs."""
        return self.layers(x.reshape(-1, 4, 4, x.shape[-1] // 4)).reshape(x.shape)


def layer(draw: random.Random, width: int) -> nn.Module:
    """A layer that keeps the shape."""
    made: tuple[Callable[[], nn.Module], ...] = (
        lambda: nn.Linear(width, width, bias=draw.random() < 0.5),
        lambda: draw.choice((nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Mish, nn.Softplus, nn.PReLU, nn.Hardswish))(),
        lambda: nn.LayerNorm(width, elementwise_affine=draw.random() < 0.7),
        lambda: nn.RMSNorm(width),
        lambda: nn.Dropout(draw.choice((0.0, 0.1, 0.5)), inplace=draw.random() < 0.3),
        lambda: nn.BatchNorm1d(width, momentum=draw.choice((0.1, None)), affine=draw.random() < 0.7),
        lambda: Attention(width, draw.choice((2, 4)), draw.random() < 0.5, draw.random() < 0.3),
        lambda: Recurrent(draw.choice(("LSTM", "GRU", "RNN")), width, draw.choice((1, 2)), draw.random() < 0.3),
        lambda: Conv(draw, width),
        lambda: nn.TransformerEncoderLayer(width, 2, 2 * width, batch_first=True, norm_first=draw.random() < 0.5),
        lambda: nn.Softmax(-1),
        lambda: nn.Sequential(nn.Linear(width, 2 * width), nn.GLU()),
    )
    return draw.choice(made)()


LOSSES: tuple[Callable[[torch.Tensor, torch.Tensor], torch.Tensor], ...] = (
    lambda out, _: out.square().mean(),
    lambda out, _: functional.huber_loss(out, torch.zeros_like(out)),
    functional.cross_entropy,
    lambda out, goal: functional.cross_entropy(out, goal, label_smoothing=0.1, ignore_index=1),
    lambda out, goal: functional.nll_loss(out.log_softmax(-1), goal),
    lambda out, _: functional.binary_cross_entropy_with_logits(out, torch.ones_like(out)),
    lambda out, _: out.norm() + out.std() + out.logsumexp(-1).sum(),
    lambda out, goal: out.gather(1, goal[:, None]).sum() + out.cumsum(0).max(),
)


def optimizers(parameters: list[nn.Parameter]) -> tuple[Callable[[], torch.optim.Optimizer], ...]:
    """The optimizers, of which one is made."""
    return (
        lambda: torch.optim.SGD(parameters, 0.01),
        lambda: torch.optim.SGD(parameters, 0.01, momentum=0.9, nesterov=True, foreach=False),
        lambda: torch.optim.Adam(parameters),
        lambda: torch.optim.AdamW(parameters, foreach=False, amsgrad=True),
        lambda: torch.optim.AdamW(parameters, fused=True),
        lambda: torch.optim.Adam(parameters, capturable=True),
        lambda: torch.optim.RMSprop(parameters, momentum=0.5),
        lambda: torch.optim.Adagrad(parameters),
        lambda: torch.optim.Adafactor(parameters),
        lambda: torch.optim.NAdam(parameters),
    )


@dataclass(frozen=True)
class Ways:
    """How a program is run."""

    precision: str
    checkpointed: bool
    clipped: bool
    side_stream: bool
    set_to_none: bool
    evaluated: bool
    accumulated: int


def ways(draw: random.Random) -> Ways:
    """A program's own."""
    a, b, c, d, e = (draw.random() < 0.3 for _ in range(5))
    return Ways(draw.choice(PRECISIONS), a, b, c, d, e, draw.choice((1, 1, 2)))


def program(seed: int) -> None:
    """The training of one seed, on the current GPU."""
    draw = random.Random(f"no data {seed}")
    width, rows = draw.choice((16, 32, 60)), draw.choice((4, 8, 24))
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(12, width), *(layer(draw, width) for _ in range(draw.randint(2, 7)))).cuda()
    how, loss = ways(draw), draw.choice(LOSSES)
    inputs, goals = torch.randn(rows, 12), torch.randint(0, width, (rows,))
    if how.precision in ("half model", "double"):
        kind = torch.bfloat16 if how.precision == "half model" else torch.float64
        model, inputs = model.to(kind), inputs.to(kind)
    optimizer = draw.choice(optimizers(list(model.parameters())))()
    scheduler = draw.choice((None, torch.optim.lr_scheduler.StepLR(optimizer, 1)))
    cast: torch.dtype | None = getattr(torch, how.precision, None)
    scaler = torch.amp.GradScaler("cuda", init_scale=1.0, enabled=how.precision == "float16")
    side = torch.cuda.Stream()
    for _ in range(2):
        optimizer.zero_grad(set_to_none=how.set_to_none)
        for _ in range(how.accumulated):
            x, goal = inputs.pin_memory().cuda(non_blocking=True), goals.cuda()
            with torch.autocast("cuda", dtype=cast, enabled=cast is not None):
                out = checkpoint(model, x, use_reentrant=False) if how.checkpointed else model(x)
                found = loss(out, goal)
            scaler.scale(found).backward()
        if how.clipped:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        if scheduler is not None:
            scheduler.step()
        if how.side_stream:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                inputs_norm = x.float().norm()
            torch.cuda.current_stream().wait_stream(side)
            inputs_norm.add_(1)
    if how.evaluated:
        model.eval()
        with torch.inference_mode():
            model(inputs.cuda()).argmax(-1).cpu()
    torch.cuda.synchronize()


def measured(seed: int, no_data: bool) -> tuple[list[Record], dict[str, Any]]:
    """(the trace's rows, the allocator's statistics and the host's time) of a program."""
    torch.cuda._check_bf16_tensor_supported.cache_clear()  # it asks a GPU once a process
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        session = stack.enter_context(windtunnel.emulate(GPUS[seed % len(GPUS)], no_data=no_data))
        error = ""
        try:
            program(seed)
        except RuntimeError as raised:
            error = type(raised).__name__  # its text may name the tensor's class, which is another without values
        facts = {"error": error, **torch.cuda.memory_stats(), "host": session.machine.host.now_ns}
    rows = [one._replace(site=UNKNOWN_SITE) for one in session.trace if one.kind is not Kind.NOTE]
    return rows, facts


def told(one: Record, other: Record) -> str:
    """What differs between two rows."""
    if one.signature.name != other.signature.name:
        return f"{one.signature.name} -> {other.signature.name}"
    pairs = [
        *zip(one._fields, one, other, strict=True),
        *zip(one.signature._fields, one.signature, other.signature, strict=True),
    ]
    return f"{one.signature.name}: " + ", ".join(
        f"{name} {a} -> {b}" for name, a, b in pairs if a != b and name != "signature"
    )


def differences(seed: int) -> Iterator[str]:
    """The first row that differs, and the first fact."""
    (rows, facts), (bare_rows, bare_facts) = measured(seed, no_data=False), measured(seed, no_data=True)
    pairs = enumerate(zip(rows, bare_rows, strict=False))
    row = next((f"row {number}: {told(one, other)}" for number, (one, other) in pairs if one != other), "")
    if row or len(rows) != len(bare_rows):
        yield row or f"rows: {len(rows)} -> {len(bare_rows)}"
    names = [name for name in facts if facts[name] != bare_facts.get(name)]
    if names:
        yield f"{names[0]}: {facts[names[0]]} -> {bare_facts.get(names[0])}"


def main(words: Sequence[str]) -> int:
    """Compare the programs of the seeds that are asked for; 1 where one differs."""
    seeds = arguments(words, "program", 300, __doc__ or "")
    return 1 if judged("program", seeds, lambda seed: list(differences(seed)), _described)[""] else 0


def _described(seed: int) -> str:
    return f"on {GPUS[seed % len(GPUS)]}"
