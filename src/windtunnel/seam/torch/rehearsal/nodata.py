"""Rehearsal without data: device tensors have shapes, dtypes and memory, but no values.

They are meta tensors under the same tags. What needs a value (`.item()`, a copy to the host) gets what `assumptions`
says; what decides a shape by values takes all that there is where it selects, and is refused where it does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch

from windtunnel.errors import UnsupportedError
from windtunnel.seam.torch.dispatch.deviations import Deviations
from windtunnel.seam.torch.dispatch.layouts import in_one_layout
from windtunnel.seam.torch.dispatch.mode import Dispatch, Handler
from windtunnel.seam.torch.dispatch.moves import fetch, local_scalar
from windtunnel.seam.torch.dispatch.without_kernel import refuse
from windtunnel.seam.torch.plans.arguments import Arguments, Keywords, OpOverload, Result, tensors_in
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.plans.convolutions import OPERANDS, laid_out
from windtunnel.seam.torch.plans.plan import Plan
from windtunnel.seam.torch.rehearsal import untouched, written
from windtunnel.seam.torch.rehearsal.assumptions import KEEP_SHAPES, Assumptions, refusal
from windtunnel.seam.torch.rehearsal.shape_functions import SHAPES
from windtunnel.seam.torch.rehearsal.shapes import ShapeMemory, memory_for
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import (
    FLOATING,
    HOST_TAG,
    disable_torch_function,
    is_physically_meta,
    named,
    storage_of,
    tag_of,
)

Tensor = torch.Tensor
META = torch.device("meta")
modes_below: Callable[[], int] = torch._C._len_torch_dispatch_stack
"""How many modes stand below this one while it handles an operator: they are to see it."""
SHAPED_BY_VALUES = frozenset(
    {
        "aten::_unique",
        "aten::_unique2",
        "aten::unique_dim",
        "aten::unique_consecutive",
        "aten::unique_dim_consecutive",
    }
)
"""Operators whose result's shape depends on values, and of which no result is likelier than another."""
REDUCED_IN_PLACE = frozenset(
    {"aten::mse_loss", "aten::smooth_l1_loss", "aten::binary_cross_entropy", "aten::soft_margin_loss"}
)
"""Losses whose reduced result lies in the memory of what was reduced, as CUDA's resize it (BinaryOps.cpp's meta
functions, Loss.cu, Loss.cpp of aten/src/ATen/native); PyTorch's meta kernels give it memory of its own."""
DECIDED_ELSEWHERE = (
    "aten::index", "aten::_index", "aten::_unsafe_index", "aten::nonzero", "aten::masked_select",
    "aten::repeat_interleave", "aten::bincount", "aten::_amp_", *SHAPED_BY_VALUES, *REDUCED_IN_PLACE,
)  # fmt: skip
"""How the names of operators begin of which `Assumptions` or masks have a say."""
BEFORE = (refuse, in_one_layout)
"""Handlers that look at a call before it runs, and leave its results to the operator."""


