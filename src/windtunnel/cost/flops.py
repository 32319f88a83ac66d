"""Floating-point operations of an operator from its shapes, where the framework did not count them.

A multiply-add counts as two. The rules are those of the textbooks (and of torch's own flop counter, which the seam
uses when it is at hand): the sums over matrix products, nothing for elementwise work.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log2, prod

from windtunnel.cost.recurrent import recurrence
from windtunnel.trace.operation import Signature

Shape = tuple[int, ...]
_BACKWARD_ATTENTION = 2.5
"""Products in attention's backward pass, recomputation included, over those of the forward pass (5 of 2)."""


def count(signature: Signature, name: str, operator_class: str) -> int:
    """Operations of `signature`, whose plain name is `name`; 0 where only bytes matter or the shapes do not say."""
    if signature.flops:
        return signature.flops
    rule = _RULES.get(name) or _RULES.get(operator_class)
    if rule is None:
        return 0
    shapes = signature.shapes[: signature.inputs] if signature.inputs else signature.shapes
    outputs = signature.shapes[signature.inputs :] if signature.inputs else ()
    try:
        return int(rule(signature, name, shapes, outputs))
    except (IndexError, ZeroDivisionError):
        return 0  # a form of the operator that these rules do not know: its bytes still count


def is_set(signature: Signature, key: str) -> bool:
    """Whether a detail is there and true; older traces hold truth values as words."""
    return any(name == key and value not in (0, "", "0", "False") for name, value in signature.detail)


GROUPED = ("_grouped_mm", "_scaled_grouped_mm", "_scaled_grouped_mm_v2")
"""Products of groups, whose rows, columns or sums the groups share out; a group with all of them is a batch's."""
_WITH_BIAS = ("addmm", "baddbmm", "addbmm", "addmv", "_addmm_activation", "addmm_activation", "_sparse_addmm")


def matmul_sizes(name: str, shapes: tuple[Shape, ...]) -> tuple[int, int, int, int]:
    """(batch, m, n, k) of a matrix product's inputs.

    Raises:
        IndexError: the shapes are not those of a matrix product.
    """
    if name == "linear":
        a, w = shapes[0], shapes[1]
        return 1, prod(a[:-1]), (w[0] if len(w) > 1 else 1), a[-1]
    first = 1 if name in _WITH_BIAS else 0
    a, b = shapes[first], shapes[first + 1]
    if name == "_weight_int4pack_mm":
        return 1, a[0], 8 * b[0], a[1]
    if name in GROUPED and 2 in (len(a), len(b)):
        return 1, a[-2] * (a[0] if len(a) > 2 else 1), b[-1], a[-1]
    if len(b) == 1:
        return 1, prod(a[:-1]), 1, a[-1]
    if len(a) == 1:
        return 1, 1, b[-1], a[0]
    return max(prod(a[:-2]), prod(b[:-2])), a[-2], b[-1], a[-1]


def product_sizes(signature: Signature, name: str, shapes: tuple[Shape, ...]) -> tuple[int, int, int, int]:
    """The same of a signature, which says whether each element of its factors holds two numbers.

    Raises:
        IndexError: the shapes are not those of a matrix product.
    """
    batch, m, n, k = matmul_sizes(name, shapes)
    return batch, m, n, 2 * k if is_set(signature, "packed") else k


def contiguous_sizes(signature: Signature, name: str, shapes: tuple[Shape, ...]) -> tuple[int, int, int]:
    """The contiguous dimensions of a product's operands and result, as the signature's details say they lie.

    Without details operands are row-major: k columns of the first, n of the second; `linear`'s weight has k columns.

    Raises:
        IndexError: the shapes are not those of a matrix product.
    """
    _, m, n, k = matmul_sizes(name, shapes)
    first = m if is_set(signature, "transposed_a") else k
    transposed = is_set(signature, "transposed_b") != (name == "linear")
    return first, k if transposed else n, n


