"""`nn.LSTM`, `nn.GRU` and `nn.RNN` on a device: one operator of cuDNN forward, and one backward.

A CPU build of PyTorch knows these operators' gradients but has no kernels for them. They arrive in the dispatch mode
under CUDA's names, keep what CUDA keeps, and are computed with the CPU's kernels (`recurrent_values`), a layer at a
time: forward, and once more with gradients in the backward pass. Half precision is computed in float32, as cuDNN does.

Source: `_cudnn_impl`, `_cudnn_rnn` and `_cudnn_rnn_backward` of aten/src/ATen/native/cudnn/RNN.cpp, `use_cudnn` of
aten/src/ATen/native/RNN.cpp, aten/src/ATen/cudnn/AutocastRNN.cpp.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

from windtunnel.seam.torch.dispatch.mode import Dispatch
from windtunnel.seam.torch.dispatch.moves import fetch
from windtunnel.seam.torch.dispatch.parts import COMPOSITE
from windtunnel.seam.torch.kernels.recurrent_cells import stacked
from windtunnel.seam.torch.kernels.recurrent_space import LSTM, Pieces, pieces
from windtunnel.seam.torch.kernels.recurrent_values import MODES, backward_values, forward_values, shapes
from windtunnel.seam.torch.plans.arguments import Arguments, Cast, Keywords, OpOverload, tensors_in
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.plans.messages import device_name
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import CPU, FLOATING, TRACED, device_of, disable_torch_function, storage_of, tag_of
from windtunnel.seam.torch.type_names import scalar_type

C = torch._C
Tensor = torch.Tensor
aten = torch.ops.aten
CUDNN_DTYPES = (torch.float16, torch.float32, torch.float64)
BFLOAT16_VERSION = 91300
"""The first cuDNN whose recurrent layers PyTorch gives bfloat16, on compute capability 8 and up (CUDAHooks.cpp)."""
STATES_BYTES_PER_SM = 65536
"""What cuDNN's dropout keeps for each multiprocessor: assumed, 32 bytes for each of 2048 threads."""
SCATTERED = (
    "RNN module weights are not part of single contiguous chunk of memory. This means they need to be compacted at "
    "every call, possibly greatly increasing memory usage. To compact weights again call flatten_parameters()."
)
TRAINING = "cudnn RNN backward can only be called in training mode"


# ---------------------------------------------------------------------------------------------- the composites


def layers(state: State, func: OpOverload, *args: Any, **kwargs: object) -> object:
    """aten::lstm, gru, rnn_tanh and rnn_relu, taken apart as on CUDA where cuDNN takes them."""
    given = dict(zip([argument.name for argument in func._schema.arguments], args, strict=False)) | kwargs
    packed = func._overloadname == "data"
    tensor, hidden, weights = given["data" if packed else "input"], given["hx"], given["params"]
    place = device_of(tensor)
    states = [hidden] if isinstance(hidden, Tensor) else hidden
    check_devices(tensor, states, weights)
    takes = place >= 0 and _takes(state, tensor, place)
    if place < 0 or state.local.inner or (not takes and (packed or tensor.__class__ in TRACED)):
        return func._op_dk(COMPOSITE, *args, **kwargs)  # C++'s own parts: some have Python ones that differ
    if not takes:
        return stacked(func._opname, given)
    mode = MODES[func._opname]
    if mode == LSTM and len(states) != 2:
        raise RuntimeError("lstm expects two hidden states")
    hx, cx = states if mode == LSTM else (hidden, None)
    wide, units = hx.size(2), (hx if cx is None else cx).size(2)  # `size` has C++'s text where there is no such one
    projected = wide if wide != units else 0
    stride = (4 if given["has_biases"] else 2) + (projected > 0)
    buffer = _buffer(weights, pieces(weights, stride, mode, units))
    if buffer is None and not _casts(weights[0]):
        warnings.warn(SCATTERED, stacklevel=3)
    train, dropout = given["train"], given["dropout"]
    out, hy, cy, _, _ = aten._cudnn_rnn.default(
        tensor, weights, stride, buffer, hx, cx, mode, units, projected, given["num_layers"],
        given.get("batch_first", False), dropout, train, given["bidirectional"],
        _batch_sizes(given["batch_sizes"]) if packed else [], _dropout_state(state, place, dropout, train),
    )  # fmt: skip
    return (out, hy) if cx is None else (out, hy, cy)


