"""CUDA graphs: `torch.cuda.CUDAGraph`, and what `torch.cuda.graph` and `make_graphed_callables` build on it.

On a GPU nothing runs while a graph is captured, so what its memory holds until the first replay is undefined. Of the
executions that this allows, the emulation takes one: memory that was there before the capture keeps its values, and
what the capture allocated holds zeros. A replay runs the captured operators again on the same memory.
"""

from __future__ import annotations

import warnings

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from windtunnel.machine import capture as machine_capture
from windtunnel.machine.memory.blocks import DEFAULT_POOL, PoolId
from windtunnel.machine.order import Access
from windtunnel.machine.replay import replay
from windtunnel.machine.stream import Stream
from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.cuda.captures import CapturedOperator, CaptureMode, tensors_of, write_again
from windtunnel.seam.torch.cuda.graph_memory import PoolBytes
from windtunnel.seam.torch.dispatch import asserts
from windtunnel.seam.torch.dispatch.mode import Dispatch
from windtunnel.seam.torch.plans.arguments import Arguments, Keywords, tensors_in
from windtunnel.seam.torch.plans.messages import cuda_error
from windtunnel.seam.torch.state.late import byte_range
from windtunnel.seam.torch.state.order import written
from windtunnel.seam.torch.state.positions import Generator, Position, Taken
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import CPU, VERSION, tag_of

Tensor = torch.Tensor
C = torch._C

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
NO_DEBUG = "CUDA Graphs debug not enabled, set with [graph].enable_debug_mode()"
DEAD = "CUDA graph replay detected {} dead tensor(s).\nMemory that the graph uses was freed after the capture: keep {}"
PER_CAPTURE = VERSION >= (2, 13)
"""Whether each capture has memory of its own for a generator's seed and offset, on the default stream (pytorch#176752);
before, a generator has it for as long as any graph is registered with it (aten/src/ATen/cuda/CUDAGeneratorImpl.cpp)."""


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
        *_accelerator_graph(graph_class),
    ]


def _accelerator_graph(graph_class: type) -> list[Patch]:
    """`torch.accelerator.Graph`, which newer versions of PyTorch have."""
    module = getattr(torch.accelerator, "graphs", None)
    if module is None:
        return []
    stock = module.Graph

    class Graph(graph_class):  # type: ignore[misc]
        """A graph of the accelerator that is there, here of CUDA; as a context it captures on the current stream."""

        def __init__(
            self, keep_graph: bool = False, *, pool: object = None, capture_error_mode: str = "default"
        ) -> None:
            super().__init__(keep_graph)
            self.graph_pool, self.capture_error_mode = pool, capture_error_mode

        def capture_begin(self) -> None:
            mode = "global" if self.capture_error_mode == "default" else self.capture_error_mode
            super().capture_begin(self.graph_pool, mode)

        __enter__, __exit__ = stock.__enter__, stock.__exit__

    Graph.__module__, Graph.__qualname__ = stock.__module__, stock.__qualname__
    return [Patch(owner, "Graph", Graph) for owner in (torch.accelerator, module)]