class DatalessDispatch(Dispatch):
    """The dispatch mode of a rehearsal without data."""

    def __init__(self, state: State, handlers: dict[str, Handler], deviations: Deviations) -> None:
        super().__init__(state, {**handlers, **DATALESS_HANDLERS}, deviations)
        self.memories: dict[int, ShapeMemory] = {}  # by operator's identity
        if state.assumptions is None:
            state.assumptions = Assumptions(state)

    def again(self) -> Self:
        """The same mode for another thread."""
        other = super().again()
        other.memories = self.memories
        return other

    def plan(self, func: OpOverload) -> Plan:
        """The plan of an operator; every one is run by `compute`, where meta kernels see the physical device."""
        plan = super().plan(func)
        ordinary = plan.handler in (None, *BEFORE) and not plan.name.startswith(DECIDED_ELSEWHERE)
        if ordinary and (memory := memory_for(plan)):
            self.memories[id(func)] = memory
        plan.builtin, plan.called = False, True
        return plan

    def create(self, call: Call) -> Result:
        """As with data; what C++ makes "on meta" inside a composite lives where its inputs do, or floats."""
        wanted = call.kwargs.get("device")
        if wanted is None or wanted.type != "meta" or self.local.explicit or named(call.kwargs):
            return super().create(call)
        call.kwargs = dict(call.kwargs)
        if call.device < 0:
            call.device = FLOATING
        out = self._computed(call)
        if call.device >= 0:
            self.tag(out, call.device)
            if call.plan.kernel:
                self.submit(call, out)
        else:
            for tensor in tensors_in((out,)):
                self.float(tensor)
        return out

    def compute(self, call: Call) -> Result:
        """Run an operator on a device without values, or one on the host with them."""
        if call.device < 0:
            return self._to_host(call)
        memory = self.memories.get(id(call.func))
        if memory is None or self.local.valued or modes_below():
            return self._computed(call)
        key = memory.key(call.args, call.kwargs)
        if key is None:
            return self._computed(call)
        shapes = memory.known.get(key)
        if shapes is not None:
            out = shapes.new(call.args)
            self.state.assumptions.ran(call, out)
            return out
        out = self._computed(call)
        if not memory.keep(key, call.plan, call.args, out) and not memory.known:
            self.memories.pop(id(call.func), None)  # an alias of an argument, as the next ones will be
        return out

    def _computed(self, call: Call) -> object:
        """What an operator's kernel gives: that of meta tensors, or the CPU's where there are values."""
        if self.local.valued or _have_values(call.given):
            return super().compute(call.but(device=max(call.device, 0)))
        if call.plan.name in SHAPED_BY_VALUES or _counts(call.plan.name, call.args, call.kwargs):
            return self._shaped_by_values(call)
        if "device" in call.kwargs:
            call.kwargs["device"] = META
        out = self._on_shapes(call)
        self.state.assumptions.ran(call, out)
        return out

    def _shaped_by_values(self, call: Call) -> object:
        """The result of an operator whose shape values decide, which are all known, or the program is refused."""
        assumptions = self.state.assumptions
        known = assumptions.exact.computed(call)
        if known is None:
            raise UnsupportedError(refusal(self.state, f"{call.plan.name} decides a shape by values", KEEP_SHAPES))
        out = to_meta(known)
        assumptions.ran(call, out)
        return out

    def _on_shapes(self, call: Call) -> object:
        """Run an operator's meta kernel; what masks select is all that there is."""
        args = call.args
        local = self.local
        before = local.inner
        local.inner = True
        try:
            with disable_torch_function():
                picked = self.state.assumptions.selected(call.plan.name, args, call.kwargs)
                if picked is not None:
                    return picked
                if _masked(call.plan.name, args):
                    args = (args[0], self.state.assumptions.unmasked(call.plan.name, args[1]), *args[2:])
                if (shaped := SHAPES.get(call.plan.name)) is not None:
                    return shaped(*map(to_meta, args), **call.kwargs)
                if written.is_checked(call.plan.func):
                    written.check(args)
                out = call.func(*map(to_meta, args), **{name: to_meta(value) for name, value in call.kwargs.items()})
                if (place := OPERANDS.get(call.plan.name)) is not None:
                    return laid_out(out, tensors_in(args[place : place + 2]))
                return _within(out, args) if call.plan.name in REDUCED_IN_PLACE and isinstance(out, Tensor) else out
        except NotImplementedError as error:
            if not call.plan.func._schema.returns:
                return None  # it only writes, as a fused optimizer does: there is nothing to write
            raise UnsupportedError(
                f"{call.plan.name} cannot be rehearsed without data: PyTorch has no meta kernel for it"
            ) from error
        except RuntimeError as error:
            known = written.worded(error)
            if known is error:
                raise
            raise known from None
        finally:
            local.inner = before

    def float(self, tensor: Tensor) -> None:
        """As with data: a floating tensor may have no values either."""
        storage = storage_of(tensor)
        if storage._wt is HOST_TAG:
            self.state.let_float(storage)

    def snapshot_values(self, tensor: Tensor) -> Tensor:
        """The answer that the user gave, for a copy that lands later."""
        return values(self.state, tensor)

    def _to_host(self, call: Call) -> Result:
        plan, args = call.plan, call.args
        source = args[len(plan.mutated)] if plan.card.transfers else None
        if source is None or tag_of(source).device < 0 or not is_physically_meta(source):
            return super().compute(call)
        if not plan.mutated:
            return values(self.state, source, call.kwargs.get("dtype"))
        if self.state.assumptions.is_large(source):
            self.state.assumptions.note("copy", value=str(source.nbytes))
            return untouched.mark(args[0])
        made = values(self.state, source)
        written = args[0].copy_(made)
        return untouched.mark(written) if untouched.is_made_up(made) else written


