"""A module of many kernels as LLVM IR, each of which is made PTX when it is first launched: programs use few.

A library of templates has a thousand kernels, whose optimization takes minutes and whose PTX takes 200 MB.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

from windtunnel.compiler import unset
from windtunnel.compiler.clang import QUIET, Clang
from windtunnel.compiler.lines import of_the_program

MARK = "// windtunnel: LLVM IR of many kernels\n"
MANY = 16
"""Kernels of a module that is made PTX as a whole, at most."""
FROM_LLVM = ("-x", "ir", "--target=nvptx64-nvidia-cuda", "-S", "-ffp-contract=fast", "-mllvm", "-disable-machine-sink")
"""What is moved down to where it is used loses its line."""
KERNEL = re.compile(r"^define [^@]*\bptx_kernel [^@]*@([\w.$]+)\(", re.MULTILINE)
NAMED = re.compile(r'(?:define [^@]*)?(@(?:[-\w.$]+|"[^"]*")|![0-9]+)(?: =|\()')
USED = re.compile(r'@(?:[-\w.$]+|"[^"]*")|![0-9]+')


class Ir:
    """The text of a module, by what it defines."""

    def __init__(self, text: str) -> None:
        self.always: list[str] = []
        self.defined: dict[str, str] = {}
        lines = iter(text.split("\n"))
        for line in lines:
            found = NAMED.match(line) if line[:1] in ("d", "@", "!") else None
            if not found or line.startswith("declare"):
                self.always.append(line)
                continue
            whole = [line]
            while line.startswith("define ") and whole[-1] != "}":
                whole.append(next(lines))
            self.defined[found[1]] = "\n".join(whole)

    def of(self, names: Iterable[str]) -> str:
        """A module of these alone, with what they need."""
        kept: dict[str, None] = {}
        waiting = [*names, *(name for line in self.always if line[:1] == "!" for name in USED.findall(line))]
        while waiting:
            name = waiting.pop()
            if name in self.defined and name not in kept:
                kept[name] = None
                waiting += USED.findall(self.defined[name])
        return "\n".join([*self.always, *(text for name, text in self.defined.items() if name in kept)])

    def variables(self) -> str:
        """A module of its variables alone."""
        return self.of(
            name
            for name, text in self.defined.items()
            if text[0] == "@" and not name.startswith("@llvm.") and "addrspace(3)" not in text
        )


@dataclass(frozen=True)
class Parts:
    """A module as clang has written it, and what its PTX is made with."""

    module: str
    unwritten: str
    hidden: tuple[str, ...]
    target: str

    @cached_property
    def kernels(self) -> tuple[str, ...]:
        """The names of its kernels."""
        return tuple(KERNEL.findall(self.module))

    @cached_property
    def ir(self) -> Ir:
        """The module, to take kernels out of."""
        return Ir(self.module)

    def kernel(self, name: str) -> Parts:
        """A module of one kernel."""
        return replace(self, module=self.ir.of([f"@{name}"]))

    def written(self) -> str:
        """As the text that stands in a library in place of PTX."""
        return MARK + base64.b64encode(zlib.compress(json.dumps(asdict(self)).encode(), 1)).decode()


def read(text: str) -> Parts:
    """What `written` has written."""
    found = json.loads(zlib.decompress(base64.b64decode(text.removeprefix(MARK))))
    return Parts(**found | {"hidden": tuple(found["hidden"])})


def ptx(module: Parts, clang: Clang, output: Path) -> str:
    """PTX of a module, by a file beside `output`; its other form (`unset.py`) stands behind it as comments."""
    forms = unset.forms(module.module, module.hidden)
    text = of_the_program(optimized(forms.plain, module.target, clang, output), module.hidden)
    other = optimized(forms.other, module.target, clang, output) if forms.other else ""
    return text + module.unwritten + (unset.written(forms.variables, other) if other else "")


def optimized(ir: str, target: str, clang: Clang, output: Path, level: str = "-O2") -> str:
    """PTX of LLVM IR."""
    written = output.with_suffix(".ll")
    written.write_text(ir, encoding="utf-8", errors="surrogateescape")
    clang.run(*QUIET, *FROM_LLVM, level, f"-march={target}", written, "-o", output)
    return output.read_text(encoding="utf-8", errors="replace")
