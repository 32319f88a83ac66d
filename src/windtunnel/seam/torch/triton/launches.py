"""A launch of a Triton kernel: its arguments, the one kernel that it is on the machine, and what it did wrong."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import NamedTuple, Protocol, TypeGuard

import torch

from windtunnel.errors import UnsupportedError
from windtunnel.machine.machine import Cost
from windtunnel.machine.memory.blocks import Block
from windtunnel.machine.stream import Stream
from windtunnel.seam.living import living
from windtunnel.seam.torch.dispatch import asserts
from windtunnel.seam.torch.dispatch.launched import Again, LaunchPlan
from windtunnel.seam.torch.dispatch.mode import Dispatch, emulation
from windtunnel.seam.torch.plans.arguments import Arguments
from windtunnel.seam.torch.state.blank import PIECES, unwritten
from windtunnel.seam.torch.state.core import Apart
from windtunnel.seam.torch.state.reuse import reusing_ranges
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import HOST_TAG, Storage, Tag, device_of, is_physically_meta, storage_of
from windtunnel.seam.torch.triton.base import ComputedWork, JITFunction
from windtunnel.seam.torch.triton.compiling import LaunchedKernel, shared_memory, types_of
from windtunnel.seam.torch.triton.interpreter import LOCK, Interpreter
from windtunnel.seam.torch.triton.memory import AssertedError, IllegalAddressError, LaunchMemory, Region
from windtunnel.trace.operation import Note, Signature, Site

Tensor = torch.Tensor
C = torch._C
SAMPLED = 3
"""Programs of a grid that are looked at where only the price of a launch is asked."""
SAMPLED_WITHOUT_DATA = 8
"""And where there are no values."""
SYNTHETIC = 1 << 46
"""Where memory lies for a kernel that has no address on a device."""


class TunedKernel(JITFunction, Protocol):
    """A kernel, and what is called before each launch."""

    pre_run_hooks: Sequence[Callable[..., object]]


class LaunchOptions(NamedTuple):
    """How a kernel is compiled, as far as it decides time."""

    warps: int = 4
    stages: int = 3


class Priced(Exception):  # noqa: N818  # it ends a launch, and is no error
    """Ends a launch of which only the price was asked."""

    def __init__(self, cost: Cost) -> None:
        super().__init__()
        self.cost = cost


_interpreter: list[Interpreter] = []
_fitting: set[str] = set()
"""Launches whose products are known to fit in shared memory."""
pricing: list[bool] = []
"""Not empty while a launch is to be priced and not made."""


def interpreter() -> Interpreter:
    """The one interpreter of this process."""
    if not _interpreter:
        _interpreter.append(Interpreter())
    return _interpreter[0]


class Launch:
    """One launch, from a program's call to the machine's row."""

    def __init__(
        self, dispatch: Dispatch, kernel: TunedKernel, grid: object, args: Arguments, kwargs: Mapping[str, object]
    ) -> None:
        self.dispatch = dispatch
        self.state: State = dispatch.state
        self.kernel = kernel
        self.interpreter = interpreter()
        if self.state.visible is None:
            torch.cuda._lazy_init()
        self.device = self.state.local.device
        self.apart = self.state.local.apart
        named = {parameter.name for parameter in kernel.params}
        for name in kwargs:
            if name not in named and name not in _compiler_options():
                raise KeyError(f"Keyword argument {name} was specified but unrecognised")
        given = {name: value for name, value in kwargs.items() if name in named}
        bound = inspect.signature(kernel.fn).bind(*args, **given)
        bound.apply_defaults()
        self.arguments = dict(bound.arguments)
        self.types = types_of(args), dict(zip(kwargs, types_of(tuple(kwargs.values())), strict=True))
        self.options = LaunchOptions(*(_number(kwargs.get(name)) or default for name, default in OPTIONS))
        if self.options.warps & (self.options.warps - 1):
            raise AssertionError("num_warps must be a power of 2")
        self.debug = bool(kwargs.get("debug", kernel.debug) or _debugging())
        self.grid = self._grid(grid)
        self.tensors: list[tuple[str, Tensor]] = []
        self._collect()

    def _grid(self, grid: object) -> tuple[int, int, int]:
        sizes = grid(dict(self.arguments)) if callable(grid) else grid
        if not isinstance(sizes, (tuple, list)):
            raise TypeError(f"object of type {type(sizes).__name__!r} has no len()")
        x, y, z = (*(int(size) for size in sizes), 1, 1, 1)[:3]
        return x, y, z

    def _collect(self) -> None:
        for position, parameter in enumerate(self.kernel.params):
            if parameter.is_constexpr:
                continue
            for name, tensor in tensors_of(parameter.name, self.arguments[parameter.name]):
                device = device_of(tensor)
                if device != self.device and self.apart is None and not (device < 0 and storage_of(tensor)._wt.pinned):
                    raise ValueError(f"Pointer argument (at {position}) cannot be accessed from Triton (cpu tensor?)")
                self.tensors.append((name, tensor))

    # ------------------------------------------------------------------ running

    def run(self) -> None:
        """Make the launch: now, or as a node of the graph that is captured."""
        if self.state.failure is not None and getattr(self.state.failure, "surfaced", False):
            self.state.failure.surface()
        if not self.state.no_data and _has_products(self.kernel):
            self._check_resources()
        recorder = None if self.state.no_data else self.dispatch.recorder
        tensors = tuple(tensor for _, tensor in self.tensors)
        if self.apart is not None:
            self.apart.append(self._apart(tensors))
        elif recorder is not None and self.state.local.streams[self.device].capture is not None:
            again = Again(f"triton::{self.kernel.__name__}", self._again)
            recorder.launched(LaunchPlan(again), self._submit, tensors)
        else:
            written = self._submit(*tensors)
            if recorder is not None:
                recorder.happened([tensors[at] for at in written])

    def _apart(self, tensors: Sequence[Tensor]) -> Apart:
        """Compute a kernel of a compiled graph, whose launch comes later (`compiled.program`)."""
        memory, work, programs = self._compute(tensors, SAMPLED_WITHOUT_DATA if self.state.no_data else 0)
        self._judge(memory)
        written = {id(region.storage) for region in memory.regions.values() if region.writes}
        places = frozenset(at for at, tensor in enumerate(tensors) if id(storage_of(tensor)) in written)
        return Apart(self.kernel.__name__, self._cost(memory, work, programs), places)

    def price(self) -> Cost:
        """What the launch would cost; nothing is written."""
        memory, work, programs = self._compute([tensor for _, tensor in self.tensors], SAMPLED)
        self._check_shared(work)
        return self._cost(memory, work, programs)

    def _check_resources(self) -> None:
        """Refuse a launch as Triton does, before anything is computed."""
        args, kwargs = self.types
        key = repr((self.kernel.__name__, id(self.kernel), self.state.device(self.device).gpu.name, self.debug, [
            str(value.dtype) if hasattr(value, "dtype") else repr(value) for value in (*args, *kwargs.values())
        ]))  # fmt: skip
        if key not in _fitting:
            _, work, _ = self._compute([tensor for _, tensor in self.tensors], 1)
            self._check_shared(work)
            _fitting.add(key)

    def _check_shared(self, work: ComputedWork) -> None:
        """Where the operands of a product may not fit in shared memory, the compiler says how much it needs.

        Raises:
            OutOfResources: more than a block can have.
        """
        limit = self.state.device(self.device).gpu.shared_memory_per_block_optin_bytes
        if work.largest is not None and work.largest.operand_bytes * self.options.stages > limit:
            from triton.runtime.errors import OutOfResources

            args, kwargs = self.types
            needed = shared_memory(self.kernel, self.grid, args, kwargs)
            if needed > limit:
                raise OutOfResources(needed, limit, "shared memory")

    def _again(self, *tensors: Tensor) -> None:
        """Compute the values once more, in a graph's replay."""
        memory, _, _ = self._compute(tensors, 0)
        self._judge(memory)

    def _submit(self, *tensors: Tensor) -> list[int]:
        """Compute, and hand the kernel to the machine; returns the positions of tensors that it wrote."""
        state, machine = self.state, self.state.machine
        local = state.local
        stream = local.streams[self.device]
        site = state.site()
        state.arrive()
        memory, work, programs = self._compute(tensors, SAMPLED_WITHOUT_DATA if state.no_data else 0)
        if prod(self.grid) == 0:
            return []
        cost = self._cost(memory, work, programs)
        if machine.concurrent:
            stream = state.order.stream_of(self.device, stream)
        regions = [region for region in memory.regions.values() if _tag(region) is not HOST_TAG]
        reads = [(_tag(region), *region.reads) for region in regions if region.reads]
        writes = [(_tag(region), *region.writes) for region in regions if region.writes]
        cost = reusing_ranges(machine, stream, cost, (*reads, *writes))
        machine.launch(state.host(), stream, cost, site if machine.watching else 0)
        state.order.kernel(reads, writes, stream, site)
        self._judge(memory, stream)
        written = {id(region.storage) for region in memory.regions.values() if region.writes}
        return [at for at, tensor in enumerate(tensors) if id(storage_of(tensor)) in written]

    def _compute(self, tensors: Sequence[Tensor], sampled: int) -> tuple[LaunchMemory, ComputedWork, int]:
        """Run all programs, or so many of them without a trace; returns how many it were."""
        total = prod(self.grid)
        programs = range(total) if not sampled or total <= sampled else _spread(total, sampled)
        engine = self.interpreter
        local = self.state.local
        memory = LaunchMemory(engine.line, self._region_at, self._mapped)
        memory.programs = max(1, total)
        memory.dry = bool(sampled)
        memory.host = not any(is_physically_meta(tensor) for tensor in tensors)
        inner, local.inner = local.inner, True
        try:
            with LOCK, C._DisableTorchDispatch(), C.DisableTorchFunctionSubclass():
                arguments = self._converted(memory, tensors)
                work = engine.run(self.kernel, arguments, memory, self.grid, programs, self.debug)
        except IllegalAddressError:
            work = engine.work
        except AssertedError as error:
            work, memory.asserted = engine.work, error
        finally:
            local.inner = inner
        return memory, work, len(programs)

    # ------------------------------------------------------------------ arguments

    def _converted(self, memory: LaunchMemory, tensors: Sequence[Tensor]) -> dict[str, object]:
        left = iter(tensors)
        names = iter(name for name, _ in self.tensors)
        found = {}
        for parameter in self.kernel.params:
            value, kind = self.arguments[parameter.name], parameter.annotation_type
            found[parameter.name] = value if parameter.is_constexpr else self._convert(memory, value, left, names, kind)
        return found

    def _convert(
        self, memory: LaunchMemory, value: object, tensors: Iterator[Tensor], names: Iterator[str], kind: str = ""
    ) -> object:
        """An argument as the kernel gets it; `kind` is the type that its parameter is annotated with."""
        engine = self.interpreter
        if isinstance(value, (bool, int, float)):
            return engine.number(value, kind)
        if isinstance(value, tuple):
            made = [self._convert(memory, part, tensors, names) for part in value]
            return value._make(made) if hasattr(value, "_make") else tuple(made)
        if _is_descriptor(value):
            base = self._convert(memory, value.base, tensors, names)
            return engine.described(base, value.shape, value.strides, value.block_shape, value.padding)
        if _tensor_in(value) is not None:
            tensor = next(tensors)
            region = self._region(memory, tensor)
            offset = int(tensor.storage_offset()) * tensor.element_size()
            return engine.pointer(memory.pointer(next(names), region, offset), kind or _mangled(value))
        if hasattr(value, "data_ptr"):
            return engine.pointer(int(value.data_ptr()), kind or _mangled(value))
        return value

    def _region(self, memory: LaunchMemory, tensor: Tensor) -> Region:
        storage = storage_of(tensor)
        known = memory.regions.get(storage._cdata)
        if known is None:
            known = memory.regions[storage._cdata] = _region_of(
                storage, tensor, SYNTHETIC * bool(not _address(storage))
            )
        return known

    def _region_at(self, address: int) -> Region | None:
        """The memory of a live tensor at an address, which the kernel did not get as an argument."""
        frees = self.state.device(self.device).frees  # which tells this emulation's storages from an earlier one's
        for found in living(Tensor):
            if not _has_storage(found):
                continue
            storage = storage_of(found)
            base = _address(storage)
            if base and base <= address < base + storage.nbytes() and storage._wt.frees is frees:
                return _region_of(storage, found, 0)
        return None

    def _mapped(self, address: int) -> bool:
        segments = self.state.device(self.device).allocator.segments.values()
        if self.apart is not None and address >= SYNTHETIC:
            return True
        return any(segment.address <= address < segment.address + segment.size for segment in segments)

    # ------------------------------------------------------------------ the machine

    def _cost(self, memory: LaunchMemory, work: ComputedWork, programs: int) -> Cost:
        total = prod(self.grid)
        factor = total / max(1, programs)
        read, written = memory.unique()
        if factor > 1:
            read, written = (self._extrapolated(memory, factor, side) for side in ("read", "written"))
        precision = max(work.flops, key=lambda name: work.flops[name], default="")
        tile = work.largest
        details: list[tuple[str, str | int]] = [
            ("grid", "x".join(map(str, self.grid))),
            ("programs", total),
            ("warps", self.options.warps),
            ("traffic", round(factor * (memory.read_bytes + memory.written_bytes))),
        ]
        if precision:
            details.append(("precision", precision))
        if tile is not None:
            details.append(("tile", f"{tile.m}x{tile.n}x{tile.k}"))
            details.append(("shared", tile.operand_bytes * max(1, self.options.stages - 1)))
        if precision == "tf32":
            details.append(("tf32", 1))
        signature = Signature(
            f"triton::{self.kernel.__name__}",
            dtypes=(DTYPES.get(precision, "float32"),) if precision else (),
            flops=round(factor * sum(work.flops.values())),
            read_bytes=read,
            written_bytes=written,
            detail=tuple(details),
        )
        machine = self.state.machine
        return machine.price(machine.devices[self.device], signature)

    @staticmethod
    def _extrapolated(memory: LaunchMemory, factor: float, side: str) -> int:
        """Bytes of a whole grid by those of some programs: at most what the memory holds."""
        return sum(
            min(round(factor * 32 * int(getattr(region, side).sum())), region.size)
            for region in memory.regions.values()
        )

    def _judge(self, memory: LaunchMemory, stream: Stream | None = None) -> None:
        """Note what the kernel did wrong; where it left the device's memory, the context is lost."""
        state = self.state
        machine = state.machine
        launched = str(machine.trace.sites[state.site()])
        for violation in memory.violations.values():
            site = Site(*violation.line)
            detail = (
                ("kernel", self.kernel.__name__), ("argument", violation.argument), ("access", violation.access),
                ("found", violation.found), ("launched", launched), ("severe", int(violation.severe)),
            )  # fmt: skip
            machine.note(state.host(), Note(violation.code, site, detail), machine.trace.sites.number(site))
        stream = stream or state.local.streams[self.device]
        if memory.asserted is not None:
            self._fail(memory.asserted, stream)
        if memory.lost and state.failure is None:
            state.failure = asserts.AssertFailure(
                self.dispatch, stream, stream.epoch, "an illegal memory access was encountered",
                "cudaErrorIllegalAddress", next(iter(memory.violations.values())).sentence(self.kernel.__name__),
            )  # fmt: skip

    def _fail(self, asserted: AssertedError, stream: Stream) -> None:
        """An assertion of the kernel's failed; the error surfaces where the host next waits."""
        state, machine = self.state, self.state.machine
        file, line, _ = asserted.line
        found = f"Assertion `{asserted}` failed at {file}:{line}"
        detail = (("operator", f"triton::{self.kernel.__name__}"), ("found", found))
        machine.note(state.host(), Note("device-assert", machine.trace.sites[state.site()], detail))
        if state.failure is None:
            state.failure = asserts.AssertFailure(
                self.dispatch, stream, stream.epoch, note=f"{found}, in the Triton kernel {self.kernel.__name__!r}"
            )


