"""From MXNet's operators to kernels: one imperative operator, or the symbol of a hybridized block.

Nothing here imports mxnet: a symbol is read as the JSON that it writes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from windtunnel.seam.recorder import Work
from windtunnel.trace.operation import Signature
from windtunnel.trace.plain import Json

Shape = tuple[int, ...]

COPIES = frozenset({"_copyto", "_npi_copyto", "_copy", "_np_copy"})
_PRODUCTS = frozenset({"dot", "batch_dot", "_np_dot", "_npi_dot", "_npi_matmul", "_npi_tensordot", "_npi_einsum",
                       "_linalg_gemm", "_linalg_gemm2", "linalg_gemm", "linalg_gemm2"})  # fmt: skip
_WITHOUT_KERNEL = frozenset({"null", "Reshape", "reshape", "_np_reshape", "_npx_reshape", "Flatten", "expand_dims",
                             "_npi_expand_dims", "_np_squeeze", "squeeze", "BlockGrad", "_identity_with_attr_like_rhs",
                             "shape_array", "_npx_nonzero"})  # fmt: skip


def has_kernel(name: str) -> bool:
    """Whether an operator runs a kernel on a GPU."""
    return name not in _WITHOUT_KERNEL and name not in COPIES


def signature_of(name: str, inputs: Sequence[Shape], outputs: Sequence[Shape], itemsize: int, dtype: str) -> Signature:
    """What decides an operator's cost; `itemsize` is the bytes of one element of `dtype`."""
    return Signature(
        name,
        (*inputs, *outputs),
        (dtype,) * (len(inputs) + len(outputs)),
        len(inputs),
        _flops(name, inputs, outputs),
        itemsize * sum(map(math.prod, inputs)),
        itemsize * sum(map(math.prod, outputs)),
    )


def backward(work: Work) -> Work:
    """The work of an operator's gradient: twice the products of a matrix product or a convolution, else the same again.

    MXNet runs backward in C++ and shows nothing of it, so this is a model of what its forward pass implies.
    """
    signature = work.signature
    factor = 2 if signature.flops > 4 * sum(map(math.prod, signature.shapes)) else 1
    return work._replace(
        signature=signature._replace(
            name=f"_backward_{signature.name}",
            flops=factor * signature.flops,
            read_bytes=signature.read_bytes + signature.written_bytes,
            written_bytes=signature.read_bytes,
            detail=(*signature.detail, ("assumed", "from forward")),
        )
    )


def symbol_work(symbol_json: str, shapes: dict[str, Shape], itemsize: int, dtype: str) -> list[Work]:
    """The kernels of a symbol; `shapes` gives the shape of each entry by name ("data", "fc1_weight", "fc1_output")."""
    nodes: list[Json] = json.loads(symbol_json)["nodes"]
    work = []
    for node in nodes:
        name = node["op"]
        if name == "null" or not has_kernel(name):
            continue
        inputs = [shape for entry in node["inputs"] if (shape := _entry(nodes, shapes, entry[0], entry[1]))]
        output = _entry(nodes, shapes, nodes.index(node), 0)
        work.append(Work(signature_of(name, inputs, [output] if output else [], itemsize, dtype)))
    return work


def _entry(nodes: list[Json], shapes: dict[str, Shape], node: int, output: int) -> Shape:
    name = nodes[node]["name"]
    for key in (name, f"{name}_output", f"{name}_output{output}"):
        if shapes.get(key):
            return shapes[key]
    return ()


def _flops(name: str, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    out = sum(map(math.prod, outputs))
    if name in {"FullyConnected", "_npx_fully_connected"} and len(inputs) > 1:
        return 2 * out * (inputs[1][-1] if inputs[1] else 1)
    if name in _PRODUCTS and inputs and inputs[0]:
        return 2 * out * inputs[0][-1]
    if name in {"Convolution", "_npx_convolution"} and len(inputs) > 1:
        return 2 * out * math.prod(inputs[1][1:])
    if name in {"Deconvolution", "_npx_deconvolution"} and len(inputs) > 1:
        return 2 * math.prod(inputs[0]) * math.prod(inputs[1][1:])
    return max([out, *map(math.prod, inputs)], default=0)
