"""Loads and stores of every width, tensor cores, copies, the module's variables, and the counts of all that."""

from __future__ import annotations

import ctypes

import pytest

from tests.ptx.cuda import compiled, launch, np, packed
from windtunnel import ptx
from windtunnel.errors import UnsupportedError


@pytest.mark.parametrize("kind", ["signed char", "unsigned char", "short", "unsigned short", "int", "long long"])
@pytest.mark.parametrize("stride", [1, 3])
def test_widths(kind: str, stride: int) -> None:
    dtype = {"signed char": np.int8, "unsigned char": np.uint8, "short": np.int16, "unsigned short": np.uint16,
        "int": np.int32,
             "long long": np.int64}[kind]  # fmt: skip
    x = np.random.default_rng(0).integers(-100, 100, 128).astype(dtype)
    y = np.zeros(128, np.int64)
    body = f"int t = threadIdx_x; y[t] = x[(t * {stride}) % n]; x[t] = y[t] + 1;"
    source = f"KERNEL k({kind} *x, long long *y, int n) {{ {body} }}"
    before = x.copy()
    launch(source, [x, y, 32], checks="none")
    assert (y[:32] == before[np.arange(32) * stride % 32]).all()


def test_vectors_together_and_apart() -> None:
    source = """KERNEL k(float4 *x, float4 *y, float2 *z, int step) {
      int t = threadIdx_x; float4 v = x[(t * step) & 31]; y[(t * step) & 31] = v; z[t] = float2{v.x + v.y, v.z + v.w};
    }"""
    for step in (1, 5):
        x = np.random.default_rng(0).random((32, 4)).astype(np.float32)
        y, z = np.zeros_like(x), np.zeros((32, 2), np.float32)
        launch(source, [x, y, z, step], checks="none")
        moved = x[np.arange(32) * step & 31]
        assert (y == x).all()
        assert (z == np.stack([moved[:, 0] + moved[:, 1], moved[:, 2] + moved[:, 3]], 1)).all()


def test_variables_of_the_module() -> None:
    source = """__constant__ float table[4] = {1.f, 2.f, 3.f, 4.f};
    __device__ int counter = 7;
    __device__ int *pointer = &counter;
    KERNEL k(float *y) { int t = threadIdx_x; y[t] = table[t & 3] + *pointer; if (t == 0) counter = 9; }"""
    module = ptx.load(compiled(source))
    y = np.zeros(32, np.float32)
    memory = ptx.Allocations([ptx.Allocation(y.ctypes.data, y.nbytes)])
    counter = ctypes.c_int.from_address(module.variables["counter"].address)
    assert (module.variables["table"].constant, module.variables["table"].size, counter.value) == (True, 16, 7)
    module.kernels["k"].launch((1, 1, 1), (32, 1, 1), 0, packed([y]), memory=memory, checks="none", output=print)
    assert list(y[:4]) == [8, 9, 10, 11]
    assert counter.value == 9


FRAGMENTS = {
    "f16": ("m16n8k16", 16, "f32", 4, 2),
    "bf16": ("m16n8k16", 16, "f32", 4, 2),
    "tf32": ("m16n8k8", 8, "f32", 4, 2),
    "s8": ("m16n8k32", 32, "s32", 4, 2),
    "u8": ("m16n8k16", 16, "s32", 2, 1),
}


