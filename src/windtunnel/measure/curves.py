"""Measure on this machine's GPU what the cost model takes from data: kernels by size, copies, the host's part.

Kernels are timed back to back between two CUDA events, behind a kernel that only spins, so that the host's launches
are ahead of the device. Data of products is random: with constant data they draw less power, and run at a higher clock.
Efficiency is what `cost/curves.py` calls by that name: roofline time over the time taken.
The program is the same on a real GPU and on an emulated one, whose model it must give back.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import NamedTuple

import torch
from torch.nn import functional

from windtunnel import gpus
from windtunnel.errors import UsageError
from windtunnel.gpus.gpu import Gpu
from windtunnel.operators.classes import tables
from windtunnel.trace import roofline
from windtunnel.trace.plain import Json

ROOFLINE_US = (3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
"""Sizes at which kernels are timed, by the roofline's time for them."""
QUEUED = 20
"""Kernels timed at once; fewer of those that take long."""
SPIN_CYCLES = 20_000_000  # about 15 ms, in which the host launches what is timed
LARGEST_SHARE = 0.2  # of the device's memory, that one kernel's tensors may take
BAND = 0.05
"""The error band of a measured point (relative): what repeated measurements differ by."""
CALLS = 400  # for the host's time of one call
MIB = 1 << 20
HALF_PEAKS = (("fp16", torch.float16), ("bf16", torch.bfloat16))

Call = Callable[[], object]


class Point(NamedTuple):
    """One kernel's size and speed."""

    roofline_us: float
    efficiency: float


class Kernel(NamedTuple):
    """A kernel to time: how to call it, and what its roofline time in microseconds is."""

    call: Call
    roofline_us: float


def this_gpu() -> Gpu:
    """The model of the current device.

    Raises:
        UsageError: there is no GPU, or none whose facts are known.
    """
    if not torch.cuda.is_available():
        raise UsageError(
            "there is no GPU here to measure: run this on a machine that has one and copy the file that it writes"
        )
    name = torch.cuda.get_device_name()
    found = [gpu for gpu in map(gpus.find, gpus.names()) if gpu.name == name]
    size = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    if not found:
        raise UsageError(
            f"there is no data for {name!r} (`windtunnel gpus` lists the known GPUs): add its `.toml` file "
            "first, because curves are relative to a GPU's peaks"
        )
    return min(found, key=lambda gpu: abs(gpu.memory_bytes - size))


def measure(gpu: Gpu, tell: Callable[[str], None] = lambda words: None, how: str = "measured") -> Json:
    """Everything that is measured, as the tables of the file; `tell` hears what comes next, `how` goes into it."""
    source = f"{how} on {gpu.name}, torch {torch.__version__}, CUDA {torch.version.cuda or 'of a CPU build'}"
    found: Json = {"gpu": gpu.key, "generation": gpu.generation, "curve": []}
    for (operator_class, precision), kernels in plans(gpu).items():
        tell(f"{operator_class} {precision}")
        points = [_point(kernel) for kernel in kernels(gpu)]
        if points:
            found["curve"].append(
                {
                    "class": operator_class,
                    "precision": precision,
                    "roofline_us": [round(point.roofline_us, 3) for point in points],
                    "efficiency": [round(point.efficiency, 4) for point in points],
                    "band": [BAND] * len(points),
                    "source": source,
                }
            )
    tell("the host")
    found["dispatch_us"] = dispatch()
    found["driver"] = driver()
    tell("copies")
    found["links"] = links()
    return found


# ---------------------------------------------------------------------- kernels


def plans(gpu: Gpu) -> dict[tuple[str, str], Callable[[Gpu], Iterator[Kernel]]]:
    """What is timed, by class of operator and precision."""
    found: dict[tuple[str, str], Callable[[Gpu], Iterator[Kernel]]] = {
        ("elementwise", "fp32"): lambda g: _memory_bound(g, 3, _add),
        ("activation", "fp32"): lambda g: _memory_bound(g, 2, lambda x: lambda: functional.gelu(x)),
        ("softmax", "fp32"): lambda g: _memory_bound(g, 2, lambda x: lambda: torch.softmax(x, -1)),
        ("norm", "fp32"): lambda g: _memory_bound(g, 2, lambda x: lambda: functional.layer_norm(x, x.shape[-1:])),
    }
    kinds = [("fp32", torch.float32)] + [("tf32", torch.float32)] * ("tf32" in gpu.peak_flops)
    kinds += [(name, dtype) for name, dtype in HALF_PEAKS[: 1 + (gpu.compute_capability >= (8, 0))]]
    for precision, dtype in kinds:
        if precision in gpu.peak_flops:
            found["matmul", precision] = _of(_products, precision, dtype)
            found["bmm", precision] = _of(_batched, precision, dtype)
            found["convolution", precision] = _of(_convolutions, precision, dtype)
    return found


