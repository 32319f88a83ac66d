"""The check `low-tensor-core-use`: matrix work that leaves the tensor cores unused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from windtunnel.checks import Check
from windtunnel.checks._idle import Gaps
from windtunnel.trace.blocks import KernelTimes
from windtunnel.trace.finding import Finding, Fix
from windtunnel.trace.operation import Signature
from windtunnel.trace.plain import Json
from windtunnel.trace.trace import Trace
from windtunnel.trace.units import format_ns, format_share

MATRIX_NAMES = ("mm", "linear", "conv", "attention", "rnn", "lstm", "gru")
FULL_PRECISION = frozenset({"float32", "fp32", "float"})
HALF_PRECISION = frozenset({"float16", "bfloat16", "fp16", "bf16", "half"})
MIN_SHARE = 0.5  # of the run: below that, faster matrix kernels would win less than half of it
MIN_KERNELS = 100  # of matrix work, and
MIN_NS = 10_000_000  # of matrix work: a shorter program is a test or an example
ALIGNMENT = 8  # elements of 16 bits: what Volta's and Turing's matrix kernels need in every size
ALIGNMENT_MATTERS_BELOW = 8  # compute capability: from Ampere on, cuBLAS uses tensor cores for any size


@dataclass
class Use:
    """One device's matrix kernels, in nanoseconds."""

    kernels: int = 0
    full_ns: int = 0
    unaligned_ns: int = 0

    def worth(self, time_ns: int, window_ns: float) -> bool:
        """Whether it is more than a part of the device's time, in a program that is long enough to judge."""
        return self.kernels >= MIN_KERNELS and time_ns >= MIN_NS and time_ns > window_ns


class LowTensorCoreUse(Check):
    """Matrix work that leaves the tensor cores unused.

    ## What it does
    On GPUs that have tensor cores, adds up the time of matrix products, convolutions and attention in FP32 (without
    TF32), and on Volta and Turing of those in 16 bits with a size that is no multiple of eight. More than half of the
    run is reported, once a program has run for a while.

    ## Why it is bad
    Tensor cores multiply matrices several times as fast as the other cores: eight times on a V100. Only half precision,
    TF32 (from Ampere on) and suitable sizes reach them.

    ## Example
    ```python
    for x, y in batches:
        loss = criterion(net(x), y)
    ```

    ## Use instead
    ```python
    torch.set_float32_matmul_precision("high")  # TF32, from Ampere on
    for x, y in batches:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = criterion(net(x), y)
    ```
    """

    code: ClassVar = "low-tensor-core-use"
    costs: ClassVar = True
    parts: ClassVar = {"gaps": Gaps, "kernels": KernelTimes}
    gaps: Gaps
    kernels: KernelTimes

    def findings(self, trace: Trace) -> list[Finding]:
        """At most one finding of each kind, for the device that loses most."""
        return self._found(trace, MIN_SHARE)

    def candidates(self, trace: Trace) -> list[Finding]:
        """The same, however small a part of the run it was."""
        return self._found(trace, 0.0)

    def _found(self, trace: Trace, share: float) -> list[Finding]:
        gpus = trace.facts.get("gpus", [])
        found = []
        uses = self._uses(trace, gpus)
        for device, use in uses.items():
            idle = self.gaps.devices[device]
            window_ns = max(idle.window_ns, idle.kernel_ns)  # streams that overlap work for longer than time passes
            if use.worth(use.full_ns, share * window_ns):
                found.append(self._full(device, use.full_ns, window_ns, gpus[device]))
            elif use.worth(use.unaligned_ns, share * window_ns):
                found.append(self._unaligned(device, use.unaligned_ns, window_ns))
        return found[:1]

    def _uses(self, trace: Trace, gpus: list[Json]) -> dict[int, Use]:
        uses: dict[int, Use] = {}
        for (device, number), (times, time_ns, _) in sorted(self.kernels.sums.items(), key=lambda item: -item[1][1]):
            capability = gpus[device].get("compute_capability") if device < len(gpus) else None
            signature = trace.signatures[number]
            if not any(name in signature.name for name in MATRIX_NAMES):
                continue
            if not capability or capability[0] < 7:
                continue
            use = uses.setdefault(device, Use())
            use.kernels += times
            if ("tensor_cores", 1) in signature.detail:  # a profile names the kernel that ran
                continue
            dtype = signature.dtypes[0].removeprefix("torch.") if signature.dtypes else ""
            tf32 = ("tf32", 1) in signature.detail and capability[0] >= 8  # older GPUs have none, whatever is allowed
            if dtype in FULL_PRECISION and not tf32:
                use.full_ns += time_ns
            elif dtype in HALF_PRECISION and capability[0] < ALIGNMENT_MATTERS_BELOW and not _aligned(signature):
                use.unaligned_ns += time_ns
        return uses

    def _full(self, device: int, time_ns: int, window_ns: int, gpu: Json) -> Finding:
        peak = gpu.get("peak_flops") or {}
        half = peak.get("fp16") or peak.get("bf16")
        gain = f"; in FP16 its peak is {half / peak['fp32']:.0f} times as high" if half and peak.get("fp32") else ""
        ampere = tuple(gpu["compute_capability"]) >= (8, 0)
        tf32 = '`torch.set_float32_matmul_precision("high")` for TF32, or ' if ampere else ""
        return self._finding(
            device,
            f"cuda:{device} spent {format_share(time_ns / window_ns)} of the run ({format_ns(time_ns)}) on matrix "
            f"work in FP32, which does not use its tensor cores{gain}",
            f"{tf32}`torch.autocast('cuda')` with a `GradScaler`; for convolutions also `channels_last`",
            "half precision",
        )

    def _unaligned(self, device: int, time_ns: int, window_ns: int) -> Finding:
        return self._finding(
            device,
            f"cuda:{device} spent {format_share(time_ns / window_ns)} of the run ({format_ns(time_ns)}) on matrix "
            "work whose sizes are no multiples of eight, which does not use its tensor cores",
            "pad the sizes (batch, features, vocabulary) to multiples of eight",
            "aligned",
        )

    def _finding(self, device: int, message: str, advice: str, fix: Fix) -> Finding:
        return Finding(self.code, self.severity, message, advice, self.gaps.home(), device=device, fix=fix)


def _aligned(signature: Signature) -> bool:
    shapes = [shape for shape in signature.shapes[: signature.inputs or 2] if len(shape) >= 2]
    return all(size % ALIGNMENT == 0 for shape in shapes for size in shape[-2:])
