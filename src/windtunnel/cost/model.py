"""The cost model of one GPU: operations as plain data in, nanoseconds out. Pure functions of their arguments.

The time of a kernel is its roofline time, max(operations / peak, bytes / bandwidth), over the efficiency that its
class of operator reaches at that size (`curves`). What a whole program takes is the machine's business.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil, prod
from operator import itemgetter
from typing import NamedTuple

from windtunnel.cost import flops, neighbours, power, recurrent, sustained
from windtunnel.cost.bands import Known
from windtunnel.cost.cache import moved_ns
from windtunnel.cost.curves import UNKNOWN_BAND, Curve, curve, share
from windtunnel.cost.families import by_class, cuda_kernels, streams, triton
from windtunnel.cost.families.problem import Price, Problem
from windtunnel.cost.files import floor_scale, read, shortest_ns, stamp_us
from windtunnel.cost.links import Links
from windtunnel.cost.measured import MeasuredFile
from windtunnel.cost.recurrent import Recurrence, recurrence
from windtunnel.cost.scales import scale
from windtunnel.gpus import Gpu
from windtunnel.networks import Network
from windtunnel.operators.classes import OperatorClass, bare, classify
from windtunnel.trace import roofline
from windtunnel.trace.operation import Signature

_CALLS = ("empty_us", "view_us", "event_us", "synchronize_us", "graph_launch_us")
"""What of the driver's times is the host's own processor."""
_PRODUCTS = frozenset({"matmul", "bmm", "convolution", "attention", "rnn"})
_OTHERWISE = _PRODUCTS | {"linalg", "view", "fft"}
"""Classes whose families see to what L2 holds themselves."""
_THREADS_PER_ITEM = 4
"""Elements that one thread of an elementwise kernel handles."""
_TILE = 128 * 128
"""Elements of the output that one block of a matrix product computes."""
_LAZY_LOADING = (12, 2)
"""From this version on CUDA loads kernels at their first call by default on Linux (CUDA_MODULE_LOADING=LAZY)."""
_ANY_SIZE = (11, 0)
"""From this version on cuBLAS uses tensor cores for sizes that are no multiples of 16 bytes (NVIDIA's guide to matrix
multiplication, "Requirements to use tensor cores"); before, such a product ran without them."""
_REGULAR = (128, 256)
"""The shortest side of a matrix product: up to the first number it is narrow, from the second on regular."""

FIXED_SHARE = 0.4
"""From which share of a kernel's time on its fixed part is what bounds it."""


class KernelCost(NamedTuple):
    """What one kernel takes: its length, the part of the GPU it fills, what bounds it, and the relative error band.

    `bound` is "compute", "memory" or "launch" (when the kernel's fixed part is more than `FIXED_SHARE` of it).
    `peak_ns` is what its operations take at the tensor cores' peak, where the power limit slows them (`sustained`),
    `of_steps` says that the band is that of whole steps, `family` which class the kernel is of, and `judged` that the
    band is one that programs of the GPU may scale (`scales.scale`).
    """

    duration_ns: int
    occupancy: float
    bound: str
    band: float
    peak_ns: float = 0.0
    of_steps: bool = False
    family: str = ""
    judged: bool = False

    @property
    def known(self) -> Known:
        """How well its time is known."""
        return Known(self.band, self.of_steps, self.peak_ns > 0.0, self.family)


