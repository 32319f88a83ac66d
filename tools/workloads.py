"""Training steps as lists of operations, for calibration: (signature, how often a step runs it).

Only the shapes of well-known models, written down by hand from their papers; no framework is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from understudy.trace.operation import Signature

Shape = tuple[int, ...]
Step = list[tuple[Signature, int]]
WIDTH = {"float32": 4, "float16": 2}


def operation(
    name: str, inputs: list[Shape], outputs: list[Shape], dtype: str, tf32: bool = False, flops: int = 0
) -> Signature:
    """An operation whose tensors all have one dtype."""
    size = WIDTH[dtype]
    return Signature(
        f"aten::{name}",
        (*inputs, *outputs),
        (dtype,) * (len(inputs) + len(outputs)),
        len(inputs),
        flops,
        size * sum(map(prod, inputs)),
        size * sum(map(prod, outputs)),
        (("tf32", 1),) if tf32 else (),
    )


def linear(rows: int, k: int, n: int, dtype: str, tf32: bool) -> Iterator[Signature]:
    """A linear layer, forward and backward: three products and the bias gradient."""
    yield operation("addmm", [(n,), (rows, k), (k, n)], [(rows, n)], dtype, tf32)
    yield operation("mm", [(rows, n), (n, k)], [(rows, k)], dtype, tf32)
    yield operation("mm", [(n, rows), (rows, k)], [(n, k)], dtype, tf32)
    yield operation("sum", [(rows, n)], [(n,)], dtype)


def batched(batch: int, m: int, k: int, n: int, dtype: str, tf32: bool) -> Iterator[Signature]:
    """A batched product, forward and backward."""
    yield operation("bmm", [(batch, m, k), (batch, k, n)], [(batch, m, n)], dtype, tf32)
    yield operation("bmm", [(batch, m, n), (batch, n, k)], [(batch, m, k)], dtype, tf32)
    yield operation("bmm", [(batch, k, m), (batch, m, n)], [(batch, k, n)], dtype, tf32)


def pointwise(name: str, shape: Shape, dtype: str, reads: int = 1, backward_reads: int = 2) -> Iterator[Signature]:
    """An elementwise operation and its gradient."""
    yield operation(name, [shape] * reads, [shape], dtype)
    if backward_reads:
        yield operation(f"{name}_backward", [shape] * backward_reads, [shape], dtype)


def bert(
    layers: int, hidden: int, heads: int, batch: int, seq: int, dtype: str, tf32: bool, vocab: int = 30522
) -> Step:
    """A training step of BERT for SQuAD with Adam, without fused attention."""
    rows, ffn, width = batch * seq, 4 * hidden, hidden // heads
    x, scores = (rows, hidden), (batch * heads, seq, seq)
    layer: list[Signature] = []
    for _ in range(4):
        layer += linear(rows, hidden, hidden, dtype, tf32)
        layer += pointwise("clone", x, dtype, 1, 1)
    layer += linear(rows, hidden, ffn, dtype, tf32)
    layer += pointwise("gelu", (rows, ffn), dtype)
    layer += linear(rows, ffn, hidden, dtype, tf32)
    layer += batched(batch * heads, seq, width, seq, dtype, tf32)
    layer += batched(batch * heads, seq, seq, width, dtype, tf32)
    layer += pointwise("div", scores, dtype, 1, 1)
    layer += pointwise("add", scores, dtype, 1, 0)
    layer += pointwise("_softmax", scores, dtype)
    layer += pointwise("native_dropout", scores, dtype)
    for _ in range(2):
        layer += pointwise("native_dropout", x, dtype)
        layer += pointwise("add", x, dtype, 2, 2)
        layer += pointwise("native_layer_norm", x, dtype)
    step = [(signature, layers) for signature in layer]
    parameters = layers * (12 * hidden * hidden + 13 * hidden) + (vocab + 514) * hidden
    step += [(operation("embedding", [(vocab, 1), x], [x], dtype), 3)]
    step += [(operation("embedding_dense_backward", [x], [(vocab, hidden)], dtype), 2)]
    return step + adam(parameters, dtype)


def adam(parameters: int, dtype: str, tensors: int = 100) -> Step:
    """Clipping and a fused Adam step; with half precision also the copies of weights and gradients."""
    shapes = [(parameters // tensors,)] * tensors
    step = [
        (operation("_foreach_norm", shapes, [(tensors,)], "float32"), 1),
        (operation("_fused_adam_", shapes * 4, shapes * 3, "float32"), 1),
        (operation("_foreach_zero_", [], shapes, "float32"), 1),
    ]
    if dtype == "float16":
        step += [(operation("_foreach_copy_", shapes, shapes, "float16"), 3)]
    return step


def convolution(
    batch: int, c: int, n: int, size: int, kernel: int, stride: int, dtype: str, tf32: bool
) -> Iterator[Signature]:
    """A convolution and its backward pass, batch norm included."""
    out = size // stride
    x, w, y = (batch, c, size, size), (n, c, kernel, kernel), (batch, n, out, out)
    yield operation("convolution", [x, w], [y], dtype, tf32)
    gradients = [x, w] if c > 3 else [w]
    yield operation("convolution_backward", [y, x, w], gradients, dtype, tf32)
    yield from pointwise("cudnn_batch_norm", y, dtype, 2, 3)


def resnet50(batch: int, dtype: str, tf32: bool, size: int = 224) -> Step:
    """A training step of ResNet-50 v1.5 with SGD and momentum."""
    ops: list[Signature] = [*convolution(batch, 3, 64, size, 7, 2, dtype, tf32)]
    ops += pointwise("relu", (batch, 64, size // 2, size // 2), dtype)
    ops += pointwise("max_pool2d_with_indices", (batch, 64, size // 2, size // 2), dtype, 1, 1)
    channels, size = 64, size // 4
    for index, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << index
        for block in range(blocks):
            stride = 2 if block == 0 and index else 1
            small = size // stride
            ops += convolution(batch, channels, width, size, 1, 1, dtype, tf32)
            ops += pointwise("relu", (batch, width, size, size), dtype)
            ops += convolution(batch, width, width, size, 3, stride, dtype, tf32)
            ops += pointwise("relu", (batch, width, small, small), dtype)
            ops += convolution(batch, width, 4 * width, small, 1, 1, dtype, tf32)
            if block == 0:
                ops += convolution(batch, channels, 4 * width, size, 1, stride, dtype, tf32)
            ops += pointwise("add", (batch, 4 * width, small, small), dtype, 2, 2)
            ops += pointwise("relu", (batch, 4 * width, small, small), dtype)
            channels, size = 4 * width, small
    ops += linear(batch, 2048, 1000, dtype, tf32)
    shapes = [(25_557_032 // 160,)] * 160
    step = [(signature, 1) for signature in ops]
    step += [(operation("_foreach_add_", shapes * 2, shapes, "float32"), 4)]
    if dtype == "float16":
        step += [(operation("_foreach_copy_", shapes, shapes, "float16"), 2)]
    return step


MODELS = {
    "bert-base SQuAD": lambda batch, dtype, tf32: bert(12, 768, 12, batch, 384, dtype, tf32),
    "bert-large SQuAD": lambda batch, dtype, tf32: bert(24, 1024, 16, batch, 384, dtype, tf32),
    "resnet50_v1.5": resnet50,
}
