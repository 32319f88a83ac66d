"""Products and casts in 8, 4 and 16 bits and TF32: the bits that the device gives, and what it refuses.

Arguments are drawn on the CPU, so that both sides have the same. Results are the bytes in hexadecimal digits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tools.hardware.context import Context, Items, Row, answered, shown
from tools.hardware.worker import first_line

ORDER = 46
TITLE = "Low precision: values and refusals"
LIMIT_S = 120
ITEM_S = 60
OPTIONS: tuple[str, ...] = ()
LENGTHS = (32, 128, 512, 4096)
FIRST = 256  # numbers of a result that are written down


def items(context: Context) -> Items:
    """A kind of product or cast each."""
    return {
        call.__name__.replace("_", " "): partial(_answers, call)
        for call in (
            casts,
            scaled_mm,
            scaled_mm_refusals,
            grouped,
            eight_bit_integers,
            four_bit_weights,
            block_scales,
            plain_products,
            reductions,
        )
    }


def _answers(make: Callable[[], dict[str, Callable[[], Any]]]) -> dict[str, Any]:
    """Bits by name, or the error's first line."""
    import traceback

    import torch

    found: dict[str, Any] = {}
    for name, call in make().items():
        try:
            found[name] = _bits(call())
            torch.cuda.synchronize()
        except Exception:  # noqa: BLE001  # any error is the answer
            found[name] = "error: " + first_line(traceback.format_exc())
    return found


def _bits(value: Any) -> Any:
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    flat = value.detach().contiguous().cpu().flatten()[:FIRST]
    digits = flat.view(torch.uint8).numpy().tobytes().hex()
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)} {digits}"


def _drawn(*shape: int, seed: int = 0) -> Any:
    import torch

    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def casts() -> dict[str, Callable[[], Any]]:
    """Special and random numbers from and to each 8-bit type."""
    import torch

    special = [
        0.0,
        -0.0,
        1.0,
        448.0,
        449.0,
        464.0,
        465.0,
        480.0,
        57344.0,
        61440.0,
        1e9,
        1e-9,
        2**-9,
        2**-10,
        1.5 * 2**-10,
        2**-16,
        2**-17,
    ]
    special += [float("inf"), -float("inf"), float("nan"), 240.0, 248.0, 0.0625 * 1.03125, 1.0625, 1.1875]
    x = torch.cat([torch.tensor(special), _drawn(200) * 100])
    found: dict[str, Callable[[], Any]] = {}
    for name in (
        "float8_e4m3fn",
        "float8_e5m2",
        "float8_e4m3fnuz",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
        "float16",
        "bfloat16",
    ):
        for source in ("float32", "float16", "bfloat16"):
            found[f"{source} to {name}"] = lambda s=source, n=name: x.cuda().to(getattr(torch, s)).to(getattr(torch, n))
        numbers = torch.arange(256, dtype=torch.uint8)
        if "8" in name and name != "bfloat16" and name != "float16":
            found[f"{name} to float32"] = lambda n=name, b=numbers: b.cuda().view(getattr(torch, n)).float()
    return found


def _pair(rows: int, length: int, columns: int, a: str = "float8_e4m3fn", b: str = "float8_e4m3fn") -> tuple[Any, Any]:
    import torch

    x = _drawn(rows, length, seed=length).cuda().to(getattr(torch, a))
    y = _drawn(columns, length, seed=length + 1).cuda().to(getattr(torch, b)).mT
    return x, y