class Graph:
    """What `torch.cuda.CUDAGraph` does, on the machine's clock."""

    _state: State
    _captured = False  # also of one that was called with unknown words

    def __init__(self, keep_graph: bool = False) -> None:
        torch.cuda._lazy_init()
        self._keep = keep_graph
        self._mode: CaptureMode | None = None
        self._capture: machine_capture.Capture | None = None
        self._captured = False
        self._pool: PoolId = DEFAULT_POOL  # as the program gave it
        self._pool_id: PoolId = DEFAULT_POOL
        self._places: list[Position] = []  # that the graph may draw random numbers from
        self._before: list[tuple[int, int]] = []
        self._blocks: list[Taken] = []
        self._stream: Stream | None = None
        self._debug = False
        self._optimizer_steps = 0  # that the graph holds

    def capture_begin(
        self, pool: PoolId | None = None, capture_error_mode: str = "global", check_input_liveness: bool = False
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
            raise stream.capture.fail(machine_capture.UNSUPPORTED)
        self._pool = (next(state.capture_numbers), 0) if pool is None else pool
        first, second = self._pool
        self._pool_id = first, second
        self._stream = stream
        default = state.generators[stream.device]
        self.register_generator_state(default)
        if PER_CAPTURE:
            self._blocks = [block for _ in self._places for block in self._draws_through(0)]
        self._before = [(place.seed, place.offset) for place in self._places]
        self._capture = machine_capture.Capture(stream, capture_error, capture_error_mode, state.thread_of_cuda())
        capture, device = self._capture, state.device(stream.device)
        state.captures.append(capture)
        if capture.mode == "global" and any(one._pin_memory and one._tasks_outstanding for one in [*state.loaders]):
            state.notes.note("unsafe-capture", state.site(), device=stream.device)
        state.drain(device)
        with C._DisableTorchDispatch():
            pool_bytes = PoolBytes(device, self._pool_id)
        device.allocator.begin_allocate_to_pool(self._pool_id, lambda index: device.streams[index].capture is capture)
        device.allocator.mark_capture_begin()
        dispatch = next(mode for mode in _get_current_dispatch_mode_stack() if isinstance(mode, Dispatch))
        self._mode = dispatch.recorder = CaptureMode(dispatch, default, self._places, pool_bytes)
        _begin(self._places)
        for place in self._places:
            place.record = self._mode.then
        self._optimizer_steps = -state.notes.captured_steps
        self._mode.__enter__()  # type: ignore[no-untyped-call]

    def capture_end(self) -> None:
        """End the capture; raises when an operation that a graph cannot hold was met."""
        state, stream, mode, capture = self._state, self._stream, self._mode, self._capture
        if mode is None or capture is None or state.local.streams[state.local.device] is not stream:
            raise RuntimeError(OTHER_STREAM)
        assert stream is not None
        mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        mode.dispatch.recorder = None
        state.captures.remove(capture)
        device = state.device(stream.device)
        state.drain(device)
        device.allocator.mark_capture_end()
        device.allocator.end_allocate_to_pool(self._pool_id)
        with torch._C._DisableTorchDispatch():
            mode.give_back()
        for place, before in zip(self._places, self._before, strict=False):
            place.seed, place.offset = before
            place.start_of_graph = place.record = None
        self._captured = True
        self._optimizer_steps += state.notes.captured_steps
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
            raise stream.capture.fail(machine_capture.UNSUPPORTED)
        site = state.site()
        end = replay(state.machine, state.host(), stream, self._capture, site)
        self._compute(stream, end, site)
        reads, writes = (state.order.whole(tags) for tags in (self._mode.reads, self._mode.writes))
        written(writes)
        state.machine.access(local.host, stream, reads, writes, site)
        for _ in range(self._optimizer_steps):
            state.notes.stepped(site)

    def _compute(self, stream: Stream, end_ns: int, site: int) -> None:
        local = self._state.local
        inner, local.inner = local.inner, True
        positions = dict(self._state.positions)
        _begin(self._places)
        autocast = C._DisableAutocast()
        try:
            with torch.no_grad(), C._DisableTorchDispatch(), C.DisableTorchFunctionSubclass():
                self._run(stream, end_ns, site)
        finally:
            local.inner = inner
            self._state.positions.update(positions)
            for place in self._places:
                place.start_of_graph = None
            del autocast  # its end is the end of the guard

    def _run(self, stream: Stream, end_ns: int, site: int) -> None:
        state = self._state
        assert self._mode is not None
        dispatch = self._mode.dispatch
        values = dispatch.deviations.values
        for step in self._mode.steps:
            if not isinstance(step, CapturedOperator):
                step()
                continue
            if step.drawn is not None:
                state.positions[step.drawn[0]] = step.drawn[1]
            plan = step.call.plan
            try:
                args: Arguments = tuple(map(tensors_of, step.call.args))
                kwargs: Keywords = {name: tensors_of(value) for name, value in step.call.kwargs.items()}
            except LookupError:
                raise RuntimeError(DEAD.format(1, f"the tensors that {plan.name} reads and writes")) from None
            if plan.card.transfers and plan.mutated and tag_of(args[0]).device == CPU and tag_of(args[1]).device >= 0:
                start, stop = byte_range(args[0])
                lane = state.machine.lane(state.local.host, stream)
                access = Access(stream.agent, stream.epoch, start, stop, True, lane, site)
                state.late.to_host(stream, args[0], args[1].clone(), end_ns, access)
                continue
            C._set_grad_enabled(step.grad)  # some kernels keep what a backward pass needs only then
            compute = values.get(plan.func.name()) or values.get(plan.name, Dispatch.compute)
            call = step.call.but(args=args, kwargs=kwargs, device=stream.device)
            try:
                out = compute(dispatch, call) if step.again is None else step.again(call)
            except (IndexError, RuntimeError) as error:
                asserts.fail(dispatch, plan, error, stream, stream.epoch)
                return  # what the rest of the graph would compute is undefined
            for slot, made in zip(step.results, tensors_in((out,)) if plan.fresh else (), strict=True):
                write_again(slot, made)

    def reset(self) -> None:
        """Forget the captured graph and give its pool back."""
        if self._captured and self._stream is not None:
            device = self._state.device(self._stream.device)
            self._state.drain(device)
            device.allocator.release_pool(self._pool_id)
            _give_back(self._blocks)
        self._captured = False
        self._mode = self._capture = None

    def pool(self) -> object:
        """The id of the graph's memory pool."""
        if not self._captured:
            raise RuntimeError(NOT_CAPTURED.format("pool()"))
        return torch.cuda._POOL_HANDLE(self._pool) if hasattr(torch.cuda, "_POOL_HANDLE") else self._pool

    def register_generator_state(self, generator: Generator) -> None:
        """Let the graph draw from a generator: each replay goes on where the last one stopped."""
        place = self._state.positions[generator._cdata]
        if place in self._places:
            return
        self._places.append(place)
        if not PER_CAPTURE and not place.graphs:
            place.blocks = self._draws_through(self._state.local.streams[self._state.local.device].index)
        place.graphs.add(id(self))

    def _draws_through(self, stream: int) -> list[Taken]:
        """The memory that a generator's seed and offset are read from, an element each."""
        device = self._state.device(self._state.local.device)
        taken = (self._state.memory.take(device, 8, stream) for _ in range(2))
        return [(device, block) for block in taken if block is not None]

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
        raise RuntimeError("windtunnel has no cudaGraph_t to hand out: look at the graph with debug_dump()")

    raw_cuda_graph_exec = raw_cuda_graph

    def __del__(self) -> None:
        if self._state.generation == State.generation:
            self.reset()
            for place in vars(self).get("_places", ()):
                place.graphs.discard(id(self))
                if not place.graphs:
                    _give_back(place.blocks)


def _begin(places: list[Position]) -> None:
    for place in places:
        place.start_of_graph = place.offset


def _give_back(blocks: list[Taken]) -> None:
    while blocks:
        device, block = blocks.pop()
        device.frees.append(block)  # a graph may die anywhere


def _before(last: dict[int, int], line: int) -> list[int]:
    return [last[line]] if line in last else []


def capture_error(text: str) -> RuntimeError:
    """PyTorch's exception of an error of a capture."""
    return cuda_error(text, machine_capture.ERROR_NAMES[text])


def _graph_class(state: State) -> type:
    class CUDAGraph(Graph):
        """A CUDA graph (torch.cuda.CUDAGraph): captured work that is launched as one."""

        _state = state

    CUDAGraph.__module__, CUDAGraph.__qualname__ = "torch.cuda.graphs", "CUDAGraph"
    return CUDAGraph