def _has_products(kernel: JITFunction, seen: frozenset[int] = frozenset()) -> bool:
    """Whether a kernel, or a function that it may call, has a `dot` in its source."""
    if "dot" in kernel.src:
        return True
    scope = kernel.get_capture_scope()
    named = (scope.get(name) for name in {*kernel.fn.__code__.co_names, *kernel.fn.__code__.co_freevars})
    callees = (value for value in named if hasattr(value, "get_capture_scope"))
    seen |= {id(kernel)}
    return any(_has_products(callee, seen) for callee in callees if id(callee) not in seen)  # type: ignore[arg-type]


def launch(kernel: TunedKernel, grid: object, args: Arguments, kwargs: Mapping[str, object]) -> LaunchedKernel | None:
    """Launch a kernel on the emulated device; None where this thread has none."""
    dispatch = emulation()
    if dispatch is None:
        return None
    if hasattr(kernel, "is_gluon") and kernel.is_gluon():
        raise UnsupportedError(
            f"{kernel.__name__!r} is a Gluon kernel, which says itself how a GPU's warps share the work and which "
            "Triton's interpreter does not compute: write it with triton.language, or run this part on a real GPU"
        )
    for hook in kernel.pre_run_hooks:
        hook(*args, **kwargs)
    made = Launch(dispatch, kernel, grid, args, kwargs)
    if pricing:
        raise Priced(made.price())
    made.run()
    return LaunchedKernel(kernel, made.grid, *made.types)


