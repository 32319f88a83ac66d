"""PTX text to modules, functions and instructions.

An operand stays text; `semantics` reads it. The grammar is that of "Parallel Thread Execution ISA", chapters 4 and 5.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from windtunnel.errors import UnsupportedError

BYTES = {
    "pred": 1,
    **dict.fromkeys(("u8", "s8", "b8"), 1),
    **dict.fromkeys(("u16", "s16", "b16", "f16", "bf16"), 2),
    **dict.fromkeys(("u32", "s32", "b32", "f32", "f16x2", "bf16x2", "tf32"), 4),
    **dict.fromkeys(("u64", "s64", "b64", "f64"), 8),
    "b128": 16,
}
NAME = r"[\w$%]+"
SPACES = ("global", "shared", "local", "const", "param")
SIZED = re.compile(r"(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$%]+)((?:\[\s*\d*\s*\])*)")


@dataclass(frozen=True)
class Parameter:
    name: str
    offset: int
    size: int
    align: int
    type: str


@dataclass(frozen=True)
class Location:
    file: int
    line: int
    caller: Location | None = None
    """Where the function that this line is in was inlined."""


@dataclass(frozen=True, eq=False)
class Instruction:
    opcode: tuple[str, ...]
    operands: tuple[str, ...]
    guard: str | None
    negated: bool
    location: Location | None
    text: str

    @property
    def name(self) -> str:
        return self.opcode[0]

    @property
    def type(self) -> str:
        return self.opcode[-1]

    @property
    def space(self) -> str:
        """The memory that it names ("shared" of "shared::cta"); "generic" where it names none."""
        named = (part.partition("::")[0] for part in self.opcode)
        return next((part for part in named if part in SPACES), "generic")

    def has(self, modifier: str) -> bool:
        return modifier in self.opcode


@dataclass(frozen=True)
class Label:
    name: str


@dataclass(frozen=True)
class Declaration:
    """A variable: of the module, or local to a function."""

    name: str
    space: str
    align: int
    type: str
    size: int
    unsized: bool
    initial: str | None
    scope: int = 0


@dataclass
class Function:
    name: str
    entry: bool
    parameters: tuple[Parameter, ...]
    parameter_bytes: int
    results: tuple[Parameter, ...]
    attributes: str
    registers: dict[str, str] = field(default_factory=dict)
    variables: list[Declaration] = field(default_factory=list)
    statements: list[Instruction | Label] = field(default_factory=list)
    begins: Location | None = None
    """Where its body begins in its source."""

    @property
    def max_threads(self) -> int:
        found = re.search(r"\.maxntid\s+([\d,\s]+)", self.attributes)
        if not found:
            return 1024
        product = 1
        for part in found[1].split(","):
            product *= int(part)
        return product


@dataclass(frozen=True)
class Unwritten:
    """A variable that is used before anything is written to it, as the compiler says."""

    file: str
    line: int
    name: str


@dataclass
class Source:
    """A module as it was written."""

    files: dict[int, str]
    variables: dict[str, Declaration]
    functions: dict[str, Function]
    target: int = 70
    """The compute capability that it is for, times ten."""
    unwritten: tuple[Unwritten, ...] = ()
    registers: dict[str, int] = field(default_factory=dict)
    """Those of a thread of each kernel, where NVIDIA's assembler has said."""


