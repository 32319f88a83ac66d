"""From a jaxpr to the kernels that XLA would launch for it.

XLA fuses element-wise work: a kernel is either an operation that XLA gives to a library or runs by itself (matrix
product, convolution, sort, FFT, ...) or a fusion, which reads its inputs once and writes its result once. The walk here
follows that rule in its simplest form: an element-wise equation joins every fusible equation that uses it and is a
kernel of its own only where its result is needed elsewhere. XLA's real fusion decisions are finer.

Nothing here imports jax: a jaxpr is read through its attributes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

from windtunnel.seam.jax.types import Aval, ClosedJaxpr, Equation, Jaxpr, Variable
from windtunnel.seam.recorder import Work
from windtunnel.trace.operation import Signature
from windtunnel.trace.plain import Json

_HEAVY_NAMES = """
dot_general ragged_dot_general scaled_dot conv_general_dilated sort top_k approx_top_k fft cholesky lu qr geqrf
householder_product eigh eig svd schur triangular_solve tridiagonal_solve hessenberg gather scatter scatter-add
scatter_add scatter-mul scatter_mul scatter_min scatter_max reduce_window reduce_window_sum reduce_window_max
reduce_window_min select_and_scatter_add select_and_gather_add cumsum cumprod cummax cummin cumlogsumexp
rng_bit_generator custom_call ffi_call
"""
_HEAVY = frozenset(_HEAVY_NAMES.split())
_REDUCTIONS_NAMES = """
reduce reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or reduce_xor argmax argmin
"""
_REDUCTIONS = frozenset(_REDUCTIONS_NAMES.split())
_FREE_NAMES = """
reshape squeeze expand_dims random_wrap random_unwrap copy_p stop_gradient create_token pvary pcast
sharding_constraint mesh_cast optimization_barrier
"""
_FREE = frozenset(_FREE_NAMES.split())
_COLLECTIVES_NAMES = """
psum psum2 psum_invariant pmax pmin all_gather all_gather_invariant reduce_scatter all_to_all ppermute
pbroadcast axis_index
"""
_COLLECTIVES = frozenset(_COLLECTIVES_NAMES.split())
_PRODUCTS = frozenset({"dot_general", "conv_general_dilated"})
_WITHOUT_KERNEL = _FREE | _COLLECTIVES
_FLOPS_PER_ELEMENT = {
    "random_bits": 100, "threefry2x32": 100, "exp": 8, "log": 8, "tanh": 10, "logistic": 10, "erf": 12, "erf_inv": 20,
    "pow": 15, "sin": 10, "cos": 10, "rsqrt": 4, "sqrt": 4, "div": 4,
}  # fmt: skip

_COLLECTIVE_LINE = re.compile(
    r"= (?P<shape>\(?[a-z0-9\[\],{} /*=]+?\)?) "
    r"(?P<kind>all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
)
_ARRAY = re.compile(r"\b([a-z]+\d*\w*)\[([\d,]*)\]")
_BYTES = {"pred": 1, "s4": 1, "u4": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "f16": 2, "bf16": 2, "s32": 4, "u32": 4,
          "f32": 4, "s64": 8, "u64": 8, "f64": 8, "c64": 8, "c128": 16}  # fmt: skip


def arrays_of(shape: str) -> list[tuple[str, tuple[int, ...]]]:
    """(type, sizes) of each array in the text of an HLO shape, which may be a tuple's."""
    return [(kind, tuple(int(n) for n in sizes.split(",") if n)) for kind, sizes in _ARRAY.findall(shape)]


def array_bytes(shape: str) -> int:
    """The bytes of all arrays in the text of an HLO shape."""
    return sum(_BYTES.get(kind, 4) * math.prod(sizes) for kind, sizes in arrays_of(shape))


class JitProgram(NamedTuple):
    """The kernels of one jitted function. `local` says that its shapes are one device's part already (shard_map).

    `unknown_loops` counts `while` loops, whose number of turns the jaxpr does not tell: each is counted as one turn.
    """

    work: tuple[Work, ...]
    local: bool = False
    unknown_loops: int = 0


Names = dict[Variable, Variable]
"""What the variables of a jaxpr that is called stand for."""


class _Equation(NamedTuple):
    name: str
    inputs: tuple[Variable, ...]  # literals are left out
    outputs: tuple[Variable, ...]
    source: Equation
    body: JitProgram | None = None  # of a loop or a branch


def program_of(jaxpr: Jaxpr | ClosedJaxpr) -> JitProgram:
    """The kernels of a (closed or open) jaxpr."""
    equations: list[_Equation] = []
    inner = _open(jaxpr)
    names = {variable: variable for variable in (*inner.invars, *inner.constvars)}
    results = _flatten(inner, names, equations)
    alive = _alive(equations, results)
    bodies = [equation.body for equation in alive if equation.body is not None]
    return JitProgram(
        tuple(_kernels(alive, results)),
        _has_local_part(inner),
        sum(body.unknown_loops for body in bodies),
    )