def check_devices(tensor: Tensor, states: list[Tensor], weights: list[Tensor], dtypes: bool = False) -> None:
    """`check_attributes` of aten/src/ATen/native/RNN.h: states and weights lie where the input does, and are like it.

    Raises:
        RuntimeError: PyTorch's, where one does not.
    """
    place = device_of(tensor)
    for kind, given in (("hidden", states), ("parameter", weights)):
        for other in given:
            found = device_of(other)
            if found != place and FLOATING not in (found, place):
                raise RuntimeError(
                    f"Input and {kind} tensors are not at the same device, found input tensor at {device_name(place)} "
                    f"and {kind} tensor at {device_name(found)}"
                )
            if dtypes and other.dtype != tensor.dtype:
                one, two = (scalar_type(t.dtype) for t in (tensor, other))
                raise RuntimeError(
                    f"Input and {kind} tensors are not the same dtype, found input tensor with {one} and {kind} "
                    f"tensor with {two}"
                )


def _takes(state: State, tensor: Tensor, device: int) -> bool:
    """`use_cudnn`: cuDNN takes this input."""
    if not C._get_cudnn_enabled() or tensor.numel() == 0:
        return False
    if tensor.dtype == torch.bfloat16:
        modern = state.device(device).gpu.compute_capability >= (8, 0)
        return modern and int(torch.backends.cudnn.version() or 0) >= BFLOAT16_VERSION
    return tensor.dtype in CUDNN_DTYPES


def _casts(weight: Tensor) -> bool:
    """Whether autocast makes one new buffer of all weights."""
    return torch.is_autocast_enabled("cuda") and weight.dtype not in (torch.float16, torch.float64)


def _buffer(weights: list[Tensor], place: Pieces) -> Tensor | None:
    """The weights' one buffer, in cuDNN's order from its start; None where they lie otherwise."""
    try:
        storage = storage_of(weights[0])
        for weight, offset in zip(weights, place.offsets, strict=True):
            if storage_of(weight)._cdata != storage._cdata or weight.storage_offset() != offset:
                return None
    except (NotImplementedError, RuntimeError):  # a transform's tensors
        return None
    if storage.nbytes() < place.numel * weights[0].element_size() or not weights[-1].is_contiguous():
        return None
    return weights[0].detach().as_strided((place.numel,), (1,), 0)


def _batch_sizes(sizes: Tensor) -> list[int]:
    if sizes.dim() != 1:
        raise RuntimeError("batch_sizes tensor should be 1D")
    if device_of(sizes) >= 0:
        raise RuntimeError(f"batch_sizes tensor should be on CPU, but got {device_name(device_of(sizes))}")
    return [int(size) for size in sizes.tolist()]


def _dropout_state(state: State, device: int, dropout: float, train: bool) -> Tensor | None:
    """The buffer from which cuDNN's dropout draws on a device: seeded anew when the device's generator was seeded."""
    position = state.positions[state.generators[device]._cdata] if state.generators else None
    seeded = position, position.moves if position else 0
    known = state.dropout_states.get(device)
    if train and dropout > 0 and (known is None or known[0] != seeded):
        where = state.cuda_devices[device]
        with torch.no_grad():
            drawn = torch.empty((), dtype=torch.int64, device=where).random_(generator=state.generators[device])
            if state.no_data:
                fetch(state, drawn, "aten::_local_scalar_dense", 1)
            seed = 0 if state.no_data else int(drawn.item())
            buffer = aten._cudnn_init_dropout_state.default(dropout, train, seed, dtype=torch.uint8, device=where)
        known = state.dropout_states[device] = seeded, buffer
    return None if known is None else known[1]


def autocast_rule(cast: Cast, func: OpOverload, args: Arguments, kwargs: Keywords, dtype: torch.dtype) -> object:
    """Autocast of aten::_cudnn_rnn: float16 always, with the weights in one new buffer each time."""
    half = torch.float16
    tensor, weights, stride, buffer, hx, cx, mode, units = args[:8]
    if any(weight.dtype != weights[0].dtype for weight in weights):
        raise RuntimeError("Weight scalar types do not match.")
    if weights[0].dtype not in (half, torch.float64):
        place = pieces(weights, stride, mode, units)
        buffer = torch.zeros(place.numel, dtype=half, device=weights[0].device)
        pieces_of = []
        for weight, offset in zip(weights, place.offsets, strict=True):
            piece = torch.empty(0, dtype=half, device=weight.device)
            place_of = weight.shape, weight.contiguous().stride()
            piece.set_(buffer, offset, *place_of)  # type: ignore[call-overload]  # the stub wants a storage
            pieces_of.append(piece.copy_(weight))
        weights = pieces_of
    tensor, hx, cx = (cast(value, half) for value in (tensor, hx, cx))
    return func(tensor, weights, stride, buffer, hx, cx, *args[6:], **kwargs)


# ---------------------------------------------------------------------------------------------- the operators


