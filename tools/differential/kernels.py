"""Random Triton kernels, right ones and ones with one fault each: what the sanitizer says of them.

    python -m tools.differential kernels [--kernels 0:400]    # make differential-kernels; --kernels 7: one again

A kernel adds twice one tensor to another, by masks, loops, helper functions, block pointers or descriptors, and does
harmless things that look like faults: memory of neighbours around, reads beyond a view but within its allocation,
buffers of `torch.empty` that are filled in parts and read only there, atomics on one address, one value stored by all.
Half of the kernels have a fault. A kernel is right if the only findings are of the fault, with its line and its
argument, and if one without a fault computes what PyTorch computes.
"""

from __future__ import annotations

import importlib.util
import random
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

import windtunnel
from tools.differential import seeds

FAULTS = {
    "load past the end": ("triton-out-of-bounds", "b_ptr"),
    "load before the start": ("triton-out-of-bounds", "b_ptr"),
    "store past the end": ("triton-out-of-bounds", "out_ptr"),
    "nothing written": ("triton-uninitialized", "b_ptr"),
    "last element not written": ("triton-uninitialized", "b_ptr"),
    "parts overlap": ("triton-write-conflict", "out_ptr"),
    "one place for all": ("triton-write-conflict", "total_ptr"),
    "sum into empty": ("triton-uninitialized", "total_ptr"),
    "one program clears": ("triton-write-conflict", "total_ptr"),
}
"""What may be wrong with a kernel: the finding, and the argument that it names."""
WAYS = ("masks", "loop", "function", "tiles", "blocks", "descriptors")
FLAT = {"load before the start", "parts overlap"}
"""Faults that only kernels over one dimension have."""
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int32)
COLUMNS = 16
HEAD = "import triton\nimport triton.language as tl\n\n\n"
HELPER = """@triton.jit
def fetch(pointer, at, n):
    return tl.load(pointer + at, mask=at < n, other=0).to(tl.float32)


"""


class KernelCase(NamedTuple):
    """A kernel: how it is written, what is wrong with it, and what looks as if it were."""

    seed: int
    way: str
    fault: str
    dtype: torch.dtype
    block: int
    size: int
    decoys: frozenset[str]


def made(seed: int) -> KernelCase:
    """The kernel of a seed; every other one has a fault."""
    chance = random.Random(seed)
    way = chance.choice(WAYS)
    faults = [name for name in FAULTS if way in ("masks", "loop") or name not in FLAT]
    block = chance.choice((16, 32, 64))
    sizes = range(2 * block + 1, 6 * block)
    size = chance.choice([size for size in sizes if size % block])
    decoys = frozenset(name for name in ("view", "partial", "count", "flag", "in place") if chance.random() < 0.4)
    fault = chance.choice(faults) if seed % 2 else ""
    if fault in ("last element not written", "nothing written"):
        decoys -= {"view", "partial"}
    if fault in ("store past the end", "parts overlap"):
        decoys -= {"in place"}
    if fault in ("load past the end", "load before the start"):
        decoys -= {"view", "partial"}
    if fault == "one place for all":
        decoys -= {"count"}
    return KernelCase(seed, way, fault, chance.choice(DTYPES), block, size, decoys)


def source(case: KernelCase) -> tuple[str, int]:
    """The module of a kernel, and the line of its fault (0 without one)."""
    lines = [
        *(HEAD + HELPER).splitlines(),
        "@triton.jit",
        "def kernel(a_ptr, b_ptr, out_ptr, total_ptr, flag_ptr, n, N: tl.constexpr, BLOCK: tl.constexpr):",
        "    pid = tl.program_id(0)",
        *(f"    {line}" for line in (_flat(case) if case.way in WAYS[:3] else _tiles(case))),
    ]
    if case.fault == "one program clears":
        lines += ["    if pid == 0:", "        tl.store(total_ptr, 0.0)"]
    if "count" in case.decoys or case.fault in ("sum into empty", "one program clears"):
        lines.append("    tl.atomic_add(total_ptr, 1.0)" + _mark(case, "sum into empty", "one program clears"))
    if case.fault == "one place for all":
        lines.append("    tl.store(total_ptr, pid // 2 * 3 + 0.5)" + _mark(case, "one place for all"))
    if "flag" in case.decoys:
        lines.append("    tl.store(flag_ptr, 7.0)  # by all, the same")
    marked = [number for number, line in enumerate(lines, 1) if line.endswith("# fault")]
    return "\n".join(lines) + "\n", marked[0] if marked else 0


