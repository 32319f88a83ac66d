"""CUDA graphs: `torch.cuda.CUDAGraph`, and what `torch.cuda.graph` and `make_graphed_callables` build on it.

On a GPU nothing runs while a graph is captured, so what its memory holds until the first replay is undefined. Of the
executions that this allows, the emulation takes one: memory that was there before the capture keeps its values, and
what the capture allocated holds zeros. A replay runs the captured operators again on the same memory.
"""

from __future__ import annotations

import warnings
import weakref
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from understudy.machine import graph as machine_graph
from understudy.machine.order import Access
from understudy.machine.stream import Stream
from understudy.seam.patching import Patch
from understudy.seam.torch.dispatch import PLAIN, Dispatch
from understudy.seam.torch.late import extent
from understudy.seam.torch.messages import cuda_error
from understudy.seam.torch.operators import Plan, tensors_in
from understudy.seam.torch.state import State
from understudy.seam.torch.tables import HIDDEN_WRITES, NO_KERNEL
from understudy.seam.torch.tags import CPU, Tag, storage_of, tag_of

Tensor = torch.Tensor
C: Any = torch._C
to_capsule, from_capsule = C._to_dlpack, C._from_dlpack

ON_DEFAULT_STREAM = (
    "CUDA graphs must be captured on a non-default stream. (However, after capture, it's ok to replay them on the "
    "default stream.)"
)
OWNS_ONE = "This CUDAGraph instance already owns a captured graph. To capture a new graph, create a new instance."
NOT_CAPTURED = "Called CUDAGraph::{} without a preceding successful capture."
OTHER_STREAM = "Capture must end on the same stream it began on."
EMPTY = (
    "The CUDA Graph is empty. This usually means that the graph was attempted to be captured on wrong device or stream."
)
UNREGISTERED = "Attempt to increase offset for a CUDA generator not in capture mode."
NO_DEBUG = "CUDA Graphs debug not enabled, set with [graph].enable_debug_mode()"
DEAD = "CUDA graph replay detected {} dead tensor(s).\nMemory that the graph uses was freed after the capture: keep {}"
COPIES = frozenset({"aten::copy_", "aten::_to_copy"})
"""Operators without a kernel of their own in the tables, which a replay runs all the same."""


def patches(state: State) -> list[Patch]:
    """`torch.cuda.CUDAGraph` and what PyTorch's Python reads of captures."""
    graph_class = _graph_class(state)
    graphs = torch.cuda.graphs

    def is_capturing() -> bool:
        return state.capturing(state.local.streams[state.local.device])

    return [
        Patch(torch.cuda, "CUDAGraph", graph_class),
        Patch(graphs, "CUDAGraph", graph_class),
        Patch(C, "_CUDAGraph", graph_class),
        Patch(graphs, "_cuda_isCurrentStreamCapturing", is_capturing),
        Patch(graphs.graph, "default_capture_stream", None),
    ]


class Slot(NamedTuple):
    """A tensor of a captured operator, found again at each replay without keeping its memory allocated.

    `storage` is the memory itself (of the graph's own results, or the host's) or a weak reference to it.
    """

    storage: Any
    offset: int
    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype

    def tensor(self) -> Tensor:
        """The tensor; raises LookupError when its memory was freed."""
        storage = self.storage
        if isinstance(storage, StorageWeakRef):
            storage = torch.UntypedStorage._new_with_weak_ptr(storage.cdata)
            if storage is None:
                raise LookupError
        return torch.empty(0, dtype=self.dtype, device="cpu").set_(storage, self.offset, self.shape, self.stride)


class Step(NamedTuple):
    """One operator of a graph; `results` are where its fresh results go."""

    plan: Plan
    func: Any
    args: Any
    kwargs: Any
    results: list[Slot]


