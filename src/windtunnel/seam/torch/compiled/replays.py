"""Compiled graphs as CUDA graphs (`mode="reduce-overhead"`): a warm-up, a recording, then replays.

What PyTorch's CUDA-graph trees do in the end (torch/_inductor/cudagraph_trees.py): the first call runs as it is, the
second is recorded on a side stream and replayed, later ones copy inputs that change their place into the graph's own
and launch the graph. Its memory lies in a private pool, which keeps what the recording needed. The pool's results are
new memory of the pool at each replay here; where a program keeps results of more replays than one, PyTorch refuses to
overwrite them, which is not emulated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType

import torch

from windtunnel.machine.capture import Capture
from windtunnel.machine.memory.blocks import Block, PoolId
from windtunnel.machine.replay import replay
from windtunnel.machine.stream import Stream
from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.compiled.program import Program
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import device_of
from windtunnel.trace.operation import Signature

Run = Callable[[list[object]], object]


class Replayed:
    """A part of Inductor's wrapper that runs as a CUDA graph from its second call on.

    `static` are the positions of inputs that keep their memory from call to call: parameters, and what the forward pass
    saved. Launches of the host count once, in the recording.
    """

    def __init__(self, state: State, function: Run, static: Sequence[int], pool: PoolId) -> None:
        self.state = state
        self.function = function
        self.static = frozenset(static)
        self.pool = pool
        self.calls = 0
        self.inputs: list[Block | None] = []

    def __call__(self, inputs: list[object]) -> object:
        self.calls += 1
        state, local = self.state, self.state.local
        device = max((device_of(value) for value in inputs if isinstance(value, torch.Tensor)), default=local.device)
        stream = local.streams[device]
        allocator = state.device(device).allocator
        allocator.begin_allocate_to_pool(self.pool, None)
        try:
            if self.calls == 1 or stream.capture is not None:
                return self.function(inputs)
            moved = [self._moved(place, value) for place, value in enumerate(inputs)]
            return self._replay(inputs, stream, [size for size in moved if size])
        finally:
            state.drain(state.device(device))
            allocator.end_allocate_to_pool(self.pool)

    def _moved(self, place: int, value: object) -> int:
        """Bytes of an input that must be copied into the graph's own."""
        if place in self.static or not isinstance(value, torch.Tensor) or device_of(value) < 0:
            return 0
        return int(value.numel() * value.element_size())

    def _replay(self, inputs: list[object], stream: Stream, moved: list[int]) -> object:
        state, local = self.state, self.state.local
        machine, device = state.machine, state.device(stream.device)
        state.order.begin_streams()
        if self.calls == 2:
            self.inputs = [device.allocator.malloc(size, stream.index) for size in moved]
        before = local.host.now_ns
        capture = Capture(stream, RuntimeError)
        try:
            results = self.function(inputs)
        finally:
            capture.end()
        if self.calls > 2:
            local.host.now_ns = before
        site = state.site()
        for size in moved:
            machine.copy(local.host, stream, COPIED, size, stream.device, stream.device, False, site)
        replay(machine, local.host, stream, capture, site)
        return results

    def __del__(self) -> None:
        while self.inputs:
            block = self.inputs.pop()
            if block is not None and self.state.generation == type(self.state).generation:
                self.state.machine.devices[0].frees.append(block)


COPIED = Signature("Memcpy DtoD (Device -> Device)")


def cudagraphify(state: State) -> Callable[..., object]:
    """`torch._inductor.compile_fx.cudagraphify`: a whole compiled graph, or a part of its wrapper, as a CUDA graph."""
    pools: dict[int, PoolId] = {}

    def cudagraphify(
        model: Run | Program, static_input_idxs: Sequence[int] = (), *, device_index: int = 0, **_: object
    ) -> object:
        if device_index not in pools:  # one tree of graphs shares one pool
            pools[device_index] = next(state.capture_numbers), 0
            state.device(device_index).allocator.create_pool(pools[device_index])
        pool = pools[device_index]
        if not isinstance(model, Program):
            return Replayed(state, model, static_input_idxs, pool)
        model.wrapper = Replayed(state, model.wrapper, static_input_idxs, pool)
        return model

    return cudagraphify


def trees_patches(state: State, module: ModuleType) -> list[Patch]:
    """`torch._inductor.cudagraph_trees`, which the backend "cudagraphs" asks for a graph of uncompiled operators."""
    make = cudagraphify(state)

    def cudagraphify_impl(
        model: Run, inputs: list[object], static_input_idxs: Sequence[int], *, device_index: int, **_: object
    ) -> object:
        return make(model, static_input_idxs, device_index=device_index)

    return [Patch(module, "cudagraphify_impl", cudagraphify_impl)]
