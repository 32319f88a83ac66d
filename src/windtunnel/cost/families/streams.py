"""Kernels that memory bounds: element-wise ones, normalizations, softmax, reductions, gathers, fills, optimizers.

    time = floor + bytes / (bandwidth * share of the generation * share of the class)

where the bytes are those that the operator reads and writes, each as often as the kernel passes over it:

- A normalization reads its input for the statistics and again for the result, and its backward pass reads the gradient
  and the input twice and, for the gradients of the weights, once more. The second time costs nothing where what is in
  flight is still in L2: the rows that run at once (layer norm), or the whole tensor (batch norm, whose statistics go
  over the batch). NeuSight's layer norms show both: 0.88 of V100's bandwidth for additions and 0.55 to 0.60 for layer
  norms of 2048 columns and more; 0.78 for both on an L4, whose L2 of 48 MB holds the rows in flight.
- Softmax keeps rows up to 1024 elements in registers (ATen's PersistentSoftmax.cuh); longer ones are read twice, and
  those beyond 8192 three times (SoftMax.cu), as often as they are not in L2.
- Random numbers cost arithmetic: a multiprocessor makes a few a cycle, whatever the memory does (`elements_per_clock`,
  fitted on an H20).
- A gather at any places of one long row takes a whole sector for each element that it finds.
- An operand in another order than the result (a transposed one) is read at a share of the bandwidth ("scattered").

What of the bytes L2 holds is `cost/cache.py`'s matter.
The shares of generations are fitted on NeuSight's timings (`make calibrate`, `data/streams.toml`).
"""

from __future__ import annotations

import re
from functools import cache
from math import ceil, exp, hypot, log2, prod

from windtunnel.cost import flops
from windtunnel.cost.bands import band
from windtunnel.cost.cache import ASSUMED_SHARE, beyond, moved_ns
from windtunnel.cost.families import iterated
from windtunnel.cost.families.interpolated import planes_ns
from windtunnel.cost.families.problem import Price, Problem
from windtunnel.cost.files import read, shortest_ns
from windtunnel.gpus import Gpu
from windtunnel.operators.classes import OperatorClass, classify
from windtunnel.trace.operation import Signature