@contextmanager
def priced() -> Iterator[None]:
    """Within it a launch raises `Priced` instead of being made."""
    pricing.append(True)
    try:
        yield
    finally:
        pricing.pop()


DTYPES = {
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp64": "float64",
    "fp8": "float8_e4m3fn",
    "int8": "int8",
}
"""What the trace calls a product's operands, by its arithmetic."""
OPTIONS = (("num_warps", 4), ("num_stages", 3))


def _compiler_options() -> frozenset[str]:
    from triton.backends.nvidia.compiler import CUDAOptions

    return frozenset({*CUDAOptions.__dataclass_fields__, "debug", "instrumentation_mode", "ir_override"})


def _debugging() -> bool:
    from triton import knobs

    return bool(knobs.runtime.debug)


def _number(value: object) -> int:
    return int(value) if isinstance(value, int) else 0


def _spread(total: int, count: int) -> list[int]:
    """So many of a grid's programs, evenly, the first and the last among them."""
    return sorted({round(at * (total - 1) / max(1, count - 1)) for at in range(count)})


class _Descriptor(Protocol):
    base: Tensor
    shape: Sequence[int]
    strides: Sequence[int]
    block_shape: Sequence[int]
    padding: object


def _is_descriptor(value: object) -> TypeGuard[_Descriptor]:
    from triton.tools.tensor_descriptor import TensorDescriptor

    return isinstance(value, TensorDescriptor)


