"""Random kernels in CUDA C++, right ones and ones with one fault each, beside a naive interpreter of the same program.

    python -m tools.differential cuda [--kernels 0:2000]    # make differential-cuda; --kernels 7: one again

A kernel is a list of phases with a barrier after each: arithmetic on a thread's numbers, branches and loops that
threads take differently, shared memory that is written by one permutation of the threads and read by another, shuffles,
atomics, a barrier of the grid behind which blocks read what others wrote. The interpreter runs the phases for one
thread after another on NumPy's numbers and knows nothing of warps. Half of the kernels have a fault. A kernel is right
if its values are the interpreter's, bit for bit, and if the only faults that are reported are the planted one's kind,
at its line.
"""

from __future__ import annotations

import atexit
import functools
import random
import shutil
import struct
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tools.differential import seeds
from windtunnel import ptx
from windtunnel.compiler import unset
from windtunnel.compiler.clang import required
from windtunnel.compiler.passes import UNOPTIMIZED

FAULTS = {
    "no barrier": {"shared-race", "warp-race"},
    "not written": {"shared-uninitialized-read"},
    "beyond shared": {"shared-out-of-bounds"},
    "beyond the end": {"out-of-bounds"},
    "before the start": {"out-of-bounds"},
    "all blocks at once": {"block-conflict"},
    "no barrier of the grid": {"block-conflict"},
    "some return": {"missed-barrier"},
    "odd address": {"misaligned"},
    "not set": {"uninitialized-read"},
}
"""What may be wrong with a kernel, and how it may be reported."""
FOLLOWS = {"some return": {"shared-uninitialized-read"}}
"""What else is true of such a kernel."""
HEAD = """#define KERNEL extern "C" __attribute__((global)) void
#define __shared__ __attribute__((shared))
#define __syncthreads() __nvvm_bar_sync(0)
extern "C" __attribute__((device)) unsigned cudaCGSynchronize(unsigned long, unsigned);
struct alignas(8) float2 { float x, y; };
"""
FLAGS = (
    "-x", "cuda", "--cuda-device-only", "-nocudainc", "-nocudalib", "--cuda-gpu-arch=sm_80", "-O1", "-S", "-w",
    "-gline-tables-only", "-std=c++17", "-ffp-contract=off",
)  # fmt: skip
FROM_LLVM = ("-x", "ir", "--target=nvptx64-nvidia-cuda", "-march=sm_80", "-S", "-w", "-O1", "-ffp-contract=off")


@dataclass
class Thread:
    """A thread of the interpreter."""

    t: int
    b: int
    i: int
    v: np.float32
    u: np.uint32


@dataclass
class State:
    """What a block's threads share."""

    x: np.ndarray
    y: np.ndarray
    total: np.ndarray
    shared: np.ndarray
    global_: np.ndarray
    threads: list[Thread] = field(default_factory=list)


@dataclass
class Phase:
    """Lines of the kernel, and what they do to each thread."""

    lines: list[str]
    step: Callable[[State], None]
    barrier: bool = True


@dataclass
class CudaCase:
    """A kernel with its launch."""

    seed: int
    fault: str | None
    blocks: int
    threads: int
    phases: list[Phase]
    faulty_lines: set[int]
    source: str


def _each(act: Callable[[State, Thread], None]) -> Callable[[State], None]:
    def step(state: State) -> None:
        for thread in state.threads:
            act(state, thread)

    return step


