"""Variables of a kernel's own that nothing has set: a second form of a module, in which what they hold is an input.

clang's `-ftrivial-auto-var-init` writes a pattern to each variable that its declaration leaves unset, and marks these
writes. The module that is run has none of them. In the other form they write numbers from constant memory; those that
the optimizer leaves are of variables that it cannot prove to be set before they are used."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

OPTIONS = ("-ftrivial-auto-var-init=pattern", "-fno-discard-value-names")
INPUT = "wt_unset"
ROOM = 16
"""Bytes of the input for each variable: as many as any number has."""
STORE = re.compile(
    r"^(\s*)store (i\d+|half|bfloat|float|double|ptr|<\d+ x \w+>) [^%]*, "
    r"(ptr (%\S+|%\"[^\"]*\"), align \d+.*), !annotation !(\d+)"
)
FILL = re.compile(r"^(\s*)call void @llvm\.(?:memset\.p0|memcpy\.p0\.p0)\.i64\((ptr .*?(%[^\s,]+)), (?:i8|ptr) .*?, "
                  r"(i64 \d+), i1 false\)(.*), !annotation !(\d+)")  # fmt: skip
DEFINED = re.compile(r"^\s*(%\S+) = (alloca|getelementptr(?: inbounds)?) (.*)$")
NODE = re.compile(r"^!(\d+) = (?:distinct )?!(\w+)\((.*)\)$")
MARK = re.compile(r'^!(\d+) = !\{!"auto-init"\}$', re.MULTILINE)
VECTORS = re.compile(r"%(?:struct|class)\.(?:(?:u?char|u?short|u?int|u?long(?:long)?|float|double)[1-4]|__half2?|"
                     r"__nv_bfloat162?|dim3)\b")  # fmt: skip
LISTED = re.compile(r'^// unset "([^"]*)" (\d+) (\S+) ([01])$', re.MULTILINE)
OTHER = re.compile(r"^//~(.*)$", re.MULTILINE)
NUMBER = re.compile(r"(?:\[\d+ x )*(?:i\d+|half|bfloat|float|double|ptr|<\d+ x \w+>)\b")


@dataclass(frozen=True)
class Unset:
    """A variable that its declaration leaves unset."""

    file: str
    line: int
    name: str
    plain: bool
    """Whether all of it is numbers; a class may have parts that its copies carry along and nobody reads."""


@dataclass
class _Nodes:
    """What the module says of its lines."""

    nodes: dict[str, tuple[str, str]]

    @classmethod
    def of(cls, lines: Sequence[str]) -> _Nodes:
        found = (NODE.match(line) for line in lines if line[:1] == "!" and "DI" in line)
        return cls({one[1]: (one[2], one[3]) for one in found if one})

    def place(self, number: str) -> tuple[str, int]:
        """The file and line of a `DILocation`."""
        text = self.nodes.get(number, ("", ""))[1]
        line, scope = re.search(r"line: (\d+)", text), re.search(r"scope: !(\d+)", text)
        if not line or not scope:
            return "", 0
        file = re.search(r"file: !(\d+)", self.nodes.get(scope[1], ("", ""))[1])
        named = self.nodes.get(file[1], ("", ""))[1] if file else ""
        parts = dict(re.findall(r'(filename|directory): "([^"]*)"', named))
        name = parts.get("filename", "")
        return (name if name[:1] == "/" else f"{parts.get('directory', '')}/{name}"), int(line[1])


@dataclass
class Forms:
    """Both forms of a module, and the variables in the order of the input."""

    plain: str
    other: str = ""
    variables: list[Unset] = field(default_factory=list)


def forms(text: str, hidden: Sequence[str]) -> Forms:
    """The forms of a module in LLVM IR; variables of functions in the folders `hidden` are let be."""
    mark = MARK.search(text)
    if not mark:
        return Forms(text)
    lines = text.split("\n")
    nodes, folders = _Nodes.of(lines), tuple(f"{folder}/" for folder in hidden)
    plain: list[str] = []
    other: list[str] = []
    numbers: dict[tuple[int, str], int] = {}
    made = Forms("")
    defined: dict[str, tuple[str, str]] = {}
    function = 0
    for line in lines:
        if line.startswith("define "):
            defined, function = {}, function + 1
        found = DEFINED.match(line) if line[:1] == " " else None
        if found:
            defined[found[1]] = found[2], found[3]
        if f"!annotation !{mark[1]}" not in line:
            plain.append(line)
            other.append(line)
            continue
        stored, filled = STORE.match(line), FILL.match(line)
        name = _variable(stored[4] if stored else filled[3] if filled else "", defined)
        place = nodes.place(_debug(line))
        if not name or not place[1] or place[0].startswith(folders):
            continue
        if (function, name) not in numbers:
            numbers[function, name] = len(made.variables)
            kind = defined[name][1]
            plain_kind = bool(NUMBER.match(kind) or VECTORS.search(kind))
            made.variables.append(Unset(*place, name.strip('%"'), plain_kind))
        number = numbers[function, name]
        other += _from_input(stored, filled, number, len(other), _debug(line))
    if made.variables:
        size = ROOM * len(made.variables)
        declared = (
            f"@{INPUT} = dso_local addrspace(4) externally_initialized global [{size} x i8] zeroinitializer, align 16"
        )
        first = next(at for at, line in enumerate(other) if line.startswith("define "))
        other.insert(first, declared)
        if "@llvm.memset.p0.i64" not in text:
            other.append("declare void @llvm.memset.p0.i64(ptr writeonly, i8, i64, i1 immarg)")
        made.other = "\n".join(other)
    made.plain = "\n".join(plain)
    return made


def _debug(line: str) -> str:
    found = re.search(r"!dbg !(\d+)", line)
    return found[1] if found else ""


def _variable(pointer: str, defined: dict[str, tuple[str, str]]) -> str:
    """The variable that an address is in."""
    while pointer:
        opcode, rest = defined.get(pointer, ("", ""))
        if opcode == "alloca":
            return pointer
        following = re.search(r"ptr (%[^\s,]+)", rest)
        pointer = following[1] if following and opcode else ""
    return ""


def _from_input(
    stored: re.Match[str] | None, filled: re.Match[str] | None, number: int, at: int, debug: str
) -> list[str]:
    name, where = f"%{INPUT}.{at}", f", !dbg !{debug}"
    source = f"ptr addrspace(4) getelementptr inbounds (i8, ptr addrspace(4) @{INPUT}, i64 {ROOM * number})"
    if stored:
        indent, kind = stored[1], stored[2]
        return [f"{indent}{name} = load {kind}, {source}, align 16{where}", f"{indent}store {kind} {name}, {stored[3]}"]
    assert filled
    indent = filled[1]
    return [
        f"{indent}{name} = load i8, {source}, align 16{where}",
        f"{indent}call void @llvm.memset.p0.i64({filled[2]}, i8 {name}, {filled[4]}, i1 false){where}",
    ]


def written(variables: Sequence[Unset], other: str) -> str:
    """The other form's PTX and its variables as comments, which follow the PTX that is run; none where it uses none."""
    if not re.search(rf"\[{INPUT}\b|\b{INPUT}\+|, {INPUT};", other):
        return ""
    listed = [f'// unset "{v.file}" {v.line} {_named(v)} {int(v.plain)}' for v in variables]
    return "\n".join([*listed, *(f"//~{line}" for line in other.split("\n"))]) + "\n"


def listed(text: str) -> tuple[Unset, ...]:
    """The variables that `written` has listed in a text."""
    return tuple(Unset(file, int(line), name, plain == "1") for file, line, name, plain in LISTED.findall(text))


def other_form(text: str) -> str:
    """The other form that `written` has put into a text, if it has one."""
    return "\n".join(OTHER.findall(text))


def _named(variable: Unset) -> str:
    """As the source has it: clang numbers those of the same name."""
    try:
        with open(variable.file, encoding="utf-8", errors="replace") as file:
            lines = file.readlines()
    except OSError:
        lines = []
    line = lines[variable.line - 1] if 0 < variable.line <= len(lines) else ""
    known = re.search(rf"\b{re.escape(variable.name)}\b", line)
    return variable.name if known else re.sub(r"\d+$", "", variable.name) or variable.name