def _open(jaxpr: Jaxpr | ClosedJaxpr) -> Jaxpr:
    """A jaxpr without its constants."""
    inner: Jaxpr = getattr(jaxpr, "jaxpr", jaxpr)  # type: ignore[arg-type]
    return inner


def collectives_of(hlo: str) -> list[tuple[str, int]]:
    """The collectives in the text of a compiled module: (name, bytes of one device's result)."""
    found = []
    for match in _COLLECTIVE_LINE.finditer(hlo):
        if arrays_of(match["shape"]):
            found.append((match["kind"].replace("-", "_"), array_bytes(match["shape"])))
    return found


# ---------------------------------------------------------------------- one flat list of equations


def _flatten(jaxpr: Jaxpr, names: Names, out: list[_Equation]) -> set[Variable]:
    """Append the equations of `jaxpr` and of what it calls; returns the variables that it returns."""
    for eqn in jaxpr.eqns:
        body = _body(eqn)
        called = None if body is not None else _called(eqn.params)
        if called is None:
            out.append(_equation(eqn, names, body))
        else:
            _inline(eqn, called, names, out)
    return {names.get(v, v) for v in jaxpr.outvars if not hasattr(v, "val")}


def _body(eqn: Equation) -> JitProgram | None:
    """What a loop or a branch runs each time; the longest branch stands for a `cond`."""
    name, params = eqn.primitive.name, eqn.params
    if name == "scan":
        return _repeated(params["jaxpr"], int(params["length"]))
    if name == "while":
        body = _repeated(params["body_jaxpr"], 1)
        return body._replace(unknown_loops=body.unknown_loops + 1)
    if name == "cond":
        return max((program_of(branch) for branch in params["branches"]), key=lambda p: len(p.work))
    return None


def _inline(eqn: Equation, called: Jaxpr | ClosedJaxpr, names: Names, out: list[_Equation]) -> None:
    inner = _open(called)
    local = {v: v for v in inner.constvars}
    # Custom rules may pass constants first: the called function's own arguments are the last ones.
    given = eqn.invars[-len(inner.invars) :] if inner.invars else []
    for variable, argument in zip(inner.invars, given, strict=False):
        local[variable] = argument if hasattr(argument, "val") else names.get(argument, argument)
    first = len(out)
    _flatten(inner, local, out)
    # One inner jaxpr may be called twice: its variables must not meet those of the other call.
    fresh: Names = {}
    for index in range(first, len(out)):
        equation = out[index]
        for variable in equation.outputs:
            fresh.setdefault(variable, _Value(variable.aval))
        out[index] = equation._replace(
            inputs=tuple(fresh.get(v, v) for v in equation.inputs),
            outputs=tuple(fresh[v] for v in equation.outputs),
        )
    for variable, result in zip(eqn.outvars, inner.outvars, strict=False):
        if hasattr(result, "val"):
            names[variable] = variable
        else:
            value = local.get(result, result)
            names[variable] = fresh.get(value, value)


class _Value:
    """A value of one call of an inner jaxpr."""

    __slots__ = ("aval",)

    def __init__(self, aval: Aval) -> None:
        self.aval = aval


def _called(params: Json) -> Jaxpr | ClosedJaxpr | None:
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        value = params.get(key)
        if value is not None and hasattr(getattr(value, "jaxpr", value), "eqns"):
            called: Jaxpr | ClosedJaxpr = value
            return called
    return None


def _repeated(jaxpr: Jaxpr | ClosedJaxpr, times: int) -> JitProgram:
    program = program_of(jaxpr)
    return program._replace(work=tuple(work._replace(times=work.times * times) for work in program.work))


def _equation(eqn: Equation, names: Names, body: JitProgram | None) -> _Equation:
    inputs = []
    for variable in eqn.invars:
        if not hasattr(variable, "val"):
            known = names.get(variable, variable)
            if not hasattr(known, "val"):
                inputs.append(known)
    for variable in eqn.outvars:
        names[variable] = variable
    return _Equation(eqn.primitive.name, tuple(inputs), tuple(eqn.outvars), eqn, body)


def _has_local_part(jaxpr: Jaxpr) -> bool:
    for eqn in jaxpr.eqns:
        called = _called(eqn.params)
        if eqn.primitive.name == "shard_map" or (called is not None and _has_local_part(_open(called))):
            return True
    return False


def _alive(equations: list[_Equation], results: set[Variable]) -> list[_Equation]:
    """Without the equations whose results nobody uses, which XLA removes."""
    needed = set(results)
    kept = []
    for equation in reversed(equations):
        if getattr(equation.source, "effects", None) or not needed.isdisjoint(equation.outputs):
            needed.update(equation.inputs)
            kept.append(equation)
    return kept[::-1]