CLASSES = (
    "elementwise", "activation", "softmax", "norm", "reduction", "index", "embedding", "random", "fill", "copy",
    "foreach", "optimizer", "pool",
)  # fmt: skip
OWN_BANDS = ("random", "index", "embedding")
"""Classes whose bands are those of their own published times."""
BLOCKS_PER_SM, SOFTMAX_BLOCKS = 8, 2
"""Rows that one SM has in flight: 2048 threads in blocks of 256 or so; softmax's have 1024 (`SoftMax_getBlockSize`)."""
LOGSUMEXP_PASSES, LOGSUMEXP_KERNELS = 6, 9
"""Its input is read for the extremes, their differences written and read, exponentials as well, and added up; infinite
extremes are replaced, the logarithm and the extremes added (aten/src/ATen/native/ReduceOps.cpp, `logsumexp_out_impl`).
"""
USUAL_GROUPS = 32
"""Of a group norm whose signature does not say how many it has: the paper's (Wu and He, arXiv 1803.08494)."""
IN_REGISTERS = 1024
"""The longest row of a softmax that a warp keeps in registers (ATen's PersistentSoftmax.cuh)."""
IN_SHARED_MEMORY = 8192
"""The longest row that is read twice and not three times: seen in NeuSight's timings (0.63 of the bandwidth on V100 to
8192 columns, 0.44 beyond)."""
SHARED_SINCE = (12, 1)
"""From this version of CUDA on, PyTorch 2.1's, a softmax keeps rows that fit in shared memory
(`cunn_SoftMaxForwardSmem`), and its blocks have 1024 threads."""
REREAD_ROOM, REREAD_STEEPNESS = 0.55, 4.0
"""Of L2, what rows take up that a softmax goes through again, while others are read and written: cross entropies of
16,384 to 131,072 words on an A100 and an H100 NVL (github.com/linkedin/Liger-Kernel, `benchmark/data`)."""
ROW_BLOCKS = {
    "layer_norm": (2.5, 0.0),
    "rms_norm": (2.5, 0.0),
    "softmax": (0.5, 0.45),
    "layer_norm backward": (2.5, 0.55),
    "rms_norm backward": (2.5, 0.55),
    "batch_norm backward": (1.6, 1.9),
    "group_norm backward": (1.0, 0.9),
    "softmax backward": (0.7, 0.6),
}
"""Kernels that give each row, channel or group one block: nanoseconds that a block takes for an element, since it waits
for its loads, and cycles that an SM takes for one of all its blocks. Measured: `make hardware` on an H200, 1 to 7,168
rows."""
NORM_CYCLES = {"layer_norm": (250, 0.65), "rms_norm": (150, 0.36)}
"""What an SM takes for a row of these norms, forward, and for each of its elements in 32 bits, half of it in 16: an
H100's rows of 16 to 4,096 elements (`make hardware`), and of 1,024 to 16,384 on two A100 and two H100 (Liger-Kernel's).
It adds to the bytes' time as two sides of a triangle do."""
STATISTICS_CYCLES, STATISTICS_BLOCKS = {"batch_norm": 0.75, "group_norm": 1.9}, {"batch_norm": 2.0, "group_norm": 3.5}
"""The same of the first of the two kernels of a norm forward, in cycles: a block for each channel or group goes through
it for its mean and variance (aten/src/ATen/native/cuda/Normalization.cuh, group_norm_kernel.cu); the second applies
them element by element. An H100's (`make hardware`), group norms of few rows from KernelBench level1/35 on an A100."""
MOMENTS_CYCLES = 2100
"""What an SM takes for each group of a group norm beside its elements: its block of 512 threads begins, reduces and
ends. 4,096 to 65,536 groups of 2,048 elements on a B200 (Liger-Kernel's)."""
GRADIENT_CYCLES, GRADIENT_THREADS = (300, 1000), 512
"""The same for each image's channel in the backward pass, whose block has a warp or, from so many elements on, 512
threads (`ComputeInternalGradientsCUDAKernel`): an H100's (`make hardware`), and the same B200's."""
LIKELIHOODS = ("nll_loss_forward", "nll_loss_backward")
"""Losses over rows, which one block works off (aten/src/ATen/native/cuda/Loss.cu)."""
LIKELIHOOD_THREADS = (12, 8)
"""From this version of CUDA on, that of PyTorch 2.8, such a block has as many threads as there are sixteen rows, 32 to
1024; before always 32 (pytorch/pytorch#149548, #149779)."""
LIKELIHOOD_US = (0.35, 1.05)
"""What a thread waits for a row, its target and then the element that it names, from L2 and from memory: KernelBench's
cross entropies of 4,096 rows on six GPUs, and Liger-Kernel's of 16,384 on an A100 and an H100 NVL."""
SELECTED_SINCE, SELECTED_CYCLES = (12, 8), {"index_select": 1.95, "embedding": 1.95, "gather": 1.06}
"""Before this version of CUDA, PyTorch 2.8's, a thread works out the place of each element that is given back
(`indexSelectLargeIndex`, pytorch/pytorch#145999, #151490): an SM's cycles for one, from Liger-Kernel's embeddings on an
A100, and an H100's gathers by an index for each element (`make hardware`)."""
LARGE_REDUCTIONS = 0.96
"""What reductions reach that L2 does not hold by far, of additions' rate: the mean of an H100's over all, rows and
columns of 64 million elements (`make hardware`)."""
PLACE_CYCLES, READ_CYCLES = 2.4, 0.16
"""What an SM takes for a place of a pool's result, and for each element of its window: `make hardware` on an H200,
windows of 4 to 121 elements in one to three dimensions."""
BY_ELEMENTS_SINCE = (12, 0)
"""From this version of CUDA on, PyTorch 2.1's, elements bound layer norm's backward pass, so that 32 bits reach twice
the share of 16: an H100's, and pytorch/pytorch#87445's on an A100. The share is timm's, of 1.12."""
VOLUME_CYCLES = 1.45
"""How many times as many they are in three dimensions: an H200's largest pool, and KernelBench level1/43."""
SECTOR_BYTES = 32
"""What memory hands out at least (NVIDIA's CUDA C++ Best Practices Guide, "Coalesced access to global memory")."""
FEW_INDICES = 3072
"""Up to so many, a block for each 32 columns goes through all indices of an embedding's gradient, which beyond are
sorted first (aten/src/ATen/native/cuda/Embedding.cu)."""
COLUMN_BLOCKS = 2
"""Such blocks, of 1,024 threads, that one SM has at work."""
SEGMENT_US = 4.5
"""What a thread waits in the two kernels that add up what is sorted, for each column of each row that is named: one
offset after another, then a row. Liger-Kernel's embeddings on an A100, of 768 and 4,096 columns."""
NEAREST = {
    "kepler": "pascal",
    "ampere-86": "ada",
    "volta": "ampere",
    "turing": "ada",
    "ampere": "volta",
    "ada": "ampere-86",
    "hopper": "ampere",
    "blackwell": "hopper",
    "blackwell-120": "ada",
}
_ELEMENTS_A_LAUNCH = 65536 * 320
"""Elements that one launch of a multi-tensor kernel handles: chunk size times blocks (ATen's MultiTensorApply.cuh)."""
_TENSORS_A_LAUNCH = (110, 64, 48, 36)
"""And tensors of each list, for one list to four (the same file)."""
_LISTS = {"addcdiv": 3, "addcmul": 3, "lerp": 2, "copy": 2, "add": 2, "sub": 2, "mul": 2, "div": 2, "pow": 2}


