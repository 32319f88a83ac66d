"""What a GPU keeps of its speed under a long load: kinds of kernels and training steps, with clock and power beside.

Each load begins on a card that has rested. Its first steps tell the burst, the last third of its time what is left once
the card draws no more than it may.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

from tools.hardware.context import Context, Items, Row, answered
from tools.hardware.stages.facts import ratio

ORDER = 58
TITLE = "Sustained against burst"
LIMIT_S = 260
ITEM_S = 120
OPTIONS = ("--no-data", "--assume", "1")
REST_S = 2.0
SAMPLE_S = 0.1
SECONDS = {"GPT-2 medium, training": 30.0, "GPT-2 medium, training, compiled": 12.0}
"""How long a load runs; the others `SHORTER` seconds, in which a card reaches its limit too."""
SHORTER = 6.0
Call = Callable[[], object]


def items(context: Context) -> Items:
    """A load each."""
    return {name: lambda name=name: measured(name, context) for name in LOADS}


def measured(name: str, context: Context) -> dict[str, Any]:
    """Milliseconds of the first calls and of the last third of the time; clocks, power and temperature then."""
    import torch

    torch.manual_seed(0)
    call = LOADS[name]()
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    one_ms = _elapsed(call, 1)
    together = max(1, round(100.0 / max(one_ms, 0.01)))  # about a tenth of a second between two readings
    seconds = 0.5 if context.short or not context.real else SECONDS.get(name, SHORTER)
    time.sleep(REST_S if context.real else 0.0)
    burst_ms = [_elapsed(call, 1) for _ in range(3)]
    spans: list[tuple[float, float]] = []
    with _sensors(context.real) as readings:
        begun = time.monotonic()
        while time.monotonic() - begun < seconds and len(spans) < 1000:
            spans.append((time.monotonic() - begun, _elapsed(call, together)))
            if not context.real and len(spans) > 4:
                break
    last = [ms for at, ms in spans if at >= spans[-1][0] * 2 / 3]
    found: dict[str, Any] = {
        "first call ms": round(one_ms, 4),
        "burst_ms": round(median(burst_ms), 4),
        "sustained_ms": round(median(last), 4),
        "spans": [round(ms, 4) for _, ms in spans][:: max(1, len(spans) // 60)],
    }
    if readings:
        late = readings[len(readings) * 2 // 3 :]
        for place, key in enumerate(("sm_mhz", "memory_mhz", "power_w", "celsius")):
            found[key] = round(median(reading[place] for reading in late), 1)
        found["power_w over time"] = [round(reading[2]) for reading in readings][:: max(1, len(readings) // 40)]
        found["sm_mhz over time"] = [reading[0] for reading in readings][:: max(1, len(readings) // 40)]
    return found


def _elapsed(call: Call, times: int) -> float:
    """Milliseconds of one of `times` calls between two events."""
    import torch

    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(times):
        call()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / times


@contextmanager
def _sensors(real: bool) -> Iterator[list[tuple[float, float, float, float]]]:
    """Clocks, power and temperature, read beside the load where a driver is there."""
    readings: list[tuple[float, float, float, float]] = []
    if not real:
        yield readings
        return
    import pynvml as nvml

    nvml.nvmlInit()
    card, over = nvml.nvmlDeviceGetHandleByIndex(0), threading.Event()

    def read() -> None:
        while not over.wait(SAMPLE_S):
            readings.append(
                (
                    nvml.nvmlDeviceGetClockInfo(card, nvml.NVML_CLOCK_SM),
                    nvml.nvmlDeviceGetClockInfo(card, nvml.NVML_CLOCK_MEM),
                    nvml.nvmlDeviceGetPowerUsage(card) / 1000.0,
                    nvml.nvmlDeviceGetTemperature(card, nvml.NVML_TEMPERATURE_GPU),
                )
            )

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield readings
    finally:
        over.set()
        reader.join()


# ---------------------------------------------------------------------- the loads


def _product(precision: str, tf32: bool = False, zeros: bool = False) -> Callable[[], Call]:
    def make() -> Call:
        import torch

        torch.backends.cuda.matmul.allow_tf32 = tf32
        fill = torch.zeros if zeros else torch.randn
        a, b, c = (fill(8192, 8192, device="cuda", dtype=getattr(torch, precision)) for _ in range(3))
        return lambda: torch.mm(a, b, out=c)

    return make


def _eight_bits() -> Call:
    import torch

    a = torch.randn(8192, 8192, device="cuda").to(torch.float8_e4m3fn)
    b = torch.randn(8192, 8192, device="cuda").to(torch.float8_e4m3fn).mT
    one = torch.ones((), device="cuda")
    return lambda: torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16, use_fast_accum=True)


def _copy() -> Call:
    import torch

    a = torch.randn(1 << 29, device="cuda")
    b = torch.empty_like(a)
    return lambda: b.copy_(a)


def _attention(training: bool) -> Callable[[], Call]:
    def make() -> Call:
        import torch
        from torch.nn import functional

        q, k, v = (
            torch.randn(8, 16, 4096, 128, device="cuda", dtype=torch.bfloat16, requires_grad=training) for _ in range(3)
        )

        def call() -> None:
            out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            if training:
                out.backward(v.detach())
                q.grad = k.grad = v.grad = None

        return call

    return make


def _gpt(
    layers: int, width: int, heads: int, batch: int, compiled: bool = False, vocabulary: int = 50304
) -> Callable[[], Call]:
    """A decoder with attention by `scaled_dot_product_attention`, 1,024 tokens, in bfloat16, with a fused AdamW."""

    def make() -> Call:
        import torch
        from torch import nn
        from torch.nn import functional

        class Block(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
                self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
                self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

            def forward(self, x: Any) -> Any:
                q, k, v = (
                    part.view(*x.shape[:2], heads, width // heads).transpose(1, 2)
                    for part in self.qkv(self.before(x)).chunk(3, -1)
                )
                y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
                x = x + self.out(y.transpose(1, 2).reshape(x.shape))
                return x + self.down(functional.gelu(self.up(self.between(x))))

        net = nn.Sequential(
            nn.Embedding(vocabulary, width),
            *(Block() for _ in range(layers)),
            nn.LayerNorm(width),
            nn.Linear(width, vocabulary, bias=False),
        ).cuda()
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
        tokens = torch.randint(0, vocabulary, (batch, 1024), device="cuda")
        model = torch.compile(net) if compiled else net

        def step() -> None:
            with torch.autocast("cuda", torch.bfloat16):
                loss = functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return step

    return make


LOADS: dict[str, Callable[[], Call]] = {
    "GPT-2 medium, training": _gpt(24, 1024, 16, 16),
    "bfloat16 product": _product("bfloat16"),
    "1.3 billion parameters, training": _gpt(24, 2048, 16, 8),
    "TF32 product": _product("float32", tf32=True),
    "attention, forward and backward": _attention(training=True),
    "FP32 product": _product("float32"),
    "copy": _copy,
    "8-bit product": _eight_bits,
    "float16 product": _product("float16"),
    "bfloat16 product of zeros": _product("bfloat16", zeros=True),
    "attention, forward": _attention(training=False),
    "FP64 product": _product("float64"),
    "GPT-2 medium, training, compiled": _gpt(24, 1024, 16, 16, compiled=True),
}


def rows(native: dict[str, Any], emulated: dict[str, Any]) -> list[Row]:
    """Burst and sustained times of each load, and what the card kept of its speed."""
    found: list[Row] = []
    for item, real, ours in answered(native, emulated, found):
        for key in ("burst_ms", "sustained_ms"):
            found.append(Row(f"{item}, {key}", f"{real[key]}", f"{ours[key]} ({ratio(real[key], ours[key])})", False))
        kept = f"{real['burst_ms'] / real['sustained_ms']:.2f} at {real.get('power_w', '?')} W"
        found.append(Row(f"{item}, kept", kept, f"{ours['burst_ms'] / ours['sustained_ms']:.2f}", False))
    return found
