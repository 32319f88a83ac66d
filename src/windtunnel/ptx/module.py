"""PTX modules and their kernels: what the other folders use."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from windtunnel.compiler.unset import INPUT, ROOM, Unset, listed, other_form
from windtunnel.errors import UnsupportedError
from windtunnel.ptx import unset
from windtunnel.ptx.dependence import deciding
from windtunnel.ptx.engine import Code, cache_folder
from windtunnel.ptx.faults import KernelFault
from windtunnel.ptx.flow import of_grid
from windtunnel.ptx.launch import Checks, Frames, Launch, Request, Run, Triple, header, place
from windtunnel.ptx.line import Shape, shape_of
from windtunnel.ptx.memory import Allocation, Allocations, Memory
from windtunnel.ptx.structures import aligned
from windtunnel.ptx.syntax import BYTES, Declaration, Function, Parameter, Source, Unwritten, parse
from windtunnel.ptx.variants import Prepared, compile_variant, for_shape, prepare

START = (0, 0, 0), (0, 0, 0)
"""The first thread of the first block."""
OF_A_GPU = re.compile(r"^\.(?:target|version).*$", re.MULTILINE)
MOST_RESIDENT = 1024
"""Blocks at the same time, where nobody says of which GPU."""


@dataclass(frozen=True)
class Variable:
    """A `__device__` or `__constant__` variable of the module, in the host's memory."""

    name: str
    address: int
    size: int
    constant: bool
    memory: object = field(compare=False, repr=False)
    """What owns the memory, which lives as long as a module that has the variable."""