@cache
def generation_share(generation: str, key: str) -> tuple[float, str]:
    """(share of the bandwidth that additions reach, how far the timings are): a GPU's own, else its generation's."""
    rows = read("streams")["rate"]
    found = generation
    while True:
        mine = [row for row in rows if row["generation"] == found]
        for row in sorted(mine, key=lambda row: row["gpu"] != key):
            own = "own GPU" if row["gpu"] == key else "own generation" if found == generation else "borrowed"
            return float(row["share"]), own
        found = NEAREST.get(found, "ampere")


def bandwidth(gpu: Gpu) -> float:
    """Bytes a second that additions reach."""
    return gpu.memory_bandwidth_bytes_per_s * generation_share(gpu.generation, gpu.key)[0]


@cache
def class_share(name: str, backward: bool) -> float:
    """What a class, or its backward pass where that has a row of its own, reaches of that share."""
    rows = {row["name"]: float(row["share"]) for row in read("streams")["class"]}
    return rows.get(f"{name} backward", rows.get(name, 1.0)) if backward else rows.get(name, 1.0)


def reduced_share(gpu: Gpu, size: float) -> float:
    """What a reduction of so many bytes reaches, large or small."""
    small = class_share("reduction", False)
    return small + (LARGE_REDUCTIONS - small) * max(0.0, 1.0 - gpu.l2_bytes / size if size else 0.0)


def price(problem: Problem) -> Price | None:
    """The time of a kernel that memory bounds."""
    signature, gpu = problem.signature, problem.gpu
    operator = classify(signature.name)
    backward = "backward" in problem.name
    kind = _kind(problem, operator, backward)
    size = flops.bytes_moved(signature) + gathered_bytes(problem, operator)
    if problem.name == "logsumexp":
        size *= LOGSUMEXP_PASSES
    rate = bandwidth(gpu) * (reduced_share(gpu, size) if kind == "reduction" else class_share(kind, backward))
    if backward and kind == "layer norm" and problem.cuda_version >= BY_ELEMENTS_SINCE:
        rate = min(bandwidth(gpu), rate * problem.item_bytes / 2)
    again = further_bytes(problem) if operator.name in ("norm", "softmax") else 0.0
    arithmetic_ns = windows_ns(problem, operator)
    if arithmetic_ns:  # so that what a pool waits for beside its bytes is not in their rate
        rate = bandwidth(gpu)
    if operator.name in iterated.ELEMENTWISE and iterated.is_iterated(problem):
        memory_ns = moved_ns(gpu, size, rate, known=problem.reused)
        needed_ns = iterated.time_ns(gpu, written_elements(problem), memory_ns, iterated.cycles(problem))
    elif has_two_kernels(problem):
        needed_ns = statistics_ns(problem, rate) + applied_ns(problem, rate, size)
    else:
        blocks = max(blocks_ns(problem), likelihoods_ns(problem), selected_ns(problem), planes_ns(problem))
        memory_ns = moved_ns(gpu, size, rate, again, problem.reused)
        needed_ns = max(hypot(memory_ns, norms_ns(problem)), made_ns(problem, operator), blocks, arithmetic_ns)
    time_ns = needed_ns + reordered_ns(problem, operator) + gradients_ns(problem) + channels_ns(problem)
    floor_ns = shortest_ns(operator, gpu.generation) * launches(signature, problem.name, operator)
    distance = generation_share(gpu.generation, gpu.key)[1]
    if operator.name in OWN_BANDS:
        return Price(floor_ns + time_ns, floor_ns, band(operator.name, "borrowed"))
    total_ns = floor_ns + time_ns
    return Price(total_ns, floor_ns, band("streams", distance, gpu.key, total_ns / 1000.0))