def arithmetic(random_: random.Random) -> Phase:
    """Numbers of the thread alone, with a branch and a loop that threads take differently."""
    a, b = np.float32(random_.randrange(-8, 8)) / np.float32(4), np.float32(random_.randrange(-8, 8)) / np.float32(8)
    k, shift, turns = random_.randrange(1, 1 << 30), random_.randrange(1, 31), random_.randrange(1, 6)
    divisor = random_.randrange(1, 9)

    def act(state: State, thread: Thread) -> None:
        with np.errstate(all="ignore"):
            thread.v = np.float32(np.float32(thread.v * a) + b)
            thread.u = np.uint32((int(thread.u) * k + thread.t) & 0xFFFFFFFF)
            if (int(thread.u) >> shift) & 1:
                thread.v = np.float32(thread.v - np.float32(thread.t % divisor))
            else:
                for _ in range(thread.t % turns):
                    thread.v = np.float32(thread.v * np.float32(0.5))
                    thread.u = np.uint32(thread.u ^ np.uint32(int(thread.u) >> 3))

    return Phase(
        [
            f"v = v * {float(a)}f + {float(b)}f;",
            f"u = u * {k}u + t;",
            f"if ((u >> {shift}) & 1) v = v - (float)(t % {divisor});",
            f"else for (int j = 0; j < t % {turns}; j++) {{ v = v * 0.5f; u ^= u >> 3; }}",
        ],
        _each(act),
        barrier=False,
    )


def own_variables(random_: random.Random, threads: int, fault: bool) -> Phase:
    """An array and a number of the thread's own that are set as far as they are read, which the compiler cannot see; of
    a faulty kernel one thread leaves one of them unset."""
    least, turns, shift = random_.randrange(1, 4), random_.randrange(1, 4), random_.randrange(1, 31)
    name, thread_ = random_.randrange(10**6), random_.randrange(threads)
    in_array = fault and random_.randrange(2) > 0
    less, unset, used = "", "", ""
    if in_array:
        less = f" - (t == {thread_})"
    elif fault:
        unset, used = f" && t != {thread_}", f" || t == {thread_}"

    def act(state: State, thread: Thread) -> None:
        with np.errstate(all="ignore"):
            v = thread.v
            for j in range(least + thread.t % turns):
                thread.v = np.float32(thread.v + np.float32(v * np.float32(j + 1)))
            if (int(thread.u) >> shift) & 1:
                thread.v = np.float32(thread.v - np.float32(v * np.float32(0.5)))

    lines = [
        f"float a{name}[{random_.choice([8, 24])}], w{name}, v{name} = v;",
        f"int m{name} = {least} + t % {turns} + (n == 0);",
        f"for (int j = 0; j < m{name}{less}; j++) a{name}[j] = v{name} * (float)(j + 1);",
        f"for (int j = 0; j < m{name}; j++) v = v + a{name}[j];",
        f"if (((u >> {shift}) & 1){unset}) w{name} = v{name} * 0.5f;",
        f"if (((u >> {shift}) & 1){used}) v = v - w{name};",
    ]
    return Phase(lines, _each(act), barrier=False)


def shuffle(random_: random.Random) -> Phase:
    """Lanes exchange numbers; all of the warp takes part."""
    mask = random_.randrange(1, 32)

    def step(state: State) -> None:
        old = [thread.v for thread in state.threads]
        for thread in state.threads:
            thread.v = np.float32(thread.v + old[thread.t ^ mask])

    return Phase(
        [f"v = v + __builtin_bit_cast(float, __nvvm_shfl_sync_bfly_i32(-1, __builtin_bit_cast(int, v), {mask}, 31));"],
        step,
        barrier=False,
    )


def exchange(random_: random.Random, threads: int) -> list[Phase]:
    """Each thread writes one place of shared memory and, behind a barrier, reads another's."""
    stride = random_.choice([1, 5, 7, 11])  # odd and no multiple of 3: a permutation of any block
    offset = random_.randrange(threads)

    def write(state: State, thread: Thread) -> None:
        state.shared[(thread.t * stride + offset) % threads] = thread.v

    def read(state: State, thread: Thread) -> None:
        thread.v = np.float32(thread.v + state.shared[threads - 1 - thread.t])

    return [
        Phase([f"s[(t * {stride} + {offset}) % {threads}] = v;"], _each(write)),
        Phase([f"v = v + s[{threads - 1} - t];"], _each(read)),
    ]


def count(random_: random.Random) -> Phase:
    """An atomic of integers, which any order leaves the same."""
    places = random_.choice([1, 7, 32])

    def act(state: State, thread: Thread) -> None:
        at = int(thread.u) % places
        state.total[at] = np.int32(state.total[at] + thread.t)

    return Phase([f"__nvvm_atom_add_gen_i(&total[u % {places}u], t);"], _each(act), barrier=False)


