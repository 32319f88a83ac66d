"""Moving tensors between the host and devices: `.to`, `.cuda`, `.cpu`, `copy_`, pinning, and what waits for what."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache

import torch
from torch._C._profiler import _RecordFunctionFast as RecordFunction

from windtunnel.machine.capture import UNSUPPORTED
from windtunnel.machine.memory.blocks import Block
from windtunnel.machine.memory.host_allocator import HostBlock
from windtunnel.machine.order import Access
from windtunnel.machine.stream import Recording, Stream
from windtunnel.seam.torch.dispatch import fake
from windtunnel.seam.torch.dispatch.conversions import saturate
from windtunnel.seam.torch.dispatch.mode import Dispatch
from windtunnel.seam.torch.plans.arguments import Result
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.plans.messages import device_name
from windtunnel.seam.torch.scratch.copy_memory import between, staging
from windtunnel.seam.torch.state import blank
from windtunnel.seam.torch.state.late import byte_range
from windtunnel.seam.torch.state.order import asks_the_host
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import (
    CPU,
    FLOATING,
    HOST_TAG,
    TRACED,
    Tag,
    device_of,
    disable_torch_function,
    in_meta_kernel,
    is_physically_meta,
    parts_of,
    storage_of,
    tag_of,
)
from windtunnel.seam.torch.type_names import tensor_type
from windtunnel.trace.kineto import copy_name
from windtunnel.trace.operation import Signature

Tensor = torch.Tensor
UNPINNED_IN_CAPTURE = (
    "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor is pinned. Please use "
    "tensor.pin_memory() or allocate the tensor with pin_memory=True."
)
MOVES_MODULE = torch.nn.Module._apply.__code__
"""What moves a module's parameters and buffers, one by one."""
ON_HOST = torch.device("cpu", 0)
"""The host, where a program moves a tensor there. C++ takes all tensors for the CPU's, and says so without a number
whenever it converts one that is to stay where it is."""
aten = torch.ops.aten
base_to = torch._C.TensorBase.to


def move(
    state: State,
    tensor: Tensor,
    device: int,
    dtype: torch.dtype | None = None,
    non_blocking: bool = False,
    copy: bool = False,
    memory_format: torch.memory_format | None = None,
) -> Tensor:
    """`tensor` on a device (CPU or an emulated index), differentiable; itself when nothing has to change.

    The request travels in the arguments of `aten::_to_copy`, through autograd and the program's own modes as on CUDA.
    """
    if tensor.__class__ in TRACED and not in_meta_kernel():
        return _returning(state, fake.to(state, tensor, device, dtype, copy, memory_format), device_of(tensor))
    source = device_of(tensor)
    keywords = {} if memory_format is None else {"memory_format": memory_format}
    if source == device or (source == FLOATING and device == CPU):
        return base_to(tensor, dtype or tensor.dtype, non_blocking, copy, **keywords)
    if is_physically_meta(tensor) and (source < 0 or state.local.inner):
        raise NotImplementedError("Cannot copy out of meta tensor; no data!")
    target = state.cuda_devices[device] if device >= 0 else ON_HOST
    around = nullcontext() if not state.observers.profiled else _range(tensor, target, dtype, non_blocking, copy)
    with disable_torch_function(), around:
        out: Tensor = aten._to_copy.default(tensor, dtype=dtype, device=target, non_blocking=non_blocking, **keywords)
    return out if out.grad_fn is None else _returning(state, out, CPU if source == FLOATING else source)


