"""The host's time of a call: operators, modules, backward passes, optimizers, on sizes that the GPU hardly feels."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

from tools.hardware.context import Context, Items, Row, answered
from tools.hardware.stages.facts import ratio

ORDER = 59
TITLE = "The host's time of a call"
LIMIT_S = 90
ITEM_S = 90
OPTIONS = ("--no-data", "--assume", "1")
CALLS, REPEATS = 100, 7
Call = Callable[[], object]


def items(context: Context) -> Items:
    """All in one process, as a program has them."""
    return {"calls": lambda: measured(context)}


def measured(context: Context) -> dict[str, dict[str, float]]:
    """Microseconds of a call to launch and until the device is done: medians of repetitions of many calls."""
    found = {}
    for name, call in table().items():
        found[name] = _time(call, 3 if context.short or not context.real else CALLS)
    return found


def _time(call: Call, calls: int) -> dict[str, float]:
    import torch

    for _ in range(5):
        call()
    launched, done = [], []
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(calls):
            call()
        launched.append((time.perf_counter() - begun) / calls)
        torch.cuda.synchronize()
        done.append((time.perf_counter() - begun) / calls)
    return {"host_us": round(1e6 * median(launched), 3), "done_us": round(1e6 * median(done), 3)}


def table() -> dict[str, Call]:
    """The calls, by name."""
    import torch

    with torch.no_grad():
        x, y = torch.ones(32, 32, device="cuda"), torch.ones(32, 32, device="cuda")
    return {**_operators(x, y), **_trained(x, y), **_modules(), **_optimizers(), **_further(x)}


def _operators(x: Any, y: Any) -> dict[str, Call]:
    import torch
    from torch.nn import functional

    rows = torch.arange(8, device="cuda")
    image, weight = torch.ones(1, 8, 8, 8, device="cuda"), torch.ones(8, 8, 3, 3, device="cuda")
    lists = [[torch.ones(8, device="cuda") for _ in range(50)] for _ in range(2)]
    return {
        "add": lambda: x + y,
        "add in place": lambda: x.add_(0.0),
        "mul scalar": lambda: x * 2.0,
        "exp": lambda: x.exp(),
        "where": lambda: torch.where(x > 0, x, y),
        "copy": lambda: x.clone(),
        "to half": lambda: x.half(),
        "empty": lambda: torch.empty(32, 32, device="cuda"),
        "zeros": lambda: torch.zeros(32, 32, device="cuda"),
        "view": lambda: x.view(16, 64),
        "transpose": lambda: x.mT,
        "slice": lambda: x[:16],
        "contiguous of transposed": lambda: x.mT.contiguous(),
        "cat": lambda: torch.cat((x, y)),
        "stack": lambda: torch.stack((x, y)),
        "split": lambda: x.split(8),
        "sum": lambda: x.sum(),
        "mean of rows": lambda: x.mean(-1),
        "max": lambda: x.max(-1),
        "argmax": lambda: x.argmax(-1),
        "softmax": lambda: x.softmax(-1),
        "cumsum": lambda: x.cumsum(-1),
        "sort": lambda: x.sort(-1),
        "topk": lambda: x.topk(4),
        "index": lambda: x[rows],
        "gather": lambda: x.gather(0, rows[None]),
        "index_add": lambda: x.index_add_(0, rows, y[:8]),
        "embedding": lambda: functional.embedding(rows, x),
        "mm": lambda: x @ y,
        "bmm": lambda: torch.bmm(x[None], y[None]),
        "einsum": lambda: torch.einsum("ij,jk->ik", x, y),
        "linear": lambda: functional.linear(x, y, x[0]),
        "conv2d": lambda: functional.conv2d(image, weight, padding=1),
        "max_pool2d": lambda: functional.max_pool2d(image, 2),
        "layer_norm": lambda: functional.layer_norm(x, (32,), x[0], x[0]),
        "group_norm": lambda: functional.group_norm(image, 4),
        "gelu": lambda: functional.gelu(x),
        "dropout": lambda: functional.dropout(x, 0.1),
        "attention": lambda: functional.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]),
        "interpolate": lambda: functional.interpolate(image, scale_factor=2.0),
        "pad": lambda: functional.pad(image, (1, 1)),
        "randn": lambda: torch.randn(32, 32, device="cuda"),
        "randint": lambda: torch.randint(0, 9, (32,), device="cuda"),
        "foreach add of 50": lambda: torch._foreach_add_(lists[0], lists[1]),
        "cross_entropy": lambda: functional.cross_entropy(x, rows[:1].expand(32)),
    }


def _trained(x: Any, y: Any) -> dict[str, Call]:
    from torch.nn import functional

    leaf = x.clone().requires_grad_()

    def forward_and_backward(make: Callable[[Any], Any]) -> Call:
        def call() -> None:
            make(leaf).sum().backward()
            leaf.grad = None

        return call

    return {
        "add, forward and backward": forward_and_backward(lambda x: x + 1.0),
        "mm, forward and backward": forward_and_backward(lambda x: x @ x),
        "linear, gelu, linear, forward and backward": forward_and_backward(
            lambda x: functional.linear(functional.gelu(functional.linear(x, y)), y)
        ),
        "softmax, forward and backward": forward_and_backward(lambda x: x.softmax(-1)),
    }


def _modules() -> dict[str, Call]:
    import torch
    from torch import nn

    x, image = torch.ones(4, 16, 64, device="cuda"), torch.ones(2, 16, 8, 8, device="cuda")
    made: dict[str, tuple[nn.Module, Any]] = {
        "Linear": (nn.Linear(64, 64), x),
        "LayerNorm": (nn.LayerNorm(64), x),
        "BatchNorm2d": (nn.BatchNorm2d(16), image),
        "Conv2d": (nn.Conv2d(16, 16, 3, padding=1), image),
        "ReLU": (nn.ReLU(), x),
        "Dropout": (nn.Dropout(), x),
        "MultiheadAttention": (nn.MultiheadAttention(64, 4, batch_first=True), x),
        "TransformerEncoderLayer": (nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), x),
        "LSTM": (nn.LSTM(64, 64, batch_first=True), x),
        "GRUCell": (nn.GRUCell(64, 64), x[0]),
        "ten linear layers": (nn.Sequential(*(nn.Linear(64, 64) for _ in range(10))), x),
        "residual block": (
            nn.Sequential(
                nn.Conv2d(16, 16, 3, padding=1),
                nn.BatchNorm2d(16),
                nn.ReLU(),
                nn.Conv2d(16, 16, 3, padding=1),
                nn.BatchNorm2d(16),
            ),
            image,
        ),
    }
    found: dict[str, Call] = {}
    for name, (module, inputs) in made.items():
        module = module.cuda()
        arguments = (inputs,) * (3 if name == "MultiheadAttention" else 1)

        def forward(module: nn.Module = module, arguments: tuple[Any, ...] = arguments) -> Any:
            out = module(*arguments)
            return out[0] if isinstance(out, tuple) else out

        def quiet(forward: Call = forward) -> None:
            with torch.no_grad():
                forward()

        def trained(forward: Any = forward, module: nn.Module = module) -> None:
            out = forward()
            if out.requires_grad:
                out.sum().backward()
                module.zero_grad()

        found |= {f"{name}, no_grad": quiet, f"{name}, forward": forward, f"{name}, forward and backward": trained}
    return found


def _optimizers() -> dict[str, Call]:
    import torch

    found: dict[str, Call] = {}
    kinds = {
        "SGD": torch.optim.SGD,
        "Adam": torch.optim.Adam,
        "AdamW": torch.optim.AdamW,
        "RMSprop": torch.optim.RMSprop,
    }
    for name, kind in kinds.items():
        for how in ("foreach", "fused", "single") if name != "RMSprop" else ("foreach", "single"):
            for count in (4, 100):
                parameters = [torch.nn.Parameter(torch.ones(64, device="cuda")) for _ in range(count)]
                for p in parameters:
                    p.grad = torch.ones_like(p)
                options: Any = {"foreach": False} if how == "single" else {how: True}
                found[f"{name} {how} of {count}"] = kind(parameters, lr=1e-3, **options).step
    parameters = [torch.nn.Parameter(torch.ones(64, device="cuda")) for _ in range(100)]
    for p in parameters:
        p.grad = torch.ones_like(p)
    found["clip_grad_norm_ of 100"] = lambda: torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    return found


def _further(x: Any) -> dict[str, Call]:
    import torch

    pinned, pageable = torch.ones(1024).pin_memory(), torch.ones(1024)
    onto = torch.ones(1024, device="cuda")
    event, stream = torch.cuda.Event(), torch.cuda.Stream()

    def cast() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            x @ x

    def on_stream() -> None:
        with torch.cuda.stream(stream):
            x.add_(0.0)

    return {
        "item": lambda: x[0, 0].item(),
        "cpu": lambda: onto.cpu(),
        "from pinned, non_blocking": lambda: onto.copy_(pinned, non_blocking=True),
        "from pageable": lambda: onto.copy_(pageable),
        "tensor to cuda": lambda: pageable.to("cuda"),
        "synchronize": torch.cuda.synchronize,
        "event record": lambda: event.record(),
        "on a stream": on_stream,
        "wait_stream": lambda: stream.wait_stream(torch.cuda.current_stream()),
        "mm under autocast": cast,
        "tensor of a list": lambda: torch.tensor([1.0, 2.0], device="cuda"),
        "bool of a tensor": lambda: bool(x[0, 0] > 0),
        "nonzero": lambda: x.nonzero(),
    }


def rows(native: dict[str, Any], emulated: dict[str, Any]) -> list[Row]:
    """Ratios of the times, and the median of their distances from 1."""
    found: list[Row] = []
    for _, real, ours in answered(native, emulated, found):
        for name in real:
            if name in ours:
                for key in ("host_us", "done_us"):
                    words = f"{ours[name][key]} us ({ratio(real[name][key], ours[name][key])})"
                    found.append(Row(f"{name}, {key}", f"{real[name][key]} us", words, False))
        errors = [abs(ours[name]["host_us"] / real[name]["host_us"] - 1.0) for name in real if name in ours]
        found.append(Row(f"host's time, median error of {len(errors)}", "", f"{median(errors):.1%}", False))
    return found