def fragment(matrix: np.ndarray, rows: int, per: int) -> np.ndarray:
    """Words of each lane of A (rows 16) or of B transposed (rows 8): the guide's figures."""
    words = []
    for lane in range(32):
        groups = []
        for block in range(matrix.shape[1] // (4 * per)):
            for high in range(rows // 8):
                start = block * 4 * per + lane % 4 * per
                groups.append(matrix[lane // 4 + 8 * high, start : start + per].tobytes())
        words.append(b"".join(groups))
    return np.frombuffer(b"".join(words), np.uint32).reshape(32, -1).copy()


@pytest.mark.parametrize("kind", FRAGMENTS)
def test_tensor_cores(kind: str) -> None:
    shape, k, result, na, nb = FRAGMENTS[kind]
    random = np.random.default_rng(0)
    per = {"f16": 2, "bf16": 2, "tf32": 1, "s8": 4, "u8": 4}[kind]
    if kind in ("s8", "u8"):
        dtype = np.int8 if kind == "s8" else np.uint8
        a, b = (random.integers(-128 if kind == "s8" else 0, 127, size).astype(dtype) for size in ((16, k), (8, k)))
        real_a, real_b, c = a.astype(np.int64), b.astype(np.int64), random.integers(-50, 50, (16, 8)).astype(np.int32)
    else:
        real_a, real_b = (random.integers(-8, 8, size).astype(np.float32) / 4 for size in ((16, k), (8, k)))
        c = random.integers(-8, 8, (16, 8)).astype(np.float32)
        narrow = {
            "f16": lambda v: v.astype(np.float16),
            "bf16": lambda v: (v.view(np.uint32) >> 16).astype(np.uint16),
            "tf32": lambda v: v,
        }
        a, b = narrow[kind](real_a), narrow[kind](real_b)
    words_a, words_b = fragment(a, 16, per), fragment(b, 8, per)
    words_c = np.stack(
        [[c[lane // 4 + 8 * (r >> 1), lane % 4 * 2 + (r & 1)] for r in range(4)] for lane in range(32)]
    ).view(np.uint32)
    names = [f"%{name}{j}" for name, count in (("a", na), ("b", nb), ("c", 4)) for j in range(count)]
    groups = ["{" + ", ".join(n for n in names if n[1] == letter) + "}" for letter in "cabc"]
    loads = []
    for j, name in enumerate(names):
        loads.append(f"ld.global.b32 {name}, [%q1+{128 * j}];")
    text = f""".version 8.8
    .target sm_90
    .address_size 64
    .visible .entry k(.param .u64 p) {{
    .reg .b32 %t, {", ".join(names)}; .reg .b64 %q1, %q2;
    mov.u32 %t, %tid.x; ld.param.u64 %q1, [p]; mad.wide.u32 %q1, %t, 4, %q1;
    {" ".join(loads)}
    mma.sync.aligned.{shape}.row.col.{result}.{kind}.{kind}.{result} {", ".join(groups)};
    {" ".join(f"st.global.b32 [%q1+{128 * (len(names) + j)}], %c{j};" for j in range(4))}
    ret; }}"""
    data = np.concatenate([words_a.T, words_b.T, words_c.T, np.zeros((4, 32), np.uint32)]).astype(np.uint32)
    memory = ptx.Allocations([ptx.Allocation(data.ctypes.data, data.nbytes)])
    done = ptx.load(text).kernels["k"].launch((1, 1, 1), (32, 1, 1), 0, packed([data]), memory=memory, output=print)
    out = data[-4:].T.copy().view(np.int32 if result == "s32" else np.float32)
    want = real_a @ real_b.T + c
    got = np.array([[out[row % 8 * 4 + col // 2, 2 * (row // 8) + col % 2] for col in range(8)] for row in range(16)])
    assert (got == want).all()
    assert done.counters.tensor_flops == {kind: 2 * 16 * 8 * k}


@pytest.mark.parametrize("size", [16, 13, 10, 7, 4, 1, 0])
def test_what_an_asynchronous_copy_does_not_bring_is_zero(size: int) -> None:
    source = """KERNEL k(unsigned char *x, unsigned char *y, int n) {
      __shared__ alignas(16) unsigned char s[512];
      unsigned t = threadIdx_x, a = (unsigned)(unsigned long)(__attribute__((address_space(3))) void *)s;
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2; cp.async.wait_all;" ::
          "r"(a + 16 * t), "l"(x + 16 * t), "r"(n) : "memory");
      __syncthreads();
      for (int b = 0; b < 16; b++) y[16 * t + b] = s[16 * t + b];
    }"""
    x, y = np.arange(1, 513, dtype=np.uint16).astype(np.uint8), np.full(512, 9, np.uint8)
    launch(source, [x, y, size])
    expected = np.where(np.arange(16) < size, x.reshape(32, 16), 0)
    assert (y.reshape(32, 16) == expected).all()


def test_load_matrix_and_asynchronous_copies() -> None:
    source = """KERNEL k(unsigned short *x, unsigned *y) {
      __shared__ alignas(16) unsigned short s[512];
      unsigned t = threadIdx_x, a = (unsigned)(unsigned long)(__attribute__((address_space(3))) void *)s;
      asm volatile("cp.async.ca.shared.global [%0], [%1], 16; cp.async.commit_group; cp.async.wait_group 0;" ::
          "r"(a + 16 * t), "l"(x + 8 * t) : "memory");
      __syncthreads();
      unsigned r0, r1, r2, r3;
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" :
          "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3) : "r"(a + 16 * t));
      y[t] = r0; y[32 + t] = r1; y[64 + t] = r2; y[96 + t] = r3;
      asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];" : "=r"(r0), "=r"(r1) : "r"(a +
          16 * (t & 15)));
      y[128 + t] = r0; y[160 + t] = r1;
    }"""
    x, y = np.arange(256, dtype=np.uint16), np.zeros(192, np.uint32)
    done = launch(source, [x, y])
    assert done.faults == ()
    matrices, out = x.reshape(4, 8, 8), y.view(np.uint16).reshape(6, 32, 2)
    for j in range(4):
        assert (out[j] == [[matrices[j][lane // 4, lane % 4 * 2 + h] for h in (0, 1)] for lane in range(32)]).all()
    for j in range(2):
        assert (out[4 + j] == [[matrices[j][lane % 4 * 2 + h, lane // 4] for h in (0, 1)] for lane in range(32)]).all()


def test_counts_are_exact() -> None:
    source = """KERNEL k(float *x, float *y, int step) {
      __shared__ float s[1024];
      int t = threadIdx_x;
      s[t * step] = x[blockIdx_x * 64 + t];
      __syncthreads();
      y[(blockIdx_x * 64 + t) * 8] = s[t * step] * 2.f + 1.f;
    }"""
    for step, conflicts in ((1, 1), (2, 2), (16, 16)):
        x, y = np.zeros(64 * 3, np.float32), np.zeros(64 * 3 * 8, np.float32)
        counters = launch(source, [x, y, step], (3,), (64,)).counters
        assert counters.exact
        assert counters.global_requests == 3 * 2 * 2
        assert counters.global_load_sectors == 3 * 2 * 4
        assert counters.global_sectors - counters.global_load_sectors == 3 * 64
        assert counters.global_bytes == 3 * 64 * 8
        assert (counters.shared_requests, counters.shared_wavefronts) == (12, 12 * conflicts)
        assert counters.flops == {"f32": 2 * 3 * 64}
        assert counters.active_lanes == 1.0


def test_counts_of_a_sample() -> None:
    source = "KERNEL k(float *x, float *y) { int i = blockIdx_x * 32 + threadIdx_x; y[i] = x[i] + 1.f; }"
    x, y = np.zeros(3200, np.float32), np.zeros(3200, np.float32)
    counters = launch(source, [x, y], (100,), checks="sample").counters
    assert (counters.blocks, counters.counted_blocks, counters.exact) == (100, 8, False)
    assert counters.global_sectors * counters.scale == 100 * 8
    assert (y == 1).all()


def test_the_busiest_address_of_atomics_and_loads_that_need_one_another() -> None:
    source = """KERNEL k(int *x, int *y) {
      int i = blockIdx_x * 32 + threadIdx_x, found = x[x[i]];
      if (threadIdx_x == 0) __nvvm_atom_add_gen_i(y, found);
      __nvvm_atom_add_gen_i(y + 1 + i, 1);
    }"""
    x, y = np.zeros(3200, np.int32), np.zeros(3201, np.int32)
    for checks in ("all", "sample"):
        counters = launch(source, [x, y], (100,), checks=checks).counters
        assert (counters.busiest_atomics, counters.loads_in_turn) == (100, 2)
    apart = source.replace("__nvvm_atom_add_gen_i(y, found)", "")
    assert launch(apart, [x, y], (100,)).counters.busiest_atomics == 1


def test_accesses_name_the_allocations() -> None:
    source = "KERNEL k(float *x, float *y) { int i = threadIdx_x; y[i + 4] = x[i]; }"
    x, y = np.zeros(64, np.float32), np.zeros(64, np.float32)
    accesses = launch(source, [x, y]).accesses
    by_start = {a.start: a for a in accesses}
    read, written = by_start[x.ctypes.data], by_start[y.ctypes.data]
    assert (read.read, read.written, read.high - read.low) == (True, False, 128)
    assert (written.read, written.written, written.low - written.start) == (False, True, 16)


def test_too_few_arguments_are_refused() -> None:
    kernel = ptx.load(compiled("KERNEL k(float *x) { x[0] = 1; }")).kernels["k"]
    with pytest.raises(UnsupportedError, match="takes 8 bytes of arguments, not 4"):
        kernel.launch((1, 1, 1), (32, 1, 1), 0, b"\0" * 4, memory=ptx.Allocations([]), output=print)


def test_a_table_of_functions_is_refused_by_name() -> None:
    text = compiled("""__device__ int twice(int x) { return 2 * x; }
__device__ int (*table[1])(int) = {twice};
KERNEL k(int *x) { x[0] = table[x[1]](x[0]); }""")
    with pytest.raises(UnsupportedError, match=r"has the address of the function .*twice.*: virtual functions"):
        ptx.load(text)