def numbers(state: State, tensor: Tensor, device: int) -> Tensor:
    """On a device, what C++ made of numbers of the program; without data it made a tensor that holds none of them."""
    if not (state.no_data and is_physically_meta(tensor)):
        return move(state, tensor, device)
    moved = move(state, torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu"), device)
    state.assumptions.exact.forget((moved,))
    return moved


def _range(tensor: Tensor, *options: object) -> AbstractContextManager[object]:
    """What a profiler sees round a move: the operator that C++ would have called for it."""
    return RecordFunction("aten::to", [tensor, *options, None])


def _returning(state: State, out: Tensor, origin: int) -> Tensor:
    """A moved tensor, whose gradient goes back to `origin`."""
    if out.grad_fn is not None:
        out.grad_fn.register_hook(lambda inputs, _: tuple(_back(state, grad, origin) for grad in inputs))
    return out


def _back(state: State, grad: Tensor | None, device: int) -> Tensor | None:
    return None if grad is None else move(state, grad, device)


# ---------------------------------------------------------------------------------------------- operators


def to_copy(dispatch: Dispatch, call: Call) -> Result:
    """aten::_to_copy: a copy to the device that `move` names, or, when C++ asks, a conversion where the tensor is."""
    tensor = call.args[0]
    if not isinstance(tensor, Tensor):
        return call.func(*call.args, **call.kwargs)  # functorch hands Python numbers on as they are
    state = dispatch.state
    source = (storage_of(tensor)._wt if tensor.layout is torch.strided else tag_of(tensor)).device
    kwargs = call.kwargs = dict(call.kwargs)
    wanted = kwargs.pop("device", None)
    if wanted is not None and wanted.type == "meta" and state.no_data and source >= 0:
        wanted = None  # what C++ takes for the tensor's own device
    if wanted is not None and wanted.type not in ("cpu", "cuda"):
        moved = call.func(*call.args, **{**kwargs, "device": wanted})
        if wanted.type == "meta" and state.no_data and isinstance(moved, Tensor):
            dispatch.float(moved)  # a script takes it for its arguments' device: `torch.tensor(..., device=x.device)`
        return moved
    if wanted is None:
        target = source
    elif wanted.type == "cuda":
        target = state.index(wanted)
    else:
        target = source if wanted.index is None else CPU
    pin = kwargs.pop("pin_memory", None)
    non_blocking = bool(kwargs.pop("non_blocking", False))
    if source == FLOATING and target >= 0:
        dispatch.tag(tensor, target)
        source = target
    late = state.late
    if source == CPU and (late.landings or late.sources):
        if target == CPU:
            late.host_touch(tensor)
        else:
            late.device_touch(tensor, _stream(state, target), write=False)
    call.device = target
    out = dispatch.compute(call)
    if max(source, target) >= 0 and (source == target or non_blocking):  # a blocking copy is converted on the host
        saturate(tensor, out)
    if target >= 0:
        dispatch.tag(out, target)
        if state.history.enabled and source == CPU:
            state.history.mark_tensor(out, "input")
    if source == FLOATING:
        dispatch.float(out)
    elif source == target:
        if source >= 0:
            dispatch.submit(call, out)
    else:
        to_pinned = target == CPU and non_blocking
        if to_pinned or pin:
            out = _page_locked(state, out)
        if tensor.layout is torch.strided and not tensor.is_nested:
            transfer(state, tensor, out, non_blocking, late=to_pinned)
        else:
            for part, made in _dense(tensor, out):
                transfer(state, part, made, non_blocking, late=to_pinned)
    return out


def _dense(tensor: Tensor, out: Tensor) -> list[tuple[Tensor, Tensor]]:
    """A tensor and its copy, or the dense parts that two sparse ones are made of."""
    if tensor.layout is torch.strided:
        return [(tensor.values(), out.values())] if tensor.is_nested else [(tensor, out)]
    return list(zip(parts_of(tensor), parts_of(out), strict=True))


def _page_locked(state: State, made: Tensor) -> Tensor:
    """A new host tensor, whose memory is now page-locked."""
    if made.is_nested:
        buffer = made.values()
        state.pin(buffer)
        facts = made._nested_tensor_size(), made._nested_tensor_strides(), made._nested_tensor_storage_offsets()
        locked: Tensor = aten._nested_view_from_buffer.default(buffer, *facts)
        return locked
    for part, _ in _dense(made, made):
        state.pin(part)
    return made


def copy_(dispatch: Dispatch, call: Call) -> Result:
    """aten::copy_: within one device a kernel, between two a transfer."""
    destination, source = call.args[:2]
    if not isinstance(source, Tensor):  # a number, which the kernel takes as an argument
        return dispatch.general(call)
    state = dispatch.state
    to, of = tag_of(destination).device, tag_of(source).device
    if to == FLOATING and of >= 0:
        dispatch.tag(destination, of)
        to = of
    elif of == FLOATING and to >= 0:
        dispatch.tag(source, to)
        of = to
    late = state.late
    if late.pending:
        if to == CPU and of == CPU:
            late.host_operation(call)
        elif of == CPU and to >= 0:
            late.device_touch(source, _stream(state, to), write=False)
        elif to == CPU and of >= 0:
            late.device_touch(destination, _stream(state, of), write=True)
    call.device = to
    if to == of or min(to, of) == FLOATING or (to < 0 and of < 0):
        out = dispatch.compute(call)
        if to >= 0:
            saturate(source, destination)
            dispatch.tag_parts(destination, to)
            dispatch.submit(call, out)
        elif late.pending:
            late.overwritten(destination)
        return out
    non_blocking = bool(call.args[2] if len(call.args) > 2 else call.kwargs.get("non_blocking", False))
    if to == CPU and non_blocking and tag_of(destination).pinned:
        if source.shape != destination.shape:
            _check_shapes(source, destination)
        transfer(state, source, destination, True, late=True, value=dispatch.snapshot_values(source))
        return destination
    out = dispatch.compute(call)
    if non_blocking:
        saturate(source, destination)
    if to >= 0:
        dispatch.tag_parts(destination, to)
    for part, made in _dense(source, destination):
        transfer(state, part, made, non_blocking, late=False)
    return out


def _check_shapes(source: Tensor, destination: Tensor) -> None:
    """Raise PyTorch's error where a copy does not fit, which a late one would raise when it lands."""
    empty, meta = torch.ops.aten.empty.memory_format, torch.device("meta")
    torch.ops.aten.copy_.default(empty(destination.shape, device=meta), empty(source.shape, device=meta))


def _stream(state: State, device: int) -> Stream:
    """The stream that a copy from or to a device runs on."""
    stream = state.local.streams[device]
    return state.order.stream_of(device, stream) if state.machine.concurrent else stream


STAGED_AT_ONCE = 64 << 10
"""Bytes of pageable memory that the driver takes with the command, whatever the stream does (CUDA C++ Programming
Guide, "Concurrent Execution between Host and Device": copies from host to device of 64 KB or less)."""


def transfer(
    state: State, source: Tensor, destination: Tensor, non_blocking: bool, *, late: bool, value: Tensor | None = None
) -> None:
    """Submit a copy between two devices and let the host wait as CUDA lets it.

    A blocking copy to or from the host waits for its stream, pinned or not; a non_blocking one from pageable memory
    returns once the source is staged, for which a large one waits for the stream's turn; into pageable memory it waits
    (CUDA runtime, "API synchronization behavior"); copies between devices never block the host.
    """
    machine, local = state.machine, state.local
    of, to = storage_of(source)._wt, storage_of(destination)._wt  # dense ones
    size = int(destination.nbytes)
    if size == 0:
        return
    side = of.device if of.device >= 0 else to.device
    other: Stream | None = None
    if of.device >= 0 and to.device >= 0:
        other = local.streams[to.device]
        machine.barrier(local.host, other, local.streams[side])
    current = local.streams[side]
    stream = state.order.stream_of(side, current) if machine.concurrent else current
    pinned = of.pinned if of.device < 0 else to.pinned
    if stream.capture is not None and not pinned and min(of.device, to.device) < 0:
        raise _unpinned_in_capture(stream.capture)
    if other is None:
        if sizes := staging(source, destination, to.device >= 0, non_blocking):
            state.kernels.take(machine.devices[side], stream, sizes)
    elif to.device not in (gpu := machine.devices[of.device]).peers and not gpu.shares(machine.devices[to.device]):
        for queue, sizes in zip((stream, other), between(source, destination, non_blocking), strict=True):
            state.kernels.take(machine.devices[queue.device], queue, sizes)
    frame, site, library, in_module = state.sites.caller(MOVES_MODULE if of.device < 0 else None, 2)
    of, to = (_own(source) if of is HOST_TAG else of), (_own(destination) if to is HOST_TAG else to)
    detail: tuple[tuple[str, str | int], ...] = (
        ("non_blocking", int(non_blocking)),
        ("source", of.number or state.number(of)),
        ("source_version", 0 if source.is_inference() else source._version),
        ("source_offset", int(source.storage_offset()) * source.element_size()),
        ("destination", to.number or state.number(to)),
        *((("module", 1),) if in_module else ()),
        *((("library", library),) if library else ()),
    )
    inputs = (tuple(source.shape),) if of.device < 0 else ()  # how many samples a step has
    signature = Signature(copy_name(of.device, to.device, pinned), inputs, detail=detail)
    end = machine.copy(local.host, stream, signature, size, of.device, to.device, pinned, site)
    if other is not None:
        machine.barrier(local.host, stream, other)
    if to.blank is not None:
        blank.wrote(destination)
    if machine.watching:
        state.order.copied(source, destination, stream, site)
    elif to.device >= 0:
        to.epoch = stream.epoch
    if of.device < 0 and not pinned:
        state.notes.copied_to_device(source, size, frame)
    on_host = min(of.device, to.device) < 0
    if stream.capture is not None and (non_blocking or not on_host):
        return
    if on_host and non_blocking and pinned:
        _overlap(state, stream, source, destination, end, site, late, value)
    elif on_host and non_blocking and of.device < 0 and size <= STAGED_AT_ONCE:
        local.host.advance(machine.devices[side].cost.staging_ns(size))
    elif on_host and non_blocking and of.device < 0:
        local.host.wait_until(end)
    elif on_host:
        machine.synchronize_stream(local.host, stream, "cudaMemcpy (blocking)", site)
        state.synchronized("cudaMemcpy (blocking)", stream)


def _unpinned_in_capture(capture: Recording) -> RuntimeError:
    capture.fail(UNSUPPORTED)
    return RuntimeError(UNPINNED_IN_CAPTURE)


def _overlap(
    state: State,
    stream: Stream,
    source: Tensor,
    destination: Tensor,
    end_ns: int,
    site: int,
    late: bool,
    value: Tensor | None,
) -> None:
    """A copy with pinned memory goes on while the host does: the memory is in use until the stream is done with it."""
    to_device = tag_of(destination).device >= 0
    host_side = source if to_device else destination
    tag = tag_of(host_side)
    if isinstance(tag.block, HostBlock):
        state.host_allocator.record_event(tag.block, stream.device, stream.index)
    start, stop = byte_range(host_side)
    lane = state.machine.lane(state.local.host, stream)
    access = Access(stream.agent, stream.epoch, start, stop, not to_device, lane, site)
    if late:
        _late(state, stream, destination, value, end_ns, access)
    else:
        state.late.to_device(stream, source, destination, access)


def _late(state: State, stream: Stream, destination: Tensor, value: Tensor | None, end: int, access: Access) -> None:
    if value is None:
        value = destination.clone()
        destination.detach().zero_()
    state.late.to_host(stream, destination, value, end, access)


def local_scalar(dispatch: Dispatch, call: Call) -> Result:
    """aten::_local_scalar_dense, what `.item()` calls: the host waits for the value."""
    state = dispatch.state
    tensor = call.args[0]
    if not isinstance(tensor, Tensor):  # a number that TorchScript holds as a tensor (see numbers_as_tensors)
        return tensor
    if (device := tag_of(tensor).device) >= 0 and asks_the_host():
        _fetch(state, tensor, device, call.plan.name, 1)
    elif state.late.pending:
        state.late.host_touch(tensor)
    return call.plan.run(*call.args, **call.kwargs)


def _own(tensor: Tensor) -> Tag:
    """A tag of a host tensor's own: it lets the trace tell one pageable storage from another."""
    tag = storage_of(tensor)._wt = Tag(CPU, 0)
    return tag


def fetch(state: State, tensor: Tensor, name: str, elements: int | None = None) -> None:
    """Submit the transfer to the host that looking at `elements` (or all) values makes, and let the host wait for it.

    PyTorch fetches a scalar through pinned memory of its own (aten/src/ATen/native/cuda/CUDAScalar.cu).
    """
    _fetch(state, tensor, tag_of(tensor).device, name, tensor.numel() if elements is None else elements)


def _fetch(state: State, tensor: Tensor, device: int, name: str, elements: int) -> None:
    if state.under_way is not None:
        state.arrive()
    machine, local = state.machine, state.local
    stream = local.streams[device]
    if machine.concurrent:
        stream = state.order.stream_of(device, stream)
    pinned = elements == 1
    size: int = elements * tensor.element_size()
    _, site, library, _ = state.sites.caller(None, 2)
    machine.copy(local.host, stream, _fetched(device, pinned, name, library), size, device, CPU, pinned, site)
    if machine.concurrent:  # else nothing races with the read: the host waits for it here
        state.order.read(tensor, stream, site)
    machine.synchronize_stream(local.host, stream, local.reason or name, site)
    if state.sync_debug_mode or state.gpu_trace.active:
        state.synchronized(name, stream)


@lru_cache(maxsize=4096)
def _fetched(device: int, pinned: bool, cause: str, library: str) -> Signature:
    """The signature of a transfer that looking at values makes."""
    return Signature(
        copy_name(device, CPU, pinned),
        detail=(("cause", cause), *((("library", library),) if library else ())),
    )


def record_stream(dispatch: Dispatch, call: Call) -> Result:
    """aten::record_stream: the block is kept until the stream is done with it."""
    tensor, stream = call.args
    tag = tag_of(tensor)
    if tag.device < 0:
        raise RuntimeError("record_stream is only supported on accelerators' tensors")
    if isinstance(tag.block, Block):
        dispatch.machine.devices[tag.device].allocator.record_stream(tag.block, stream._wt.index)


def is_pinned(dispatch: Dispatch, call: Call) -> bool:
    """aten::is_pinned."""
    tensor, tag = call.args[0], tag_of(call.args[0])
    registered = dispatch.state.memory.registered
    return bool(tag.pinned) or bool(
        registered and tag.device < 0 and dispatch.state.memory.is_registered(torch._C.TensorBase.data_ptr(tensor))
    )


def pin_memory(dispatch: Dispatch, call: Call) -> Result:
    """aten::_pin_memory and aten::pin_memory: a copy in page-locked memory; the tensor itself when it is pinned."""
    tensor = call.args[0]
    tag = tag_of(tensor)
    if tag.device >= 0:
        raise RuntimeError(
            f"cannot pin '{tensor_type(tensor.dtype, on_device=True)}' only dense CPU tensors can be pinned"
        )
    if tag.pinned:
        return tensor
    if tensor.is_nested or tensor.layout is not torch.strided:
        out = tensor.clone()
    else:
        out = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu").copy_(tensor)
    out = _page_locked(dispatch.state, out)
    size = tensor.numel() * tensor.element_size()
    cost = dispatch.machine.devices[0].cost
    # The host copies it, which is what a transfer from pageable memory takes longer.
    dispatch.local.host.advance(cost.staging_ns(size))
    return out


def set_(dispatch: Dispatch, call: Call) -> Result:
    """aten::set_: the tensor takes over another's storage, and so its tag."""
    target = call.args[0]
    before = tag_of(target)
    source = call.args[1] if len(call.args) > 1 else None
    if source is not None and storage_of(target).nbytes():
        after = tag_of(source) if isinstance(source, Tensor) else source._wt
        if FLOATING not in (before.device, after.device) and before.device != after.device:
            raise RuntimeError(
                f'Attempted to set the storage of a tensor on device "{device_name(before.device)}" to a storage on '
                f'different device "{device_name(after.device)}".  This is no longer allowed; the devices must match.'
            )
    out = call.func(*call.args, **call.kwargs)
    if tag_of(target) is HOST_TAG and before is not HOST_TAG and storage_of(target).nbytes() == 0:
        storage_of(target)._wt = Tag(before.device, 0)
    return out


def facts(dispatch: Dispatch, call: Call) -> object:
    """What a nested tensor knows of its parts: tensors on the host, on CUDA too; nothing is launched."""
    return call.func(*call.args, **call.kwargs)


HANDLERS = {
    "aten::_nested_tensor_size": facts,
    "aten::_nested_tensor_strides": facts,
    "aten::_nested_tensor_storage_offsets": facts,
    "aten::_to_copy": to_copy,
    "aten::copy_": copy_,
    "aten::_local_scalar_dense": local_scalar,
    "aten::record_stream": record_stream,
    "aten::is_pinned": is_pinned,
    "aten::_pin_memory": pin_memory,
    "aten::pin_memory": pin_memory,
    "aten::set_": set_,
}
"""Operators with handlers of their own."""
