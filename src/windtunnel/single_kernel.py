"""One CUDA kernel alone: compiled, run on made-up arguments, checked, counted and priced; no framework is needed."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel import ptx
from windtunnel.compiler.kernels import compile_file
from windtunnel.compiler.nvcc import Nvcc
from windtunnel.cost.families.cuda_kernels import signature
from windtunnel.cost.model import CostModel
from windtunnel.errors import UsageError
from windtunnel.gpus import Gpu
from windtunnel.ptx.faults import REMARKS
from windtunnel.seam.cuda_runtime import errors, limits
from windtunnel.seam.cuda_runtime.addresses import AddressMap, Allocation
from windtunnel.seam.cuda_runtime.limits import LaunchShape
from windtunnel.seam.cuda_runtime.names import demangled, parameter_names, split

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LAUNCH = re.compile(r"^\s*(?P<name>[\w:<>, ]+?)\s*<<<(?P<shape>.*?)>>>\s*\((?P<arguments>.*)\)\s*;?\s*$", re.DOTALL)
ARRAY = re.compile(r"^(?P<kind>[\w ]+?)\s*\[\s*(?P<size>[\d *]+)\s*\](?:\s*=\s*(?P<fill>\S+))?$")
TYPES = {
    "float": "float32", "double": "float64", "half": "float16", "__half": "float16", "bfloat16": "bfloat16",
    "__nv_bfloat16": "bfloat16", "int": "int32", "unsigned": "uint32", "unsigned int": "uint32", "long": "int64",
    "long long": "int64", "unsigned long long": "uint64", "short": "int16", "char": "int8", "unsigned char": "uint8",
    "bool": "bool",
}  # fmt: skip
MOST_ELEMENTS = 1 << 30
ALIGNMENT = 256
"""At which cudaMalloc gives memory (CUDA C++ Programming Guide, "Device Memory Accesses")."""


@dataclass
class Array:
    """An array that the kernel gets a pointer to."""

    name: str
    values: NDArray[np.generic]
    before: bytes
    kind: str

    @property
    def address(self) -> int:
        """Where it lies."""
        return int(self.values.ctypes.data)


@dataclass(frozen=True)
class Outcome:
    """What one launch came to; `time_ns` is None where nothing prices it."""

    kernel: str
    gpu: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    refused: str
    error: str
    faults: tuple[dict[str, object], ...]
    counters: dict[str, object]
    time_ns: float | None
    band: float | None
    arrays: tuple[dict[str, object], ...]
    registers_known: bool = False
    """Whether NVIDIA's assembler has said how many registers a thread takes."""


def run(path: Path, launch: str, gpu: Gpu, seed: int = 0, checks: ptx.Checks = "all",
        output: Callable[[str], None] = print, schedules: int = 0,
        nvcc: Nvcc | None = None) -> Outcome:  # fmt: skip
    """Compile a file and run one of its kernels as a launch in CUDA's own notation says, and again in as many other
    orders of its warps and blocks as `schedules` says: a result that depends on the order is a fault. `nvcc`
    compiles in clang's place.

    Raises:
        UsageError: the launch cannot be read, or does not fit the kernel.
        CompileError: the file does not compile.
    """
    found = LAUNCH.match(launch)
    if found is None:
        raise UsageError(
            f"{launch!r} is no launch: write one as f<<<(grid), (block), shared bytes>>>(float[1024], 2.5, 1024)"
        )
    name = found["name"].strip()
    shape = _shape(found["shape"])
    text = compile_file(path, gpu.compute_capability, nvcc)
    module = ptx.Module(text)
    kernel = _kernel(module, name, path)
    words = [word.strip() for word in split(found["arguments"])]
    if len(words) != len(kernel.parameters):
        raise UsageError(f"{name} takes {len(kernel.parameters)} arguments, and the launch gives {len(words)}")
    arrays, block = _arguments(kernel, words, seed, path, name)
    shape = shape._replace(cooperative=kernel.waits_for_grid)
    opted = gpu.shared_memory_per_block_optin_bytes - kernel.shared_bytes
    refused = limits.refusal(shape, gpu, kernel.max_threads, kernel.shared_bytes, opted, kernel.registers)
    if refused:
        error = errors.table()[refused]
        return Outcome(name, gpu.key, *shape[:3], f"{error.name}: {error.text}", "", (), {}, None, None, ())

    def launched(checks: ptx.Checks, schedule: int, output: Callable[[str], None]) -> ptx.Launch:
        memory = AddressMap()
        for array in arrays:
            blank = bytearray(b"\1" * array.values.nbytes) if array.before == b"" else None
            memory.add(Allocation(array.address, array.values.nbytes, array.name, blank=blank))
        return kernel.launch(
            shape.grid, shape.block, shape.shared_bytes, block, memory=memory, checks=checks, schedule=schedule,
            output=output, cooperative=shape.cooperative,
            most_resident=limits.together(shape, kernel.shared_bytes, kernel.registers or limits.REGISTERS, gpu),
        )  # fmt: skip

    result = launched(checks, seed, output)
    outcome = _outcome(path, kernel, shape, gpu, arrays, result)
    if result.trap is None and schedules:
        dependent = _in_other_orders(kernel, arrays, seed, schedules, lambda order: launched("none", order, _nothing))
        return replace(outcome, faults=outcome.faults + dependent)
    return outcome


