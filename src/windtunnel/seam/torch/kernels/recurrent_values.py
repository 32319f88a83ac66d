"""What cuDNN's recurrent operators compute, computed with the CPU's layers: forward, and once more with gradients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from windtunnel.seam.torch.dispatch.mode import Dispatch
from windtunnel.seam.torch.dispatch.parts import COMPOSITE
from windtunnel.seam.torch.kernels.recurrent_space import RNN_MODES, pieces, reserve_bytes
from windtunnel.seam.torch.plans.arguments import Keywords
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.state.positions import MASK, MIXER
from windtunnel.seam.torch.tags import disable_torch_function

C = torch._C
Tensor = torch.Tensor
aten = torch.ops.aten
MODES = {name.lower(): mode for name, mode in RNN_MODES.items()}
"""cudnnRNNMode_t, by operator."""
WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
KEYS = ("AutogradFunctionality", "ADInplaceOrView", "AutogradOther", "AutogradCPU")
AUTOGRAD = tuple(getattr(C.DispatchKey, name) for name in KEYS)
"""What PyTorch leaves out below its autograd, where the dispatch mode is called."""


def forward_values(dispatch: Dispatch, call: Call) -> tuple[object, ...]:
    """What the operator gives, computed on the CPU; without data, shapes alone."""
    arguments = call.named()
    tensor, hx, cx, buffer = arguments["input"], arguments["hx"], arguments["cx"], arguments["weight_buf"]
    with _inside(dispatch) as where:
        sizes = shapes(arguments)
        if arguments["cx"] is None:
            sizes[2] = (0,)
        output, hy, cy = (torch.empty(size, dtype=tensor.dtype, device=where) for size in sizes)
        if buffer is None:
            place = pieces(
                arguments["weight"], arguments["weight_stride0"], arguments["mode"], arguments["hidden_size"]
            )
            buffer = torch.zeros(place.numel, dtype=tensor.dtype, device=where)
            if not dispatch.state.no_data:
                for weight, piece in zip(arguments["weight"], place.of(buffer, arguments["weight"]), strict=True):
                    piece.copy_(weight)
        space = reserve_bytes(arguments) if arguments["train"] else 0
        reserve = torch.empty(space, dtype=torch.uint8, device=where)
        if not dispatch.state.no_data:
            number = _drawn(arguments)
            if space >= 8:
                reserve[:8].view(torch.int64).fill_(number)
            values = _stack(
                arguments, _steps_first(arguments, tensor), hx, cx, arguments["weight"], number, train=False
            )
            for result, value in zip((output, hy, cy), values, strict=True):
                if value is not None:
                    result.copy_(value)
    return _steps_first(arguments, output), hy, cy, reserve, buffer


def backward_values(dispatch: Dispatch, call: Call) -> tuple[object, ...]:
    """The same of the backward operator. All gradients of weights are pieces of one buffer, as cuDNN's are."""
    arguments = call.named()
    tensor, hx, cx, weights = arguments["input"], arguments["hx"], arguments["cx"], arguments["weight"]
    with _inside(dispatch) as where:
        steps = _steps_first(arguments, tensor)
        states = [None if t is None else torch.empty(t.shape, dtype=t.dtype, device=where) for t in (steps, hx, cx)]
        grads: list[Tensor] = []
        if arguments["output_mask"][3]:
            place = pieces(weights, arguments["weight_stride0"], arguments["mode"], arguments["hidden_size"])
            buffer = torch.zeros(place.numel, dtype=tensor.dtype, device=where)
            grads = place.of(buffer, weights)
        if not dispatch.state.no_data:
            for target, value in zip((*states, *grads), _gradients(arguments, steps, bool(grads)), strict=True):
                if target is not None and value is not None:
                    target.copy_(value)
                elif target is not None:
                    target.zero_()
    dx, dhx, dcx = states
    assert dx is not None
    return _steps_first(arguments, dx), dhx, dcx, grads


@contextmanager
def _inside(dispatch: Dispatch) -> Iterator[str]:
    """Values are computed with PyTorch's own functions on physical tensors; gives the device that those are on."""
    before, dispatch.local.inner = dispatch.local.inner, True
    try:
        with disable_torch_function():
            yield "meta" if dispatch.state.no_data else "cpu"
    finally:
        dispatch.local.inner = before


def _steps_first(arguments: Keywords, tensor: Tensor) -> Tensor:
    """Exchange steps and texts where the layer has texts first: what cuDNN takes has steps first."""
    return tensor.transpose(0, 1) if arguments["batch_first"] and not arguments["batch_sizes"] else tensor


def shapes(arguments: Keywords) -> list[tuple[int, ...]]:
    """The shapes of output (steps first), hidden and cell state."""
    shape, sizes = _steps_first(arguments, arguments["input"]).shape, arguments["batch_sizes"]
    directions = 1 + arguments["bidirectional"]
    units = arguments["hidden_size"]
    width = arguments["proj_size"] or units
    texts = sizes[0] if sizes else shape[1]
    states = arguments["num_layers"] * directions
    return [(*shape[:-1], width * directions), (states, texts, width), (states, texts, units)]