def meet(random_: random.Random, threads: int, blocks: int) -> list[Phase]:
    """Each thread writes one place of global memory and, behind a barrier of the grid, reads one of another block's."""
    size, shift = threads * blocks, threads * random_.randrange(1, blocks)

    def write(state: State, thread: Thread) -> None:
        state.global_[thread.i] = thread.v

    def read(state: State, thread: Thread) -> None:
        thread.v = np.float32(thread.v + state.global_[(thread.i + shift) % size])

    return [
        Phase(["z[i] = v;"], _each(write)),
        Phase([f"v = v + z[(i + {shift}) % {size}];"], _each(read), barrier=False),
    ]


def generate(seed: int) -> CudaCase:
    random_ = random.Random(seed)
    fault = random_.choice(sorted(FAULTS)) if seed % 2 else None
    threads, blocks = random_.choice([32, 64, 96, 128]), random_.randrange(2, 5)
    phases: list[Phase] = []
    for _ in range(random_.randrange(2, 5)):
        kind = random_.choice([0, 1, 3] if fault == "not written" else [0, 1, 2, 3, 4])
        if kind == 0:
            phases.append(arithmetic(random_))
        elif kind == 1:
            phases.append(shuffle(random_))
        elif kind == 2:
            phases += exchange(random_, threads)
        elif kind == 3:
            phases.append(count(random_))
        else:
            phases.append(own_variables(random_, threads, False))
    if fault == "not set":
        phases.append(own_variables(random_, threads, True))
    if fault in ("no barrier", "not written", "some return"):
        phases += exchange(random_, threads)
    if fault == "no barrier of the grid" or (fault is None and random_.randrange(3) == 0):
        phases += meet(random_, threads, blocks)
    case = CudaCase(seed, fault, blocks, threads, phases, set(), "")
    case.source = write(case, random_)
    return case


def write(case: CudaCase, random_: random.Random) -> str:
    """The text, with the fault planted and its lines noted."""
    lines = HEAD.splitlines()
    lines += [
        "KERNEL k(const float *x, float *y, int *total, float *z, int n) {",
        f"__shared__ float s[{case.threads}];",
        "int t = __nvvm_read_ptx_sreg_tid_x(), b = __nvvm_read_ptx_sreg_ctaid_x();",
        "int i = b * __nvvm_read_ptx_sreg_ntid_x() + t;",
        "unsigned u = (unsigned)i * 2654435761u;",
    ]

    def add(line: str, faulty: bool = False) -> None:
        lines.append(line)
        if faulty:
            case.faulty_lines.add(len(lines))

    starts = {"beyond the end": "x[i + 1]", "before the start": "x[i - 1]"}
    add(f"float v = {starts.get(case.fault or '', 'x[i]')};", case.fault in starts)
    if case.fault == "odd address":
        add("{ float2 w = *(const float2 *)(x + 2 * (t & 3) + 1); v = v + w.x * w.y; }", True)
    if case.fault == "beyond shared":
        add(f"s[t] = v; __syncthreads(); v = v + s[t + {random_.randrange(1, 40)}]; __syncthreads();", True)
    last_write = max((j for j, phase in enumerate(case.phases) if phase.lines[0].startswith("s[")), default=-1)
    for j, phase in enumerate(case.phases):
        here = j == last_write
        if here and case.fault == "some return":
            add(f"if (t >= {case.threads - random_.randrange(1, 20)}) return;")
        for line in phase.lines:
            if here and case.fault == "not written":
                add(f"if (t != {random_.randrange(case.threads)}) {line}")
            else:
                apart = case.fault == "no barrier of the grid" and "z[" in line
                apart |= case.fault == "not set" and j == len(case.phases) - 1 and line.startswith("float a")
                seen = {"no barrier": (last_write, last_write + 1), "not written": (last_write + 1,)}
                add(line, apart or (last_write >= 0 and j in seen.get(case.fault or "", ())))
        if phase.lines[0].startswith("z["):
            add("" if case.fault == "no barrier of the grid" else "cudaCGSynchronize(1, 0);")
        elif phase.barrier and not (here and case.fault == "no barrier"):
            add("__syncthreads();", case.fault == "some return" and j >= last_write)
    add("y[t] = v;" if case.fault == "all blocks at once" else "y[i] = v;", case.fault == "all blocks at once")
    lines.append("}")
    return "\n".join(lines) + "\n"