def bias_ns(problem: Problem) -> float:
    """What a convolution's bias takes beside cuDNN's kernel: PyTorch adds it to the result, and sums its gradient.

    aten/src/ATen/native/Convolution.cpp: `output.add_(reshape_bias(...))`, `grad_output.sum(...)`.
    """
    signature, gpu = problem.signature, problem.gpu
    outputs = signature.shapes[signature.inputs :]
    backward = problem.name.endswith("_backward")
    of = outputs if backward else problem.inputs[2:3]
    if not outputs or not any(len(shape) == 1 for shape in of):
        return 0.0
    tensor = problem.item_bytes * prod(problem.inputs[0] if backward else outputs[0])
    size, share = (tensor, reduced_share(gpu, tensor)) if backward else (2 * tensor, 1.0)
    floor_ns = shortest_ns(classify("aten::sum" if backward else "aten::add"), gpu.generation)
    return floor_ns + moved_ns(gpu, size, bandwidth(gpu) * share)


def made_ns(problem: Problem, operator: OperatorClass) -> float:
    """What making random numbers takes."""
    if operator.name != "random" or not problem.inputs:
        return 0.0
    rate = elements_per_clock(generator_of(problem.name))
    outputs = problem.signature.shapes[problem.signature.inputs :] or problem.inputs
    return 1000.0 * prod(outputs[0]) / (rate * problem.gpu.sm_count * problem.gpu.cycles_per_us)


def blocks_ns(problem: Problem) -> float:
    """What a normalization takes that gives each row one block: the longest chain of rows that one SM works off."""
    kind, rows, length = _rows_of(problem)
    direction = " backward" if "backward" in problem.name else ""
    if not rows or kind + direction not in ROW_BLOCKS:
        return 0.0
    element_ns, cycles = ROW_BLOCKS[kind + direction]
    gpu = problem.gpu
    return length * max(element_ns, rows / gpu.sm_count * 1000.0 * cycles / gpu.cycles_per_us)


def norms_ns(problem: Problem) -> float:
    """What a layer or RMS norm takes for its rows beside their bytes."""
    kind, rows, length = _rows_of(problem)
    if kind not in NORM_CYCLES or "backward" in problem.name:
        return 0.0
    of_row, of_element = NORM_CYCLES[kind]
    return problem.gpu.spread_ns((of_row + of_element * length * problem.item_bytes / 4) * rows)


def selected_ns(problem: Problem) -> float:
    """What finding the elements took that older versions of PyTorch gave back."""
    if problem.name not in SELECTED_CYCLES or problem.cuda_version >= SELECTED_SINCE:
        return 0.0
    return problem.gpu.spread_ns(SELECTED_CYCLES[problem.name] * written_elements(problem))


def channels_ns(problem: Problem) -> float:
    """What a group norm's backward pass takes first: sums for each channel of each image, by a block for each."""
    x = problem.inputs[0] if problem.inputs else ()
    if "group_norm" not in problem.name or "backward" not in problem.name or len(x) < 3:
        return 0.0
    cycles = GRADIENT_CYCLES[prod(x[2:]) >= GRADIENT_THREADS]
    return 1000.0 * cycles * ceil(x[0] * x[1] / problem.gpu.sm_count) / problem.gpu.cycles_per_us


def has_two_kernels(problem: Problem) -> bool:
    """Whether a norm is a kernel for the statistics, if they are not fixed, and one that applies them."""
    parts = ("backward", "stats", "elemt")
    return any(kind in problem.name for kind in STATISTICS_CYCLES) and not any(part in problem.name for part in parts)


