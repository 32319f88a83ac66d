"""The two passes over a `.cu`: device code to PTX, host code to an object that has the PTX in it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from windtunnel.compiler import parts, unset
from windtunnel.compiler.accesses import whole_accesses
from windtunnel.compiler.clang import INCLUDE, QUIET, Clang, CompileError
from windtunnel.compiler.host_calls import ANYTHING, declarations
from windtunnel.compiler.nvcc import Nvcc, without
from windtunnel.compiler.parts import Parts
from windtunnel.compiler.shared_variables import rewritten

STANDARD = "-std=c++20"
CUDA = ("-x", "cuda", "-nocudainc", "-nocudalib", "-D__CUDACC__", "-include", "windtunnel/prelude.h")
LINES = "-gline-tables-only"
FLOW = ("-fno-finite-loops", "-fno-jump-tables", "-fno-strict-return")
"""An endless loop stays one, though C++ lets the compiler assume that there is none; a `switch` is made of branches; a
function that ends without the result it declares returns something, as after NVIDIA's compilers."""
TYPED = ("-Xclang", "-no-enable-noundef-analysis", "-fstrict-aliasing", "-Xclang", "-new-struct-path-tbaa")
"""What C++ leaves undefined and kernels rely on: a variable that one lane alone has set and the others take from it by
a shuffle (else every lane is taken for that one). What type each access has is noted for `accesses.py`, which takes the
notes away before anything is optimized by them: memory may be looked at as another type."""
UNOPTIMIZED = ("-emit-llvm", "-Xclang", "-disable-llvm-passes")
HOST = ("--cuda-host-only", "-fPIC", "-fwrapv")
"""NVIDIA's compiler has host code compiled without optimization, in which whole numbers that overflow wrap around."""
EMIT_PCH = ("-Xclang", "-emit-pch", "-Xclang", "-fno-pch-timestamp", "-fpch-instantiate-templates")
"""Headers that are installed anew with the same text stay good; their templates are instantiated once, not by each
source."""
USED_BEFORE = ("-Wno-everything", "-Wuninitialized")
UNWRITTEN = re.compile(r"^(.+?):(\d+):\d+: warning: variable '(\w+)' is uninitialized when used here", re.MULTILINE)
"""A variable that no way writes before its use, which what follows makes nothing of."""
FAST_MATH = ("-fgpu-approx-transcendentals", "-fcuda-flush-denormals-to-zero", "-D__USE_FAST_MATH__=1")
VALUED = ("-gencode", "-arch", "--gpu-architecture", "-code", "--gpu-code", "-Xptxas", "--ptxas-options", "-Xcompiler",
          "--compiler-options", "-Xlinker", "-Xfatbin", "-ccbin", "--threads", "-t", "--maxrregcount", "-maxrregcount",
          "-diag-suppress", "--diag-suppress", "-Xcudafe", "--split-compile")  # fmt: skip
"""Options of nvcc that take a value and that clang has no use for."""
KEPT = re.compile(r"-(D|U|I|isystem|std=|include|f|O\d|L|l(?!ineinfo))")
"""Options that both compilers have."""
OF_OTHERS = ("-O", "-std", "-fopenmp")
"""Of these, what PyTorch's headers ask for themselves, and OpenMP's library, which clang's wheel lacks."""
NAME_UNDEFINED = ("-Wl,-z,defs", "-Wl,--warn-unresolved-symbols")
UNDEFINED = re.compile(r"undefined (?:reference to|symbol:) [`']?([^'\n]+)")