def _tensor_in(value: object) -> Tensor | None:
    """A pointer argument's tensor, also of one that is reinterpreted (`triton.reinterpret`)."""
    if isinstance(value, Tensor):
        return value
    from triton.runtime.jit import TensorWrapper

    return value.base if isinstance(value, TensorWrapper) else None


def tensors_of(name: str, value: object) -> Iterator[tuple[str, Tensor]]:
    """The tensors in an argument, each with the name that it goes by."""
    tensor = _tensor_in(value)
    if tensor is not None:
        yield name, tensor
    elif isinstance(value, tuple):
        fields = getattr(value, "_fields", None)
        for at, part in enumerate(value):
            yield from tensors_of(f"{name}.{fields[at]}" if fields else f"{name}[{at}]", part)
    elif _is_descriptor(value):
        yield from tensors_of(name, value.base)


def _mangled(value: object) -> str:
    from triton.runtime.jit import mangle_type

    return str(mangle_type(value))


def _has_storage(tensor: Tensor) -> bool:
    try:
        return tensor.layout is torch.strided and storage_of(tensor).nbytes() > 0
    except (NotImplementedError, RuntimeError):
        return False


def _address(storage: Storage) -> int:
    block = storage._wt.block
    return block.address if isinstance(block, Block) else 0


def _tag(region: Region) -> Tag:
    storage: Storage = region.storage  # type: ignore[assignment]
    return storage._wt


def _region_of(storage: Storage, tensor: Tensor, elsewhere: int) -> Region:
    """A storage's memory, with what of it nobody wrote."""
    tag = storage._wt
    size = storage.nbytes()
    host = 0 if is_physically_meta(tensor) or not size else int(C.StorageBase.data_ptr(storage))  # type: ignore[attr-defined]
    address = _address(storage) or elsewhere + host % SYNTHETIC // 512 * 512
    return Region(storage, address, size, host, unwritten(tag, size, _version(tensor)))


def _version(tensor: Tensor) -> int:
    """How often PyTorch wrote a tensor; inference tensors do not say, and count as written."""
    return PIECES + 1 if tensor.is_inference() else tensor._version
