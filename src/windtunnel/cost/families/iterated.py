"""Element-wise kernels that work out where each element lies, so that instructions bound them and not only bytes.

PyTorch's element-wise kernels go through tensors that lie alike as one line, several elements at a time. Where an
operand is broadcast, strided or of another type, each thread works out the places of its elements instead
(`OffsetCalculator` in aten/src/ATen/cuda/detail/OffsetCalculator.cuh, `launch_legacy_kernel` in
aten/src/ATen/native/cuda/CUDALoops.cuh). An SM then takes so many cycles for an element, whatever its size: an H100's
kernels of two and three operands, in 16 and 32 bits, say 0.65, which adds to the bytes' time where both are about as
long; three operands in three dimensions take more. A number in a tensor on the GPU is a broadcast operand like any
other. The second kernel of a batch or group norm, which applies the statistics, is such a kernel too.
"""

from __future__ import annotations

from windtunnel.cost.families.problem import Problem
from windtunnel.gpus import Gpu

ELEMENTWISE = frozenset({"elementwise", "activation"})
ELEMENT_CYCLES = 0.65
FURTHER_CYCLES = 1.0
"""The same of three operands or more in three dimensions or more: rotary embeddings of queries and keys with heads
before tokens, on an A100 and an H100 NVL (github.com/linkedin/Liger-Kernel, `benchmark/data`)."""
SHARPNESS = 3.0
"""Of the sum of both times: the higher, the more the longer alone decides. Both from an H100's kernels of at least four
million elements (`make hardware`); `make calibrate` fits them anew and leaves operators out."""
REVERSED = frozenset({"flip"})
"""Operators whose operand is read in another order than it lies, with steps of minus one."""
ARITHMETIC = frozenset({"add", "sub", "mul", "div"})
"""Operators whose operands are converted to one type, masks among them; others read masks as they are."""


def form(problem: Problem) -> str:
    """Whether a kernel goes through its tensors as they lie ("plain"), or works out where each element is.

    "iterated" is that of operands that are broadcast or strided, "converted" of those of other types, "scattered" of
    those whose neighbours lie far apart.
    """
    signature, detail = problem.signature, dict(problem.signature.detail)
    if detail.get("scattered"):
        return "scattered"
    if not problem.inputs:
        return "plain"
    output = signature.shapes[-1] if len(signature.shapes) > signature.inputs else problem.inputs[0]
    broadcast = any(shape != output for shape in problem.inputs)
    if detail.get("strided") or broadcast or problem.name in REVERSED:
        return "iterated"
    kinds = {dtype for dtype in signature.dtypes if dtype != "bool" or problem.name in ARITHMETIC}
    return "converted" if len(kinds) > 1 else "plain"


def is_iterated(problem: Problem) -> bool:
    """Whether instructions count: all but kernels in line, and copies into fewer bits, which have a kernel in line."""
    of = form(problem)
    if of == "converted":
        return len(problem.inputs) > 1 or problem.signature.dtypes[0] != "float32"
    return of != "plain"


def dimensions(problem: Problem) -> int:
    """In how many dimensions the kernel works out places: those along which all operands go on alike are one.

    Of strided ones the signature says it.
    """
    signature, shapes = problem.signature, problem.inputs
    if strided := int(dict(signature.detail).get("strided", 0)):
        return strided
    output = signature.shapes[-1] if len(signature.shapes) > signature.inputs else shapes[0]
    wide = [(1,) * (len(output) - len(shape)) + shape for shape in shapes if len(shape) <= len(output)]
    along = [tuple(shape[at] == size for shape in wide) for at, size in enumerate(output) if size > 1]
    return sum(one != before for before, one in zip([None, *along], along, strict=False))


def cycles(problem: Problem) -> float:
    """What an SM takes for an element of such a kernel."""
    return FURTHER_CYCLES if len(problem.inputs) > 1 and dimensions(problem) > 2 else ELEMENT_CYCLES


def time_ns(gpu: Gpu, elements: float, memory_ns: float, each: float = ELEMENT_CYCLES) -> float:
    """What such a kernel takes for its elements, of `each` so many cycles, whose bytes take `memory_ns`."""
    cores_ns = gpu.spread_ns(each * elements)
    return float((memory_ns**SHARPNESS + cores_ns**SHARPNESS) ** (1.0 / SHARPNESS))