class CostModel:
    """What operations cost on one GPU, in whole nanoseconds.

    `dispatch_ns` is the host's time of one call of a framework's operator, from Python to the launch, by its name,
    `launch_ns` the time from a launch to the start of the kernel, `empty_ns` what the host takes for a tensor of
    which nothing is computed, `view_ns` for a view, `event_ns` its part of recording, waiting for or querying an event,
    `stamp_ns` how long one that tells the time keeps its stream from going on, `synchronize_ns` what a synchronization
    takes on top of its wait, `queue_depth` how many launches may be pending on a stream, `lock_share` the part of its
    time in operators in which a thread holds Python's lock, `copy_dispatch_ns` the host's part of a copy, `copy_ns` (of
    `Links`) what a copy takes and `staging_ns` the host's part of one from
    pageable memory. All of this is modelled: `source` says so.
    `issue` multiplies the times of calls, as a host of `hosts/*.toml` has it, `network` is what connects nodes of such
    GPUs, by default their usual one; `collective_ns` is what a collective takes. `pace` multiplies the times of
    kernels, as GPUs of one model differ (`gpus/variation.py`). `measured` are curves of a GPU of the same generation,
    which take the place of those that come with windtunnel.
    """

    source = "modelled"

    def __init__(
        self,
        gpu: Gpu,
        cuda_version: tuple[int, int] = (11, 2),
        measured: MeasuredFile | None = None,
        issue: float = 1.0,
        network: Network | None = None,
        pace: float = 1.0,
    ) -> None:
        self.gpu = gpu
        self.pace = pace
        self.cuda_version = cuda_version
        self.measured = measured if measured is not None and measured.generation == gpu.generation else None
        self.issue = issue
        facts = read("host")
        self._driver: dict[str, float] = facts["driver"] | (self.measured.driver if self.measured else {})
        self._first: dict[str, int] = facts["first_use"]
        self._cpu: dict[str, float] = facts["cpu"]
        self.lock_share = float(facts["python"]["lock_share"])
        self._library: dict[str, str] = facts["library"]
        self.links = Links(gpu, network)
        if self.measured is not None:
            self.links.use(self.measured.links)
        self.launch_ns = self._ns("launch_us")
        self.empty_ns = self._ns("empty_us")
        self.view_ns = self._ns("view_us")
        self.event_ns = self._ns("event_us")
        self.stamp_ns = round(1000.0 * stamp_us(gpu.generation))
        self.synchronize_ns = self._ns("synchronize_us")
        self.dispatch_ns = lru_cache(maxsize=4096)(self._dispatch_ns)
        self.copy_dispatch_ns = self.dispatch_ns("aten::copy_")
        self.copy_ns = lru_cache(maxsize=4096)(self.links.copy_ns)
        self.staging_ns = self.links.staging_ns
        self.collective_ns = lru_cache(maxsize=4096)(self.links.collective_ns)
        self.collective_share = lru_cache(maxsize=4096)(self.links.collective_share)
        self.queue_depth = int(self._driver["queue_depth"])

    def _ns(self, key: str) -> int:
        return round(1000.0 * self._driver[key] * (self.issue if key in _CALLS else 1.0))

    # ------------------------------------------------------------------ kernels

    def kernel(self, signature: Signature) -> KernelCost:
        """What the kernels of one operation take.

        Operations come from `signature.flops`, else from the shapes; bytes likewise. `signature.detail` may say
        ("tf32", 1) for a product that may use TF32, ("causal", 1) for attention, ("transposed", 1) for a convolution.
        """
        signature = as_described(signature)
        operator = classify(signature.name)
        if operator.name == "view":
            return KernelCost(0, 1.0 / self.gpu.sm_count, "launch", 0.0)
        name = bare(signature.name)
        precision, part = self._precision(signature, operator, name)
        priced = self._price(signature, operator, name, precision, part)
        if not self._is_measured(operator, precision):
            problem = self.problem(signature, name, precision, part)
            priced = neighbours.corrected(priced, problem, operator.name)
        work, size = flops.count(signature, name, operator.name), flops.bytes_moved(signature)
        bandwidth = self.gpu.memory_bandwidth_bytes_per_s
        bound = roofline.bound(*roofline.times_ns(work, size, self._peak(precision), bandwidth))
        if priced.floor_ns > FIXED_SHARE * priced.duration_ns:
            bound = "launch"
        occupancy = self._occupancy(signature, operator, name)
        limited = operator.name in sustained.CLASSES and precision in sustained.PRECISIONS
        peak_ns = 1e9 * work / self._peak(precision) if limited else 0.0
        duration_ns = max(1, round(priced.duration_ns * self.pace))
        judged = not (priced.of_steps or priced.own or self._is_measured(operator, precision))
        width = min(1.0, priced.band * scale(self.gpu.key, operator.name)) if judged else priced.band
        return KernelCost(
            duration_ns, occupancy, bound, round(width, 3), peak_ns, priced.of_steps, operator.name, judged
        )

    def priced(self, signature: Signature) -> Price:
        """The price before any correction by measured kernels, which are measured against it."""
        signature = as_described(signature)
        operator, name = classify(signature.name), bare(signature.name)
        return self._price(signature, operator, name, *self.precision(signature))

    def heeds_reuse(self, signature: Signature) -> bool:
        """Whether what L2 holds of a kernel's operands is part of its price; products were timed with it as it was."""
        return classify(as_described(signature).name).name not in _OTHERWISE

    def precision(self, signature: Signature) -> tuple[str, float]:
        """The arithmetic that runs, and the share of its efficiency that is left without alignment."""
        return self._precision(signature, classify(signature.name), bare(signature.name))

    def _is_measured(self, operator: OperatorClass, precision: str) -> bool:
        """Whether a curve of the user's own GPU stands for the operator."""
        return self.measured is not None and (operator.curve, precision) in self.measured.curves

    def _price(self, signature: Signature, operator: OperatorClass, name: str, precision: str, part: float) -> Price:
        """The family's price, or the curve's."""
        found = self._family_price(signature, operator, name, precision, part)
        return self._curve_price(signature, operator, name, precision, part) if found is None else found

    def _curve_price(
        self, signature: Signature, operator: OperatorClass, name: str, precision: str, part: float
    ) -> Price:
        """The roofline time over the efficiency that the operator's class reaches at that size."""
        work, size = flops.count(signature, name, operator.name), flops.bytes_moved(signature)
        compute_ns, _ = roofline.times_ns(work, size, self._peak(precision), self.gpu.memory_bandwidth_bytes_per_s)
        memory_ns = moved_ns(self.gpu, size, self.gpu.memory_bandwidth_bytes_per_s)
        of_memory = part if operator.name == "rnn" else 1.0
        floor_ns = shortest_ns(operator, self.gpu.generation) * streams.launches(signature, name, operator)
        shape = self._curve(operator.curve, precision)
        regular = _regularity(signature, name) if operator.name == "matmul" else 0.0
        # A power limit lowers the clock of the cores, not that of the memory.
        of_cores = part * power.sustained_share(self.gpu, precision) / shape.sustained_share
        rooflines = sorted(((compute_ns, of_cores, regular), (memory_ns, of_memory, 0.0)), reverse=True)
        found = recurrence(signature) if operator.name == "rnn" else None
        if found is None:
            times = [shape.time_ns(ns, floor_ns, operator.share * of, upper) for ns, of, upper in rooflines]
            duration, band = max(times, key=itemgetter(0))
        else:
            duration, floor_ns = self._recurrent_ns(found, signature, shape, precision, rooflines[0][1], floor_ns)
            band = max(recurrent.BAND, shape.band[0])
        if operator.name == "other":
            band = UNKNOWN_BAND
        return Price(duration, floor_ns, band)

    def _family_price(
        self, signature: Signature, operator: OperatorClass, name: str, precision: str, part: float
    ) -> Price | None:
        """The price of the operator's family of kernels, where it has one and no curve was measured for it."""
        families = by_class().get(operator.name, ())
        if not families or self._is_measured(operator, precision):
            return None
        problem = self.problem(signature, name, precision, part)
        return next((price for family in families if (price := family(problem)) is not None), None)

    def problem(self, signature: Signature, name: str, precision: str, part: float) -> Problem:
        """What a kernel family is asked."""
        dtype = signature.dtypes[0].removeprefix("torch.") if signature.dtypes else "float32"
        shapes = signature.shapes[: signature.inputs] if signature.inputs else signature.shapes
        item, peak = flops.ITEM_BYTES.get(dtype, 1), self._peak(precision)
        return Problem(signature, name, shapes, precision, peak, item, part, self.gpu, self.cuda_version)

    def _recurrent_ns(
        self, sizes: Recurrence, signature: Signature, shape: Curve, precision: str, part: float, floor_ns: float
    ) -> tuple[float, float]:
        """(time, shortest time) of a recurrent layer: its products of all steps, and its chain of steps."""
        item = flops.ITEM_BYTES.get(signature.dtypes[0].removeprefix("torch."), 4)
        persists = sizes.persists and self.cuda_version >= recurrent.PERSISTENT
        step_floor_ns = 1000.0 * recurrent.STEP_US * floor_scale(self.gpu.generation)
        if persists:
            step_floor_ns = 1000.0 * recurrent.PERSISTENT_CYCLES / self.gpu.cycles_per_us
        share = recurrent.SHARE * part

        def product(operations: float, size: float, floor: float) -> tuple[float, float]:
            roofline_ns = 1e9 * max(operations / self._peak(precision), size / self.gpu.memory_bandwidth_bytes_per_s)
            return shape.time_ns(roofline_ns, floor, share)[0], roofline_ns

        backward = signature.name.endswith("_backward")
        once = sizes.input_flops
        if backward:  # gradients of inputs, and of all weights
            once = [*once, *once, *[2 * sizes.cells * sizes.matrix * sizes.directions] * sizes.layers]
        total_ns = floor_ns + sum(product(operations, 0, 0.0)[0] for operations in once)
        texts = sizes.cells / sizes.steps
        read = 0 if persists else item * sizes.matrix
        step_ns, roofline_ns = product(2 * texts * sizes.matrix, read, step_floor_ns)
        others = sizes.layers * sizes.directions - 1
        chain_ns = sizes.steps * (step_ns + others * max(recurrent.FURTHER * step_ns, roofline_ns))
        return total_ns + chain_ns, floor_ns + sizes.steps * step_floor_ns * (1 + others * recurrent.FURTHER)

    def _curve(self, name: str, precision: str) -> Curve:
        own = None if self.measured is None else self.measured.curves.get((name, precision))
        return own or curve(name, precision, self.gpu.generation)

    def _peak(self, precision: str) -> float:
        peaks = self.gpu.peak_flops
        return peaks.get(precision) or peaks["fp32"]

    def _precision(self, signature: Signature, operator: OperatorClass, name: str) -> tuple[str, float]:
        """The arithmetic that runs, and the share of its efficiency that is left without alignment."""
        if operator.name == "triton":
            return str(dict(signature.detail).get("precision", "fp32")), 1.0
        dtype = signature.dtypes[0] if signature.dtypes else "float32"
        kind = roofline.precision(dtype, ("tf32", 1) in signature.detail, self.gpu.peak_flops)
        if operator.name not in _PRODUCTS:
            return ("fp64" if kind.startswith("fp64") else "fp32"), 1.0
        if kind == "tf32":
            return kind, self._share(kind, self._aligned(signature, operator, name, 4))
        if kind not in ("fp16", "bf16"):
            return kind, 1.0
        aligned = not self.gpu.has_tensor_cores or self._aligned(signature, operator, name, 8)
        if not aligned and self.cuda_version < _ANY_SIZE:
            return "fp32", 1.0
        return kind, self._share(kind, aligned)

    def _share(self, precision: str, aligned: bool) -> float:
        return 1.0 if aligned else share("unaligned", precision, self.gpu.generation)

    def _aligned(self, signature: Signature, operator: OperatorClass, name: str, multiple: int) -> bool:
        """Whether rows begin at multiples of so many elements (of 16 bytes), as tensor cores load them.

        That is a matter of each operand's contiguous dimension alone: the number of rows needs no alignment.
        """
        shapes = signature.shapes[: signature.inputs] if signature.inputs else signature.shapes
        try:
            if operator.name == "convolution":
                weight = shapes[2] if name.endswith("_backward") else shapes[1]
                return weight[0] % multiple == 0 and weight[1] % multiple == 0
            if operator.name == "attention":
                return shapes[0][-1] % multiple == 0
            if operator.name == "rnn":
                return shapes[0][-1] % multiple == 0
            contiguous = flops.contiguous_sizes(signature, name, shapes)
        except IndexError:
            return True
        return all(size % multiple == 0 for size in contiguous)

    def _occupancy(self, signature: Signature, operator: OperatorClass, name: str) -> float:
        """The part of the GPU that a kernel's blocks fill, in (0, 1]."""
        gpu = self.gpu
        if operator.name == "triton":
            return triton.occupancy(signature, gpu)
        if operator.name == "cuda":
            return cuda_kernels.occupancy(signature, gpu)
        out = signature.shapes[signature.inputs :] or signature.shapes[:1]
        items = prod(out[0]) if out else 0
        if operator.name == "rnn" and (sizes := recurrence(signature)) is not None:
            items = sizes.cells // sizes.steps * sizes.gates * sizes.units  # one step's
        if operator.name in _PRODUCTS or operator.name == "linalg":
            part = ceil(items / _TILE) / gpu.sm_count
        else:
            largest = max((prod(shape) for shape in signature.shapes), default=items)
            part = largest / (_THREADS_PER_ITEM * gpu.max_threads_per_sm * gpu.sm_count)
        return min(1.0, max(part, 1.0 / gpu.sm_count))

    # ------------------------------------------------------------------ host and driver

    def _dispatch_ns(self, name: str) -> int:
        operator = classify(name)
        own = {} if self.measured is None else self.measured.dispatch_us
        return round(1000.0 * own.get(operator.name, self.issue * operator.dispatch_us))

    def compiled_call_ns(self, guarded: int) -> int:
        """Host time of one call of a compiled graph, beside its launches, with so many inputs that guards look at."""
        of: dict[str, float] = read("host")["compiled"]
        return round(1000.0 * self.issue * (of["call_us"] + of["input_us"] * guarded))

    def host_operator_ns(self, size_bytes: int, flops: int = 0, random: bool = False) -> int:
        """Host time of one framework operator on host tensors, which reads and writes so many bytes."""
        rate = self._cpu["random_bytes_per_s" if random else "bytes_per_s"]
        call_us = self.issue * self._cpu["operator_us"]
        return round(1000.0 * call_us + 1e9 * (size_bytes / rate + flops / self._cpu["flops_per_s"]))

    def first_use_ns(self, name: str) -> list[tuple[str, int]]:
        """What the first call of this operator makes on the host, and how long each takes: libraries, kernels.

        "context" stands for creating the CUDA context, "collective" for NCCL's communicator.
        """
        if name == "context":
            return [("context", 1000 * self._first[name])]
        kind = name if name in self._library else classify(name).name
        library = self._library.get(kind)
        found = [] if library is None else [(library, 1000 * self._first[library])]
        if self.cuda_version >= _LAZY_LOADING and kind != "view":
            found.append((f"kernels of {bare(name)}", 1000 * self._first["kernel"]))
        return found

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


def as_described(signature: Signature) -> Signature:
    """The same call under the name of the operator that it is described as like, where a program described it."""
    like = dict(signature.detail).get("like") if signature.detail else None
    return signature._replace(name=str(like)) if like else signature


def _regularity(signature: Signature, name: str) -> float:
    """How far a matrix product is from a narrow one: 0 with a short side, 1 without, in between in proportion."""
    shapes = signature.shapes[: signature.inputs] if signature.inputs else signature.shapes
    try:
        _, m, n, k = flops.matmul_sizes(name, shapes)
    except IndexError:
        return 0.0
    narrow, regular = _REGULAR
    return min(1.0, max(0.0, (min(m, n, k) - narrow) / (regular - narrow)))