class Kernel:
    def __init__(self, module: Module, function: Function) -> None:
        self._module, self._function = module, function
        self.name = function.name
        self.parameters: tuple[Parameter, ...] = function.parameters
        self.max_threads = function.max_threads
        self.registers = module.source.registers.get(self.name, 0)
        """Of a thread, as NVIDIA's assembler says; 0 where it was not asked."""
        self._codes: dict[tuple[Shape, bool], Code] = {}
        self._shaped: dict[Shape, Prepared] = {}
        self._idle: dict[Triple, list[Frames]] = {}
        """Frames that no launch uses, by size of the block."""

    @functools.cached_property
    def _prepared(self) -> Prepared:
        return prepare(self._module.source, self._function)

    @property
    def parameter_bytes(self) -> int:
        return self._function.parameter_bytes

    @property
    def shared_bytes(self) -> int:
        """Static shared memory."""
        return self._prepared.layout.shared_bytes

    @property
    def waits_for_grid(self) -> bool:
        """Whether it has a barrier of all blocks: it must be launched cooperatively."""
        return any(of_grid(one) for block in self._prepared.graph.blocks for one in block)

    @property
    def local_bytes(self) -> int:
        return self._prepared.layout.local_bytes

    @functools.cached_property
    def deciding(self) -> tuple[tuple[str, int], ...]:
        """The lines, each once, where a value from memory decides what the kernel does."""
        found = (place(one, self._module.source.files) for one in deciding(self._prepared.graph))
        return tuple(dict.fromkeys(found))

    @functools.cached_property
    def ordering(self) -> tuple[str, int]:
        """Where the kernel takes what depends on the order of its threads: an atomic's result, another atomic, or where
        it begins."""
        every = [one for block in self._prepared.graph.blocks for one in block if one.location]
        named = [[one for one in every if one.name == name] for name in ("atom", "red")]
        chosen = next((found for found in (*named, every) if found), [])
        return place(chosen[0], self._module.source.files) if chosen else ("?", 0)

    @functools.cached_property
    def unwritten(self) -> tuple[KernelFault, ...]:
        """Variables of the kernel, or of a function that it may call, that are used before they are written."""
        found = []
        for one, file in self._unwritten():
            message = (
                f"The variable {one.name} is used before anything is written to it: each thread finds what its "
                f"register held before"
            )
            found.append(KernelFault("uninitialized-read", message, file, one.line, *START, None, 0))
        return tuple(found)

    def _unwritten(self) -> Iterator[tuple[Unwritten, str]]:
        """What the compiler has said of it, with the file."""
        source = self._module.source
        for unwritten in source.unwritten:
            path = unwritten.file.lstrip("./")
            begun = [
                (f.begins.line, f)
                for f in source.functions.values()
                if f.begins and source.files.get(f.begins.file, "").endswith(path)
            ]
            first = max((line for line, _ in begun if line <= unwritten.line), default=0)
            after = min((line for line, _ in begun if line > unwritten.line), default=sys.maxsize)
            nearest = [f for line, f in begun if line == first]
            if not header(unwritten.file) and nearest and self._has(nearest, first, after):
                yield unwritten, source.files[nearest[0].begins.file] if nearest[0].begins else unwritten.file

    def _has(self, functions: list[Function], first: int, after: int) -> bool:
        """Whether it is one of the functions, or something of their lines is in it."""
        begins = functions[0].begins
        if self._function in functions or begins is None:
            return self._function in functions
        for block in self._prepared.graph.blocks if not functions[0].entry else ():
            for instruction in block:
                location = instruction.location
                while location is not None:
                    if first <= location.line < after and begins.file == location.file:
                        return True
                    location = location.caller
        return False

    def _for(self, shape: Shape) -> Prepared:
        if shape not in self._shaped:
            self._shaped[shape] = for_shape(self._prepared, shape)
        return self._shaped[shape]

    def _code(self, shape: Shape, instrumented: bool) -> Code:
        key = shape, instrumented
        if key not in self._codes:
            self._codes[key] = compile_variant(self._for(shape), instrumented, self._module.folder)
        return self._codes[key]

    def launch(
        self,
        grid: Triple,
        block: Triple,
        shared_bytes: int,
        arguments: bytes,
        *,
        memory: Memory,
        checks: Checks = "all",
        schedule: int = 0,
        output: Callable[[str], None],
        cooperative: bool = False,
        most_resident: int = MOST_RESIDENT,
        sampled: bool = False,
    ) -> Launch:
        """Runs all blocks, or those alone that the checks look at (`sampled`).

        `shared_bytes` is the dynamic shared memory; `schedule` seeds another legal order;
        `most_resident` is how many blocks the GPU holds at the same time."""
        if len(arguments) < self.parameter_bytes:
            raise UnsupportedError(f"{self.name} takes {self.parameter_bytes} bytes of arguments, not {len(arguments)}")
        request = Request(
            grid, block, shared_bytes, arguments, memory, checks, schedule, output, cooperative, most_resident, sampled
        )
        run = self._run(request)
        twice = checks == "all" and not sampled and (self._unset or self._shuffles)
        saved = self._saved(run) if twice else None
        launch = run.run()
        if self.registers:
            launch = replace(launch, counters=replace(launch.counters, registers=self.registers))
        if checks == "none":
            return launch
        faults = launch.faults + self.unwritten
        if saved is not None and launch.trap is None:
            faults += self._dependent(run, launch, saved) + self._of_absent_lanes(run, launch, saved)
        return replace(launch, faults=faults)

    def _run(self, request: Request) -> Run:
        module, shape = self._module, shape_of(request.block)
        return Run(
            self._for(shape),
            self.parameters,
            module.table,
            module.source.files,
            request,
            functools.partial(self._code, shape),
            module.folder,
            self._idle,
        )

    @functools.cached_property
    def _unset(self) -> tuple[int, ...]:
        """The numbers of the unset variables that the other form of the kernel uses, but for those that the compiler
        has spoken of already."""
        other = self._module.other
        kernel = other.kernels.get(self.name) if other is not None else None
        every = [one for block in kernel._prepared.graph.blocks for one in block] if kernel is not None else []
        words = (word for one in every for word in one.operands)
        found = {int(at[1] or 0) // ROOM for word in words for at in unset.USED.finditer(word)}
        said = {one.name for one, _ in self._unwritten()}
        return tuple(number for number in sorted(found) if self._module.unset[number].name not in said)

    @functools.cached_property
    def _shuffles(self) -> bool:
        return any(one.name == "shfl" for block in self._prepared.graph.blocks for one in block)

    def _of_absent_lanes(self, run: Run, launch: Launch, saved: unset.Saved) -> tuple[KernelFault, ...]:
        """Shuffles from lanes that are not there, where what the kernel writes depends on what comes."""
        absent = run.absent()
        missing = any(fault.kind == "missing-lanes" for fault in launch.faults)  # the same mistake, said already
        if not absent or missing or {a.start for a in launch.accesses} - {a.start for a in saved.allocations}:
            return ()
        request = replace(run.request, memory=Allocations(saved.allocations), output=lambda text: None)

        def launched(site: int, number: int) -> str | None:
            again = self._run(request)
            again.machine.chosen, again.machine.chosen_site = number, site
            return again.run().trap

        matters = unset.mattering([site for site, _ in absent], saved, launched)
        return tuple(fault for site, fault in absent if site in matters)

    def _saved(self, run: Run) -> unset.Saved | None:
        """All memory that arguments point to, and the module's variables."""
        found = {a.start: a for a in map(run.request.memory.allocation, run.addresses()) if a is not None}
        every = [Allocation(a.start, a.size, a.name) for a in (*found.values(), *self._module.table) if a.size]
        kept = (lambda a: True) if self._unset else run.reads_and_writes
        return unset.Saved(every, kept) if sum(a.size for a in every) <= unset.MOST_BYTES else None

    def _dependent(self, run: Run, launch: Launch, saved: unset.Saved) -> tuple[KernelFault, ...]:
        """What the launch gave by variables that nothing has set."""
        module = self._module
        if module.other is None or {a.start for a in launch.accesses} - {a.start for a in saved.allocations}:
            return ()
        kernel = module.other.kernels[self.name]
        request = replace(run.request, memory=Allocations(saved.allocations), checks="none", output=lambda text: None)
        return unset.dependent(
            module.unset,
            self._unset,
            module.other.variables[INPUT].address,
            saved,
            lambda: kernel._run(request).run().trap,
            lambda address: run.argument(address)[0],
        )


class Module:
    def __init__(self, text: str, cache: Path | None = None, shared: Mapping[str, Variable] | None = None) -> None:
        self._text, self._cache = text, cache
        self.source: Source = parse(text)
        self.folder = cache_folder(cache)
        self._shared = shared or {}
        self.table: list[Allocation] = []
        """Variables in the order of the context's table."""
        self.variables: dict[str, Variable] = {}
        for declared in self.source.variables.values():
            if declared.space in ("global", "const"):
                self._place(declared)
        for declared in self.source.variables.values():
            if declared.space in ("global", "const") and declared.initial and declared.name not in self._shared:
                self._initialize(declared)
        functions = self.source.functions.values()
        self.kernels: Mapping[str, Kernel] = {f.name: Kernel(self, f) for f in functions if f.entry}

    @functools.cached_property
    def digest(self) -> str:
        """Of its text, but for the GPU that it was compiled for."""
        return hashlib.sha256(OF_A_GPU.sub("", self._text).encode()).hexdigest()[:40]

    @functools.cached_property
    def unset(self) -> tuple[Unset, ...]:
        """The variables that their declarations leave unset, in the order of the other form's input."""
        return listed(self._text)

    @functools.cached_property
    def other(self) -> Module | None:
        """The form in which unset variables hold an input; the other variables are the same memory."""
        return Module(other_form(self._text), self._cache, self.variables) if self.unset else None

    def _place(self, declared: Declaration) -> None:
        if declared.name in self._shared:
            made = self._shared[declared.name]
        else:
            memory, address = aligned(declared.size, max(64, declared.align))
            made = Variable(declared.name, address, declared.size, declared.space == "const", memory)
        self.table.append(Allocation(made.address, declared.size, declared.name))
        self.variables[declared.name] = made

    def _initialize(self, declared: Declaration) -> None:
        address, position = self.variables[declared.name].address, 0
        for item in re.sub(r"[{}\s]", " ", declared.initial or "").replace(",", " , ").split(" , "):
            size = BYTES[declared.type]
            number = self._number(item.replace(" ", ""), size)
            ctypes.memmove(address + position, number.to_bytes(size, "little"), size)
            position += size

    def _number(self, text: str, size: int) -> int:
        if not text:
            return 0
        if re.match(r"0[fd][0-9a-fA-F]+$", text, re.I):
            return int(text[2:], 16)
        if re.match(r"-?(0x[0-9a-fA-F]+|\d+)U?$", text):
            return int(text.rstrip("U"), 0) & ((1 << 8 * size) - 1)
        found = re.match(r"(?:generic\()?([\w$]+)\)?(?:\+(\d+))?\)?$", text)
        if found and found[1] in self.variables:
            return self.variables[found[1]].address + int(found[2] or 0)
        if found and found[1] in self.source.functions:
            raise UnsupportedError(
                f"A variable of device code has the address of the function {found[1]}: virtual functions and tables "
                "of functions are not emulated"
            )
        masked = re.match(r"0x([fF]+)([0]*)\((?:generic\()?([\w$]+)\)?\)$", text)
        if masked and masked[3] in self.variables:
            return self.variables[masked[3]].address >> (4 * len(masked[2])) & 0xFF
        raise UnsupportedError(f"The initial value {text} of a PTX variable is not understood")
