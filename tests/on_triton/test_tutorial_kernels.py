"""The jobs of six of Triton's tutorials, as kernels of our own: values against PyTorch's, one kernel a launch."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from windtunnel import emulate
from windtunnel.session import Session
from windtunnel.trace.operation import Kind


@pytest.fixture
def session():
    with emulate("A100") as session:
        yield session


def kernels(session: Session) -> list[str]:
    names = [row.signature.name for row in session.trace if row.kind == Kind.KERNEL]
    return [name for name in names if name.startswith("triton::")]


def alarms(session: Session) -> list[str]:
    return [finding.code for finding in session.findings() if finding.severity != "info"]


# ---------------------------------------------------------------------------------------------- vector addition


@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    total = tl.load(x_ptr + at, mask=inside) + tl.load(y_ptr + at, mask=inside)
    tl.store(out_ptr + at, total, mask=inside)


def test_vector_addition(session):
    n = 98_432
    x, y = torch.rand(n, device="cuda"), torch.rand(n, device="cuda")
    out = torch.empty_like(x)
    add[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, out, n, BLOCK=1024)
    assert torch.equal(out, x + y)
    assert kernels(session) == ["triton::add"]
    row = next(row for row in session.trace if row.signature.name == "triton::add")
    assert (row.signature.read_bytes, row.signature.written_bytes) == (2 * 4 * n, 4 * n)
    assert dict(row.signature.detail)["grid"] == "97x1x1"
    assert not any(row.kind == Kind.COPY for row in session.trace if row.signature.name.startswith("Memcpy DtoD"))
    assert alarms(session) == []


# ---------------------------------------------------------------------------------------------- fused softmax


@triton.jit
def softmax_rows(out_ptr, x_ptr, x_stride, out_stride, rows, columns, BLOCK: tl.constexpr, num_stages: tl.constexpr):
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=num_stages):
        at = tl.arange(0, BLOCK)
        inside = at < columns
        x = tl.load(x_ptr + row * x_stride + at, mask=inside, other=-float("inf"))
        e = tl.exp(x - tl.max(x, axis=0))
        tl.store(out_ptr + row * out_stride + at, e / tl.sum(e, axis=0), mask=inside)


def test_fused_softmax(session):
    x = torch.randn(97, 781, device="cuda")
    out = torch.empty_like(x)
    softmax_rows[(16,)](out, x, x.stride(0), out.stride(0), *x.shape, BLOCK=1024, num_stages=2, num_warps=8)
    torch.testing.assert_close(out, torch.softmax(x, 1))
    assert kernels(session) == ["triton::softmax_rows"]
    assert alarms(session) == []


# ---------------------------------------------------------------------------------------------- matrix product

CONFIGS = [
    triton.Config({"BM": 16, "BN": 16, "BK": 16}, num_warps=1),
    triton.Config({"BM": 64, "BN": 64, "BK": 32}, num_warps=4, num_stages=3),
    triton.Config({"BM": 128, "BN": 32, "BK": 32}, num_warps=4, num_stages=3),
]


@triton.autotune(configs=CONFIGS, key=["M", "N", "K"])
@triton.jit
def product(
    a_ptr, b_ptr, c_ptr, M, N, K, am, ak, bk, bn, cm, cn,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    across = tl.cdiv(N, BN)
    row, column = tl.program_id(0) // across, tl.program_id(0) % across
    m = (row * BM + tl.arange(0, BM)) % M
    n = (column * BN + tl.arange(0, BN)) % N
    k = tl.arange(0, BK)
    a_at = a_ptr + m[:, None] * am + k[None, :] * ak
    b_at = b_ptr + k[:, None] * bk + n[None, :] * bn
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for step in range(tl.cdiv(K, BK)):
        a = tl.load(a_at, mask=k[None, :] < K - step * BK, other=0.0)
        b = tl.load(b_at, mask=k[:, None] < K - step * BK, other=0.0)
        total = tl.dot(a, b, total)
        a_at += BK * ak
        b_at += BK * bk
    if ACTIVATION == "leaky_relu":
        total = leaky_relu(total)
    m = row * BM + tl.arange(0, BM)
    n = column * BN + tl.arange(0, BN)
    inside = (m[:, None] < M) & (n[None, :] < N)
    tl.store(c_ptr + m[:, None] * cm + n[None, :] * cn, total.to(tl.float16), mask=inside)


@triton.jit
def leaky_relu(x):
    return tl.where(x >= 0, x, 0.01 * x)


@pytest.mark.parametrize("activation", ["", "leaky_relu"])
def test_matrix_product(session, activation):
    a = torch.randn(96, 80, device="cuda", dtype=torch.float16)
    b = torch.randn(80, 112, device="cuda", dtype=torch.float16)
    c = torch.empty(96, 112, device="cuda", dtype=torch.float16)

    def grid(meta):
        return (triton.cdiv(96, meta["BM"]) * triton.cdiv(112, meta["BN"]),)

    product[grid](a, b, c, 96, 112, 80, *a.stride(), *b.stride(), *c.stride(), ACTIVATION=activation)
    expected = (a.float() @ b.float()).half()
    torch.testing.assert_close(c, F.leaky_relu(expected) if activation else expected, atol=1e-2, rtol=1e-2)
    assert kernels(session) == ["triton::product"]
    row = next(row for row in session.trace if row.signature.name == "triton::product")
    tuned = product.best_config.kwargs
    padded = math.prod(
        tuned[side] * math.ceil(size / tuned[side]) for side, size in (("BM", 96), ("BN", 112), ("BK", 80))
    )
    assert row.signature.flops == 2 * padded
    assert dict(row.signature.detail)["precision"] == "fp16"
    assert alarms(session) == []


# ---------------------------------------------------------------------------------------------- dropout


@triton.jit
def seeded_dropout(x_ptr, out_ptr, n, p, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    x = tl.load(x_ptr + at, mask=inside)
    kept = tl.rand(seed, at) > p
    tl.store(out_ptr + at, tl.where(kept, x / (1 - p), 0.0), mask=inside)


def philox(seed: int, offset: int) -> float:
    """The first number of Philox-4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011)."""
    low = 0xFFFFFFFF
    counter, key = [offset, 0, 0, 0], [seed & low, seed >> 32]
    for _ in range(10):
        first, second = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [(second >> 32) ^ counter[1] ^ key[0], second & low, (first >> 32) ^ counter[3] ^ key[1], first & low]
        key = [(key[0] + 0x9E3779B9) & low, (key[1] + 0xBB67AE85) & low]
    signed = counter[0] - (1 << 32) if counter[0] >> 31 else counter[0]
    return (-signed - 1 if signed < 0 else signed) * 4.6566127342e-10


def test_low_memory_dropout(session):
    x = torch.randn(500, device="cuda")
    out, again, other = (torch.empty_like(x) for _ in range(3))
    for result, seed in ((out, 123), (again, 123), (other, 512)):
        seeded_dropout[(2,)](x, result, 500, 0.5, seed, BLOCK=256)
    kept = torch.tensor([philox(123, at) > 0.5 for at in range(500)])
    torch.testing.assert_close(out.cpu(), torch.where(kept, 2 * x.cpu(), 0.0))
    assert torch.equal(out, again)
    assert not torch.equal(out, other)
    assert kernels(session) == 3 * ["triton::seeded_dropout"]
    assert alarms(session) == []


# ---------------------------------------------------------------------------------------------- layer norm


@triton.jit
def norm_forward(x_ptr, y_ptr, w_ptr, b_ptr, mean_ptr, rstd_ptr, stride, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    x_ptr += row * stride
    y_ptr += row * stride
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + at, mask=at < n, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / n
    squares = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + at, mask=at < n, other=0.0).to(tl.float32)
        x = tl.where(at < n, x - mean, 0.0)
        squares += x * x
    rstd = 1 / tl.sqrt(tl.sum(squares, axis=0) / n + eps)
    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, rstd)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < n
        x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
        y = (x - mean) * rstd * tl.load(w_ptr + at, mask=inside) + tl.load(b_ptr + at, mask=inside)
        tl.store(y_ptr + at, y, mask=inside)


@triton.jit
def norm_backward(
    dx_ptr, dy_ptr, dw_ptr, db_ptr, x_ptr, w_ptr, mean_ptr, rstd_ptr, lock_ptr, stride, n,
    GROUPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < n
    x = tl.load(x_ptr + row * stride + at, mask=inside, other=0).to(tl.float32)
    dy = tl.load(dy_ptr + row * stride + at, mask=inside, other=0).to(tl.float32)
    w = tl.load(w_ptr + at, mask=inside).to(tl.float32)
    mean, rstd = tl.load(mean_ptr + row), tl.load(rstd_ptr + row)
    normal = tl.where(inside, (x - mean) * rstd, 0.0)
    wdy = tl.where(inside, w * dy, 0.0)
    dx = (wdy - (normal * (tl.sum(normal * wdy, axis=0) / n) + tl.sum(wdy, axis=0) / n)) * rstd
    tl.store(dx_ptr + row * stride + at, dx, mask=inside)
    # Sums of the weights' gradients, one a group of rows, each under a lock; who comes first overwrites.
    group = row % GROUPS
    lock = lock_ptr + group
    count = lock_ptr + GROUPS + group
    dw_at = dw_ptr + group * n + at
    db_at = db_ptr + group * n + at
    dw, db = dy * normal, dy
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    if tl.load(count) == 0:
        tl.atomic_xchg(count, 1)
    else:
        dw += tl.load(dw_at, mask=inside)
        db += tl.load(db_at, mask=inside)
    tl.store(dw_at, dw, mask=inside)
    tl.store(db_at, db, mask=inside)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, b, eps):
        y = torch.empty_like(x)
        mean, rstd = (torch.empty(len(x), device=x.device) for _ in range(2))
        norm_forward[(len(x),)](x, y, w, b, mean, rstd, x.stride(0), x.shape[1], eps, BLOCK=64)
        ctx.save_for_backward(x, w, mean, rstd)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, w, mean, rstd = ctx.saved_tensors
        groups, n = 4, x.shape[1]
        dx = torch.empty_like(dy)
        dw, db = (torch.empty(groups, n, device=x.device) for _ in range(2))
        locks = torch.zeros(2 * groups, dtype=torch.int32, device=x.device)
        norm_backward[(len(x),)](
            dx, dy, dw, db, x, w, mean, rstd, locks, x.stride(0), n, GROUPS=groups, BLOCK=triton.next_power_of_2(n)
        )
        return dx, dw.sum(0), db.sum(0), None


def test_layer_norm_forward_and_backward(session):
    x = torch.randn(13, 151, device="cuda", requires_grad=True)
    w, b = torch.rand(151, device="cuda", requires_grad=True), torch.rand(151, device="cuda", requires_grad=True)
    dy = torch.randn_like(x)
    y = Norm.apply(x, w, b, 1e-5)
    y.backward(dy)
    got = [tensor.grad for tensor in (x, w, b)]
    expected = F.layer_norm(x, (151,), w, b, 1e-5)
    torch.testing.assert_close(y, expected)
    for found, wanted in zip(got, torch.autograd.grad(expected, (x, w, b), dy), strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)
    assert kernels(session) == ["triton::norm_forward", "triton::norm_backward"]
    assert alarms(session) == []


# ---------------------------------------------------------------------------------------------- fused attention


@triton.jit
def attention(
    q_ptr, k_ptr, v_ptr, out_ptr, scale, stride_head, stride_row, length,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    block, head = tl.program_id(0), tl.program_id(1)
    base = head * stride_head
    rows = block * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    q_at = q_ptr + base + rows[:, None] * stride_row + d[None, :]
    q = tl.load(q_at, mask=rows[:, None] < length, other=0.0)
    highest = tl.full([BM], float("-inf"), dtype=tl.float32)
    weight = tl.zeros([BM], dtype=tl.float32)
    total = tl.zeros([BM, D], dtype=tl.float32)
    end = (block + 1) * BM if CAUSAL else length
    for start in range(0, end, BN):
        columns = start + tl.arange(0, BN)
        k_at = k_ptr + base + columns[None, :] * stride_row + d[:, None]
        k = tl.load(k_at, mask=columns[None, :] < length, other=0.0)
        scores = tl.dot(q, k) * scale * 1.44269504
        seen = columns[None, :] < length
        if CAUSAL:
            seen = seen and (rows[:, None] >= columns[None, :])
        scores = tl.where(seen, scores, float("-inf"))
        peak = tl.maximum(highest, tl.max(scores, 1))
        p = tl.math.exp2(scores - peak[:, None])
        shrink = tl.math.exp2(highest - peak)
        weight = weight * shrink + tl.sum(p, 1)
        v_at = v_ptr + base + columns[:, None] * stride_row + d[None, :]
        v = tl.load(v_at, mask=columns[:, None] < length, other=0.0)
        total = tl.dot(p.to(v.dtype), v, total * shrink[:, None])
        highest = peak
    out = total / weight[:, None]
    at = out_ptr + base + rows[:, None] * stride_row + d[None, :]
    tl.store(at, out.to(out_ptr.dtype.element_ty), mask=rows[:, None] < length)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_fused_attention(session, causal, dtype):
    q, k, v = (torch.randn(1, 2, 72, 32, device="cuda", dtype=dtype) for _ in range(3))
    out = torch.empty_like(q)
    attention[(triton.cdiv(72, 32), 2)](
        q, k, v, out, 32**-0.5, q.stride(1), q.stride(2), 72, D=32, BM=32, BN=16, CAUSAL=causal
    )
    expected = F.scaled_dot_product_attention(q.float(), k.float(), v.float(), is_causal=causal).to(dtype)
    torch.testing.assert_close(out, expected, atol=2e-2, rtol=2e-2)
    assert kernels(session) == ["triton::attention"]
    row = next(row for row in session.trace if row.signature.name == "triton::attention")
    assert dict(row.signature.detail)["precision"] == ("fp16" if dtype is torch.float16 else "bf16")
    assert alarms(session) == []
