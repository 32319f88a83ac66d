"""Inline assembly over the elements of arrays: what `tl.inline_asm_elementwise` and its kin compute.

The text becomes a kernel of its own that loads its operands, runs it once for each group of elements, and stores its
results. How elements fill registers is Triton's way (lib/Conversion/TritonGPUToLLVM/ElementwiseOpToLLVM.cpp): those of
less than 32 bits share one, as many as fit.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from windtunnel.errors import UnsupportedError
from windtunnel.ptx.memory import Allocation, Allocations
from windtunnel.ptx.module import Kernel, Module

Array = npt.NDArray[np.generic]
WIDTHS = {"h": 16, "r": 32, "f": 32, "l": 64, "d": 64}
"""Bits of a register by its constraint (LLVM's language reference, "Supported Constraint Code List", NVPTX)."""
NOT_ELEMENTWISE = re.compile(
    r"(?<![\w.%])(?:ld|st|atom|red|cp|prefetch|mbarrier|bar|barrier|shfl|vote|match|redux|mma|wgmma|tcgen05|ldmatrix|"
    r"stmatrix|membar|fence|griddepcontrol|nanosleep|trap|exit|ret)\b[.\w:]*|%n?(?:tid|ctaid)\.[xyz]|%n?warpid|%lane\w+|"
    r"%clock\w*|%globaltimer\w*"
)
"""What an element alone has no answer for: memory, other threads, where a thread is, the time."""
OPERAND = re.compile(r"\$(\$|\d+|\{(\d+)(?::\w+)?\})")
THREADS = 128


def elementwise(
    assembly: str, constraints: str, inputs: Sequence[Array], outputs: Sequence[np.dtype[np.generic]], pack: int
) -> list[Array]:
    """The results of inline assembly over arrays of one length, in order; `pack` elements are one group.

    Raises:
        UnsupportedError: the text asks for memory, threads or the time, has an instruction that is not emulated, or
            its constraints do not fit its operands.
    """
    if (found := NOT_ELEMENTWISE.search(assembly)) is not None:
        raise UnsupportedError(
            f"inline assembly with {found[0]!r} asks for memory, threads or the time, which windtunnel answers in CUDA "
            "C++ alone: write it with the language's own operations"
        )
    length = len(inputs[0]) if inputs else pack
    groups = -(-length // pack)
    given = [np.zeros(groups * pack, one.dtype) for one in inputs]
    for to, of in zip(given, inputs, strict=True):
        to[:length] = of
    made = [np.zeros(groups * pack, dtype) for dtype in outputs]
    sizes = tuple(one.itemsize for one in given), tuple(one.itemsize for one in outputs)
    kernel = _kernel(assembly, constraints, *sizes, pack)
    arrays = [*made, *given]
    arguments = b"".join(one.ctypes.data.to_bytes(8, "little") for one in arrays) + groups.to_bytes(8, "little")
    memory = Allocations(Allocation(one.ctypes.data, one.nbytes) for one in arrays)
    blocks = -(-groups // THREADS)
    kernel.launch((blocks, 1, 1), (THREADS, 1, 1), 0, arguments, memory=memory, checks="none", output=print)
    return [one[:length] for one in made]


@functools.lru_cache(maxsize=256)
def _kernel(assembly: str, constraints: str, inputs: tuple[int, ...], outputs: tuple[int, ...], pack: int) -> Kernel:
    named = [part.strip() for part in constraints.split(",") if part.strip() and not part.strip().startswith("~")]
    operands = [
        (True, index, size, at, per) for index, size in enumerate(outputs) for at, per in _registers(size, pack)
    ]
    results = len(operands)
    operands += [
        (False, len(outputs) + index, size, at, per)
        for index, size in enumerate(inputs)
        for at, per in _registers(size, pack)
    ]
    if [part.startswith("=") for part in named] != [is_result for is_result, *_ in operands]:
        raise UnsupportedError(
            f"inline assembly has the constraints {constraints!r}, which are not those of {results} registers of "
            f"results and {len(operands) - results} of operands"
        )
    parameters = ", ".join(f".param .u64 p{one}" for one in range(len(outputs) + len(inputs) + 1))
    before: list[str] = []
    after: list[str] = []
    names: list[str] = []
    for number, ((is_result, parameter, size, at, per), part) in enumerate(zip(operands, named, strict=True)):
        code = part.lstrip("=&")
        tied = code.isdigit()
        code = named[int(code)].lstrip("=&") if tied else code
        if code not in WIDTHS:
            raise UnsupportedError(f"inline assembly has the constraint {part!r}, which is none of h, r, l, f and d")
        width, register = WIDTHS[code], names[int(part)] if tied else f"%op{number}"
        names.append(register)
        before.append("" if tied else f".reg .b{width} {register};")
        address = f"ld.param.u64 %at, [p{parameter}]; mad.lo.u64 %at, %group, {pack * size}, %at;"
        if is_result:
            after.append(address + _stored(register, width, at * size, per * size))
        else:
            before.append(address + _loaded(register, width, at * size, per * size))
    body = OPERAND.sub(lambda found: "$" if found[1] == "$" else names[int(found[2] or found[1])], assembly)
    lines = [
        ".version 8.8", ".target sm_100", ".address_size 64", f".visible .entry inline_assembly({parameters})", "{",
        ".reg .u64 %group, %at, %groups; .reg .u32 %thread, %block; .reg .pred %outside; .reg .b64 %wide;",
        f"mov.u32 %thread, %tid.x; mov.u32 %block, %ctaid.x; mad.lo.u32 %thread, %block, {THREADS}, %thread;",
        f"cvt.u64.u32 %group, %thread; ld.param.u64 %groups, [p{len(outputs) + len(inputs)}];",
        "setp.ge.u64 %outside, %group, %groups; @%outside bra after_inline_assembly;",
        *before, "{", body, "}", *after, "after_inline_assembly:", "ret;", "}",
    ]  # fmt: skip
    return Module("\n".join(lines)).kernels["inline_assembly"]


def _registers(size: int, pack: int) -> list[tuple[int, int]]:
    """The registers of one operand's group: the first element of each, and how many it has."""
    per = min(pack, max(1, 4 // size))
    return [(at, per) for at in range(0, pack, per)]


def _loaded(register: str, width: int, offset: int, size: int) -> str:
    if 8 * size == width:
        return f"ld.global.b{width} {register}, [%at+{offset}];"
    return f"ld.global.u{8 * size} %wide, [%at+{offset}]; cvt.u{width}.u64 {register}, %wide;"


def _stored(register: str, width: int, offset: int, size: int) -> str:
    if 8 * size == width:
        return f"st.global.b{width} [%at+{offset}], {register};"
    return f"cvt.u64.u{width} %wide, {register}; st.global.u{8 * size} [%at+{offset}], %wide;"