def _of(make: Callable[..., Iterator[Kernel]], precision: str, dtype: torch.dtype) -> Callable[[Gpu], Iterator[Kernel]]:
    def kernels(gpu: Gpu) -> Iterator[Kernel]:
        before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
        try:
            yield from make(gpu, precision, dtype)
        finally:
            torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before

    return kernels


def _memory_bound(gpu: Gpu, passes: int, make: Callable[[torch.Tensor], Call]) -> Iterator[Kernel]:
    for us in ROOFLINE_US:
        rows = max(1, round(us * 1e-6 * gpu.memory_bandwidth_bytes_per_s / (passes * 4 * 1024)))
        size = passes * rows * 4096
        if size <= LARGEST_SHARE * gpu.memory_bytes:
            x = torch.ones(rows, 1024, device="cuda")
            yield Kernel(make(x), 1e6 * size / gpu.memory_bandwidth_bytes_per_s)


def _roofline_us(gpu: Gpu, precision: str, flops: float, size_bytes: float) -> float:
    rates = gpu.peak_flops[precision], gpu.memory_bandwidth_bytes_per_s
    return max(roofline.times_ns(flops, size_bytes, *rates)) / 1000.0


def _products(gpu: Gpu, precision: str, dtype: torch.dtype) -> Iterator[Kernel]:
    for n in _sizes(gpu, precision, 1):
        a = torch.randn(n, n, device="cuda", dtype=dtype)
        yield Kernel(_mm(a), _roofline_us(gpu, precision, 2 * n**3, 3 * n * n * a.element_size()))


def _batched(gpu: Gpu, precision: str, dtype: torch.dtype) -> Iterator[Kernel]:
    for n in _sizes(gpu, precision, 16):
        a = torch.randn(16, n, n, device="cuda", dtype=dtype)
        yield Kernel(_bmm(a), _roofline_us(gpu, precision, 32 * n**3, 48 * n * n * a.element_size()))


def _convolutions(gpu: Gpu, precision: str, dtype: torch.dtype) -> Iterator[Kernel]:
    """1x1 kernels over 256 channels with channels last, images of 28x28."""
    for us in ROOFLINE_US:
        images = max(1, round(us * 1e-6 * gpu.peak_flops[precision] / (2 * 784 * 256 * 256)))
        x = torch.randn(images, 256, 28, 28, device="cuda", dtype=dtype).to(memory_format=torch.channels_last)
        weight = torch.randn(256, 256, 1, 1, device="cuda", dtype=dtype).to(memory_format=torch.channels_last)
        size = (2 * x.numel() + weight.numel()) * x.element_size()
        yield Kernel(_conv(x, weight), _roofline_us(gpu, precision, 2.0 * x.numel() * 256, size))


def _sizes(gpu: Gpu, precision: str, batch: int) -> list[int]:
    """Sides of square products that take the roofline about as long as is wanted, in multiples of 64."""
    sides = [(us * 1e-6 * gpu.peak_flops[precision] / (2 * batch)) ** (1 / 3) for us in ROOFLINE_US]
    return sorted({max(64, 64 * round(side / 64)) for side in sides})


def _add(x: torch.Tensor) -> Call:
    y, out = torch.ones_like(x), torch.empty_like(x)
    return lambda: torch.add(x, y, out=out)


def _mm(a: torch.Tensor) -> Call:
    return lambda: torch.mm(a, a)


def _bmm(a: torch.Tensor) -> Call:
    return lambda: torch.bmm(a, a)


def _conv(x: torch.Tensor, weight: torch.Tensor) -> Call:
    return lambda: functional.conv2d(x, weight)


def _point(kernel: Kernel) -> Point:
    taken = kernel_us(kernel.call)
    gc.collect()
    return Point(kernel.roofline_us, kernel.roofline_us / taken)