def statistics_ns(problem: Problem, rate: float) -> float:
    """What the mean and variance of channels or groups take: none where they are fixed."""
    if "batch_norm" in problem.name and not _in_training(problem):
        return 0.0
    gpu = problem.gpu
    kind, rows, length = _rows_of(problem)
    blocks = 0.0
    if rows:
        cycles, resident = STATISTICS_CYCLES[kind], STATISTICS_BLOCKS[kind]
        blocks = 1000.0 * cycles * length / gpu.cycles_per_us * max(1.0, rows / (gpu.sm_count * resident))
        if kind == "group_norm":
            blocks += 1000.0 * MOMENTS_CYCLES * ceil(rows / gpu.sm_count) / gpu.cycles_per_us
    read = float(problem.item_bytes * prod(problem.inputs[0]))
    return max(blocks, moved_ns(gpu, read, rate, known=problem.reused))


def applied_ns(problem: Problem, rate: float, size: float) -> float:
    """What applying the statistics takes, element by element; the input is in L2 still where that holds it."""
    x = problem.inputs[0]
    read = float(problem.item_bytes * prod(x))
    fixed = "batch_norm" in problem.name and not _in_training(problem)
    moved = size if fixed else max(0.0, size - read)
    memory_ns = moved_ns(problem.gpu, moved, rate, further_bytes(problem), problem.reused)
    return iterated.time_ns(problem.gpu, prod(x), memory_ns)


def written_elements(problem: Problem) -> int:
    """Elements of the result, which is the largest operand where that is written in place."""
    outputs = problem.signature.shapes[problem.signature.inputs :]
    return max((prod(shape) for shape in outputs or problem.inputs), default=0)


