"""Device-side asserts: a kernel that finds a bad index or value does not raise at its call.

The error comes up when the host next waits for the device, at whatever line that is, and from then on every CUDA call
of the process raises it (cudaErrorAssert: "the process must be terminated and relaunched").
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

import torch

from windtunnel.machine.stream import Stream
from windtunnel.operators.card import stating
from windtunnel.seam.torch.dispatch.mode import Dispatch, Handler, hand_on
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.plans.messages import cuda_error
from windtunnel.seam.torch.plans.plan import Plan
from windtunnel.seam.torch.tags import device_of
from windtunnel.trace.operation import Note

Tensor = torch.Tensor

OF_VALUES = re.compile(
    r"\bindex\b.*out of (bounds|range)(?! for dimension with size 0)|^Target -?\d+ is out of bounds"
    r"|should be between 0 and 1|probability tensor|out of range: tried to access index"
    r"|INDICES element is out of DATA bounds|^invalid multinomial distribution|^Expected p_in >= 0 && p_in <= 1"
    r"|^invalid Poisson rate|^repeats can not be negative|^Found an invalid max index"
    r"|^offsets\[-1\] can not be greater|^offsets decrease|^target out of range"
    r"|^allocated size does not match required size"
)
"""What the CPU's kernels say of bad values; other errors (shapes, dtypes) CUDA raises at the call as well. That a
dimension has no elements at all is seen on the host (AdvancedIndex in TensorAdvancedIndexing.cpp)."""


class AssertFailure:
    """What a kernel found: work `epoch` of `stream`. `surfaced` once the host has heard of it.

    `text` and `name` are CUDA's of the error, `note` is what we add to it.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        stream: Stream,
        epoch: int,
        text: str = "device-side assert triggered",
        name: str = "cudaErrorAssert",
        note: str = "",
    ) -> None:
        self.text, self.name, self.note = text, name, note
        self.dispatch = dispatch
        self.state = dispatch.state
        self.agent = stream.agent
        self.epoch = epoch
        self.surfaced = False

    def ordered(self) -> None:
        """The host waited for something: raise the error when it now knows that kernel to be done."""
        if self.surfaced or self.state.machine.host_knows(self.agent, self.epoch):
            self.surface()

    def surface(self) -> None:
        """Raise the error, and let everything on a device raise it from now on."""
        if not self.surfaced:
            self.surfaced = True
            dispatch = self.dispatch
            dispatch.handlers = _Broken(dispatch.handlers)
            for plan in dispatch.plans.values():
                plan.handler, plan.direct = partial(_refuse, plan.handler), False
        raise self.error()

    def error(self) -> RuntimeError:
        """PyTorch's exception."""
        made = cuda_error(self.text, self.name, blocking=self.state.machine.blocking)
        if self.note:
            made.add_note(self.note)
        return made


class _Broken(dict[str, Handler]):
    """Handlers of a process whose context is lost: every operator is looked at first."""

    def get(self, name: str, default: Handler | None = None) -> Handler:  # type: ignore[override]
        return partial(_refuse, super().get(name, default))


def _refuse(before: Handler | None, dispatch: Dispatch, call: Call) -> object:
    """An operator after the context was lost: what touches a device raises, except what only makes a view."""
    state = dispatch.state
    device = call.kwargs.get("device")
    on_device = any(device_of(tensor) >= 0 for tensor in call.tensors())
    if (
        state.failure is not None
        and not call.plan.view
        and (on_device or (device is not None and device.type == "cuda"))
    ):
        state.failure.surface()
    if before is not None:
        return before(dispatch, call)
    return dispatch.general(call)


def guarded(dispatch: Dispatch, call: Call, inner: Handler = hand_on) -> object:
    """An operator whose CUDA kernel asserts that indices are in range; `inner` runs it."""
    try:
        return inner(dispatch, call)
    except (IndexError, RuntimeError) as error:
        devices = [device_of(tensor) for tensor in call.tensors()]
        device = max(devices, default=-1)
        if device < 0:
            raise
        stream = dispatch.local.streams[device]
        fail(dispatch, call.plan, error, stream, stream.epoch + 1)
        out = _anything(dispatch, call)
        dispatch.tag(out, device)
        call.device = device
        dispatch.submit(call, out)
        return out


def fail(dispatch: Dispatch, plan: Plan, error: Exception, stream: Stream, epoch: int) -> None:
    """Keep what work `epoch` of a stream found for the host's next wait; what CUDA raises at once is raised at once."""
    if not plan.card.asserts or not OF_VALUES.search(str(error)):
        raise error
    state = dispatch.state
    machine = state.machine
    detail = (("operator", plan.name), ("found", str(error).splitlines()[0]))
    machine.note(state.local.host, Note("device-assert", machine.trace.sites[state.site()], detail))
    if state.failure is None:
        state.failure = AssertFailure(dispatch, stream, epoch)


def _anything(dispatch: Dispatch, call: Call) -> object:
    """A result of the right shape; what a kernel writes after an assert is undefined, zeros are as good as anything."""
    if call.plan.mutated:
        return call.args[call.plan.mutated[0]]
    local = dispatch.local
    inner, local.inner = local.inner, True
    try:
        shaped = call.func(*map(_shapes, call.args), **{name: _shapes(value) for name, value in call.kwargs.items()})
    finally:
        local.inner = inner
    return _zeros(shaped)


def _shapes(value: object) -> object:
    if isinstance(value, Tensor):
        if value.dtype is torch.bool:  # a mask among indices: the shape depends on how many are true
            return value.nonzero().squeeze(1).to("meta") if value.dim() == 1 else value
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, (list, tuple)):
        return type(value)(_shapes(part) for part in value)
    return value


def _zeros(value: object) -> object:
    if isinstance(value, Tensor):
        return torch.zeros(value.shape, dtype=value.dtype, device="cpu")
    return type(value)(map(_zeros, value)) if isinstance(value, (list, tuple)) else value


def beneath(handlers: Mapping[str, Handler]) -> dict[str, Handler]:
    """Handlers of the operators that assert and have none, and those of the others, which call `guarded` last."""
    return {**dict.fromkeys(stating("asserts"), guarded), **handlers}
