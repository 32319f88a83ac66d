"""The cost model of one GPU: operations as plain data in, nanoseconds out. Pure functions of their arguments.

The time of a kernel is its roofline time, max(operations / peak, bytes / bandwidth), over the efficiency that its
class of operator reaches at that size (`curves`). What a whole program takes is the machine's business.
"""

from __future__ import annotations

from math import ceil, prod
from typing import NamedTuple

from understudy.cost import flops
from understudy.cost.curves import UNKNOWN_BAND, curve
from understudy.cost.links import Links
from understudy.cost.operators import OperatorClass, classify, plain, read
from understudy.gpus import Gpu
from understudy.trace.operation import Signature

_PRODUCTS = frozenset({"matmul", "bmm", "convolution", "attention", "rnn"})
_HALF = {"float16": "fp16", "half": "fp16", "bfloat16": "bf16"}
_THREADS_PER_ITEM = 4
"""Elements that one thread of an elementwise kernel handles."""
_TILE = 128 * 128
"""Elements of the output that one block of a matrix product computes."""
_ELEMENTS_A_LAUNCH = 65536 * 320
"""Elements that one launch of a multi-tensor kernel handles: chunk size times blocks (ATen's MultiTensorApply.cuh)."""
_TENSORS_A_LAUNCH = (110, 64, 48, 36)
"""And tensors of each list, for one list to four (the same file)."""
_LISTS = {"addcdiv": 3, "addcmul": 3, "lerp": 2, "copy": 2, "add": 2, "sub": 2, "mul": 2, "div": 2, "pow": 2}
_UNALIGNED = 0.5
"""Share of the tensor-core rate without alignment, from Ampere on (assumed: NVIDIA's guide says "most efficient with
multiples of 8" and shows a factor of two and more)."""
_REGULAR = (128, 256)
"""The shortest side of a matrix product: up to the first number it is narrow, from the second on regular."""
_WINOGRAD = 1.15
_DIRECT = 0.9


class KernelCost(NamedTuple):
    """What one kernel takes: its length, the part of the GPU it fills, what bounds it, and the relative error band.

    `bound` is "compute", "memory" or "launch" (when the kernel's fixed part is more than half of it).
    """

    duration_ns: int
    occupancy: float
    bound: str
    band: float


