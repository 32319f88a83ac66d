"""From TensorFlow's operations to kernels: one eager operation, or the graph of a tf.function.

TensorFlow launches one kernel an operation (XLA apart). Nothing here imports tensorflow: operations and tensors are
read through their attributes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from windtunnel.seam.recorder import Work
from windtunnel.seam.tensorflow.types import FuncGraph, Operation, Tensor
from windtunnel.trace.operation import Signature
from windtunnel.trace.plain import Json

_WITHOUT_KERNEL_NAMES = """
Placeholder PlaceholderWithDefault Const Identity IdentityN NoOp ReadVariableOp VarHandleOp _Arg _Retval Shape
ShapeN Size Rank Reshape ExpandDims Squeeze StopGradient PreventGradient Assert ConfigureAndInitializeGlobalTPU
VarIsInitializedOp DestroyResourceOp Switch Merge Enter Exit NextIteration LoopCond ControlTrigger
BroadcastGradientArgs AnonymousSeedGenerator DeleteIterator AnonymousIterator AnonymousIteratorV3 MakeIterator
IteratorGetNext IteratorGetNextSync OptionalHasValue OptionalGetValue IteratorGetNextAsOptional
DummySeedGenerator EmptyTensorList TensorListReserve TensorListFromTensor TensorListStack
CollectiveInitializeCommunicator
"""
WITHOUT_KERNEL = frozenset(_WITHOUT_KERNEL_NAMES.split())
ON_HOST = frozenset({"int32", "int64", "string", "resource", "variant"})
"""Types that TensorFlow's GPU kernels take from host memory where they are shapes, axes or handles."""

CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
COLLECTIVES = {
    "CollectiveReduce": "all_reduce", "CollectiveReduceV2": "all_reduce", "CollectiveReduceV3": "all_reduce",
    "NcclAllReduce": "all_reduce", "CollectiveGather": "all_gather", "CollectiveGatherV2": "all_gather",
    "CollectiveBcastSend": "broadcast", "CollectiveBcastSendV2": "broadcast",
}  # fmt: skip
_HOST_ONLY = ("Dataset", "Iterator", "Optional")


class GraphStep(NamedTuple):
    """One operation of a graph. `device` is the raw device string, "" where the caller decides.

    `sources` are the device strings of its inputs, with their sizes in bytes, where these are known. `collective`
    names a collective operation instead of a kernel; `loop` marks a loop whose turns are unknown.
    """

    work: Work
    device: str
    sources: tuple[tuple[str, int], ...] = ()
    collective: str = ""


class FunctionGraph(NamedTuple):
    """The steps of a function, in order, and what could not be known of them."""

    steps: tuple[GraphStep, ...]
    unknown_loops: int = 0
    unknown_shapes: int = 0


def has_kernel(name: str) -> bool:
    """Whether an operation runs a kernel on a GPU."""
    return name not in WITHOUT_KERNEL and not any(part in name for part in _HOST_ONLY)


def signature_of(name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor], attrs: Json, batch: int) -> Signature:
    """What decides an operation's cost. `batch` stands for dimensions that are not known."""
    tensors = [t for t in inputs if t.dtype.name not in {"resource", "variant"}]
    results = [t for t in outputs if t.dtype.name not in {"resource", "variant"}]
    shapes = [shape_of(t, batch) for t in (*tensors, *results)]
    return Signature(
        name,
        tuple(shapes),
        tuple(t.dtype.name for t in (*tensors, *results)),
        len(tensors),
        _flops(name, shapes[: len(tensors)], shapes[len(tensors) :], attrs),
        sum(size_of(t, batch) for t in tensors),
        sum(size_of(t, batch) for t in results) or (size_of(tensors[-1], batch) if tensors else 0),
        (("tf32", 1),) if "MatMul" in name or "Conv" in name else (),  # on by default where the GPU has it
    )


def shape_of(tensor: Tensor, batch: int) -> tuple[int, ...]:
    """A tensor's shape with `batch` for each unknown dimension; () when even the rank is unknown."""
    shape = tensor.shape
    if shape.rank is None:
        return ()
    return tuple(batch if n is None else int(n) for n in shape.as_list())


