"""What a program that XLA compiled for a GPU runs: kernels, library calls and loops, read from its optimized HLO.

One instruction of a scheduled computation is one kernel, but for those that only name or regroup memory. What a fusion
computes is in the computation that it calls. Shapes are one device's: partitioning is done.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from windtunnel.seam.jax.program import JitProgram, array_bytes, arrays_of
from windtunnel.seam.recorder import Work
from windtunnel.trace.operation import Signature

_COMPUTATION = re.compile(r"^(?:ENTRY )?%?(?P<name>[\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(
    r"^\s+(?P<root>ROOT )?%(?P<name>[\w.\-]+) = (?P<shape>\(.*?\)|\S+) (?P<opcode>[\w\-]+)"
    r"\((?P<operands>[^)]*)\)(?P<rest>.*)$"
)
_NAME = re.compile(r"%([\w.\-]+)")
_CALLS = re.compile(r"(?:calls|to_apply)=%([\w.\-]+)")
_BODY = re.compile(r"\bbody=%([\w.\-]+)")
_BRANCHES = re.compile(r"(?:branch_computations=\{|(?:true|false)_computation=)([^},]*(?:, %[^},]*)*)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_TARGET = re.compile(r'custom_call_target="([^"]+)"')
_CONTRACTING = re.compile(r'lhs_contracting_dim(?:ension)?s"?[=:][\[{]"?([\d",]*)')
_KERNEL_LABELS = re.compile(r"dim_labels=\w+_(\w+)->")

WITHOUT_KERNEL = frozenset(
    {
        "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id",
        "opt-barrier", "domain", "add-dependency",
    }
)  # fmt: skip
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")
OPERATIONS = {
    "exponential": 8, "log": 8, "tanh": 10, "logistic": 10, "erf": 12, "power": 15, "sine": 10, "cosine": 10,
    "rsqrt": 4, "sqrt": 4, "divide": 4, "exponential-minus-one": 8, "log-plus-one": 8,
}  # fmt: skip
"""Operations per element of HLO's instructions, as those of JAX's primitives in `program`; one for the others."""
NOT_COMPUTED = WITHOUT_KERNEL | {"broadcast", "reshape", "slice", "transpose", "copy", "iota", "pad", "concatenate"}


class Instruction(NamedTuple):
    """One line of a computation."""

    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    rest: str
    number: int = 0  # of a parameter
    root: bool = False


Computation = dict[str, Instruction]


def computations_of(text: str) -> tuple[dict[str, Computation], str]:
    """A module's computations by name, and the name of the one that is its entry."""
    found: dict[str, Computation] = {}
    entry, inside = "", None
    for line in text.splitlines():
        if inside is None:
            head = _COMPUTATION.match(line)
            if head is not None:
                inside = found[head["name"]] = {}
                entry = head["name"] if line.startswith("ENTRY ") else entry
        elif line.startswith("}"):
            inside = None
        elif (match := _INSTRUCTION.match(line)) is not None:
            operands = tuple(_NAME.findall(match["operands"]))
            inside[match["name"]] = Instruction(
                match["name"],
                match["shape"],
                match["opcode"],
                operands,
                match["rest"],
                int(match["operands"]) if match["operands"].isdecimal() else 0,
                bool(match["root"]),
            )
    return found, entry


def program_of_module(text: str) -> JitProgram:
    """The kernels of a compiled module, for one device."""
    computations, entry = computations_of(text)
    unknown: list[str] = []
    work = _works(computations[entry], computations, unknown) if entry else []
    return JitProgram(tuple(work), True, len(unknown))


def _works(computation: Computation, computations: Mapping[str, Computation], unknown: list[str]) -> list[Work]:
    found: list[Work] = []
    for one in computation.values():
        opcode = one.opcode
        if opcode == "while":
            trips, body = _TRIPS.search(one.rest), _BODY.search(one.rest)
            times = int(trips[1]) if trips else 1
            if not trips:
                unknown.append(one.name)
            inner = _works(computations[body[1]], computations, unknown) if body else []
            found += [work._replace(times=work.times * times) for work in inner]
        elif opcode == "conditional":
            names = [name for group in _BRANCHES.findall(one.rest) for name in _NAME.findall(group)]
            longest: list[Work] = []
            for name in names:
                branch = _works(computations[name], computations, unknown) if name in computations else []
                longest = branch if len(branch) > len(longest) else longest
            found += longest
        elif opcode in ("call", "async-start"):
            called = _CALLS.search(one.rest)
            found += _works(computations[called[1]], computations, unknown) if called else []
        elif not (opcode in WITHOUT_KERNEL or opcode.endswith("-done") or opcode.startswith(COLLECTIVES)):
            found.append(Work(_kernel(one, computation, computations)))
    return found


def _kernel(one: Instruction, computation: Computation, computations: Mapping[str, Computation]) -> Signature:
    inputs = [computation[name].shape for name in one.operands if name in computation]
    if one.opcode == "custom-call":
        return _library(one, inputs)
    if one.opcode != "fusion":
        return _signature(one.opcode.replace("-", "_"), inputs, [one.shape], _elements([one.shape]))
    called = _CALLS.search(one.rest)
    body = computations.get(called[1], {}) if called else {}
    product = next((part for part in body.values() if part.opcode == "dot"), None)
    if product is not None:
        operands = [body[name].shape for name in product.operands]
        made = _product(product, operands, product.rest)
        read, written = sum(map(array_bytes, inputs)), array_bytes(one.shape)
        return made._replace(read_bytes=read, written_bytes=written)
    inputs, outputs = _moved(inputs, one, body)
    reduces = any(part.opcode in ("reduce", "reduce-window") for part in body.values())
    name = "input_reduce_fusion" if reduces else "loop_fusion"
    return _signature(name, inputs, outputs, sum(_computed(part, body) for part in body.values()))