def kernel_us(call: Call) -> float:
    """What one call's kernels take on the device, in microseconds."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    first = _spaced(call, 1)
    if not first:
        return 0.0  # it launched nothing
    return _spaced(call, max(1, min(QUEUED, math.ceil(50_000.0 / first)))) if first < 50_000.0 else first


def _spaced(call: Call, times: int) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(SPIN_CYCLES)
    begin.record()
    for _ in range(times):
        call()
    end.record()
    torch.cuda.synchronize()
    return float(1000.0 * begin.elapsed_time(end) / times)


# ---------------------------------------------------------------------- the host


def dispatch() -> dict[str, float]:
    """Host time of one call by class of operator, in microseconds: what a loop of small calls takes on the host."""
    x, y = torch.ones(64, 64, device="cuda"), torch.empty(64, 64, device="cuda")
    image, weight = torch.ones(1, 8, 8, 8, device="cuda"), torch.ones(8, 8, 1, 1, device="cuda")
    calls: dict[str, Call] = {
        "elementwise": lambda: torch.add(x, x, out=y),
        "activation": lambda: torch.exp(x, out=y),
        "matmul": lambda: torch.mm(x, x, out=y),
        "reduction": lambda: x.sum(),
        "softmax": lambda: torch.softmax(x, -1),
        "convolution": lambda: functional.conv2d(image, weight),
    }
    return {name: round(_host_us(call), 3) for name, call in calls.items()}


def issue_factor() -> float:
    """By what this host's calls take longer than the model's reference: the median over the classes that are timed."""
    return median(us / tables().classes[name].dispatch_us for name, us in dispatch().items())


def _host_us(call: Call) -> float:
    """The lesser of several averages: what disturbs a host only makes it slower."""
    for _ in range(20):
        call()
    averages = []
    for _ in range(3):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(CALLS):
            call()
        averages.append((time.perf_counter() - begin) / CALLS)
    torch.cuda.synchronize()
    return 1e6 * min(averages)


def driver() -> dict[str, float]:
    """What the driver takes on the host, in microseconds."""
    times = {}
    for size in (64 * MIB, 1024 * MIB):  # sizes that get a segment of their own
        torch.cuda.empty_cache()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        block = torch.empty(size, dtype=torch.uint8, device="cuda")
        times[size] = 1e6 * (time.perf_counter() - begin)
        del block
    torch.cuda.empty_cache()
    slope = max(0.0, (times[1024 * MIB] - times[64 * MIB]) / 960)
    idle = _idle_synchronize_us()
    return {
        "synchronize_us": round(idle, 3),
        "malloc_us": round(max(0.0, times[64 * MIB] - 64 * slope), 3),
        "malloc_us_per_mib": round(slope, 4),
    }


def _idle_synchronize_us() -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(CALLS):
        torch.cuda.synchronize()
    return 1e6 * (time.perf_counter() - begin) / CALLS


# ---------------------------------------------------------------------- copies


def links() -> dict[str, float]:
    """Rate and latency of copies from pinned and from pageable memory, and within the device."""
    found: dict[str, float] = {}
    for name, pinned in (("pinned", True), ("pageable", False)):
        small, large = (torch.empty(size, dtype=torch.uint8, pin_memory=pinned) for size in (4096, 128 * MIB))
        targets = [torch.empty_like(one, device="cuda") for one in (small, large)]
        times = [_copy_us(target, one, pinned) for target, one in zip(targets, (small, large), strict=True)]
        found |= _line(name, times)
    block = torch.empty(128 * MIB, dtype=torch.uint8, device="cuda")
    other = torch.empty_like(block)
    times = [kernel_us(_copier(other[:4096], block[:4096])), kernel_us(_copier(other, block))]
    return found | _line("device", times)


def _line(name: str, times_us: list[float]) -> dict[str, float]:
    slope = (times_us[1] - times_us[0]) / (128 * MIB - 4096)
    latency = max(0.0, times_us[0] - 4096 * slope)
    return {f"{name}_bytes_per_s": round(1e6 / slope), f"{name}_latency_us": round(latency, 3)}


def _copy_us(target: torch.Tensor, source: torch.Tensor, pinned: bool) -> float:
    """A copy to the device between two events; of pageable memory the host is part, so it is not run ahead of."""
    if pinned:
        return kernel_us(_copier(target, source))
    target.copy_(source)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(SPIN_CYCLES // 100)
    begin.record()
    target.copy_(source, non_blocking=True)
    end.record()
    torch.cuda.synchronize()
    return float(1000.0 * begin.elapsed_time(end))


def _copier(target: torch.Tensor, source: torch.Tensor) -> Call:
    return lambda: target.copy_(source, non_blocking=True)