def size_of(tensor: Tensor, batch: int = 1) -> int:
    """A tensor's bytes."""
    return math.prod(shape_of(tensor, batch)) * max(1, int(tensor.dtype.size or 1))


def is_known(tensor: Tensor) -> bool:
    """Whether a tensor's whole shape is known."""
    return bool(tensor.shape.is_fully_defined())


def read(graph: FuncGraph, function: Callable[[str], FuncGraph | None], batch: int) -> FunctionGraph:
    """The steps of a FuncGraph; `function` gives the graph of a function that it calls, or None."""
    steps: list[GraphStep] = []
    loops = shapes = 0
    for op in graph.get_operations():
        if op.type in {"While", "StatelessWhile"}:
            loops += 1
        for name in _called(op):
            inner_graph = function(name)
            if inner_graph is not None:
                inner = read(inner_graph, function, batch)
                steps.extend(step._replace(device=step.device or op.device) for step in inner.steps)
                loops += inner.unknown_loops
                shapes += inner.unknown_shapes
        if op.type in CALLS or op.type in {"While", "StatelessWhile", "If", "StatelessIf"} or not has_kernel(op.type):
            continue
        shapes += sum(1 for t in op.outputs if t.dtype.name != "resource" and not is_known(t))
        steps.append(_step(op, batch))
    return FunctionGraph(tuple(steps), loops, shapes)


def _step(op: Operation, batch: int) -> GraphStep:
    attrs = {name: op.get_attr(name) for name in ("transpose_a", "transpose_b", "adj_x", "adj_y") if _has(op, name)}
    signature = signature_of(op.type, op.inputs, op.outputs, attrs, batch)
    sources = tuple(
        (tensor.op.device, size_of(tensor, batch))
        for tensor in op.inputs
        if tensor.dtype.name not in ON_HOST and tensor.op.type != "Const" and tensor.op.device
    )
    return GraphStep(Work(signature), op.device, sources, COLLECTIVES.get(op.type, ""))


def _has(op: Operation, name: str) -> bool:
    return name in op.node_def.attr


def _called(op: Operation) -> Iterator[str]:
    for name in ("f", "body", "then_branch"):
        if _has(op, name) and op.node_def.attr[name].func.name:
            yield op.node_def.attr[name].func.name


# ---------------------------------------------------------------------- arithmetic


def _flops(name: str, inputs: Sequence[tuple[int, ...]], outputs: Sequence[tuple[int, ...]], attrs: Json) -> int:
    out = sum(math.prod(shape) for shape in outputs)
    if name in {"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "_FusedMatMul"} and inputs and inputs[0]:
        transposed = bool(attrs.get("transpose_a") or attrs.get("adj_x"))
        inner = inputs[0][-2] if transposed and len(inputs[0]) > 1 else inputs[0][-1]
        return 2 * out * inner
    if name in {"Conv2D", "Conv3D", "_FusedConv2D"} and len(inputs) > 1 and inputs[1]:
        return 2 * out * math.prod(inputs[1][:-1])
    if name.startswith(("Conv2DBackprop", "Conv3DBackprop")):
        return _convolution_backward(name, inputs, out)
    if name == "DepthwiseConv2dNative" and len(inputs) > 1:
        return 2 * out * math.prod(inputs[1][:2])
    largest = max((math.prod(shape) for shape in (*inputs, *outputs)), default=0)
    return largest if name in {"Sum", "Mean", "Max", "Min", "Prod", "ArgMax", "ArgMin"} else max(out, largest)


def _convolution_backward(name: str, inputs: Sequence[tuple[int, ...]], out: int) -> int:
    gradient = inputs[2] if len(inputs) > 2 else ()
    if name.startswith("Conv2DBackpropFilter") and gradient:
        # The output is the kernel: every element sums over the gradient's positions and the batch.
        return 2 * out * math.prod(gradient[:-1])
    kernel = inputs[1] if len(inputs) > 1 else ()
    return 2 * math.prod(gradient) * math.prod(kernel[:-1]) if gradient and kernel else out
