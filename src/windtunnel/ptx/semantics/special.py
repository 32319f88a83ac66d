"""Approximate functions of the special-function unit, and the functions that device code calls by name.

Both are in `runtime/`, over the 32 lanes of a warp.
"""

from __future__ import annotations

from windtunnel.ptx import layout as at
from windtunnel.ptx.calls import GRID_HANDLE
from windtunnel.ptx.emitter import LLVM_TYPES, Emitter
from windtunnel.ptx.semantics import floats, halves
from windtunnel.ptx.semantics.memory import members
from windtunnel.ptx.syntax import Instruction
from windtunnel.ptx.values import Value, vector

UNARY = ("ex2", "lg2", "sin", "cos", "tanh", "rcp", "rsqrt", "sqrt")


def over_lanes(e: Emitter, function: str, values: list[Value], result: str) -> Value:
    """Calls a function of the runtime: pointers to each operand's lanes, and to the result's."""
    areas = [e.offset("%scratch", 256 * k) for k in range(len(values) + 1)]
    for area, value in zip(areas[1:], values, strict=True):
        e.store(vector(value.type), e.lanes(value), area, 64)
    e.declared[function] = f"declare void @{function}({', '.join(['ptr'] * len(areas))})"
    e.emit(f"call void @{function}({', '.join(f'ptr {area}' for area in areas)})")
    return Value(e.load(vector(result), areas[0], 64), result)


def _approximate(e: Emitter, i: Instruction, value: Value) -> Value:
    name = i.name
    if value.type == "double":
        if not i.has("ftz"):
            raise KeyError(i.text)
        return over_lanes(e, f"wt_{name}_double", [value], "double")
    return over_lanes(e, f"wt_{name}_float", [value], "float")


def unary(e: Emitter, i: Instruction) -> None:
    """`ex2`, `lg2`, `sin`, `cos`, `tanh`, and `rcp`, `sqrt`, `rsqrt` as approximations or rounded."""
    kind = i.type
    if i.name in ("rcp", "sqrt") and not i.has("approx"):
        floats.elementwise(e, i)
        return
    if kind in halves.PACKED:
        parts = [_half(e, i, v, halves.PACKED[kind]) for v in halves.unpack(e, i.operands[1], kind)]
        e.put(i.operands[0], halves.pack(e, parts[0], parts[1]))
    elif kind in ("f16", "bf16"):
        e.put(i.operands[0], _half(e, i, halves.read(e, i.operands[1], kind), kind))
    else:
        value = halves.read(e, i.operands[1], kind, i)
        result = _approximate(e, i, value)
        e.put(i.operands[0], halves.flush(e, result) if i.has("ftz") else result)


def _half(e: Emitter, i: Instruction, value: Value, kind: str) -> Value:
    wide = e.convert("fpext", value, "float") if kind == "f16" else value
    result = over_lanes(e, f"wt_{i.name}_float", [wide], "float")
    if kind == "bf16":
        return halves.round_bfloat(e, result)
    return e.bitcast(floats.canonical(e, e.convert("fptrunc", result, "half"), "f16"), "i16")


def divide(e: Emitter, i: Instruction) -> None:
    """`div` of floating-point numbers; `approx` and `full` as the ISA describes them."""
    if i.has("approx") or i.has("full"):
        a, b = (halves.read(e, operand, i.type, i) for operand in i.operands[1:3])
        result = over_lanes(e, "wt_divide_approx" if i.has("approx") else "wt_divide_full", [a, b], "float")
        e.put(i.operands[0], halves.flush(e, result) if i.has("ftz") else result)
    else:
        floats.elementwise(e, i)


def call(e: Emitter, i: Instruction) -> None:
    """A function without a body: one of the runtime's by the name that CUDA's own library gives it."""
    name = i.opcode[1]
    results, arguments = (members(operand) if operand != "{}" else [] for operand in i.operands)
    if name == "vprintf":
        _print(e, results, arguments)
    elif name == "__assertfail":
        _assert(e, i, arguments)
    elif name == GRID_HANDLE:
        e.put(results[0], Value(e.load("i32", e.offset("%context", at.COOPERATIVE)), "i32", True))
    elif name in FUNCTIONS:
        _function(e, name, results, arguments)
    else:
        raise KeyError(i.text)