def _drawn(arguments: Keywords) -> int:
    """One number for this call's dropout, from the buffer of random states, which moves on."""
    states = arguments["dropout_state"]
    if not arguments["train"] or not arguments["dropout"] or states is None:
        return 0
    place = states[:16].view(torch.int64)
    seed, used = (_number(place[i]) for i in (0, 1))
    place[1].add_(1)
    return int((seed ^ (used * MIXER)) & (MASK >> 1))


def _number(tensor: Tensor) -> int:
    return int(aten._local_scalar_dense.default(tensor))  # of the physical tensor: no wait of the program's


def _stack(
    arguments: Keywords, x: Tensor, hx: Tensor, cx: Tensor | None, weights: list[Tensor], number: int, train: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """(output, hidden state, cell state) of all layers, steps first, computed with the CPU's layers one by one."""
    mode, sizes = arguments["mode"], arguments["batch_sizes"]
    name = next(key for key, value in MODES.items() if value == mode)
    layer_of = getattr(getattr(aten, name), "data" if sizes else "input")
    directions = 1 + arguments["bidirectional"]
    stride, biases = arguments["weight_stride0"], arguments["weight_stride0"] > 3
    wide = WIDE.get(x.dtype, x.dtype)
    x, hx, *weights = (t.to(wide) for t in (x, hx, *weights))
    cx = None if cx is None else cx.to(wide)
    after = () if sizes else (False,)
    hidden: list[Tensor] = []
    cells: list[Tensor] = []
    for layer in range(arguments["num_layers"]):
        if layer and arguments["dropout"] and arguments["train"]:
            x = x * _kept(x, arguments["dropout"], number + layer)
        span = slice(layer * directions, (layer + 1) * directions)
        states = hx[span] if cx is None else [hx[span], cx[span]]
        own = weights[span.start * stride : span.stop * stride]
        before = (x, torch.tensor(sizes, dtype=torch.int64, device="cpu")) if sizes else (x,)
        with _without_onednn(arguments["proj_size"] > 0):
            x, *found = layer_of._op_dk(
                COMPOSITE, *before, states, own, biases, 1, 0.0, train, arguments["bidirectional"], *after
            )
        hidden.append(found[0])
        cells += found[1:]
    return x, torch.cat(hidden), torch.cat(cells) if cells else None


@contextmanager
def _without_onednn(refused: bool) -> Iterator[None]:
    """Keep C++ from warning, in a program for a GPU, that oneDNN does not take projections."""
    before = C._get_mkldnn_enabled()
    if refused:
        C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        if refused:
            C._set_mkldnn_enabled(before)


def _kept(x: Tensor, p: float, seed: int) -> Tensor:
    """What dropout leaves of each number: 0 or 1 / (1 - p); the same for the same seed."""
    generator = C.Generator()
    generator.manual_seed(seed & (MASK >> 1))
    mask = torch.rand(x.shape, generator=generator, device="cpu") >= p
    return mask.to(x.dtype) / (1 - p) if p < 1 else mask.to(x.dtype)


def _gradients(arguments: Keywords, steps: Tensor, of_weights: bool) -> list[Tensor | None]:
    """Gradients of input, hidden state, cell state, and weights where they are asked for."""
    number = _number(arguments["reserve"][:8].view(torch.int64)[0]) if arguments["reserve"].numel() >= 8 else 0
    include, exclude = C._dispatch_tls_local_include_set(), C._dispatch_tls_local_exclude_set()
    for key in AUTOGRAD:
        exclude = exclude.remove(key)
    with C._ForceDispatchKeyGuard(include, exclude), torch.enable_grad():
        x, hx, *weights = (t.detach().requires_grad_() for t in (steps, arguments["hx"], *arguments["weight"]))
        cells = [] if arguments["cx"] is None else [arguments["cx"].detach().requires_grad_()]
        outputs = _stack(arguments, x, hx, cells[0] if cells else None, weights, number, train=True)
        grads = [arguments["grad_output"], arguments["grad_hy"], arguments["grad_cy"]]
        if grads[0] is not None:
            grads[0] = _steps_first(arguments, grads[0])
        pairs = [(o, g.to(o.dtype)) for o, g in zip(outputs, grads, strict=True) if o is not None and g is not None]
        leaves = (x, hx, *cells, *(weights if of_weights else []))
        # The engine itself, since this pass is no part of the program's.
        engine = torch.autograd.Variable._execution_engine
        computed = engine.run_backward(
            tuple(o for o, _ in pairs), tuple(g for _, g in pairs), False, False, leaves,
            allow_unreachable=True, accumulate_grad=False,
        )  # fmt: skip
    return list(computed) if cells else [*computed[:2], None, *computed[2:]]


VALUES = {"aten::_cudnn_rnn": forward_values, "aten::_cudnn_rnn_backward": backward_values}
"""What computes operators for which the CPU has no kernel, for a replay that has all the rest."""
