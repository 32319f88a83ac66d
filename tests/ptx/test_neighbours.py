"""Accesses that leave the allocation that their pointer belongs to, where another one lies beside it."""

from __future__ import annotations

import pytest

from tests.ptx.cuda import compiled, np
from windtunnel import ptx

SIZE = 64
"""Floats of each allocation; the three lie side by side."""
BESIDE = {
    "behind": ("y[i + 1] = x[i];", {"behind the end of argument 1"}),
    "before": ("y[i] = z[i - 3];", {"4 bytes before the beginning of argument 2"}),
    "by an index from memory": ("y[i] = z[(long)(z[i / 2] + 1) + i];", {"behind the end of argument 2"}),
    "in a vector": ("float4 v = *(float4 *)(x + 4 * (i / 4 + 1)); y[i] = v.x;", {"behind the end of argument 0"}),
    "one of two pointers": ("const float *p = n & 1 ? x : z; y[i] = p[i + 1];", {"behind the end of argument 0"}),
    "the other of two pointers": (
        "const float *p = n & 1 ? z : x; y[i] = p[i - 3];",
        {"4 bytes before the beginning of argument 2"},
    ),
    "an atomic": ("__nvvm_atom_add_gen_f(y + i + 1, x[i]);", {"behind the end of argument 1"}),
}
RIGHT = {
    "inside": "y[i] = x[i];",
    "one of two pointers": "const float *p = n & 1 ? x : z; y[i] = p[i] + p[63 - i];",
    "from one allocation to the next by their distance": "y[i] = x[(z - x) + i];",
    "from the end backwards": "if (i < 63) z[-i - 1] = x[i];",
    "a pointer from memory": "const float *const *p = (const float *const *)q; y[i] = p[0][i];",
    "an index from memory": "y[i] = x[((const long *)q)[1] + i];",
}
KERNEL = """KERNEL k(const float *x, float *y, float *z, const void *q, int n) {{
  int i = threadIdx_x;
  {}
}}"""


def launched(body: str, further: int = 0) -> ptx.Launch:
    """`z` points that many bytes into its allocation."""
    memory, pointers = np.ones(4 * SIZE, np.float32), np.zeros(2, np.int64)
    start = memory.ctypes.data
    x, y, third = (start + 4 * SIZE * k for k in range(3))
    pointers[0] = third
    blocks = [ptx.Allocation(p, 4 * SIZE, name) for p, name in ((x, "x"), (y, "y"), (third, "z"))]
    blocks += [ptx.Allocation(start + 12 * SIZE, 4 * SIZE, "w")]
    blocks += [ptx.Allocation(pointers.ctypes.data, 16, "q")]
    words = np.array([x, y, third + further, pointers.ctypes.data, 1], np.int64)
    kernel = ptx.load(compiled(KERNEL.format(body))).kernels["k"]
    return kernel.launch((1, 1, 1), (SIZE, 1, 1), 0, words.tobytes()[:36], memory=ptx.Allocations(blocks), checks="all",
        output=print)  # fmt: skip


@pytest.mark.parametrize("name", BESIDE)
def test_the_allocation_beside_is_not_the_pointers(name: str) -> None:
    body, said = BESIDE[name]
    (fault,) = launched(body, 8).faults
    assert (fault.kind, fault.line) == ("other-allocation", 3)
    assert all(part in fault.message for part in said), fault.message
    assert "in another allocation" in fault.message


@pytest.mark.parametrize("name", RIGHT)
def test_no_report(name: str) -> None:
    assert launched(RIGHT[name]).faults == ()