def _function(e: Emitter, name: str, results: list[str], arguments: list[str]) -> None:
    signature = FUNCTIONS[name]
    types = [LLVM_TYPES[kind] for kind in signature[1:]]
    values = [e.value(argument, type) for argument, type in zip(arguments, types, strict=True)]
    result = over_lanes(e, f"wt{name}", values, LLVM_TYPES[signature[0]])
    if results:
        e.put(results[0], result)


def _print(e: Emitter, results: list[str], arguments: list[str]) -> None:
    wide = vector("i64")
    areas = [e.offset("%scratch", 256 * k) for k in range(2)]
    for area, argument in zip(areas, arguments, strict=True):
        e.store(wide, e.lanes(e.value(argument, "i64")), area, 64)
    bits = e.mask_bits(e.running()).text
    e.declared["wt_print"] = "declare void @wt_print(i32, ptr, ptr, ptr, ptr)"
    e.emit(f"call void @wt_print(i32 {bits}, ptr {areas[0]}, ptr {areas[1]}, ptr %context, ptr %frame)")
    if results:
        e.put(results[0], e.constant("i32", 0))


def _assert(e: Emitter, i: Instruction, arguments: list[str]) -> None:
    areas = [e.offset("%scratch", 256 * k) for k in range(4)]
    for area, argument, type in zip(areas, arguments, ("i64", "i64", "i32", "i64"), strict=False):
        e.store(vector(type), e.lanes(e.value(argument, type)), area, 64)
    bits = e.mask_bits(e.running()).text
    site = e.site(i, "assert", "", 0)
    e.declared["wt_assert"] = "declare void @wt_assert(i32, i32, ptr, ptr, ptr, ptr, ptr, ptr)"
    listed = ", ".join(f"ptr {area}" for area in areas)
    e.emit(f"call void @wt_assert(i32 {bits}, i32 {site}, {listed}, ptr %context, ptr %frame)")


def _functions() -> dict[str, tuple[str, ...]]:
    """Result and operands of each function that the runtime answers, by libdevice's names."""
    one = [
        "exp",
        "exp2",
        "exp10",
        "expm1",
        "log",
        "log2",
        "log10",
        "log1p",
        "sin",
        "cos",
        "tan",
        "sinpi",
        "cospi",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "tanh",
        "asinh",
        "acosh",
        "atanh",
        "erf",
        "erfc",
        "erfinv",
        "erfcinv",
        "erfcx",
        "tgamma",
        "lgamma",
        "cbrt",
        "rcbrt",
        "rsqrt",
        "sqrt",
        "normcdf",
        "normcdfinv",
        "j0",
        "j1",
        "y0",
        "y1",
        "ceil",
        "floor",
        "trunc",
        "rint",
        "nearbyint",
        "round",
        "fabs",
    ]
    two = ["pow", "atan2", "fmod", "remainder", "hypot", "fdim", "copysign", "nextafter", "fmin", "fmax"]
    found: dict[str, tuple[str, ...]] = {}
    for suffix, kind in (("f", "f32"), ("", "f64")):
        found |= {f"__nv_{name}{suffix}": (kind, kind) for name in one}
        found |= {f"__nv_{name}{suffix}": (kind, kind, kind) for name in two}
        found[f"__nv_fma{suffix}"] = (kind,) * 4
        found[f"__nv_ldexp{suffix}"] = (kind, kind, "s32")
        found[f"__nv_powi{suffix}"] = (kind, kind, "s32")
        found[f"__nv_ilogb{suffix}"] = ("s32", kind)
        found[f"__nv_logb{suffix}"] = (kind, kind)
    return found


FUNCTIONS = _functions()
