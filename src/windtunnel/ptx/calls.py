"""Calls in PTX: functions with a body are expanded in place, and the rest becomes one instruction a call.

A parameter of a call that fits a register is one; a structure lies in the lane's local memory.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from windtunnel.errors import UnsupportedError
from windtunnel.ptx.syntax import BYTES, Declaration, Function, Instruction, Label, Source

DEPTH = 24
GRID_HANDLE, GRID_SYNCHRONIZE = "cudaCGGetIntrinsicHandle", "cudaCGSynchronize"
"""What device code calls to wait for the whole grid: whether it may, and the barrier."""
WORDS = re.compile(r"[\w$%@.]+")


@dataclass
class Flat:
    """A kernel without calls of functions that have a body."""

    name: str
    registers: dict[str, str] = field(default_factory=dict)
    variables: dict[str, Declaration] = field(default_factory=dict)
    statements: list[Instruction | Label] = field(default_factory=list)
    calls: int = 0


def flatten(source: Source, function: Function) -> Flat:
    flat = Flat(function.name)
    _copy(flat, source, function, "", {}, ())
    return flat


def _copy(
    flat: Flat, source: Source, function: Function, suffix: str, passed: dict[str, str], around: tuple[str, ...]
) -> None:
    """Appends the function's statements; `passed` maps its parameters to the caller's names."""
    if function.name in around or len(around) > DEPTH:
        raise UnsupportedError(
            f"The device function {function.name} calls itself: recursion in kernels is not emulated"
        )
    names = dict(passed)
    for name, kind in function.registers.items():
        names[name] = name + suffix
        flat.registers[name + suffix] = kind
    call_parameters: dict[str, Declaration] = {}
    for variable in function.variables:
        if variable.space == "param":
            name = f"{variable.name}#{flat.calls}"
            flat.calls += 1
            call_parameters[variable.name] = variable
            names[variable.name] = name
            _passing(flat, name, variable)
        else:
            name = variable.name + (suffix if variable.space == "local" else "")
            names[variable.name] = name
            flat.variables[name] = replace(variable, name=name)
    for statement in function.statements:
        if isinstance(statement, Label):
            names[statement.name] = statement.name + suffix

    def renamed(text: str) -> str:
        return WORDS.sub(lambda word: _rename(word[0], names), text)

    for statement in function.statements:
        if isinstance(statement, Label):
            flat.statements.append(Label(statement.name + suffix))
            continue
        moved = replace(
            statement,
            operands=tuple(map(renamed, statement.operands)),
            guard=renamed(statement.guard) if statement.guard else None,
        )
        if statement.name == "call":
            _call(flat, source, moved, (*around, function.name))
        elif suffix and statement.name == "ret":
            flat.statements.append(replace(moved, opcode=("bra",), operands=(f"$end{suffix}",)))
        else:
            flat.statements.append(_parameter_access(flat, moved))
    if suffix:
        flat.statements.append(Label(f"$end{suffix}"))


def _rename(word: str, names: dict[str, str]) -> str:
    if word in names:
        return names[word]
    register, dot, part = word.partition(".")
    return names[register] + dot + part if dot and register in names else word


def _passing(flat: Flat, name: str, variable: Declaration) -> None:
    if variable.size == BYTES[variable.type] and variable.size <= 8:
        flat.registers[name] = f"b{max(16, 8 * variable.size)}"
    else:
        flat.variables[name] = replace(variable, name=name, space="local", initial=None, align=max(variable.align, 8))


def _parameter_access(flat: Flat, instruction: Instruction) -> Instruction:
    """`st.param` and `ld.param` of a call: moves between registers, or accesses of local memory."""
    if instruction.name not in ("ld", "st") or not any(part.startswith("param") for part in instruction.opcode):
        return instruction
    address = instruction.operands[1 if instruction.name == "ld" else 0]
    base = re.match(r"\[\s*([\w$%@#]+)", address)
    name = base[1] if base else ""
    if name in flat.registers and "#" in name:
        kind = instruction.type
        width = flat.registers[name]
        if instruction.name == "ld":
            opcode = ("cvt", _integer(flat.registers.get(instruction.operands[0], width), kind), _integer(kind, kind))
            return replace(instruction, opcode=opcode, operands=(instruction.operands[0], name))
        return replace(
            instruction,
            opcode=("cvt", "u" + width[1:], "u" + str(8 * BYTES[kind])),
            operands=(name, instruction.operands[1]),
        )
    if name in flat.variables:
        return replace(instruction, opcode=tuple("local" if p.startswith("param") else p for p in instruction.opcode))
    return instruction


def _integer(kind: str, like: str) -> str:
    return ("s" if like[0] == "s" else "u") + str(8 * BYTES[kind])


def _call(flat: Flat, source: Source, call: Instruction, around: tuple[str, ...]) -> None:
    operands = list(call.operands)
    results = _names(operands.pop(0)) if operands and operands[0].startswith("(") else ()
    target = operands.pop(0)
    arguments = _names(operands[0]) if operands and operands[0].startswith("(") else ()
    function = source.functions.get(target)
    if function is None and target == GRID_SYNCHRONIZE:
        flat.statements.append(replace(call, opcode=("barrier", "grid"), operands=()))
        flat.statements += [replace(call, opcode=("mov", "b32"), operands=(result, "0")) for result in results]
        return
    if function is None:
        flat.statements.append(replace(call, opcode=("call", target), operands=(_tuple(results), _tuple(arguments))))
        return
    if call.guard:
        raise UnsupportedError(f"A call under a predicate is not emulated: {call.text}")
    flat.calls += 1
    suffix = f"~{flat.calls}"
    passed = dict(zip((p.name for p in function.parameters), arguments, strict=True))
    passed |= dict(zip((p.name for p in function.results), results, strict=False))
    _copy(flat, source, function, suffix, passed, around)


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.strip("()").split(",") if part.strip())


def _tuple(names: tuple[str, ...]) -> str:
    return "{" + ", ".join(names) + "}"