def likelihoods_ns(problem: Problem) -> float:
    """What the one block takes that goes through the rows of a negative log likelihood, its threads side by side."""
    signature = problem.signature
    if problem.name not in LIKELIHOODS or len(signature.shapes) <= signature.inputs:
        return 0.0
    backward = problem.name == "nll_loss_backward"
    x, loss = signature.shapes[backward], signature.shapes[0 if backward else signature.inputs]
    if len(x) != 2 or not x[0] or loss:  # a loss for each row has a thread for each
        return 0.0
    threads = 32
    if problem.cuda_version >= LIKELIHOOD_THREADS:
        threads = min(1024, max(32, 1 << round(log2(max(1, x[0] // 16)))))
    outgrown = problem.item_bytes * prod(x) > ASSUMED_SHARE * problem.gpu.l2_bytes
    return 1000.0 * LIKELIHOOD_US[outgrown] * ceil(x[0] / threads) / problem.gpu.clock_share


def gradients_ns(problem: Problem) -> float:
    """What the gradient of an embedding takes beside its bytes, most of which are the zeros of rows without one."""
    if problem.name != "embedding_dense_backward" or len(problem.inputs) < 2:
        return 0.0
    of, indices = embedding_gradient(), prod(problem.inputs[1])
    columns = problem.inputs[0][-1] if problem.inputs[0] else 1
    if indices > FEW_INDICES:
        return 1000.0 * (of["sorted_us"] + _sums_us(problem, indices, columns))
    blocks = ceil(columns / 32)
    turns = max(1.0, blocks / (COLUMN_BLOCKS * problem.gpu.sm_count))
    return 1000.0 * (of["few_us"] + turns * indices * of["index_cycles"] / problem.gpu.cycles_per_us)


def _sums_us(problem: Problem, indices: int, columns: int) -> float:
    """What sorted gradients take to be added up, where indices name any of the rows, with a thread for each element."""
    gpu, rows = problem.gpu, written_elements(problem) // max(1, columns)
    if not rows:
        return 0.0
    named = rows * (1.0 - exp(-indices / rows))
    threads = 32 * ceil(columns / 32)
    block = min(1024, threads)
    resident = gpu.sm_count * (gpu.max_threads_per_sm // block) * block
    return SEGMENT_US * named * threads / resident / gpu.clock_share


@cache
def embedding_gradient() -> dict[str, float]:
    """Microseconds of the sorting and of a launch without it, and a block's cycles for an index."""
    (row,) = read("streams")["embedding"]
    return {name: float(row[name]) for name in ("few_us", "index_cycles", "sorted_us")}


def windows_ns(problem: Problem, operator: OperatorClass) -> float:
    """What a pool's arithmetic takes: one thread finds a place of the result, and goes through its window."""
    signature = problem.signature
    outputs = signature.shapes[signature.inputs :]
    if operator.name != "pool" or "backward" in problem.name or not outputs:
        return 0.0
    sides = re.findall(r"\d+", str(dict(signature.detail).get("kernel_size", "")))
    window = prod(map(int, sides))
    cycles = (PLACE_CYCLES + READ_CYCLES * window) * (VOLUME_CYCLES if len(outputs[0]) == 5 else 1.0)
    return problem.gpu.spread_ns(prod(outputs[0]) * cycles) if sides else 0.0


def _rows_of(problem: Problem) -> tuple[str, int, int]:
    """The kind of a kernel whose rows have a block each, their number and length; ("", 0, 0) of other kernels."""
    kind = next((name for name in (*ROW_BLOCKS, *STATISTICS_CYCLES) if name in problem.name), "")
    if not kind or not problem.inputs:
        return "", 0, 0
    x = problem.inputs[1] if "backward" in problem.name and len(problem.inputs) > 1 else problem.inputs[0]
    if not x or not prod(x):
        return "", 0, 0
    if kind == "softmax":
        return (kind, prod(x[:-1]), x[-1]) if x[-1] > IN_REGISTERS else ("", 0, 0)
    if kind == "batch_norm":
        detail = dict(problem.signature.detail)
        if len(x) < 3 or detail.get("channels_last") or not detail.get("training", 1):
            return "", 0, 0
        return kind, x[1], prod(x) // x[1]
    length = row_of(problem)
    return kind, prod(x) // length, length


@cache
def elements_per_clock(generator: str) -> float:
    """Random numbers that one SM makes in a cycle."""
    return next(float(row["elements_per_clock"]) for row in read("streams")["generator"] if row["name"] == generator)


def generator_of(name: str) -> str:
    """Whose arithmetic an operator's random numbers are."""
    if "normal" in name or "randn" in name:
        return "normal"
    return "bernoulli" if "bernoulli" in name else "uniform"


def reordered_ns(problem: Problem, operator: OperatorClass) -> float:
    """What operands cost beyond their bytes whose neighbours in memory are not those of the result.

    Threads side by side then read from different sectors, and L2's traffic is a multiple of the bytes. Norms and
    softmax make a copy in order first, of what is only strided or expanded too.
    """
    detail = dict(problem.signature.detail)
    scattered = float(detail.get("scattered", 0))
    copies = operator.name in ("norm", "softmax")
    if copies and detail.get("strided"):
        size = problem.item_bytes * prod(problem.inputs[0])
        copied_ns = moved_ns(problem.gpu, 2.0 * size, bandwidth(problem.gpu))
        return iterated.time_ns(problem.gpu, prod(problem.inputs[0]), copied_ns)
    of_copy = 1.0 if copies else -1.0
    more = scattered * (1.0 / class_share("scattered", False) + of_copy)
    return moved_ns(problem.gpu, more, bandwidth(problem.gpu))


def gathered_bytes(problem: Problem, operator: OperatorClass) -> float:
    """What a gather reads beyond its operands' elements, or less than them.

    From one long row that L2 does not hold it is a sector for each element; of the rows of a negative log likelihood
    the one sector in which the target's element lies, and nothing in the backward pass.
    """
    x, outputs = problem.inputs[0] if problem.inputs else (), problem.signature.shapes[problem.signature.inputs :]
    if x and problem.name == LIKELIHOODS[0]:
        return float(x[0] * min(0, SECTOR_BYTES - problem.item_bytes * prod(x[1:])))
    if problem.name == LIKELIHOODS[1] and len(problem.inputs) > 1:  # the logarithms give its size alone
        return -float(problem.item_bytes * prod(problem.inputs[1]))
    long = len(x) == 1 and problem.item_bytes * x[0] > problem.gpu.l2_bytes
    if operator.name != "index" or not outputs or not long:
        return 0.0
    return float(prod(outputs[0]) * max(0, SECTOR_BYTES - problem.item_bytes))


def _kind(problem: Problem, operator: OperatorClass, backward: bool) -> str:
    """The row of the class table: layer norms (RMS norms among them) and softmax of long rows have none, forward."""
    if "layer_norm" in problem.name or "rms_norm" in problem.name:
        return "layer norm" if backward or row_of(problem) <= IN_REGISTERS else ""
    if operator.name == "softmax" and problem.inputs and problem.inputs[0] and problem.inputs[0][-1] > IN_REGISTERS:
        return ""
    return operator.name


def further_bytes(problem: Problem) -> float:
    """What normalizations and softmax read again from memory."""
    name, inputs, item = problem.name, problem.inputs, problem.item_bytes
    if not inputs or not inputs[0]:
        return 0.0
    backward = "backward" in name
    x = inputs[0]
    tensor = float(item * prod(x))
    passed = 2.0 * tensor if backward else tensor  # the gradient and the input, or the input
    if "softmax" in name:
        row = x[-1]
        times = 0 if row <= IN_REGISTERS else 1 if row <= IN_SHARED_MEMORY or backward else 2
        if problem.cuda_version < SHARED_SINCE:
            return times * passed * lost(item * row, problem.gpu)
        if not backward and item * row < problem.gpu.shared_memory_per_block_bytes:
            return 0.0
        again = item * row * problem.gpu.sm_count * SOFTMAX_BLOCKS * (1 + backward)
        return times * passed * beyond(again, REREAD_ROOM * problem.gpu.l2_bytes, REREAD_STEEPNESS)
    if "batch_norm" in name and not backward and not _in_training(problem):
        return 0.0
    if "batch_norm" in name or has_two_kernels(problem):
        return passed * _outgrown(passed, problem.gpu)
    if backward:  # the share of the bandwidth has the second pass over rows in it, which none of their lengths saves
        return passed * _outgrown(passed, problem.gpu) if _has_weights(problem) else 0.0
    return passed * lost(item * row_of(problem), problem.gpu)


def lost(row_bytes: float, gpu: Gpu) -> float:
    """The part of a second pass over rows that comes from memory, since the rows in flight outgrow L2."""
    return _outgrown(row_bytes * gpu.sm_count * BLOCKS_PER_SM, gpu)


def _outgrown(size: float, gpu: Gpu) -> float:
    """The part of a second pass over so many bytes that L2 does not hold: none below half of it, all above it."""
    if not gpu.l2_bytes:
        return 1.0
    return min(1.0, max(0.0, 2.0 * size / gpu.l2_bytes - 1.0))


def row_of(problem: Problem) -> int:
    """Elements that one normalization goes over: the last dimensions that the weight has, or a group's."""
    x = problem.inputs[0]
    if "layer_norm" in problem.name or "rms_norm" in problem.name:
        weights = (prod(shape) for shape in problem.inputs[1:] if 1 < len(shape) < len(x) and x[-len(shape) :] == shape)
        return next(weights, x[-1] if x else 1)
    if "group_norm" in problem.name and len(x) > 1:
        groups = int(dict(problem.signature.detail).get("group", USUAL_GROUPS))
        return max(1, prod(x[1:]) // max(1, groups))
    return x[-1] if x else 1


def _has_weights(problem: Problem) -> bool:
    return any(len(shape) == 1 for shape in problem.inputs[1:])


def _in_training(problem: Problem) -> bool:
    """Whether batch norm computes statistics, which it does unless the signature says otherwise."""
    fixed = "no_training" in problem.name or "elemt" in problem.name
    return not fixed and ("training", 0) not in problem.signature.detail


def launches(signature: Signature, name: str, operator: OperatorClass) -> int:
    """How many kernels one call launches: several for long lists of tensors, and for a logarithm of a sum."""
    if name == "logsumexp":
        return LOGSUMEXP_KERNELS
    if operator.name not in ("foreach", "optimizer"):
        return 1
    tensors = signature.inputs or len(signature.shapes)
    lists = 4 if operator.name == "optimizer" else _lists(signature, name, tensors)
    elements = sum(prod(shape) for shape in signature.shapes[: tensors // lists])
    return max(1, ceil(tensors / lists / _TENSORS_A_LAUNCH[lists - 1]), ceil(elements / _ELEMENTS_A_LAUNCH))


def _lists(signature: Signature, name: str, tensors: int) -> int:
    """How many lists of tensors of the same shapes a `_foreach_` operator reads."""
    lists = _LISTS.get(name.removeprefix("_foreach_"), 1)
    each = tensors // lists
    shapes = signature.shapes
    alike = tensors % lists == 0 and shapes[:each] == shapes[each : 2 * each]
    return lists if lists == 1 or alike else 1
