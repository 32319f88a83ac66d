"""A compiled graph as it runs: values from the graph, time and memory from Inductor's own wrapper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from windtunnel.seam.torch.compiled import values
from windtunnel.seam.torch.compiled.accounting import Accounting
from windtunnel.seam.torch.compiled.answers import ANSWER, Answers
from windtunnel.seam.torch.compiled.kernels import launched
from windtunnel.seam.torch.compiled.recipes import CallRecording, Form, Recipes, ResultPlace, place_of
from windtunnel.seam.torch.dispatch.mode import Dispatch
from windtunnel.seam.torch.plans.arguments import tensors_in
from windtunnel.seam.torch.tags import (
    FLOATING,
    HOST_TAG,
    Storage,
    Tag,
    attach,
    is_physically_meta,
    parts_of,
    storage_of,
)
from windtunnel.trace.operation import Kind, Signature
from windtunnel.trace.trace import KIND, SIGNATURE

Tensor = torch.Tensor
CPU_DEVICE = torch.device("cpu")


class Program:
    """What `CompiledFxGraph.current_callable` is: takes a list of inputs and empties it, gives a sequence of results.

    `graph` computes the values, and tells `answers` what the wrapper will ask for; where an input has none, as in a
    rehearsal without data, it is left out unless there are such answers. `wrapper` is Inductor's generated function: it
    allocates, reuses and frees buffers, and launches kernels, in the compiled program's order. Autograd calls a
    backward graph, whose inputs no guard looks at. `operators` is how many Inductor was given; the first call is noted,
    with what it launches.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        graph: fx.GraphModule,
        wrapper: Callable[..., object],
        answers: Answers,
        is_backward: bool = False,
        operators: int = 0,
    ) -> None:
        self.dispatch = dispatch
        self.graph = graph
        self.wrapper = wrapper
        self.answers = answers
        self.is_backward = is_backward
        self.operators = operators
        self.noted = False
        self.accounting = Accounting(dispatch, answers)
        self.recipes = Recipes(dispatch.state, answers)
        code = getattr(wrapper, "__func__", wrapper)
        self.names = code.__globals__
        self.names[ANSWER] = answers.asked

    def __call__(self, inputs: list[object]) -> Sequence[object]:
        cost, host = self.accounting.machine.installed[0].cost, self.accounting.local.host
        host.now_ns += cost.compiled_call_ns(0 if self.is_backward else len(inputs))
        of_node, host.extra_ns = host.extra_ns, 0  # the graph is one node of autograd, whatever it launches
        try:
            return self._run(inputs)
        finally:
            host.extra_ns = of_node

    def _run(self, inputs: list[object]) -> Sequence[object]:
        if self.is_backward:
            self._settle(inputs)
        answers = self.answers
        answers.known.clear()
        computed = None
        if answers.needed or not any(map(is_physically_meta, tensors_in(inputs))):
            computed = values.run(self.dispatch, self.graph, tuple(inputs))
        if computed is None:
            return self._called(inputs, None)
        form = self.recipes.form(inputs)
        recipe = None if form is None else self.recipes.of(form)
        if form is None or recipe is None:
            return _joined(self._called(inputs, form), computed)
        inputs.clear()
        return _joined(recipe.follow(self.dispatch.state, form.tags), computed)

    def _settle(self, inputs: Sequence[object]) -> None:
        """Give gradients that autograd made of nothing, for results that the loss does not use, the others' device.

        There a kernel fills them with zeros.
        """
        dense = [value for value in inputs if isinstance(value, Tensor) and value.layout is torch.strided]
        devices = [storage_of(tensor)._wt.device for tensor in dense]
        if FLOATING not in devices:
            return
        state, device = self.dispatch.state, max(devices)
        for tensor, before in zip(dense, devices, strict=True):
            state.settle(tensor, device)
            if before == FLOATING and device >= 0:
                size, dtype = tensor.numel() * tensor.element_size(), str(tensor.dtype).removeprefix("torch.")
                zeros = Signature("aten::zeros", (tuple(tensor.shape),), (dtype,), written_bytes=size)
                launched(state, device, state.machine.price(state.machine.devices[device], zeros), [tensor], [tensor])

    def _called(self, inputs: list[object], form: Form | None) -> Sequence[object]:
        """What the wrapper gives, tensors without values; a call of this form may be written down."""
        recording = None
        if form is not None:
            constants = any(isinstance(value, Tensor) for value in self.names.values())
            recording = None if constants else self.recipes.recording(form)
            form.tags.clear()
        given = _without_values(inputs, recording)
        inputs.clear()
        before = len(self.dispatch.machine.trace.rows)
        self.accounting.recording = recording
        listening = nullcontext() if recording is None else recording.listening()
        try:
            with _disable_current_modes(), torch.no_grad(), self.accounting, listening:
                results = self.wrapper(given)
        finally:
            self.accounting.recording = None
        if not self.noted:
            self.noted = True
            self._note(before)
        assert isinstance(results, (list, tuple))
        if form is not None and recording is not None:
            self.recipes.keep(form, recording.recipe(results))
        return results

    def _note(self, before: int) -> None:
        """Record what this graph is, by the rows that its first call has added."""
        state, trace = self.dispatch.state, self.dispatch.machine.trace
        rows = state.notes.own_rows(before)
        launched = [trace.signatures[row[SIGNATURE]] for row in rows if row[KIND] == Kind.KERNEL]
        nodes = [int(value) for one in launched for key, value in one.detail if key == "nodes"]
        state.notes.note(
            "compiled-graph", state.site(), operators=self.operators, kernels=len(launched), generated=len(nodes),
            nodes=sum(nodes),
        )  # fmt: skip