def _nothing(text: str) -> None:
    """What other orders print."""


def _in_other_orders(
    kernel: ptx.Kernel, arrays: list[Array], seed: int, schedules: int, launched: Callable[[int], ptx.Launch]
) -> tuple[dict[str, object], ...]:
    """The fault of a kernel whose results depend on the order of its warps and blocks, by more than rounding."""
    first = [array.values.copy() for array in arrays]
    for order in range(seed + 1, seed + 1 + schedules):
        for array in arrays:
            array.values.view("uint8")[:] = bytearray(array.before or bytes(array.values.nbytes))
        launched(order)
        for array, before in zip(arrays, first, strict=True):
            at = _different(array, before)
            if at is not None:
                file, line = kernel.ordering
                message = (
                    f"{array.name}[{at}] is {array.values[at]} in another order of warps and blocks, and {before[at]} "
                    "in the first one: the result depends on which thread comes first"
                )
                fault = {"kind": "order-dependent", "message": message, "file": file, "line": line}
                return (fault | {"argument": array.name},)
    return ()


def _different(array: Array, before: NDArray[np.generic]) -> int | None:
    """The first element that differs by more than sums in another order do."""
    import numpy as np

    now, then = (_numbers(array.kind, values) for values in (array.values, before))
    if not array.kind.startswith(("float", "bfloat")):
        wrong = now != then
    else:
        digits = {"float64": 1e-9, "float32": 1e-3}.get(array.kind, 3e-2)
        largest = float(np.max(np.abs(then[np.isfinite(then)]), initial=0.0))
        wrong = ~np.isclose(now, then, rtol=digits, atol=digits * largest, equal_nan=True)
    return int(np.argmax(wrong)) if wrong.any() else None


def _numbers(kind: str, values: NDArray[np.generic]) -> NDArray[np.generic]:
    import numpy as np

    return (values.astype(np.uint32) << 16).view(np.float32) if kind == "bfloat16" else values


def _outcome(
    path: Path, kernel: ptx.Kernel, shape: LaunchShape, gpu: Gpu, arrays: list[Array], result: ptx.Launch
) -> Outcome:
    name = demangled(kernel.name)
    faults = []
    for fault in result.faults:
        if fault.kind in REMARKS:  # nothing is wrong
            continue
        argument = parameter_names(fault.file or str(path), name, fault.argument)
        message = fault.message.replace(fault.argument, argument) if fault.argument else fault.message
        faults.append({**asdict(fault), "message": message, "argument": argument})
    price = CostModel(gpu).kernel(signature(name, result.counters))
    counters = {
        key: dict(value) if isinstance(value, dict) else value for key, value in asdict(result.counters).items()
    }
    return Outcome(
        name, gpu.key, *shape[:3], "", result.trap or "", tuple(faults), counters, price.duration_ns, price.band,
        tuple(_described(array) for array in arrays), kernel.registers > 0,
    )  # fmt: skip


def _described(array: Array) -> dict[str, object]:
    values = array.values
    changed = array.before != values.tobytes()
    return {"name": array.name, "type": array.kind, "size": int(values.size), "changed": changed,
            "first": [float(value) for value in values[:4]] if array.kind != "bfloat16" else []}  # fmt: skip


def _kernel(module: ptx.Module, name: str, path: Path) -> ptx.Kernel:
    wanted = name.replace(" ", "")
    for known, kernel in module.kernels.items():
        if known == name or demangled(known).replace(" ", "") == wanted or demangled(known).rpartition("::")[2] == name:
            return kernel
    names = ", ".join(demangled(known) for known in module.kernels) or "none"
    raise UsageError(f"{path} has no kernel {name!r}; there are: {names}")