def _matmul(signature: Signature, name: str, shapes: tuple[Shape, ...], outputs: tuple[Shape, ...]) -> float:
    if name in ("ger", "addr"):
        return 2 * prod(shapes[-2]) * prod(shapes[-1])
    batch, m, n, k = product_sizes(signature, name, shapes)
    return 2 * batch * m * n * k


def _convolution(signature: Signature, name: str, shapes: tuple[Shape, ...], outputs: tuple[Shape, ...]) -> float:
    transposed = is_set(signature, "transposed") or "transpose" in name
    if name.endswith("_backward"):
        gradient, x, weight = shapes[0], shapes[1], shapes[2]
        products = sum(out in (x, weight) for out in outputs) if outputs else 2
        return 2 * prod(x if transposed else gradient) * prod(weight[1:]) * products
    x, weight = shapes[0], shapes[1]
    out = x if transposed else outputs[0]
    return 2 * prod(out) * prod(weight[1:])


def _attention(signature: Signature, name: str, shapes: tuple[Shape, ...], outputs: tuple[Shape, ...]) -> float:
    backward = "backward" in name
    first = 1 if backward else 0
    q, k, v = shapes[first], shapes[first + 1], shapes[first + 2]
    heads_last = name.startswith(("_flash_attention", "_efficient_attention"))
    rows, columns = (q[-3], k[-3]) if heads_last else (q[-2], k[-2])
    batch = prod(q) // (rows * q[-1])
    flops = 2 * batch * rows * columns * (q[-1] + v[-1])
    if dict(signature.detail).get("causal"):
        flops //= 2
    return flops * (_BACKWARD_ATTENTION if backward else 1)


def _rnn(signature: Signature, name: str, shapes: tuple[Shape, ...], outputs: tuple[Shape, ...]) -> float:
    found = recurrence(signature)
    if found is not None:
        return found.flops * (2 if "backward" in name else 1)
    steps = prod(shapes[0][:-1])
    weights = sum(prod(shape) for shape in shapes[1:] if len(shape) == 2 and shape[0] >= shape[1])
    return 2 * steps * weights * (2 if "backward" in name else 1)


def _fft(signature: Signature, name: str, shapes: tuple[Shape, ...], outputs: tuple[Shape, ...]) -> float:
    points = prod(shapes[0])
    length = max(shapes[0][-1], 2)
    return 5 * points * log2(length) * (0.5 if "r2c" in name or "c2r" in name else 1)


def _linalg(signature: Signature, name: str, shapes: tuple[Shape, ...], outputs: tuple[Shape, ...]) -> float:
    a = shapes[0]
    order = min(a[-2], a[-1])
    factor = next((value for key, value in _LINALG.items() if key in name), 2.0)
    return factor * prod(a[:-2]) * max(a[-2], a[-1]) * order * order


_LINALG = {
    "cholesky": 0.34,
    "svd": 22.0,
    "eigh": 9.0,
    "eig": 25.0,
    "qr": 2.7,
    "inv": 2.0,
    "lu": 0.67,
    "triangular": 1.0,
}

_RULES: dict[str, Callable[[Signature, str, tuple[Shape, ...], tuple[Shape, ...]], float]] = {
    "matmul": _matmul,
    "bmm": _matmul,
    "convolution": _convolution,
    "attention": _attention,
    "rnn": _rnn,
    "fft": _fft,
    "linalg": _linalg,
    "dot": _matmul,
    "vdot": _matmul,
}
"""By class of operators, or by the name of one of another class."""

ITEM_BYTES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "complex64": 8,
    "complex128": 16,
    "complex32": 4,
    "float": 4,
    "double": 8,
    "half": 2,
    "long": 8,
    "int": 4,
    "short": 2,
}
"""Bytes of an element; every other dtype (bool, int8, uint8, the float8 family) has one."""


def bytes_moved(signature: Signature) -> int:
    """Bytes read and written: as the seam counted them, else the sum over all shapes."""
    if signature.read_bytes or signature.written_bytes:
        return signature.read_bytes + signature.written_bytes
    return sum(
        prod(shape) * ITEM_BYTES.get(dtype.removeprefix("torch."), 1)
        for shape, dtype in zip(signature.shapes, signature.dtypes, strict=False)
    )