def values(state: State, tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A host tensor of what a tensor's elements are taken for that have no values, in its shape."""
    found: Tensor = state.assumptions.values(tensor, dtype)
    return found


def scalar(dispatch: Dispatch, call: Call) -> object:
    """aten::_local_scalar_dense: the answer that the user gave."""
    tensor = call.args[0]
    if tag_of(tensor).device < 0 or not is_physically_meta(tensor):
        return local_scalar(dispatch, call)
    fetch(dispatch.state, tensor, call.plan.name)
    return torch.tensor(dispatch.state.assumptions.value(tensor), dtype=tensor.dtype, device="cpu").item()


def truth(dispatch: Dispatch, call: Call) -> Result:
    """aten::equal and the like, which the host waits for: the answer that is assumed, as a truth."""
    tensor = next((t for t in call.args if isinstance(t, Tensor) and tag_of(t) is not HOST_TAG), None)
    if tensor is None or not is_physically_meta(tensor):
        return dispatch.general(call)
    if call.plan.name == "aten::equal" and call.args[0].shape != call.args[1].shape:
        return False
    if tag_of(tensor).device >= 0:
        fetch(dispatch.state, tensor, call.plan.name, 1)
    if call.plan.name == "aten::is_nonzero":
        return bool(dispatch.state.assumptions.value(tensor))
    return dispatch.state.assumptions.alike(call.plan.func, call.args, call.kwargs)


DATALESS_HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(("aten::allclose", "aten::equal", "aten::is_nonzero"), truth),
    "aten::_local_scalar_dense": scalar,
}


def _have_values(values: tuple[object, ...]) -> bool:
    """Whether all tensors have values and one of them is on a device: what PyTorch computes with itself."""
    found = tensors_in(values)
    return not any(map(is_physically_meta, found)) and any(tag_of(tensor).device >= 0 for tensor in found)


def _counts(name: str, args: Arguments, kwargs: Keywords) -> bool:
    """Whether `repeat_interleave` by a tensor must add up how many elements there will be."""
    by_tensor = name == "aten::repeat_interleave" and isinstance(args[:2][-1], Tensor)
    return by_tensor and kwargs.get("output_size") is None


def _masked(name: str, args: Arguments) -> bool:
    """Whether an operator picks or writes elements through a mask."""
    if not name.startswith(("aten::index", "aten::_index_put", "aten::_unsafe_index")) or len(args) < 2:
        return False
    indices = args[1] if isinstance(args[1], (list, tuple)) else ()
    return any(isinstance(t, Tensor) and t.dtype in (torch.bool, torch.uint8) for t in indices)


def _within(loss: Tensor, args: Arguments) -> Tensor:
    """A reduced loss in the memory of what was reduced; another one is the whole of it."""
    whole = torch.broadcast_shapes(args[0].shape, args[1].shape)
    return torch.empty(whole, dtype=loss.dtype, device=META).as_strided(loss.shape, loss.stride())


def to_meta(value: object) -> object:
    """An argument whose tensors have shapes alone; no generator draws on shapes."""
    if isinstance(value, Tensor):
        return value.to(META) if value.device.type == "cpu" else value
    if isinstance(value, (list, tuple)):
        return type(value)(to_meta(item) for item in value)
    return None if isinstance(value, torch.Generator) else value