def expected(case: CudaCase, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The interpreter's values: one thread after another, phase by phase."""
    size = case.blocks * case.threads
    y, total, global_ = np.zeros(size, np.float32), np.zeros(32, np.int32), np.zeros(size, np.float32)
    states = []
    for block in range(case.blocks):
        state = State(x, y, total, np.zeros(case.threads, np.float32), global_)
        states.append(state)
        for t in range(case.threads):
            i = block * case.threads + t
            state.threads.append(Thread(t, block, i, x[i], np.uint32(i * 2654435761 & 0xFFFFFFFF)))
    for phase in case.phases:
        for state in states:
            phase.step(state)
    for state in states:
        for thread in state.threads:
            y[thread.i] = thread.v
    return y, total


def compiled(source: str) -> str:
    """PTX, with the form in which unset variables are an input."""
    with tempfile.TemporaryDirectory() as folder:
        path, written = Path(folder) / "kernel.cu", Path(folder) / "kernel.ll"
        path.write_text(source)
        clang = required()
        clang.run(*FLAGS, *unset.OPTIONS, *UNOPTIMIZED, path, "-o", written)
        forms, made = unset.forms(written.read_text(), ()), []
        for form in filter(None, (forms.plain, forms.other)):
            written.write_text(form)
            clang.run(*FROM_LLVM, written, "-o", path)
            made.append(path.read_text())
        return made[0] + (unset.written(forms.variables, made[1]) if forms.other else "")


@functools.cache
def cache() -> Path:
    """Objects of this run: nobody else wants them."""
    folder = tempfile.mkdtemp(prefix="windtunnel-differential-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def judge(seed: int) -> list[str]:
    """What is wrong with the emulation of this kernel, if anything."""
    case = generate(seed)
    size = case.blocks * case.threads
    x = (np.random.default_rng(case.seed).integers(-64, 64, size) / 16).astype(np.float32)
    y, total = np.zeros(size, np.float32), np.zeros(32, np.int32)
    arrays = (x, y, total, np.zeros(size, np.float32))
    memory = ptx.Allocations(
        [ptx.Allocation(a.ctypes.data, a.nbytes, name) for a, name in zip(arrays, "xytz", strict=True)]
    )
    arguments = struct.pack("<QQQQi", *(a.ctypes.data for a in arrays), size)
    kernel = ptx.load(compiled(case.source), cache()).kernels["k"]
    grid, block = (case.blocks, 1, 1), (case.threads, 1, 1)
    launch = kernel.launch(
        grid,
        block,
        0,
        arguments,
        memory=memory,
        checks="all",
        schedule=case.seed % 3,
        output=lambda text: None,
        cooperative=True,
    )
    found = {(fault.kind, fault.line) for fault in launch.faults}
    if case.fault is None:
        want_y, want_total = expected(case, x)
        if found:
            return [f"false {sorted(found)} {[fault.message for fault in launch.faults]}\n{case.source}"]
        if not (np.array_equal(y.view(np.uint32), want_y.view(np.uint32)) and np.array_equal(total, want_total)):
            return [f"values differ from the interpreter's\n{case.source}"]
        return []
    right = {(kind, line) for kind in FAULTS[case.fault] for line in case.faulty_lines}
    if not found & right:
        return [f"missed {case.fault} at {sorted(case.faulty_lines)}, found {sorted(found)}\n{case.source}"]
    found -= {pair for pair in found if pair[0] in FOLLOWS.get(case.fault, ())}
    return [f"beside {case.fault}: {sorted(found - right)}\n{case.source}"] if found - right else []


def main(words: Sequence[str]) -> int:
    """Judge the kernels that `--kernels` names."""
    wanted = seeds.arguments(words, "kernels", 2000, __doc__ or "")
    return int(seeds.judged("kernel", wanted, judge, lambda seed: generate(seed).fault)[""] > 0)