def _without_values(inputs: Sequence[object], recording: CallRecording | None) -> list[object]:
    """Inputs of the same shapes on the same memory, whose end is the end of the real ones for the wrapper."""
    storages: dict[int, Storage] = {}
    return [_on_meta(value, storages, recording) if isinstance(value, Tensor) else value for value in inputs]


def _on_meta(tensor: Tensor, storages: dict[int, Storage], recording: CallRecording | None) -> Tensor:
    if is_physically_meta(tensor):
        return tensor
    real = storage_of(tensor)
    storage = storages.get(real._cdata)
    with torch._C._DisableTorchDispatch():
        if storage is None:
            storage = storages[real._cdata] = storage_of(torch.empty(real.nbytes(), dtype=torch.uint8, device="meta"))
            if real._wt is not HOST_TAG:
                attach(storage, real._wt)
                if recording is not None:
                    recording.hang_on(storage, real._wt)
        made = torch.empty(0, dtype=tensor.dtype, device="meta")
        return made.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


def _joined(results: Sequence[object], computed: Sequence[object]) -> list[object]:
    """The values in tensors that lie as the wrapper's results do, or their places, on the memory that those have."""
    placed: dict[int, Tag] = {}
    return [
        _placed(place, value, placed)
        if isinstance(place, Tensor | ResultPlace) and isinstance(value, Tensor)
        else place
        for place, value in zip(results, computed, strict=True)
    ]


def _placed(found: Tensor | ResultPlace, value: Tensor, placed: dict[int, Tag]) -> Tensor:
    if isinstance(found, Tensor):
        if value.layout is torch.sparse_coo:  # a gradient of an embedding
            with torch._C._DisableTorchDispatch():
                pairs = zip(parts_of(found), parts_of(value), strict=True)
                values, indices = (_placed(there, part, placed) for there, part in pairs)
                made: Tensor = torch.ops.aten._sparse_coo_tensor_unsafe(indices, values, value.shape)
            return made
        found = place_of(found)
    storage = storage_of(value)
    tag = found.tag
    known = placed.get(storage._cdata)
    is_input = known is None and storage._wt is not HOST_TAG
    if is_input and storage._wt is tag:
        return value  # an input, or a part of one
    if is_input or not _lies_alike(found, value) or (known is not None and known is not tag):
        value = _copied_to(found, value)
        storage = storage_of(value)
    if tag is not HOST_TAG:
        placed[storage._cdata] = tag
        attach(storage, tag)
    return value


def _copied_to(place: ResultPlace, value: Tensor) -> Tensor:
    with torch._C._DisableTorchDispatch():
        whole = torch.empty(place.nbytes, dtype=torch.uint8, device=CPU_DEVICE)
        made = torch.empty(0, dtype=place.dtype, device=CPU_DEVICE)
        made.set_(storage_of(whole), place.offset, place.shape, place.stride)
        return made.copy_(value)


def _lies_alike(place: ResultPlace, value: Tensor) -> bool:
    return (
        place.stride == value.stride()
        and place.offset == value.storage_offset()
        and place.nbytes == storage_of(value).nbytes()
    )