class CostModel:
    """What operations cost on one GPU, in whole nanoseconds.

    `launch_ns` is the time from a launch to the start of the kernel, `event_ns` the host's part of recording, waiting
    for or querying an event, `synchronize_ns` what a synchronization takes on top of its wait, `python_line_ns` a line
    of plain Python. All of this is modelled: `source` says so.
    """

    source = "modelled"

    def __init__(self, gpu: Gpu, cuda_version: tuple[int, int] = (11, 2)) -> None:
        self.gpu = gpu
        self.cuda_version = cuda_version
        host = read("host")
        self._driver: dict[str, float] = host["driver"]
        self._first: dict[str, int] = host["first_call"]
        self._floor_scale = float(host["floor_scale"].get(gpu.generation, 1.0))
        self.links = Links(gpu)
        self.launch_ns = self._ns("launch_us")
        self.event_ns = self._ns("event_us")
        self.synchronize_ns = self._ns("synchronize_us")
        self.python_line_ns = self._ns("python_line_us")

    def _ns(self, key: str) -> int:
        return round(1000.0 * self._driver[key])

    # ------------------------------------------------------------------ kernels

    def kernel(self, signature: Signature) -> KernelCost:
        """What the kernels of one operation take.

        Operations come from `signature.flops`, else from the shapes; bytes likewise. `signature.detail` may say
        ("tf32", 1) for a product that may use TF32, ("causal", 1) for attention, ("transposed", 1) for a convolution.
        """
        operator = classify(signature.name)
        if operator.name == "view":
            return KernelCost(0, 1.0 / self.gpu.sm_count, "launch", 0.0)
        name = plain(signature.name)
        work = flops.count(signature, name, operator.name)
        size = flops.bytes_moved(signature)
        precision, share = self._precision(signature, operator, name)
        compute_ns = 1e9 * work / self._peak(precision) if work else 0.0
        memory_ns = 1e9 * size / self.gpu.memory_bandwidth_bytes_per_s
        if operator.name == "convolution" and precision == "fp32":
            share *= _WINOGRAD if _is_winograd(signature, name) else _DIRECT
        floor_ns = 1000.0 * operator.floor_us * self._floor_scale * self._launches(operator, signature, name)
        shape = curve(operator.curve, precision, self.gpu.generation)
        roofline_ns = max(compute_ns, memory_ns)
        regular = _regularity(signature, name) if operator.name == "matmul" else 0.0
        duration, band = shape.time_ns(roofline_ns, floor_ns, operator.share * share, regular)
        if operator.name == "other":
            band = UNKNOWN_BAND
        bound = "launch" if 2 * floor_ns > duration else "compute" if compute_ns > memory_ns else "memory"
        return KernelCost(max(1, round(duration)), self._occupancy(signature, operator, name), bound, round(band, 3))

    def _peak(self, precision: str) -> float:
        peaks = self.gpu.peak_flops
        return peaks.get(precision) or peaks["fp32"]

    def _precision(self, signature: Signature, operator: OperatorClass, name: str) -> tuple[str, float]:
        """The arithmetic that runs, and the share of its efficiency that is left without alignment."""
        dtype = signature.dtypes[0].removeprefix("torch.") if signature.dtypes else "float32"
        if dtype in ("float64", "double", "complex128"):
            product = operator.name in _PRODUCTS and "fp64_tensor" in self.gpu.peak_flops
            return ("fp64_tensor" if product else "fp64"), 1.0
        if operator.name not in _PRODUCTS:
            return "fp32", 1.0
        if dtype in ("float32", "float"):
            wanted = dict(signature.detail).get("tf32")
            return ("tf32" if wanted and "tf32" in self.gpu.peak_flops else "fp32"), 1.0
        if dtype.startswith("float8") and "fp8" in self.gpu.peak_flops:
            return "fp8", 1.0
        if dtype in ("int8", "uint8") and "int8" in self.gpu.peak_flops:
            return "int8", 1.0
        half = _HALF.get(dtype)
        if half is None or half not in self.gpu.peak_flops:
            return "fp32", 1.0
        if not self.gpu.has_tensor_cores or self._aligned(signature, operator, name):
            return half, 1.0
        return (half, _UNALIGNED) if self.gpu.compute_capability >= (8, 0) else ("fp32", 1.0)

    def _aligned(self, signature: Signature, operator: OperatorClass, name: str) -> bool:
        """Whether the sizes that tensor cores tile are multiples of 8 elements."""
        shapes = signature.shapes[: signature.inputs] if signature.inputs else signature.shapes
        try:
            if operator.name == "convolution":
                weight = shapes[2] if name.endswith("_backward") else shapes[1]
                return weight[0] % 8 == 0 and weight[1] % 8 == 0
            if operator.name == "attention":
                return shapes[0][-1] % 8 == 0
            if operator.name == "rnn":
                return shapes[0][-1] % 8 == 0
            _, m, n, k = flops.matmul_sizes(name, shapes)
        except IndexError:
            return True
        return m % 8 == 0 and n % 8 == 0 and k % 8 == 0

    def _launches(self, operator: OperatorClass, signature: Signature, name: str) -> int:
        """How many kernels one call launches: several for long lists of tensors."""
        if operator.name not in ("foreach", "optimizer"):
            return 1
        tensors = signature.inputs or len(signature.shapes)
        lists = 4 if operator.name == "optimizer" else _lists(signature, name, tensors)
        elements = sum(prod(shape) for shape in signature.shapes[: tensors // lists])
        return max(1, ceil(tensors / lists / _TENSORS_A_LAUNCH[lists - 1]), ceil(elements / _ELEMENTS_A_LAUNCH))

    def _occupancy(self, signature: Signature, operator: OperatorClass, name: str) -> float:
        """The part of the GPU that a kernel's blocks fill, in (0, 1]."""
        gpu = self.gpu
        out = signature.shapes[signature.inputs :] or signature.shapes[:1]
        items = prod(out[0]) if out else 0
        if operator.name in _PRODUCTS or operator.name == "linalg":
            part = ceil(items / _TILE) / gpu.sm_count
        else:
            largest = max((prod(shape) for shape in signature.shapes), default=items)
            part = largest / (_THREADS_PER_ITEM * gpu.max_threads_per_sm * gpu.sm_count)
        return min(1.0, max(part, 1.0 / gpu.sm_count))

    # ------------------------------------------------------------------ host and driver

    def dispatch_ns(self, name: str) -> int:
        """Host time of one call of a framework's operator, from Python to the launch."""
        return round(1000.0 * classify(name).dispatch_us)

    def first_call_ns(self, name: str) -> int:
        """What the first call of this operator's class adds on the host: a library's handle and its kernels.

        "context" stands for creating the CUDA context, "collective" for NCCL's communicator.
        """
        kind = name if name in self._first else classify(name).name
        return 1000 * int(self._first.get(kind, 0))

    def malloc_ns(self, size_bytes: int) -> int:
        """A `cudaMalloc` of this size, on the host."""
        return self._sized("malloc", size_bytes)

    def free_ns(self, size_bytes: int) -> int:
        """A `cudaFree` of this size, on the host, on top of its wait for the device."""
        return self._sized("free", size_bytes)

    def host_malloc_ns(self, size_bytes: int) -> int:
        """Page-locking host memory of this size (`cudaHostAlloc`)."""
        return self._sized("host_malloc", size_bytes)

    def _sized(self, what: str, size_bytes: int) -> int:
        return round(1000.0 * (self._driver[f"{what}_us"] + self._driver[f"{what}_us_per_mib"] * size_bytes / 2**20))

    def graph_launch_ns(self, nodes: int) -> tuple[int, int]:
        """(host time of launching a CUDA graph, the device's own time for its `nodes` on top of the kernels)."""
        return self._ns("graph_launch_us"), round(1000.0 * self._driver["graph_node_us"] * nodes)

    # ------------------------------------------------------------------ links

    def copy_ns(self, size_bytes: int, source: int, destination: int, pinned: bool) -> int:
        """A copy between two device indices, where -1 is the host; `pinned` says that the host side is page-locked."""
        return self.links.copy_ns(size_bytes, source, destination, pinned)

    def collective_ns(self, name: str, size_bytes: int, ranks: int) -> int:
        """A collective over `ranks` GPUs of one node, of which each brings `size_bytes`."""
        return self.links.collective_ns(name, size_bytes, ranks)


def _is_winograd(signature: Signature, name: str) -> bool:
    """Whether cuDNN may choose Winograd: ungrouped 3x3 kernels of stride 1 with enough channels."""
    shapes = signature.shapes[: signature.inputs] if signature.inputs else signature.shapes
    if name.endswith("_backward") and len(shapes) > 2:
        out, x, weight = shapes[:3]
    elif signature.inputs and len(signature.shapes) > signature.inputs > 1:
        x, weight, out = *shapes[:2], signature.shapes[signature.inputs]
    else:
        return False
    if len(weight) != 4 or weight[2:] != (3, 3) or len(x) != 4 or len(out) != 4:
        return False
    return 2 * out[-1] > x[-1] and x[1] == weight[1] >= 16


def _regularity(signature: Signature, name: str) -> float:
    """How far a matrix product is from a narrow one: 0 with a short side, 1 without, in between in proportion."""
    shapes = signature.shapes[: signature.inputs] if signature.inputs else signature.shapes
    try:
        _, m, n, k = flops.matmul_sizes(name, shapes)
    except IndexError:
        return 0.0
    narrow, regular = _REGULAR
    return min(1.0, max(0.0, (min(m, n, k) - narrow) / (regular - narrow)))


def _lists(signature: Signature, name: str, tensors: int) -> int:
    """How many lists of tensors of the same shapes a `_foreach_` operator reads."""
    lists = _LISTS.get(name.removeprefix("_foreach_"), 1)
    each = tensors // lists
    alike = tensors % lists == 0 and signature.shapes[:each] == signature.shapes[each : 2 * each]
    return lists if lists == 1 or alike else 1