def _mark(case: KernelCase, *faults: str) -> str:
    return "  # fault" if case.fault in faults else ""


def _flat(case: KernelCase) -> Iterator[str]:
    """A kernel over one dimension."""
    indent, start = "", "pid * BLOCK"
    if case.way == "loop":
        yield "for start in range(pid * BLOCK, n, tl.num_programs(0) * BLOCK):"
        indent, start = "    ", "start"
    past = case.fault == "load past the end"
    shift = " - 3" if case.fault == "load before the start" else ""
    mask = "" if past else f", mask=at{shift} < n, other=0"
    reads = _mark(case, "load past the end", "load before the start", "nothing written", "last element not written")
    yield f"{indent}at = {start} + tl.arange(0, BLOCK)"
    if case.way == "function":
        yield f"{indent}a = fetch(a_ptr, at, n)"
    else:
        yield f"{indent}a = tl.load(a_ptr + at, mask=at < n, other=0).to(tl.float32)"
    yield f"{indent}b = tl.load(b_ptr + at{shift}{mask}).to(tl.float32){reads}"
    place, store = "at", ", mask=at < n"
    if case.fault == "store past the end":
        store = ""
    if case.fault == "parts overlap":
        place, store = "at - 2 * pid", ", mask=at < n"
    value = "(2 * a + b + pid)" if case.fault == "parts overlap" else "(2 * a + b)"
    wrong = _mark(case, "store past the end", "parts overlap")
    yield f"{indent}tl.store(out_ptr + {place}, {value}.to(out_ptr.dtype.element_ty){store}){wrong}"


def _tiles(case: KernelCase) -> Iterator[str]:
    """A kernel over rows of N columns."""
    reads = _mark(case, "load past the end", "nothing written", "last element not written")
    writes = _mark(case, "store past the end")
    rows = dict.fromkeys(("a", "b", "out"), "n")
    open_load, open_store = case.fault == "load past the end", case.fault == "store past the end"
    if case.way == "tiles":
        yield "row = pid * BLOCK + tl.arange(0, BLOCK)[:, None]"
        yield "at = row * N + tl.arange(0, N)[None, :]"
        yield "a = tl.load(a_ptr + at, mask=row < n, other=0).to(tl.float32)"
        yield f"b = tl.load(b_ptr + at{'' if open_load else ', mask=row < n, other=0'}).to(tl.float32){reads}"
        yield (
            "tl.store(out_ptr + at, (2 * a + b).to(out_ptr.dtype.element_ty)"
            f"{'' if open_store else ', mask=row < n'}){writes}"
        )
        return
    if case.way == "blocks":
        for name in rows:
            yield f"{name} = tl.make_block_ptr({name}_ptr, (n, N), (N, 1), (pid * BLOCK, 0), (BLOCK, N), (1, 0))"
        checked = ", boundary_check=(0,)"
        yield f"x = tl.load(a{checked}).to(tl.float32)"
        yield f"y = tl.load(b{'' if open_load else checked}).to(tl.float32){reads}"
        yield f"tl.store(out, (2 * x + y).to(out_ptr.dtype.element_ty){'' if open_store else checked}){writes}"
        return
    if open_load or open_store:
        rows["b" if open_load else "out"] = "n + BLOCK"
    for name, size in rows.items():
        given = f"{name}_ptr, shape=[{size}, N], strides=[N, 1], block_shape=[BLOCK, N]"
        yield f"{name} = tl.make_tensor_descriptor({given})"
    yield "x = a.load([pid * BLOCK, 0]).to(tl.float32)"
    yield f"y = b.load([pid * BLOCK, 0]).to(tl.float32){reads}"
    yield f"out.store([pid * BLOCK, 0], (2 * x + y).to(out_ptr.dtype.element_ty)){writes}"


