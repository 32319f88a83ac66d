"""Products in FP32, TF32, FP64, 8 bits: square, thin, batched, of a matrix and a vector, transposed."""

from __future__ import annotations

from typing import Any

from tools.hardware.kernels import Call, Calls, half

SIZES = [
    (512, 512, 512),
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (2048, 4096, 8192),
    (32768, 32, 32768),
    (16384, 16384, 32),
    (256, 131072, 256),
    (16384, 1024, 1),
    (1, 1048576, 2048),
    (8205, 5921, 2949),
    (64, 4096, 4096),
    (16, 12288, 4096),
    (1024, 50257, 1024),
]
"""Rows, summed length, columns."""
BATCHED = [(128, 512, 1024, 2048), (512, 64, 64, 64), (2048, 32, 128, 32), (96, 1024, 64, 1024)]


def calls(short: bool) -> Calls:
    """By precision and shape; of single matrices the transposed operands too."""
    import torch

    for words, dtype, tf32 in (
        ("tf32", torch.float32, True),
        ("fp32", torch.float32, False),
        ("fp64", torch.float64, False),
        ("half", half(), True),
    ):
        for rows, length, columns in [(64, 64, 64)] if short else SIZES:
            if words == "fp64" and rows * length * columns > 1 << 36:
                continue
            a, b = (torch.randn(*shape, device="cuda", dtype=dtype) for shape in ((rows, length), (length, columns)))
            name = f"{rows} x {length} x {columns} {words}"
            yield name, _product(a, b, tf32)
            if words in ("tf32", "fp32") and not short:
                yield f"{name} first transposed", _product(a.mT.contiguous().mT, b, tf32)
                yield f"{name} second transposed", _product(a, b.mT.contiguous().mT, tf32)
        for batch, rows, length, columns in [] if short else BATCHED:
            a, b = (
                torch.randn(batch, *shape, device="cuda", dtype=dtype) for shape in ((rows, length), (length, columns))
            )
            yield f"{batch} of {rows} x {length} x {columns} {words}", _product(a, b, tf32)
    if not short:
        yield from _eight_bits().items()


def _product(a: Any, b: Any, tf32: bool) -> Call:
    import torch

    def call() -> Any:
        torch.backends.cuda.matmul.allow_tf32 = tf32
        return a @ b

    return call


def _eight_bits() -> dict[str, Call]:
    import torch

    found: dict[str, Call] = {}
    for rows, length, columns in (
        (1024, 1024, 1024),
        (4096, 4096, 4096),
        (8192, 8192, 8192),
        (16, 4096, 12288),
        (8192, 4096, 14336),
    ):
        a = torch.randn(rows, length, device="cuda").clamp(-8, 8)
        b = torch.randn(columns, length, device="cuda").clamp(-8, 8)
        name = f"{rows} x {length} x {columns}"
        if torch.cuda.get_device_capability() >= (8, 9):
            x, y = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).mT
            one = torch.ones((), device="cuda")
            row, column = torch.ones(rows, 1, device="cuda"), torch.ones(1, columns, device="cuda")
            for fast in (True, False):
                word = "fp8 fast" if fast else "fp8"
                found[f"{name} {word}"] = _scaled(x, y, one, one, fast)
                found[f"{name} {word} by row"] = _scaled(x, y, row, column, fast)
        i, j = a.mul(16).to(torch.int8), b.mul(16).to(torch.int8).mT
        if rows > 16:
            found[f"{name} int8"] = lambda i=i, j=j: torch._int_mm(i, j)
    return found


def _scaled(x: Any, y: Any, a: Any, b: Any, fast: bool) -> Call:
    import torch

    return lambda: torch._scaled_mm(x, y, a, b, out_dtype=torch.bfloat16, use_fast_accum=fast)
