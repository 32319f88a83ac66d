"""`nn.LSTMCell`, `nn.GRUCell`, and the recurrent layers that cuDNN does not take: a fused kernel for each step.

On CUDA a cell is two products without biases and one kernel that adds, bends and keeps what the backward pass needs; a
layer is its cell for each step, then a stack. The CPU adds gate by gate, and computes all steps' inputs at once.

Source: `LSTMCell`, `GRUCell`, `SimpleCell`, `FullLayer`, `FullBidirectionalLayer` and `apply_layer_stack` of
aten/src/ATen/native/RNN.cpp, the kernels of aten/src/ATen/native/cuda/RNN.cu, which compute half precision in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from windtunnel.seam.torch.dispatch.mode import Dispatch
from windtunnel.seam.torch.dispatch.parts import COMPOSITE
from windtunnel.seam.torch.plans.arguments import Keywords, OpOverload, Result
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.plans.halves import wide
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import TRACED, device_of

Tensor = torch.Tensor
aten = torch.ops.aten
# ---------------------------------------------------------------------------------------------- the kernels


def lstm(
    input_gates: Tensor, hidden_gates: Tensor, cx: Tensor,
    input_bias: Tensor | None = None, hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """aten::_thnn_fused_lstm_cell: hidden and cell state of shape (batch, units), and the gates (batch, 4 units)."""
    i, f, g, o = _added(input_gates, hidden_gates, input_bias, hidden_bias).chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * wide(cx) + i * g
    hy = o * cy.tanh()
    dtype = input_gates.dtype
    return hy.to(dtype), cy.to(dtype), torch.cat((i, f, g, o), 1).to(dtype)


def lstm_backward(
    grad_hy: Tensor | None, grad_cy: Tensor | None, cx: Tensor, cy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, None]:
    """aten::_thnn_fused_lstm_cell_backward_impl without the biases': gradients of the gates and of the cell state."""
    i, f, g, o = wide(workspace).chunk(4, 1)
    bent = wide(cy).tanh()
    over = torch.zeros_like(bent) if grad_hy is None else wide(grad_hy)
    cell = over * o * (1 - bent * bent) + (0 if grad_cy is None else wide(grad_cy))
    gates = (cell * g * (1 - i) * i, cell * wide(cx) * (1 - f) * f, cell * i * (1 - g * g), over * bent * (1 - o) * o)
    return torch.cat(gates, 1).to(workspace.dtype), (cell * f).to(cx.dtype), None