def _moved(inputs: list[str], one: Instruction, body: Computation) -> tuple[list[str], list[str]]:
    """What a fusion reads and writes: parts where it only slices an input, and of an update in place the update."""
    outputs = [one.shape]
    root = next((part for part in body.values() if part.root), None)
    updated = root.operands[0] if root is not None and root.opcode == "dynamic-update-slice" else ""
    if root is not None and updated and root.operands[1] in body:
        outputs = [body[root.operands[1]].shape]
    found = []
    parameters = sorted((part for part in body.values() if part.opcode == "parameter"), key=lambda part: part.number)
    for shape, parameter in zip(inputs, parameters, strict=False):
        users = [part for part in body.values() if parameter.name in part.operands]
        if parameter.name == updated and len(users) == 1:
            continue
        sliced = users and all(_cuts(part, parameter.name) for part in users)
        found += [part.shape for part in users] if sliced else [shape]
    return found, outputs


def _cuts(part: Instruction, name: str) -> bool:
    """Whether an instruction takes a slice of `name`, which may be where one begins as well."""
    return part.opcode in ("slice", "dynamic-slice") and part.operands[0] == name and name not in part.operands[1:]


def _computed(part: Instruction, body: Computation) -> int:
    """The operations of one instruction in a fusion: a reduction's are as many as its input's elements."""
    if part.opcode in NOT_COMPUTED:
        return 0
    over = [body[part.operands[0]].shape] if part.opcode == "reduce" and part.operands[0] in body else [part.shape]
    return _elements(over) * OPERATIONS.get(part.opcode, 1)


def _library(one: Instruction, inputs: list[str]) -> Signature:
    """A call of cuBLAS, cuDNN or another library; what a tuple returns behind its first part is workspace."""
    target = _TARGET.search(one.rest)
    name = target[1] if target else one.name
    if name.startswith("__cublas") and len(inputs) >= 2:
        return _product(one, inputs, one.rest)
    result = [_text(arrays_of(one.shape)[:1])]
    labels = _KERNEL_LABELS.search(one.rest)
    if labels is not None and len(inputs) >= 2:
        kernel = arrays_of(inputs[1])[0][1]
        features = kernel[labels[1].index("o")] if len(kernel) == len(labels[1]) else 1
        flops = 2 * _elements(result) * math.prod(kernel) // max(1, features)
        return _signature("conv_general_dilated", inputs[:2], result, flops, one.rest)
    return _signature(name, inputs, result, _elements(result))


def _product(one: Instruction, operands: list[str], rest: str) -> Signature:
    """A matrix product as (batch, m, k) by (batch, k, n), whichever way its operands lie."""
    left, right = arrays_of(operands[0])[0], arrays_of(operands[1])[0]
    kind, shape = arrays_of(one.shape)[0]
    named = _CONTRACTING.search(rest)
    axes = [int(axis) for axis in re.findall(r"\d+", named[1])] if named else [len(left[1]) - 1]
    k = math.prod(left[1][axis] for axis in axes if axis < len(left[1])) or 1
    out = math.prod(shape)
    rows, columns = math.prod(left[1]) // k, math.prod(right[1]) // k
    batch = max(1, rows * columns // max(1, out))
    shapes = ((batch, rows // batch, k), (batch, k, columns // batch), (batch, rows // batch, columns // batch))
    if batch == 1:
        shapes = ((rows, k), (k, columns), (rows, columns))  # type: ignore[assignment]
    dtype = DTYPES.get(left[0], left[0])
    return Signature(
        "dot_general", shapes, (dtype, DTYPES.get(right[0], right[0]), DTYPES.get(kind, kind)), 2, 2 * out * k,
        array_bytes(operands[0]) + array_bytes(operands[1]), array_bytes(_text(arrays_of(one.shape)[:1])),
        (("tf32", 1),) if dtype == "float32" and "HIGHEST" not in rest and "highest" not in rest else (),
    )  # fmt: skip


DTYPES = {
    "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "s8": "int8", "u8": "uint8",
    "s16": "int16", "s32": "int32", "s64": "int64", "u16": "uint16", "u32": "uint32", "u64": "uint64", "pred": "bool",
}  # fmt: skip


def _signature(name: str, inputs: Iterable[str], outputs: Iterable[str], flops: int, rest: str = "") -> Signature:
    given = [array for text in inputs for array in arrays_of(text)]
    made = [array for text in outputs for array in arrays_of(text)]
    both = [*given, *made]
    return Signature(
        name,
        tuple(shape for _, shape in both),
        tuple(DTYPES.get(kind, kind) for kind, _ in both),
        len(given),
        flops,
        sum(array_bytes(_text([array])) for array in given),
        sum(array_bytes(_text([array])) for array in made),
        (("tf32", 1),) if rest and both and both[0][0] == "f32" else (),
    )


def _text(arrays: Iterable[tuple[str, tuple[int, ...]]]) -> str:
    return " ".join(f"{kind}[{','.join(map(str, shape))}]" for kind, shape in arrays)


def _elements(shapes: Iterable[str]) -> int:
    return sum(math.prod(shape) for text in shapes for _, shape in arrays_of(text))