class CaptureMode(TorchDispatchMode):
    """Above the emulation's own mode while a graph is captured: lets it carry operators out, and writes them down."""

    def __init__(self, dispatch: Dispatch, generators: list[Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.dispatch = dispatch
        self.generators = generators
        self.steps: list[Step] = []
        self.plans: dict[Any, Plan] = {}
        self.saved: dict[int, tuple[Any, Tensor]] = {}
        self.own: list[Any] = []
        self.reads: weakref.WeakKeyDictionary[Tag, None] = weakref.WeakKeyDictionary()
        self.writes: weakref.WeakKeyDictionary[Tag, None] = weakref.WeakKeyDictionary()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if types and any(kind.__torch_dispatch__ is not PLAIN for kind in types):
            return NotImplemented
        kwargs = kwargs or {}
        plan = self.plans.get(func)
        if plan is None:
            plan = self.plans[func] = Plan(func)
        if plan.view:
            return func(*args, **kwargs)
        generator = kwargs.get("generator")
        if plan.random and generator is not None and not any(generator._cdata == one._cdata for one in self.generators):
            raise RuntimeError(UNREGISTERED)
        written = _written(plan, args, kwargs)
        if self.dispatch.state.no_data:
            out = func(*args, **kwargs)
            self._use_all(plan, args, kwargs, out, written)
            return out
        for tensor in written:
            self._save(tensor)
        given = {id(storage_of(t)._us) for t in tensors_in((*args, *kwargs.values())) if _has_storage(t)}
        out = self._twins(func(*args, **kwargs), given)
        if plan.name not in NO_KERNEL and (plan.kernel or plan.name in COPIES):
            self._write_down(plan, func, args, kwargs, out, written)
        return out

    # ------------------------------------------------------------------ memory

    def _save(self, tensor: Tensor) -> None:
        """Keep the bytes of memory from before the capture: nothing may have been written when it ends."""
        storage = storage_of(tensor)
        if not hasattr(storage, "_us_graph") and storage._cdata not in self.saved and storage.nbytes():
            with torch._C._DisableTorchDispatch():  # our own copy is no work of the graph
                self.saved[storage._cdata] = storage, _bytes(storage).clone()

    def _twins(self, out: Any, given: set[int]) -> Any:
        """Results in new memory, as tensors that may die: the bytes stay with the graph, as in its private pool."""
        if isinstance(out, (tuple, list)):
            return type(out)(self._twins(part, given) for part in out)
        if not isinstance(out, Tensor) or not _has_storage(out) or out.numel() == 0:
            return out
        storage = storage_of(out)
        tag = storage._us
        if tag.device < 0 or id(tag) in given or out.storage_offset() or out.dtype not in TWINNED:
            return out
        with torch._C._DisableTorchDispatch():
            twin: Tensor = from_capsule(to_capsule(out))
        storage_of(twin)._us = tag
        del storage._us
        storage_of(twin)._us_graph = storage
        self.own.append(storage)
        return twin

    def give_back(self) -> None:
        """Memory as if nothing had run."""
        for storage, before in self.saved.values():
            _bytes(storage).copy_(before)
        self.saved.clear()
        for storage in self.own:
            _bytes(storage).zero_()

    # ------------------------------------------------------------------ the record

    def _write_down(self, plan: Plan, func: Any, args: Any, kwargs: Any, out: Any, written: list[Tensor]) -> None:
        self._use_all(plan, args, kwargs, out, written)
        results = [self._slot(tensor) for tensor in tensors_in((out,))] if plan.fresh else []
        kwargs = {name: value for name, value in kwargs.items() if name != "pin_memory"}
        if isinstance(kwargs.get("device"), torch.device):
            kwargs["device"] = torch.device("cpu")
        self.steps.append(Step(plan, func, self._slots(args), self._slots(kwargs), results))

    def _use_all(self, plan: Plan, args: Any, kwargs: Any, out: Any, written: list[Tensor]) -> None:
        """Note the memory that the graph reads and writes."""
        mutated = {id(tensor) for tensor in written}
        for tensor in tensors_in((*args, *kwargs.values())):
            self._use(tensor, self.writes if id(tensor) in mutated else self.reads)
        for tensor in tensors_in((out,)) if plan.fresh else ():
            self._use(tensor, self.writes)

    def _use(self, tensor: Tensor, where: weakref.WeakKeyDictionary[Tag, None]) -> None:
        if _has_storage(tensor) and tag_of(tensor).device >= 0:
            where[tag_of(tensor)] = None

    def _slots(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._slot(value)
        if isinstance(value, dict):
            return {key: self._slots(part) for key, part in value.items()}
        if isinstance(value, (tuple, list)):
            return type(value)(self._slots(part) for part in value)
        return value

    def _slot(self, tensor: Tensor) -> Any:
        if not _has_storage(tensor):
            return tensor
        storage = storage_of(tensor)
        if storage._us.device < 0:
            # Numbers become arguments of the kernel; the rest is read when the graph runs.
            kept = storage_of(tensor.detach().clone()) if tensor.dim() == 0 else storage
        else:
            kept = getattr(storage, "_us_graph", None) or StorageWeakRef(storage)
        offset = 0 if kept is not storage and tensor.dim() == 0 and storage._us.device < 0 else tensor.storage_offset()
        return Slot(kept, int(offset), tensor.shape, tensor.stride(), tensor.dtype)


TWINNED = frozenset(
    {
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
        torch.float32, torch.float64, torch.complex64, torch.complex128,
    }
)  # fmt: skip
"""The dtypes that DLPack carries."""


def _has_storage(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_meta


def _bytes(storage: Any) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)


def _written(plan: Plan, args: Any, kwargs: Any) -> list[Tensor]:
    positions = (*plan.mutated, *HIDDEN_WRITES.get(plan.name, ()))
    values = [args[i] for i in positions if i < len(args)]
    values += [kwargs[name] for name in plan.mutated_keywords if name in kwargs]
    return [tensor for tensor in tensors_in(values) if _has_storage(tensor)]


def _tensors(value: Any) -> Any:
    """Slots as tensors again, in the shape of the arguments."""
    if isinstance(value, Slot):
        return value.tensor()
    if isinstance(value, dict):
        return {key: _tensors(part) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_tensors(part) for part in value)
    return value


class Graph:
    """What `torch.cuda.CUDAGraph` does, on the machine's clock."""

    _state: State

    def __init__(self, keep_graph: bool = False) -> None:
        torch.cuda._lazy_init()
        self._keep = keep_graph
        self._mode: CaptureMode | None = None
        self._capture: machine_graph.Capture | None = None
        self._captured = False
        self._pool: Any = None
        self._generators: list[Any] = []
        self._before: list[Any] = []
        self._stream: Stream | None = None
        self._debug = False

    def capture_begin(
        self, pool: Any = None, capture_error_mode: str = "global", check_input_liveness: bool = False
    ) -> None:
        """Record what follows on the current stream, which must be a side stream."""
        state = self._state
        if capture_error_mode not in ("global", "thread_local", "relaxed"):
            raise RuntimeError(
                f"Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, got {capture_error_mode}"
            )
        if self._captured:
            raise RuntimeError(OWNS_ONE)
        stream = state.local.streams[state.local.device]
        if stream.index == 0:
            raise RuntimeError(ON_DEFAULT_STREAM)
        if stream.capture is not None:
            raise stream.capture.fail(machine_graph.UNSUPPORTED)
        self._pool = torch._C._graph_pool_handle() if pool is None else pool
        self._stream = stream
        default = state.generators[stream.device]
        self.register_generator_state(default)
        self._before = [generator.get_state() for generator in self._generators]
        self._capture = machine_graph.Capture(stream, capture_error)
        capture, device = self._capture, state.device(stream.device)
        state.drain(device)
        device.allocator.begin_allocate_to_pool(
            tuple(self._pool), lambda index: device.streams[index].capture is capture
        )
        device.allocator.mark_capture_begin()
        dispatch = next(mode for mode in _get_current_dispatch_mode_stack() if isinstance(mode, Dispatch))
        self._mode = CaptureMode(dispatch, self._generators)
        self._mode.__enter__()  # type: ignore[no-untyped-call]

    def capture_end(self) -> None:
        """End the capture; raises when an operation that a graph cannot hold was met."""
        state, stream, mode, capture = self._state, self._stream, self._mode, self._capture
        if mode is None or capture is None or state.local.streams[state.local.device] is not stream:
            raise RuntimeError(OTHER_STREAM)
        assert stream is not None
        mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        device = state.device(stream.device)
        state.drain(device)
        device.allocator.mark_capture_end()
        device.allocator.end_allocate_to_pool(tuple(self._pool))
        with torch._C._DisableTorchDispatch():
            mode.give_back()
        for generator, before in zip(self._generators, self._before, strict=False):
            generator.set_state(before)
        self._captured = True
        try:
            capture.end()
        except BaseException:
            self.reset()
            raise
        if not capture.nodes:
            warnings.warn(EMPTY, stacklevel=3)

    def instantiate(self) -> None:
        """Make the executable graph, which `capture_end` or the first replay does by themselves."""
        if not self._captured:
            raise RuntimeError(NOT_CAPTURED.format("instantiate()"))

    def replay(self) -> None:
        """Run the captured work again, as one launch on the current stream."""
        if not self._captured or self._mode is None or self._capture is None:
            raise RuntimeError(NOT_CAPTURED.format("replay"))
        state = self._state
        local = state.local
        stream = local.streams[self._capture.streams[0].device]
        if stream.capture is not None:
            raise stream.capture.fail(machine_graph.UNSUPPORTED)
        site = state.site()
        end = machine_graph.replay(state.machine, local.host, stream, self._capture, site)
        self._compute(stream, end, site)
        reads, writes = (state.order.whole(tags) for tags in (self._mode.reads, self._mode.writes))
        state.machine.access(local.host, stream, reads, writes, site)

    def _compute(self, stream: Stream, end_ns: int, site: int) -> None:
        local = self._state.local
        inner, local.inner = local.inner, True
        autocast = C._DisableAutocast()
        try:
            with torch.no_grad(), C._DisableTorchDispatch(), C.DisableTorchFunctionSubclass():
                self._run(stream, end_ns, site)
        finally:
            local.inner = inner
            del autocast  # its end is the end of the guard

    def _run(self, stream: Stream, end_ns: int, site: int) -> None:
        state = self._state
        assert self._mode is not None
        dispatch = self._mode.dispatch
        for step in self._mode.steps:
            try:
                args, kwargs = _tensors(step.args), _tensors(step.kwargs)
            except LookupError:
                raise RuntimeError(DEAD.format(1, f"the tensors that {step.plan.name} reads and writes")) from None
            if step.plan.name == "aten::copy_" and tag_of(args[0]).device == CPU and tag_of(args[1]).device >= 0:
                start, stop = extent(args[0])
                lane = state.machine.lane(state.local.host, stream)
                access = Access(stream.agent, stream.epoch, start, stop, True, lane, site)
                state.late.to_host(stream, args[0], args[1].clone(), end_ns, access)
                continue
            out = dispatch.call(step.plan, step.func, args, kwargs, stream.device)
            for slot, made in zip(step.results, tensors_in((out,)) if step.plan.fresh else (), strict=True):
                slot.tensor().copy_(made)

    def reset(self) -> None:
        """Forget the captured graph and give its pool back."""
        if self._captured and self._stream is not None:
            device = self._state.device(self._stream.device)
            self._state.drain(device)
            device.allocator.release_pool(tuple(self._pool))
        self._captured = False
        self._mode = self._capture = None

    def pool(self) -> Any:
        """The id of the graph's memory pool."""
        if not self._captured:
            raise RuntimeError(NOT_CAPTURED.format("pool()"))
        return torch.cuda._POOL_HANDLE(self._pool) if hasattr(torch.cuda, "_POOL_HANDLE") else self._pool

    def register_generator_state(self, generator: Any) -> None:
        """Let the graph draw from a generator: each replay goes on where the last one stopped."""
        if not any(generator._cdata == one._cdata for one in self._generators):
            self._generators.append(generator)

    def enable_debug_mode(self) -> None:
        """Let `debug_dump` write the graph."""
        self._debug = True

    def debug_dump(self, debug_path: str) -> None:
        """Write the graph's nodes and their order to a file, in Graphviz's format."""
        if not self._debug or self._capture is None:
            warnings.warn(NO_DEBUG, stacklevel=2)
            return
        signatures = self._state.machine.trace.signatures
        lines = ["digraph dot {"]
        last: dict[int, int] = {}
        for number, node in enumerate(self._capture.nodes):
            lines.append(f'  node_{number} [label="{signatures[node.signature].name}"];')
            lines += [f"  node_{other} -> node_{number};" for other in (*node.after, *_before(last, node.line))]
            last[node.line] = number
        with open(debug_path, "w", encoding="utf-8") as file:
            file.write("\n".join([*lines, "}", ""]))

    def raw_cuda_graph(self) -> int:
        """Refused: there is no cudaGraph_t that C code could use."""
        raise RuntimeError("understudy has no cudaGraph_t to hand out: look at the graph with debug_dump()")

    raw_cuda_graph_exec = raw_cuda_graph

    def __del__(self) -> None:
        if self._state.generation == State.generation:
            self.reset()


def _before(last: dict[int, int], line: int) -> list[int]:
    return [last[line]] if line in last else []


def capture_error(text: str) -> RuntimeError:
    """PyTorch's exception of an error of a capture."""
    return cuda_error(text, machine_graph.ERROR_NAMES[text])


def _graph_class(state: State) -> type:
    class CUDAGraph(Graph):
        """A CUDA graph (torch.cuda.CUDAGraph): captured work that is launched as one."""

        _state = state

    CUDAGraph.__module__, CUDAGraph.__qualname__ = "torch.cuda.graphs", "CUDAGraph"
    return CUDAGraph