@dataclass(frozen=True)
class Settings:
    """How sources are compiled: for which compute capability, where headers are, and what the user asks for."""

    clang: Clang
    capability: tuple[int, int]
    include: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    fast_math: bool = False
    precompiled: dict[str, str] = field(default_factory=dict, hash=False)
    whole: bool = True
    """Whether sources may hold host code, as nvcc's do, not kernels alone, as NVRTC's."""
    optimized: bool = True
    """Whether host code is: that of an extension, which calls PyTorch, takes twice as long to compile then."""
    located: bool = False
    """Whether the lines of host code are written down."""
    many: bool = False
    """Whether many kernels are made PTX one by one, when they are launched."""
    nvcc: Nvcc | None = None
    """What makes PTX in clang's place."""
    nvcc_options: tuple[str, ...] = ()
    """What the user asks of it, in its own words."""
    nvcc_include: tuple[str, ...] = ()
    """Where headers are beside NVIDIA's."""

    @property
    def common(self) -> tuple[str, ...]:
        """What both passes are given."""
        folders = [part for folder in (str(INCLUDE), *self.include) for part in ("-isystem", folder)]
        own = ("-idirafter", self.clang.headers) if self.clang.headers else ()
        whole = ("-include", "windtunnel/host.h") if self.whole else ()
        return (*QUIET, *folders, *own, STANDARD, *whole, *self.options)

    @property
    def lines(self) -> tuple[str, ...]:
        """What writes down the lines of host code, and keeps the frames of its calls."""
        return (LINES, "-fno-optimize-sibling-calls") if self.located else ()

    @property
    def of_host(self) -> tuple[str, ...]:
        """What the pass over host code is given."""
        return (*HOST, "-O1" if self.optimized else "-O0", *self.lines)

    @property
    def target(self) -> str:
        """The GPU, as clang names it."""
        return f"--cuda-gpu-arch=sm_{self.capability[0]}{self.capability[1]}"

    def device(self, source: Path, output: Path) -> None:
        """PTX of a `.cu`.

        Raises:
            CompileError: the compiler does not take it.
        """
        if self.nvcc is not None:
            self.nvcc.ptx(source, output, self.capability, self.nvcc_include, self.nvcc_options)
            return
        fast = FAST_MATH if self.fast_math else ()
        written = output.with_suffix(".ll")
        common = (option for option in self.common if option != "-w")
        hidden = str(INCLUDE), *self.include
        said = self._compiled(source, written, *CUDA, self.target, *common, *USED_BEFORE, *fast, "--cuda-device-only",
                              "-S", "-O2", LINES, *FLOW, *TYPED, *unset.OPTIONS, *UNOPTIMIZED, *_listing(output),
                              *self._precompiled("device"))  # fmt: skip
        module = whole_accesses(written.read_text(encoding="utf-8", errors="surrogateescape"))
        unwritten = "".join(f'// unwritten "{file}" {line} {name}\n' for file, line, name in UNWRITTEN.findall(said))
        made = Parts(module, unwritten, hidden, self.target.partition("=")[2])
        split = self.many and len(made.kernels) > parts.MANY
        output.write_text(made.written() if split else parts.ptx(made, self.clang, output), encoding="utf-8")

    def _compiled(self, source: Path, output: Path, *arguments: str, host: bool = False) -> str:
        """Compile a source as it is, or with the shared variables changed that clang refuses; the pass over device code
        reads past calls of CUDA's libraries."""
        given, known = source, dict[str, str]()
        while True:
            try:
                return self.clang.run(*arguments, *_included(output, known), given, "-o", output)
            except CompileError as error:
                text = source.read_text(encoding="utf-8", errors="surrogateescape")
                other = rewritten(text, str(source), str(error)) if given == source else None
                more = {} if host else declarations(str(error))
                if other is None and not more.keys() - known.keys():
                    raise
                known |= more
                if other is not None:
                    given = output.with_suffix(".changed.cu")
                    given.write_text(f'#line 1 "{source}"\n{other}', encoding="utf-8", errors="surrogateescape")

    def host(self, source: Path, output: Path, ptx: Path | None) -> None:
        """Host code of a `.cu`, which registers the PTX when it is loaded, or of a source that has none."""
        binary: tuple[str, ...] = ()
        if ptx is not None:
            embedded = ptx.with_suffix(".embedded")
            embedded.write_bytes(ptx.read_bytes() + b"\0")
            binary = ("-Xclang", "-fcuda-include-gpubinary", "-Xclang", str(embedded))
        self._compiled(source, output, *CUDA, self.target, *self.common, *self.of_host, "-c",
                       *_listing(output), *binary, *self._precompiled("host"), host=True)  # fmt: skip

    def plain(self, source: Path, output: Path) -> None:
        """An object of a source without device code."""
        options = (*self.common, "-fPIC", "-c", "-O1", *self.lines, *_listing(output))
        self.clang.run("-x", "c++", *options, source, "-o", output)

    def precompile(self, kind: str, header: Path, output: Path) -> None:
        """A header, precompiled for one of the passes."""
        if kind == "host":
            self.clang.run(*CUDA, self.target, *self.common, *self.of_host, "-S",
                           *EMIT_PCH, header, "-o", output)  # fmt: skip
        else:
            fast = FAST_MATH if self.fast_math else ()
            self.clang.run(*CUDA, self.target, *self.common, *fast, "--cuda-device-only", "-S", "-O2", LINES,
                           *FLOW, *TYPED, *unset.OPTIONS, *EMIT_PCH, header, "-o", output)  # fmt: skip

    def _precompiled(self, kind: str) -> tuple[str, ...]:
        path = self.precompiled.get(kind)
        return ("-Xclang", "-include-pch", "-Xclang", path) if path else ()


def _included(output: Path, declared: dict[str, str]) -> tuple[str, ...]:
    """Lets clang read declarations before a source."""
    if not declared:
        return ()
    header = output.with_suffix(".declared.h")
    header.write_text(ANYTHING + "".join(declared.values()), encoding="utf-8")
    return "-include", str(header)


def _listing(output: Path) -> tuple[str, ...]:
    """Lets clang write beside the output which headers it read."""
    return "-MD", "-MF", f"{output}.d"


def listed_in(file: Path) -> list[str]:
    """The paths in a rule of make's that clang wrote, after its target."""
    rule = file.read_text(encoding="utf-8", errors="replace").replace("\\\n", " ").partition(": ")[2]
    return [path.replace("\\ ", " ") for path in re.findall(r"(?:\\ |\S)+", rule)]


def fast_math_in(options: Sequence[str]) -> bool:
    """Whether nvcc's options ask for the fast functions."""
    return any(option.lstrip("-") == "use_fast_math" for option in options)


def translated(options: Sequence[str]) -> tuple[str, ...]:
    """The options of nvcc or of a C++ compiler that mean something to clang, as clang has them."""
    found: list[str] = []
    left = without(options, VALUED)
    for option in left:
        if option in ("-I", "-D", "-U", "-isystem", "-include", "-L"):
            found += [option, next(left, "")]
        elif KEPT.match(option) and not option.startswith(OF_OTHERS):
            found.append(option)
    return tuple(found)


def run_link(clang: Clang, objects: Sequence[Path], output: Path, options: Sequence[str]) -> list[str]:
    """A shared library of objects, by the system's compiler where there is one: it knows where its libraries are.

    Returns the functions that no library has.
    """

    system = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++")
    command = [system] if system else list(clang.command)
    done = subprocess.run(
        [*command, "-shared", "-o", str(output), *map(str, objects), *options, *NAME_UNDEFINED],
        capture_output=True, text=True, errors="replace", check=False,
    )  # fmt: skip
    if done.returncode:
        raise CompileError(done.stderr)
    return sorted({name.strip() for name in UNDEFINED.findall(done.stderr)})