def gru(
    input_gates: Tensor, hidden_gates: Tensor, hx: Tensor,
    input_bias: Tensor | None = None, hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """aten::_thnn_fused_gru_cell: hidden state of shape (batch, units), and its gradient's (batch, 5 units)."""
    of_input = wide(input_gates) + (0 if input_bias is None else wide(input_bias))
    of_hidden = wide(hidden_gates) + (0 if hidden_bias is None else wide(hidden_bias))
    units = hx.shape[1]
    r, z = (of_input + of_hidden)[:, : 2 * units].sigmoid().chunk(2, 1)
    last = of_hidden[:, 2 * units :]
    n = (of_input[:, 2 * units :] + r * last).tanh()
    before = wide(hx)
    hy = n + z * (before - n)
    dtype = input_gates.dtype
    return hy.to(dtype), torch.cat((r, z, n, before, last), 1).to(dtype)


def gru_backward(grad_hy: Tensor, workspace: Tensor, has_bias: bool) -> tuple[Tensor, Tensor, Tensor, None, None]:
    """aten::_thnn_fused_gru_cell_backward without the biases': gradients of both products and of the hidden state."""
    r, z, n, before, last = wide(workspace).chunk(5, 1)
    over = wide(grad_hy)
    of_z = over * (before - n) * (1 - z) * z
    of_n = over * (1 - z) * (1 - n * n)
    of_r = of_n * last * (1 - r) * r
    dtype = workspace.dtype
    of_input, of_hidden = (torch.cat((of_r, of_z, part), 1).to(dtype) for part in (of_n, of_n * r))
    return of_input, of_hidden, (over * z).to(dtype), None, None


def _added(one: Tensor, two: Tensor, *biases: Tensor | None) -> Tensor:
    found = wide(one) + wide(two)
    for bias in biases:
        if bias is not None:
            found = found + wide(bias)
    return found


def with_biases(dispatch: Dispatch, call: Call) -> object:
    """The backward operators: the biases' gradients are sums of their own."""
    *others, has_bias = call.args
    if not has_bias or all(device_of(one) < 0 for one in call.args if isinstance(one, Tensor)):
        return dispatch.general(call)
    with dispatch.parts:
        gates: Result = call.func(*others, False)
        first, second = gates[0], gates[1]
        if call.plan.name.endswith("_impl"):
            return first, second, first.sum(0)
        return *gates[:3], first.sum(0), second.sum(0)


# ---------------------------------------------------------------------------------------------- the composites


def cell(
    state: State, func: OpOverload, input: Tensor, hx: Tensor | list[Tensor], w_ih: Tensor, w_hh: Tensor,
    b_ih: Tensor | None = None, b_hh: Tensor | None = None,
) -> object:  # fmt: skip
    """aten::lstm_cell and gru_cell, as on CUDA."""
    states = [hx] if isinstance(hx, Tensor) else hx
    if (
        device_of(input) < 0
        or state.local.inner
        or input.__class__ in TRACED
        or not _fits(func, input, states, w_ih, w_hh)
    ):
        return func._op_dk(COMPOSITE, input, hx, w_ih, w_hh, b_ih, b_hh)  # which refuses what does not fit
    return STEPS[func._opname.removesuffix("_cell")](input, states, w_ih, w_hh, b_ih, b_hh)


def _fits(func: OpOverload, tensor: Tensor, states: Sequence[Tensor], w_ih: Tensor, w_hh: Tensor) -> bool:
    if len(states) != (2 if func._opname == "lstm_cell" else 1) or tensor.shape[-1] != w_ih.shape[1]:
        return False
    return all(one.shape == (tensor.shape[0], w_hh.shape[1]) for one in states)


Weights = tuple[Tensor | None, ...]


def lstm_step(
    tensor: Tensor, states: Sequence[Tensor], w_ih: Tensor, w_hh: Tensor,
    b_ih: Tensor | None, b_hh: Tensor | None, w_hr: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """One step of an LSTM: hidden and cell state."""
    hx, cx = states
    hy, cy, _ = aten._thnn_fused_lstm_cell.default(tensor.matmul(w_ih.t()), hx.matmul(w_hh.t()), cx, b_ih, b_hh)
    return hy if w_hr is None else hy.matmul(w_hr.t()), cy


def gru_step(
    tensor: Tensor, states: Sequence[Tensor], w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None, b_hh: Tensor | None
) -> Tensor:
    """One step of a GRU: the hidden state."""
    (hx,) = states
    out: Tensor = aten._thnn_fused_gru_cell.default(tensor.matmul(w_ih.t()), hx.matmul(w_hh.t()), hx, b_ih, b_hh)[0]
    return out


def _simple(bend: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def step(
        tensor: Tensor, states: Sequence[Tensor], w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None, b_hh: Tensor | None
    ) -> Tensor:
        linear = torch.nn.functional.linear
        return bend(linear(states[0], w_hh, b_hh).add_(linear(tensor, w_ih, b_ih)))

    return step


Step = Callable[..., Tensor | tuple[Tensor, ...]]
STEPS: dict[str, Step] = {
    "lstm": lstm_step,
    "gru": gru_step,
    "rnn_tanh": _simple(torch.tanh),
    "rnn_relu": _simple(torch.relu),
}


def stacked(kind: str, given: Keywords) -> tuple[Tensor, ...]:
    """A recurrent operator's results without cuDNN: output, hidden state, and an LSTM's cell state."""
    tensor, hidden, params = given["input"], given["hx"], given["params"]
    hidden = [hidden] if isinstance(hidden, Tensor) else hidden
    both, count = 2 if given["bidirectional"] else 1, given["num_layers"]
    each = len(params) // (count * both)
    first = tensor.transpose(0, 1) if given["batch_first"] else tensor
    ends: list[tuple[Tensor, ...]] = []
    for layer in range(count):
        outputs = []
        for direction in range(both):
            place = layer * both + direction
            weights = _weights(params[place * each : (place + 1) * each], given["has_biases"])
            states = tuple(one[place] for one in hidden)
            output, states = _layer(STEPS[kind], first, states, weights, backwards=direction == 1)
            outputs.append(output)
            ends.append(states)
        first = outputs[0] if both == 1 else torch.cat(outputs, -1)
        if given["dropout"] and given["train"] and layer < count - 1:
            first = torch.dropout(first, given["dropout"], True)
    output = first.transpose(0, 1) if given["batch_first"] else first
    return output, *(torch.stack(states) for states in zip(*ends, strict=True))


def _weights(params: Sequence[Tensor], has_biases: bool) -> Weights:
    """A layer's products, biases, and projection if it has one, in the order of a step's arguments."""
    return tuple(params) if has_biases else (*params[:2], None, None, *params[2:])


def _layer(
    step: Step, tensor: Tensor, states: tuple[Tensor, ...], weights: Weights, backwards: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    if not len(tensor):
        raise RuntimeError("Expected sequence length to be larger than 0 in RNN")
    outputs = []
    inputs = tensor.unbind(0)
    for one in reversed(inputs) if backwards else inputs:
        found = step(one, states, *weights)
        states = found if isinstance(found, tuple) else (found,)
        outputs.append(states[0])
    return torch.stack(outputs[::-1] if backwards else outputs), states


COMPOSITES = {aten.lstm_cell.default: cell, aten.gru_cell.default: cell}
"""By operator, for `composites.Composites`."""
RUN: dict[str, Callable[..., object]] = {
    "aten::_thnn_fused_lstm_cell": lstm,
    "aten::_thnn_fused_lstm_cell_backward_impl": lstm_backward,
    "aten::_thnn_fused_gru_cell": gru,
    "aten::_thnn_fused_gru_cell_backward": gru_backward,
}
"""By name, what `Plan.run` calls: the CPU has no such kernels."""
HANDLERS = dict.fromkeys(
    ("aten::_thnn_fused_lstm_cell_backward_impl", "aten::_thnn_fused_gru_cell_backward"), with_biases
)