# ---------------------------------------------------------------------- fusions


def _kernels(equations: list[_Equation], results: set[Variable]) -> Iterator[Work]:
    maker = {variable: equation for equation in equations for variable in equation.outputs}
    users: dict[Variable, list[_Equation]] = {}
    for equation in equations:
        for variable in equation.inputs:
            users.setdefault(variable, []).append(equation)
    for equation in equations:
        if equation.name in _WITHOUT_KERNEL:
            continue
        if equation.body is not None:
            yield from equation.body.work
        elif equation.name in _HEAVY:
            yield Work(_library_call(equation))
        elif _is_root(equation, users, results):
            yield Work(_fusion(equation, maker))


def _fusible(equation: _Equation) -> bool:
    alone = equation.name in _HEAVY or equation.name in _REDUCTIONS or equation.name in _COLLECTIVES
    return not alone and equation.body is None


def _is_root(equation: _Equation, users: dict[Variable, list[_Equation]], results: set[Variable]) -> bool:
    if equation.name in _REDUCTIONS:
        return True
    for variable in equation.outputs:
        if variable in results:
            return True
        for user in users.get(variable, ()):
            if user.body is not None or user.name in _HEAVY or user.name in _COLLECTIVES:
                return True
            if user.name in _FREE and _is_root(user, users, results):
                return True
    return False


def _fusion(root: _Equation, maker: dict[Variable, _Equation]) -> Signature:
    """The kernel that computes `root` and all element-wise work that leads to it, but not what is in memory already."""
    inputs: dict[Variable, None] = {}
    flops = 0
    seen: set[int] = set()
    stack = [root]
    while stack:
        equation = stack.pop()
        if id(equation) in seen:
            continue
        seen.add(id(equation))
        flops += _elementwise_flops(equation)
        for variable in equation.inputs:
            before = maker.get(variable)
            if before is not None and _fusible(before):
                stack.append(before)
            else:
                inputs[variable] = None
    name = "input_reduce_fusion" if root.name in _REDUCTIONS else "loop_fusion"
    if len(seen) == 1:
        name = root.name
    return _signature(name, tuple(inputs), root.outputs, flops)


def _elementwise_flops(equation: _Equation) -> int:
    variables = equation.inputs if equation.name in _REDUCTIONS else equation.outputs
    elements = max((_elements(v) for v in variables), default=0)
    return elements * _FLOPS_PER_ELEMENT.get(equation.name, 1)


def _library_call(equation: _Equation) -> Signature:
    signature = _signature(equation.name, equation.inputs, equation.outputs, _library_flops(equation))
    # XLA uses TF32 for products of float32 unless the program asks for more precision.
    if equation.name in _PRODUCTS and equation.source.params.get("precision") is None:
        return signature._replace(detail=(("tf32", 1),))
    return signature


def _library_flops(equation: _Equation) -> int:
    out = sum(_elements(v) for v in equation.outputs)
    params = equation.source.params
    shapes = [tuple(v.aval.shape) for v in equation.source.invars]
    if equation.name == "dot_general":
        (contracting, _), _ = params["dimension_numbers"]
        return int(2 * out * math.prod(shapes[0][d] for d in contracting))
    if equation.name == "conv_general_dilated":
        kernel = shapes[1]
        features = kernel[params["dimension_numbers"].rhs_spec[0]]
        return int(2 * out * math.prod(kernel) // max(1, features))
    largest = max((math.prod(s) for s in shapes), default=out)
    if equation.name == "fft":
        length = math.prod(params["fft_lengths"]) or 1
        return int(5 * largest * math.log2(max(2, length)))
    if equation.name == "sort":
        return int(largest * math.log2(max(2, largest)))
    if equation.name in {"cholesky", "lu", "qr", "geqrf", "eigh", "svd", "triangular_solve", "householder_product"}:
        return largest * (shapes[0][-1] if shapes[0] else 1)
    return max(out, largest)


def _signature(name: str, inputs: tuple[Variable, ...], outputs: tuple[Variable, ...], flops: int) -> Signature:
    variables = (*inputs, *outputs)
    return Signature(
        name,
        tuple(_shape(v) for v in variables),
        tuple(str(getattr(v.aval, "dtype", "")) for v in variables),
        len(inputs),
        int(flops),
        sum(_bytes(v) for v in inputs),
        sum(_bytes(v) for v in outputs),
    )


def _shape(variable: Variable) -> tuple[int, ...]:
    shape = getattr(variable.aval, "shape", ())
    return tuple(int(n) for n in shape if isinstance(n, int) or hasattr(n, "__index__"))


def _elements(variable: Variable) -> int:
    return math.prod(_shape(variable))


def _bytes(variable: Variable) -> int:
    dtype = getattr(variable.aval, "dtype", None)
    return _elements(variable) * int(getattr(dtype, "itemsize", 4))