def _module(case: KernelCase, folder: Path) -> tuple[ModuleType, int]:
    text, line = source(case)
    path = folder / f"kernel_{case.seed}.py"
    path.write_text(text)
    specification = importlib.util.spec_from_file_location(path.stem, path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module, line


def _argument(case: KernelCase, shape: tuple[int, ...], fault_here: bool) -> Tensor:
    """An input: whole, a view in a larger allocation, filled in parts, or not filled, where that is the fault."""
    numbers = torch.arange(int(torch.Size(shape).numel())).remainder(50).reshape(shape).to(case.dtype)
    if fault_here and case.fault == "nothing written":
        return torch.empty(shape, dtype=case.dtype, device="cuda")
    if fault_here and case.fault == "last element not written":
        empty = torch.empty(shape, dtype=case.dtype, device="cuda")
        empty.view(-1)[:-1] = numbers.view(-1)[:-1].cuda()
        return empty
    if "view" in case.decoys:
        return torch.zeros((shape[0] + 64, *shape[1:]), dtype=case.dtype, device="cuda")[32 : 32 + shape[0]].copy_(
            numbers
        )
    if "partial" in case.decoys:
        longer = torch.empty((shape[0] + 16, *shape[1:]), dtype=case.dtype, device="cuda")
        longer[: shape[0] // 2] = numbers[: shape[0] // 2].cuda()
        longer[shape[0] // 2 : shape[0]].copy_(numbers[shape[0] // 2 :])
        return longer[: shape[0]]
    return numbers.cuda()


def found(case: KernelCase, folder: Path) -> tuple[set[tuple[str, int, str]], str]:
    """The errors that the sanitizer reports of a kernel (check, line, argument), and what is wrong with its values."""
    import triton

    module, _ = _module(case, folder)
    shape = (case.size,) if case.way in WAYS[:3] else (case.size, COLUMNS)
    with windtunnel.emulate("A100") as session:
        neighbours = [torch.zeros(1000, device="cuda") for _ in range(3)]
        a, b = _argument(case, shape, False), _argument(case, shape, True)
        wanted = (2 * a.float() + b.float()).to(case.dtype)
        out = a if "in place" in case.decoys else torch.empty(shape, dtype=case.dtype, device="cuda")
        flag = torch.zeros(1, device="cuda")
        total = torch.empty(1, device="cuda") if case.fault == "sum into empty" else torch.zeros(1, device="cuda")
        grid = 3 if case.way == "loop" else triton.cdiv(case.size, case.block)
        module.kernel[(grid,)](a, b, out, total, flag, case.size, N=COLUMNS, BLOCK=case.block)
        torch.cuda.synchronize()
        wrong = "" if case.fault or torch.equal(out, wanted) else "its values are wrong"
        if "count" in case.decoys and not case.fault and total.item() != grid:
            wrong = "its atomics are lost"
        del neighbours
        errors = [finding for finding in session.findings() if finding.severity == "error"]
    return {(finding.code, finding.site.line, _named(finding.message)) for finding in errors}, wrong


def _named(message: str) -> str:
    """The argument that a finding's message names."""
    found = re.search(r"through '(\w+)'", message)
    return found.group(1) if found else ""


def judge(seed: int, folder: Path) -> list[str]:
    """What the sanitizer missed, or said without a reason, of the kernel of a seed."""
    case = made(seed)
    _, line = source(case)
    wanted = {(FAULTS[case.fault][0], line, FAULTS[case.fault][1])} if case.fault else set()
    reported, wrong = found(case, folder)
    told = [f"missed {one}" for one in wanted - reported] + [f"false {one}" for one in reported - wanted]
    return told + ([wrong] if wrong else [])


def main(words: Sequence[str]) -> int:
    """Judge kernels, and print what is wrong; 1 where anything is."""
    asked = seeds.arguments(words, "kernels", 400, __doc__ or "")
    with tempfile.TemporaryDirectory() as folder:
        counts = seeds.judged("kernel", asked, lambda seed: judge(seed, Path(folder)), made)
    faulty = sum(bool(made(seed).fault) for seed in asked)
    print(f"{faulty} with a fault: {counts['missed']} missed, {counts['false']} with a false finding,")
    print(f"{counts['its']} with wrong values, {counts[seeds.RAISED]} that raised")
    return 1 if counts else 0