def _shape(text: str) -> LaunchShape:
    parts = split(text)
    if not 2 <= len(parts) <= 4:
        raise UsageError(
            f"<<<{text}>>> is no configuration: write <<<grid, block>>> or <<<grid, block, shared bytes>>>"
        )
    sizes = [_sizes(part, text) for part in parts[:3]]
    grid, block = ((*size, 1, 1, 1)[:3] for size in sizes[:2])
    return LaunchShape(
        (grid[0], grid[1], grid[2]), (block[0], block[1], block[2]), sizes[2][0] if len(sizes) > 2 else 0
    )


def _sizes(part: str, whole: str) -> list[int]:
    """Up to three numbers, each of which may be a product."""
    words = part.strip().removeprefix("dim3").strip().strip("()").split(",")
    if not all(re.fullmatch(r"\s*\d+\s*(\*\s*\d+\s*)*", word) for word in words):
        raise UsageError(
            f"<<<{whole}>>> has something else than numbers: write <<<(4, 4), 256>>> or <<<4, 256, 1024>>>"
        )
    return [math.prod(map(int, word.split("*"))) for word in words]


def _arguments(kernel: ptx.Kernel, words: list[str], seed: int, path: Path, name: str) -> tuple[list[Array], bytes]:
    arrays: list[Array] = []
    made = bytearray()
    for at, (word, parameter) in enumerate(zip(words, kernel.parameters, strict=True)):
        array = ARRAY.match(word)
        if array is not None:
            label = parameter_names(str(path), name, f"argument {at}")
            arrays.append(_array(label, array["kind"].strip(), array["size"], array["fill"], seed + at))
            value = struct.pack("<Q", arrays[-1].address)
        else:
            value = _scalar(word, parameter.size, parameter.type)
        made += b"\0" * (parameter.offset - len(made)) + value[: parameter.size].ljust(parameter.size, b"\0")
    return arrays, bytes(made)


def _array(name: str, kind: str, size: str, fill: str | None, seed: int) -> Array:
    import numpy as np

    if kind not in TYPES:
        raise UsageError(f"{kind}[{size}] is an array of no known type; there are: {', '.join(TYPES)}")
    count = 1
    for factor in re.findall(r"\d+", size):
        count *= int(factor)
    if count > MOST_ELEMENTS:
        raise UsageError(f"{kind}[{size}] is too large an array: {MOST_ELEMENTS:,} elements at most")
    dtype = TYPES[kind]
    random = np.random.default_rng(seed)
    values: NDArray[np.generic]
    if dtype == "bfloat16":
        values = (random.standard_normal(count).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    elif dtype.startswith("float"):
        values = random.standard_normal(count).astype(dtype)
    else:
        values = random.integers(0, 2 if dtype == "bool" else 100, count).astype(dtype)
    if fill is not None and fill != "empty":
        if not re.fullmatch(r"[-+]?[\d.]+(e[-+]?\d+)?|[-+]?(inf|nan)", fill):
            raise UsageError(f"{kind}[{size}]={fill} is filled with no number: write =0, =2.5 or =empty")
        values = np.full(count, float(fill)).astype("uint16" if dtype == "bfloat16" else dtype)
    if fill == "empty":
        values = np.zeros(count, values.dtype)
    return Array(name, _aligned(values), b"" if fill == "empty" else values.tobytes(), dtype)


def _aligned(values: NDArray[np.generic]) -> NDArray[np.generic]:
    """The same values where a device's memory could begin."""
    import numpy as np

    room = np.zeros(values.nbytes + ALIGNMENT, np.uint8)
    skipped = -int(room.ctypes.data) % ALIGNMENT
    made = room[skipped : skipped + values.nbytes].view(values.dtype)
    made[:] = values
    return made


def _scalar(word: str, size: int, kind: str) -> bytes:
    text = word.rstrip("fFuUlL") if not word.lower().startswith("0x") else word
    try:
        if kind in ("f32", "f64"):
            return struct.pack("<f" if kind == "f32" else "<d", float(text))
        if (
            kind[:1] in ("u", "s")
            and re.fullmatch(r"-?[\d.]+(e[-+]?\d+)?", text, re.I)
            and not text.lstrip("-").isdigit()
        ):
            raise UsageError(f"{word!r} is no whole number, and the kernel takes one there")
        if "." in text or ("e" in text.lower() and not text.lower().startswith("0x")) or word.lower().endswith("f"):
            return struct.pack("<f" if size == 4 else "<d", float(text))
        return int(text, 0).to_bytes(max(size, 8), "little", signed=int(text, 0) < 0)
    except (ValueError, OverflowError):
        raise UsageError(f"{word!r} is neither a number nor an array such as float[1024]") from None