def parse(text: str) -> Source:
    unwritten = [Unwritten(f, int(n), v) for f, n, v in re.findall(r'^// unwritten "([^"]*)" (\d+) (\w+)$', text, re.M)]
    registers = {name: int(n) for n, name in re.findall(r"^// registers (\d+) ([\w$]+)$", text, re.M)}
    files = {int(number): name for number, name in re.findall(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', text, re.M)}
    text = re.sub(r"^\s*\.file\b[^\n]*", "", text, flags=re.M)
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r"^\s*\.section\s+\S+\s*\{[^}]*\}", "", text, flags=re.M)
    functions: dict[str, Function] = {}
    outside: list[str] = []
    position = 0
    for head in re.finditer(
        r"\.(entry|func)\s+(?:\.attribute\([^)]*\)\s*)?(?:\(([^)]*)\)\s*)?([\w$]+)\s*(?:\(([^)]*)\))?([^{;]*)([{;])",
        text,
    ):
        if head.start() < position:
            continue
        outside.append(re.sub(r"(\.visible|\.weak|\.extern)\s*$", "", text[position : head.start()]))
        position = head.end()
        if head[6] == ";":
            continue
        end = _closing(text, head.end())
        functions[head[3]] = _function(head, text[head.end() : end - 1])
        position = end
    outside.append(text[position:])
    variables = {v.name: v for v in map(_module_variable, _module_statements("\n".join(outside))) if v is not None}
    target = re.search(r"^\s*\.target\s+sm_(\d+)", text, re.M)
    return Source(files, variables, functions, int(target[1]) if target else Source.target, tuple(unwritten), registers)


def _closing(text: str, start: int) -> int:
    depth = 1
    for brace in re.compile(r"[{}]").finditer(text, start):
        depth += 1 if brace[0] == "{" else -1
        if not depth:
            return brace.end()
    raise UnsupportedError("The PTX text ends in the middle of a function: pass the whole file")


def _module_statements(text: str) -> Iterator[str]:
    for statement in re.findall(r"[^;]+", text):
        yield " ".join(statement.split())


def _module_variable(statement: str) -> Declaration | None:
    found = re.search(r"(?:^|\s)\.(global|const|shared)\s+(.*)$", statement)
    return _variable(found[1], found[2]) if found else None


def _variable(space: str, text: str, scope: int = 0) -> Declaration:
    text = re.sub(r"\.attribute\([^)]*\)\s*|\.v[24]\s+(?=\.)", "", text)
    declared, _, initial = text.partition("=")
    sized = SIZED.match(declared.strip())
    if not sized:
        raise UnsupportedError(f"This PTX declaration is not understood: .{space} {text}")
    size = BYTES[sized[2]]
    dimensions = re.findall(r"\[\s*(\d*)\s*\]", sized[4])
    for dimension in dimensions:
        size *= int(dimension or 0)
    align = int(sized[1] or BYTES[sized[2]])
    return Declaration(sized[3], space, align, sized[2], size, "" in dimensions, initial.strip() or None, scope)


def parameters(text: str | None) -> tuple[tuple[Parameter, ...], int]:
    offset, found = 0, []
    for one in re.sub(
        r"\.ptr\s*(?:\.(?:global|shared|const|local|generic)\s*)?(?:\.align\s+\d+)?", "", text or ""
    ).split(","):
        sized = SIZED.search(one)
        if not sized:
            continue
        size = BYTES[sized[2]]
        for dimension in re.findall(r"\[\s*(\d+)\s*\]", sized[4]):
            size *= int(dimension)
        align = int(sized[1] or BYTES[sized[2]])
        offset = -(-offset // align) * align
        found.append(Parameter(sized[3], offset, size, align, sized[2]))
        offset += size
    return tuple(found), offset


def _function(head: re.Match[str], body: str) -> Function:
    inputs, size = parameters(head[4])
    results, _ = parameters(head[2])
    function = Function(head[3], head[1] == "entry", inputs, size, results, head[5] or "")
    location: Location | None = None
    scopes: dict[int, dict[str, str]] = {}
    places: dict[tuple[int, int, int], Location] = {}
    for text, scope in _statements(body):
        while label := re.match(rf"({NAME})\s*:(?!:)\s*", text):
            if text[label.end() :].startswith(".callprototype"):
                break
            function.statements.append(Label(label[1]))
            text = text[label.end() :]
        if not text:
            continue
        if text.startswith(".loc "):
            found_at = _location(text, places)
            function.begins = function.begins or found_at
            location = found_at if found_at.line else location  # what is of several lines is of the one before
        elif text.startswith(".reg"):
            _registers(function, text, scope, scopes)
        elif found := re.match(r"\.(shared|local|param)\s+(.*)$", text):
            renamed = _declare(function, _variable(found[1], found[2], scope[-1]), scopes)
            function.variables.append(renamed)
        elif text[0] != "." and not re.match(rf"{NAME}\s*:\s*\.callprototype", text):
            function.statements.append(_instruction(text, scope, scopes, location))
    return function


def _location(text: str, places: dict[tuple[int, int, int], Location]) -> Location:
    """A `.loc`; what it is inlined at may itself be inlined, as an earlier one said."""
    words = text.replace(",", " ").split()
    file, line, column = (int(word) for word in words[1:4])
    caller = None
    if "inlined_at" in words:
        at = words.index("inlined_at")
        outer = tuple(int(word) for word in words[at + 1 : at + 4])
        caller = places.get((outer[0], outer[1], outer[2])) or Location(outer[0], outer[1])
    places[file, line, column] = found = Location(file, line, caller)
    return found


def _declare(function: Function, variable: Declaration, scopes: dict[int, dict[str, str]]) -> Declaration:
    if not variable.scope:
        return variable
    name = f"{variable.name}@{variable.scope}"
    scopes.setdefault(variable.scope, {})[variable.name] = name
    v = variable
    return Declaration(name, v.space, v.align, v.type, v.size, v.unsized, v.initial, v.scope)


def _registers(function: Function, text: str, scope: tuple[int, ...], scopes: dict[int, dict[str, str]]) -> None:
    found = re.match(r"\.reg\s+(?:\.v[24]\s+)?\.(\w+)\s+(.*)$", text)
    if not found or found[1] not in BYTES:
        raise UnsupportedError(f"This PTX declaration is not understood: {text}")
    for one in found[2].split(","):
        many = re.match(r"([\w$%]+)<(\d+)>", one.strip())
        for name in [f"{many[1]}{i}" for i in range(int(many[2]))] if many else [one.strip()]:
            if scope[-1]:
                scopes.setdefault(scope[-1], {})[name] = f"{name}@{scope[-1]}"
                name = f"{name}@{scope[-1]}"
            function.registers[name] = found[1]


def _instruction(
    text: str, scope: tuple[int, ...], scopes: dict[int, dict[str, str]], location: Location | None
) -> Instruction:
    found = re.match(rf"(?:@(!?)({NAME})\s+)?([\w.:]+)\s*(.*)$", text)
    if not found:
        raise UnsupportedError(f"This PTX instruction is not understood: {text}")
    operands = tuple(
        operand.strip()
        for operand in re.findall(r"\{[^}]*\}|\[[^\]]*\]|\([^)]*\)|[^,\s]+", found[4])
        if operand.strip()
    )
    guard = found[2]
    for inner in reversed(scope):
        names = scopes.get(inner)
        if not names:
            continue

        def renamed(word: re.Match[str], names: dict[str, str] = names) -> str:
            return names.get(word[0], word[0])

        operands = tuple(re.sub(r"[\w$%@]+", renamed, operand) for operand in operands)
        guard = names.get(guard, guard) if guard else None
    return Instruction(_opcode(found[3]), operands, guard, found[1] == "!", location, text)


def _opcode(text: str) -> tuple[str, ...]:
    """The words of an opcode; barriers in memory have names of several, since their operands differ."""
    found = re.match(r"mbarrier\.\w+|cp\.async\.(?:mbarrier|bulk)", text)
    end = found.end() if found else 0
    return (text[:end] + text[end:].partition(".")[0], *text[end:].split(".")[1:])


def _statements(body: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Statements and the scopes around each: braces that hold statements, not the registers of a vector."""
    buffer, scopes, count, depth = "", [0], 0, 0
    for token in re.findall(r"[^;{}\n]+|[;{}\n]", body):
        if token == "\n" or token == ";":
            directive = token == "\n" and re.match(rf"\s*(?:{NAME}\s*:\s*)*\.loc\b", buffer)
            if directive or (token == ";" and not depth):
                if buffer.strip():
                    yield " ".join(buffer.split()), tuple(scopes)
                buffer = ""
            else:
                buffer += " " if token == "\n" else token
        elif token == "{":
            if re.fullmatch(rf"\s*(?:{NAME}\s*:\s*)*", buffer):
                if buffer.strip():
                    yield " ".join(buffer.split()), tuple(scopes)
                buffer = ""
                count += 1
                scopes.append(count)
            else:
                depth += 1
                buffer += token
        elif token == "}":
            if depth:
                depth -= 1
                buffer += token
            else:
                if buffer.strip():
                    yield " ".join(buffer.split()), tuple(scopes)
                if len(scopes) > 1:
                    scopes.pop()
                buffer = ""
        else:
            buffer += token