def forward(dispatch: Dispatch, call: Call) -> object:
    """aten::_cudnn_rnn: (output, hidden state, cell state, reserve space, weights in one buffer)."""
    given = call.named()
    tensor, weights, hx, cx = given["input"], given["weight"], given["hx"], given["cx"]
    device = call.device = device_of(tensor)
    if device < 0:
        return call.func(*call.args, **call.kwargs)  # refuses that
    check_devices(tensor, [t for t in (hx, cx) if t is not None], weights, dtypes=True)
    _check(given)
    for part in tensors_in(call.args):
        if tag_of(part).device == FLOATING:
            dispatch.tag(part, device)
    out = forward_values(dispatch, call)
    output, hy, cy, reserve, buffer = out
    dispatch.tag((output, hy, cy, buffer, reserve), device)
    dispatch.submit(call.but(args=(*call.args[:3], None, *call.args[4:])), out[:4])
    return out


def backward(dispatch: Dispatch, call: Call) -> object:
    """aten::_cudnn_rnn_backward: gradients of input, hidden state, cell state and weights."""
    given = call.named()
    device = call.device = device_of(given["input"])
    if device < 0:
        return call.func(*call.args, **call.kwargs)  # refuses that
    grads = [given[name] for name in ("grad_output", "grad_hy", "grad_cy")]
    if all(grad is None for grad in grads):
        zeros = [torch.zeros(w.shape, dtype=w.dtype, device="cpu") for w in given["weight"] if given["output_mask"][3]]
        dispatch.tag(zeros, device)  # a list of results cannot say that they are undefined
        return None, None, None, zeros
    if not given["train"]:
        raise RuntimeError(TRAINING)
    for part in tensors_in(call.args):
        if tag_of(part).device == FLOATING:
            dispatch.tag(part, device)
    out = backward_values(dispatch, call)
    dispatch.tag(out, device)
    shared = storage_of(given["weight_buf"])._cdata == storage_of(given["weight"][0])._cdata
    counted = (*call.args[:3], None, *call.args[4:]) if shared else call.args
    dispatch.submit(call.but(args=counted), out)
    return out


def dropout_state(dispatch: Dispatch, call: Call) -> object:
    """aten::_cudnn_init_dropout_state: the random states of all threads, here the seed and how often it was used."""
    state = dispatch.state
    device = state.index(call.kwargs.get("device"))
    if device == CPU:
        return call.func(*call.args, **call.kwargs)  # refuses that
    size = STATES_BYTES_PER_SM * state.device(device).gpu.sm_count
    with disable_torch_function():
        out = torch.empty(size, dtype=torch.uint8, device="meta" if state.no_data else "cpu")
        if not state.no_data:
            out[:16].view(torch.int64).copy_(torch.tensor([call.args[2], 0], dtype=torch.int64, device="cpu"))
    dispatch.tag(out, device)
    dispatch.submit(call.but(kwargs={}, device=device), out)
    return out


def flatten_weights(dispatch: Dispatch, call: Call) -> object:
    """aten::_cudnn_rnn_flatten_weight: all weights of a recurrent layer become pieces of one new buffer."""
    given = call.named()
    weights = given["weight_arr"]
    if device_of(weights[0]) < 0:
        return call.func(*call.args, **call.kwargs)  # refuses that
    place = pieces(weights, given["weight_stride0"], given["mode"], given["hidden_size"])
    with dispatch.parts:
        buffer = torch.zeros(place.numel, dtype=weights[0].dtype, device=weights[0].device)
        for weight, piece in zip(weights, place.of(buffer, weights), strict=True):
            piece.copy_(weight)
            weight.set_(piece)
    return buffer


def _check(given: Keywords) -> None:
    hx, cx = given["hx"], given["cx"]
    if given["mode"] != LSTM and cx is not None:
        raise RuntimeError("rnn: illegal defined cx for non-LSTM RNN")
    if not hx.is_contiguous():
        raise RuntimeError("rnn: hx is not contiguous")
    if cx is None:
        return
    if not cx.is_contiguous():
        raise RuntimeError("rnn: cx is not contiguous")
    expected = shapes(given)[2]
    if tuple(cx.shape) != expected:
        raise RuntimeError(f"Expected cell size {list(expected)}, got {list(cx.shape)}")


COMPOSITES = {getattr(getattr(aten, name), overload): layers for name in MODES for overload in ("input", "data")}
"""By operator, for `composites.Composites`."""
HANDLERS = {
    "aten::_cudnn_rnn": forward,
    "aten::_cudnn_rnn_backward": backward,
    "aten::_cudnn_init_dropout_state": dropout_state,
    "aten::_cudnn_rnn_flatten_weight": flatten_weights,
}
"""Operators with handlers of their own."""