def scaled_mm() -> dict[str, Callable[[], Any]]:
    """`_scaled_mm` by tensor, row and block, by length, result type and accumulation."""
    import torch

    found: dict[str, Callable[[], Any]] = {}
    for length in LENGTHS:
        for fast in (True, False):
            for out in ("float32", "bfloat16", "float16"):

                def tensor(length=length, fast=fast, out=out):  # type: ignore[no-untyped-def]
                    x, y = _pair(32, length, 64)
                    s = torch.tensor(0.3, device="cuda"), torch.tensor(1.7, device="cuda")
                    return torch._scaled_mm(x, y, *s, out_dtype=getattr(torch, out), use_fast_accum=fast)

                def row(length=length, fast=fast, out=out):  # type: ignore[no-untyped-def]
                    x, y = _pair(32, length, 64)
                    s = _drawn(32, 1, seed=7).abs().cuda(), _drawn(1, 64, seed=8).abs().cuda()
                    return torch._scaled_mm(x, y, *s, out_dtype=getattr(torch, out), use_fast_accum=fast)

                words = f"{length}, {'fast' if fast else 'precise'}, {out}"
                found[f"by tensor, {words}"] = tensor
                found[f"by row, {words}"] = row

        def mixed(length=length):  # type: ignore[no-untyped-def]
            x, y = _pair(32, length, 64, "float8_e5m2", "float8_e4m3fn")
            return torch._scaled_mm(x, y, *(torch.ones((), device="cuda"),) * 2, out_dtype=torch.float32)

        def bias(length=length):  # type: ignore[no-untyped-def]
            x, y = _pair(32, length, 64)
            one = torch.ones((), device="cuda")
            return torch._scaled_mm(x, y, one, one, bias=_drawn(64, seed=3).cuda().bfloat16(), out_dtype=torch.bfloat16)

        def eight(length=length):  # type: ignore[no-untyped-def]
            x, y = _pair(32, length, 64)
            one = torch.ones((), device="cuda")
            return torch._scaled_mm(x, y, one, one, scale_result=one, out_dtype=torch.float8_e4m3fn)

        found |= {f"e5m2 by e4m3, {length}": mixed, f"with bias, {length}": bias, f"8-bit result, {length}": eight}
    for length in (128, 512, 4096):

        def block(length=length, square=True):  # type: ignore[no-untyped-def]
            x, y = _pair(128, length, 256)
            a = _drawn(length // 128, 128, seed=5).abs().cuda().mT  # 1 x 128 blocks, outer-dimension-major
            b = (
                _drawn(2, length // 128, seed=6).abs().cuda().mT
                if square
                else _drawn(length // 128, 256, seed=6).abs().cuda()
            )
            return torch._scaled_mm(x, y, a, b, out_dtype=torch.bfloat16)

        found[f"1 x 128 by 128 x 128, {length}"] = block
        found[f"1 x 128 by 1 x 128, {length}"] = partial(block, square=False)
    return found


def scaled_mm_refusals() -> dict[str, Callable[[], Any]]:
    """Layouts, alignments and types that are refused, by text."""
    import torch

    one = torch.ones((), device="cuda")

    def of(rows: int, length: int, columns: int, **options: Any) -> Any:
        x, y = _pair(rows, length, columns)
        return torch._scaled_mm(x, y, options.pop("a", one), options.pop("b", one), **options)

    def laid(first: bool) -> Any:
        x, y = _pair(32, 32, 32)
        return torch._scaled_mm(
            x.mT.contiguous().mT if first else x, y if first else y.contiguous(), one, one, out_dtype=torch.bfloat16
        )

    def types(a: str, b: str, out: Any = None) -> Any:
        x, y = _pair(32, 32, 32, a, b)
        return torch._scaled_mm(x, y, one, one, out_dtype=out)

    rows = torch.ones(32, 1, device="cuda")
    return {
        "length 24": lambda: of(32, 24, 32, out_dtype=torch.bfloat16),
        "columns 24": lambda: of(32, 32, 24, out_dtype=torch.bfloat16),
        "rows 5": lambda: of(5, 32, 32, out_dtype=torch.bfloat16),
        "no out_dtype": lambda: of(32, 32, 32),
        "first in columns": lambda: laid(True),
        "second in rows": lambda: laid(False),
        "both e5m2": lambda: types("float8_e5m2", "float8_e5m2", torch.bfloat16),
        "float16": lambda: types("float16", "float16"),
        "e4m3fnuz": lambda: types("float8_e4m3fnuz", "float8_e4m3fnuz", torch.bfloat16),
        "one row scale": lambda: of(32, 32, 32, a=rows, out_dtype=torch.bfloat16),
        "scales of a wrong shape": lambda: of(
            32, 32, 32, a=rows, b=torch.ones(1, 31, device="cuda"), out_dtype=torch.bfloat16
        ),
        "scales in half": lambda: of(32, 32, 32, a=one.half(), b=one.half(), out_dtype=torch.bfloat16),
        "scales on the CPU": lambda: of(32, 32, 32, a=torch.ones(()), b=torch.ones(()), out_dtype=torch.bfloat16),
        "out_dtype int32": lambda: of(32, 32, 32, out_dtype=torch.int32),
        "row-wise float32": lambda: of(32, 32, 32, a=rows, b=rows.mT.contiguous(), out_dtype=torch.float32),
        "row-wise float16": lambda: of(32, 32, 32, a=rows, b=rows.mT.contiguous(), out_dtype=torch.float16),
        "inner sizes": lambda: torch._scaled_mm(
            _pair(32, 32, 32)[0], _pair(32, 64, 32)[1], one, one, out_dtype=torch.bfloat16
        ),
        "float32 bias": lambda: of(32, 32, 32, bias=torch.ones(32, device="cuda"), out_dtype=torch.bfloat16),
        "bias and float32": lambda: of(
            32, 32, 32, bias=torch.ones(32, device="cuda").bfloat16(), out_dtype=torch.float32
        ),
        "no rows": lambda: of(0, 32, 32, out_dtype=torch.bfloat16),
        "no length": lambda: of(32, 0, 32, out_dtype=torch.bfloat16),
        "product of 8 bits by @": lambda: _pair(32, 32, 32)[0] @ _pair(32, 32, 32)[1],
        "addition in 8 bits": lambda: _pair(32, 32, 32)[0] + _pair(32, 32, 32)[0],
        "sum in 8 bits": lambda: _pair(32, 32, 32)[0].sum(),
    }


def grouped() -> dict[str, Callable[[], Any]]:
    """`_grouped_mm` and `_scaled_grouped_mm`: values by operand dimensions, refusals."""
    import torch

    ends = torch.tensor([16, 48, 64], dtype=torch.int32)

    def plain(length: int) -> Any:
        a = _drawn(64, length, seed=1).cuda().bfloat16()
        b = _drawn(3, 64, length, seed=2).cuda().bfloat16().mT
        return torch._grouped_mm(a, b, offs=ends.cuda())

    def flat() -> Any:
        a, b = _drawn(32, 64, seed=1).cuda().bfloat16(), _drawn(48, 64, seed=2).cuda().bfloat16().mT
        return torch._grouped_mm(a, b, offs=ends.cuda())

    def scaled(fast: bool) -> Any:
        a = _drawn(64, 128, seed=1).cuda().to(torch.float8_e4m3fn)
        b = _drawn(3, 64, 128, seed=2).cuda().to(torch.float8_e4m3fn).mT
        x, y = _drawn(64, seed=3).abs().cuda(), _drawn(3, 64, seed=4).abs().cuda()
        return torch._scaled_grouped_mm(a, b, x, y, offs=ends.cuda(), out_dtype=torch.bfloat16, use_fast_accum=fast)

    return {
        "3-D second, 64": lambda: plain(64),
        "3-D second, 1024": lambda: plain(1024),
        "both 2-D": flat,
        "scaled, fast": lambda: scaled(True),
        "scaled, precise": lambda: scaled(False),
        "length 20": lambda: plain(20),
        "no offsets": lambda: torch._grouped_mm(_drawn(64, 64).cuda().bfloat16(), _drawn(3, 64, 64).cuda().bfloat16()),
        "float32": lambda: torch._grouped_mm(_drawn(64, 64).cuda(), _drawn(3, 64, 64).cuda().mT, offs=ends.cuda()),
        "offsets in int64": lambda: torch._grouped_mm(
            _drawn(64, 64).cuda().bfloat16(), _drawn(3, 64, 64).cuda().bfloat16().mT, offs=ends.cuda().long()
        ),
    }


def eight_bit_integers() -> dict[str, Callable[[], Any]]:
    """`_int_mm`: values and refusals."""
    import torch

    def of(rows: int, length: int, columns: int, transposed: bool = True) -> Any:
        a = (_drawn(rows, length) * 40).clamp(-128, 127).to(torch.int8).cuda()
        b = (_drawn(columns, length) * 40).clamp(-128, 127).to(torch.int8).cuda().mT
        return torch._int_mm(a, b if transposed else b.contiguous())

    sizes = [(32, 64, 32), (17, 64, 32), (16, 64, 32), (8, 64, 32), (32, 60, 32), (32, 64, 20), (1, 64, 32)]
    found: dict[str, Callable[[], Any]] = {f"{size}": partial(of, *size) for size in sizes}
    return {**found, "second in rows": lambda: of(32, 64, 32, False)}


def four_bit_weights() -> dict[str, Callable[[], Any]]:
    """`_convert_weight_to_int4pack` and `_weight_int4pack_mm`, `_weight_int8pack_mm`, `_dyn_quant`."""
    import torch

    def packed(rows: int = 64, length: int = 256, tiles: int = 8) -> Any:
        numbers = torch.randint(
            0, 256, (rows, length // 2), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
        )
        return torch._convert_weight_to_int4pack(numbers.cuda(), tiles)

    def product(group: int, rows: int = 8, length: int = 256) -> Any:
        x = _drawn(rows, length).cuda().bfloat16()
        scales = _drawn(length // group, 64, 2, seed=2).cuda().bfloat16()
        return torch._weight_int4pack_mm(x, packed(64, length), group, scales)

    def eight() -> Any:
        x = _drawn(8, 64).cuda().bfloat16()
        weight = (_drawn(32, 64, seed=2) * 40).to(torch.int8).cuda()
        return torch._weight_int8pack_mm(x, weight, _drawn(32, seed=3).cuda().bfloat16())

    found: dict[str, Callable[[], Any]] = {
        f"packed, {tiles} tiles": partial(packed, 64, 256, tiles) for tiles in (2, 4, 8, 3)
    }
    found |= {f"product, groups of {group}": partial(product, group) for group in (32, 64, 128, 256, 16)}
    return {**found, "rows 60": lambda: packed(60, 256, 8), "int8": eight, "length 4096": lambda: product(128, 8, 4096)}


def block_scales() -> dict[str, Callable[[], Any]]:
    """MXFP8, MXFP4 and NVFP4 products: values, or why they are refused."""
    import torch
    from torch.nn import functional

    def mx() -> Any:
        x, y = _pair(128, 128, 128)
        scales = torch.full((128 * 4,), 127, dtype=torch.uint8, device="cuda").view(torch.float8_e8m0fnu)
        return torch._scaled_mm(x, y, scales, scales.clone(), out_dtype=torch.bfloat16)

    def four(scale: str) -> Any:
        numbers = torch.arange(128 * 64, device="cuda").to(torch.uint8).view(128, 64).view(torch.float4_e2m1fn_x2)
        scales = torch.ones(128 * 8, device="cuda").to(getattr(torch, scale))
        return torch._scaled_mm(numbers, numbers.mT, scales, scales.clone(), out_dtype=torch.bfloat16)

    def public() -> Any:
        x, y = _pair(32, 64, 32)
        one = torch.ones((), device="cuda")
        way = functional.ScalingType.TensorWise
        return functional.scaled_mm(x, y, one, way, one, way, output_dtype=torch.bfloat16)

    return {
        "MXFP8": mx,
        "NVFP4": lambda: four("float8_e4m3fn"),
        "MXFP4": lambda: four("float8_e8m0fnu"),
        "scaled_mm": public,
    }


def plain_products() -> dict[str, Callable[[], Any]]:
    """Products in 16 bits, TF32 and FP32: how the device sums."""
    import torch

    found: dict[str, Callable[[], Any]] = {}
    for length in LENGTHS:
        for words, dtype, tf32 in (
            ("bfloat16", torch.bfloat16, False),
            ("float16", torch.float16, False),
            ("tf32", torch.float32, True),
            ("fp32", torch.float32, False),
        ):

            def product(length=length, dtype=dtype, tf32=tf32):  # type: ignore[no-untyped-def]
                torch.backends.cuda.matmul.allow_tf32 = tf32
                return _drawn(64, length, seed=1).cuda().to(dtype) @ _drawn(length, 64, seed=2).cuda().to(dtype)

            found[f"{words}, {length}"] = product
        found[f"bfloat16 to float32, {length}"] = lambda length=length: torch.mm(
            _drawn(64, length, seed=1).cuda().bfloat16(),
            _drawn(length, 64, seed=2).cuda().bfloat16(),
            out_dtype=torch.float32,
        )
    return found


def reductions() -> dict[str, Callable[[], Any]]:
    """Sums, softmax, exponentials and norms in FP32: bits that tell orders of summation and functions."""
    import torch
    from torch.nn import functional

    x = _drawn(256, 1000)
    table: dict[str, Callable[[Any], Any]] = {
        "exp": torch.exp,
        "log": lambda x: torch.log(x.abs()),
        "tanh": torch.tanh,
        "sigmoid": torch.sigmoid,
        "erf": torch.erf,
        "sin": torch.sin,
        "rsqrt": lambda x: torch.rsqrt(x.abs()),
        "gelu": functional.gelu,
        "silu": functional.silu,
        "sum": lambda x: x.sum(),
        "sum of rows": lambda x: x.sum(-1),
        "sum of columns": lambda x: x.sum(0),
        "mean": lambda x: x.mean(-1),
        "softmax": lambda x: x.softmax(-1),
        "cumsum": lambda x: x.cumsum(-1),
        "layer_norm": lambda x: functional.layer_norm(x, (1000,)),
        "var": lambda x: x.var(-1),
        "logsumexp": lambda x: x.logsumexp(-1),
        "pow": lambda x: x.abs() ** 2.7,
    }
    return {name: lambda call=call: call(x.cuda()) for name, call in table.items()}


def rows(native: dict[str, Any], emulated: dict[str, Any]) -> list[Row]:
    """Refusals that differ in their text, values that differ in their bits."""
    found: list[Row] = []
    for item, real, ours in answered(native, emulated, found):
        for name, value in real.items():
            if value != ours.get(name):
                found.append(Row(f"{item}, {name}", shown(value, 300), shown(ours.get(name, "-"), 300), True))
    return found
